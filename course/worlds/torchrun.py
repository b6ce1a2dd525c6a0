"""The same rank function on many machines: torchrun starts the ranks, not we.

A file that ends in

    if __name__ == "__main__":
        run = torchrun_main(step, x)
        if run:
            print(run.results)

runs on any number of nodes:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 file.py
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from course.worlds import parcel
from course.worlds.quiet import ignore_new_names
from course.worlds.run import Run

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def torchrun_main(function, *args) -> Run | None:
    """Run `function(*args)` as the rank that torchrun made this process.

    nccl where this node has a GPU for each of its ranks, else gloo. The rank's GPU is
    the default device. Returns the Run of all ranks on rank 0, None on the others.
    An exception goes through, and torchrun then ends the other ranks.

    Raises RuntimeError where this process was not started by torchrun.
    """
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"{missing[0]} is not set, so torchrun has not started this process: write "
            "torchrun --standalone --nproc-per-node 2 FILE"
        )
    ignore_new_names()
    backend = _join()
    dist.barrier()
    start = time.perf_counter()
    value = function(*args)
    if backend == "nccl":
        torch.cuda.synchronize()
    mine = parcel.pack(value), time.perf_counter() - start
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, everyone)
    dist.destroy_process_group()
    return _as_run(backend, everyone) if everyone else None


def _join() -> str:
    """Set this rank's device and threads and join the process group."""
    here, local = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    if dist.is_nccl_available() and torch.cuda.device_count() >= here:
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        torch.set_default_device(device)
        dist.init_process_group("nccl", device_id=device)
        return "nccl"
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // here))
    dist.init_process_group("gloo")
    return "gloo"


def _as_run(backend: str, everyone) -> Run:
    seconds = tuple(seconds for _, seconds in everyone)
    return Run(
        world=backend,
        results=[parcel.unpack(value) for value, _ in everyone],
        seconds=max(seconds),
        seconds_per_rank=seconds,
    )
