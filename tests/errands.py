"""What ranks do in the tests of real ranks. No pytest here, since each rank imports it."""

import ctypes
import os
import re
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

seen = []  # what this rank's process has been given so far


class Custom(Exception):
    """With an __init__ that wants more than a message."""

    def __init__(self, number, text):
        super().__init__(f"{text} {number}")
        self.number = number

    def __reduce__(self):
        return Custom, (self.number, "again")


def rank():
    return dist.get_rank()


def total(x):
    dist.all_reduce(x)
    return x


def remember(value):
    seen.append(value)
    return os.getpid(), id(dist.group.WORLD), list(seen)


def surroundings():
    return {
        "environ": {n: os.environ.get(n) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
        "threads": torch.get_num_threads(),
        "device": str(torch.get_default_device()),
        "backend": dist.get_backend(),
        "directory": os.getcwd(),
        "session": os.getsid(0),
        "pid": os.getpid(),
    }


def chatter():
    print("python", dist.get_rank())
    print("error", file=sys.stderr)
    ctypes.CDLL(None).puts(b"C library")
    os.write(1, b"descriptor\n")
    subprocess.run(["echo", "child process"], check=True)
    print("no newline", end="")


def flood(megabytes):
    for _ in range(megabytes):
        print("x" * 1_000_000)
    return "done"


def raise_on(bad, error=None):
    print("before")
    if dist.get_rank() == bad:
        raise error or ValueError("no such luck")
    dist.all_reduce(torch.ones(2))


def raise_in_torch(bad):
    if dist.get_rank() == bad:
        torch.ones(3) + torch.ones(4)
    dist.barrier()


def leave_on(bad, how):
    if dist.get_rank() == bad:
        how()
    dist.all_reduce(torch.ones(2))


def return_early(early):
    if dist.get_rank() != early:
        dist.all_reduce(torch.ones(2))


def sleep_on(bad):
    if dist.get_rank() == bad:
        time.sleep(600)
    dist.all_reduce(torch.ones(2))


def hold_the_lock_on(bad):
    if dist.get_rank() == bad:
        re.match("(a+)+$", "a" * 60 + "b")  # native code, and Python's lock for years
    dist.all_reduce(torch.ones(2))


def everyone_receives():
    dist.recv(torch.ones(2), (dist.get_rank() + 1) % dist.get_world_size())


def destroy_group():
    dist.destroy_process_group()


def give_a_lock(bad):
    return threading.Lock() if dist.get_rank() == bad else 1


def ring_of_sends(steps, count):
    """Each rank sends `count` float64 to the next, `steps` times."""
    me, n = dist.get_rank(), dist.get_world_size()
    out, into = torch.ones(count, dtype=torch.float64), torch.empty(count).double()
    for _ in range(steps):
        sending = dist.isend(out, (me + 1) % n)
        dist.recv(into, (me - 1) % n)
        sending.wait()


def collectives():
    n = dist.get_world_size()
    x, many = torch.ones(8), torch.ones(8 * n)
    dist.all_reduce(x)
    dist.all_gather_into_tensor(many, x)
    dist.reduce_scatter_tensor(x, many)
    dist.all_gather([torch.empty(8) for _ in range(n)], x)
    dist.broadcast(x, 1)
    dist.barrier()


def collective_in_halves():
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = halves[dist.get_rank() // 2]
    dist.all_reduce(torch.ones(8), group=half)
    if dist.get_rank() % 2 == 0:
        dist.send(torch.ones(3), group=half, group_dst=1)
    else:
        dist.recv(torch.ones(3), group=half, group_src=0)


def train_with_ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()


def compute():
    return (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()


def every_dtype(names):
    for name in names:
        x = torch.zeros(5, dtype=getattr(torch, name))
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)


def nest():
    from course import World

    World(2, on="gloo")


def functional_in_halves():
    from torch.distributed import _functional_collectives as functional

    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = halves[dist.get_rank() // 2]
    x = functional.all_reduce(torch.ones(8), "sum", half) + 1
    x = functional.all_gather_tensor(x, 0, half) + 1
    return functional.reduce_scatter_tensor(x, "sum", 0, half) + 1


SIZES = [[1, 2, 0, 4], [0, 0, 0, 0], [3, 0, 5, 1], [7, 1, 1, 0]]  # rows, [from][to]


def uneven_exchange():
    me = dist.get_rank()
    sends, receives = SIZES[me], [row[me] for row in SIZES]
    rows = torch.ones(sum(sends), 3, dtype=torch.float64)
    came = torch.empty(sum(receives), 3, dtype=torch.float64)
    dist.all_to_all_single(came, rows, receives, sends)


def exchange_of_lists():
    rows = torch.ones(4, 5, dtype=torch.float64)
    dist.all_to_all(list(torch.empty(4, 5).double().split(1)), list(rows.split(1)))
