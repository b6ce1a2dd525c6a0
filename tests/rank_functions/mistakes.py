"""The mistakes that learners make. Each function is one, and should end with a report."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from course import World
from tests.rank_functions.values import me, size


def only_rank_0_reduces():
    if me() == 0:
        dist.all_reduce(torch.ones(4))


def only_rank_0_reduces_then_all_meet():
    if me() == 0:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def one_of_four_takes_another_way():
    if me() == 2:
        dist.send(torch.ones(1), 0)
    dist.all_reduce(torch.ones(4))


def both_send_first():
    dist.send(torch.ones(2), 1 - me())
    dist.recv(torch.ones(2), 1 - me())


def both_recv_first():
    dist.recv(torch.ones(2), 1 - me())
    dist.send(torch.ones(2), 1 - me())


def ring_of_sends():
    dist.send(torch.ones(2), (me() + 1) % size())
    dist.recv(torch.ones(2), (me() - 1) % size())


def wrong_tag():
    if me() == 0:
        dist.send(torch.ones(2), 1, tag=1)
    else:
        dist.recv(torch.ones(2), 0, tag=2)


def wrong_peer():
    if me() == 0:
        dist.send(torch.ones(2), 1)
    elif me() == 1:
        dist.recv(torch.ones(2), 2)


def other_shape():
    dist.all_reduce(torch.ones(4 + me()))


def other_dtype():
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if me() else torch.float32))


def other_root():
    dist.broadcast(torch.ones(4), src=me())


def other_op():
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if me() else dist.ReduceOp.SUM)


def other_order():
    x, y = torch.ones(2), torch.ones(2)
    if me():
        dist.all_reduce(x)
        dist.broadcast(y, 0)
    else:
        dist.broadcast(y, 0)
        dist.all_reduce(x)


def groups_in_another_order():
    first = dist.new_group()
    second = dist.new_group()
    for group in (first, second) if me() else (second, first):
        dist.all_reduce(torch.ones(2), group=group)


def send_in_another_group():
    pair = dist.new_group()
    if me() == 0:
        dist.send(torch.ones(2), 1, group=pair)
    else:
        dist.recv(torch.ones(2), 0)


def other_ranks_in_new_group():
    dist.new_group([0, 1] if me() else [0])


def new_group_of_rank_0_only():
    if me() == 0:
        dist.new_group([0, 1])


def new_group_of_rank_0_only_in_use():
    group = dist.new_group([0, 1]) if me() == 0 else None
    dist.all_reduce(torch.ones(2), group=group)


def isend_that_nobody_receives():
    if me() == 0:
        dist.isend(torch.ones(2), 1)


def send_that_nobody_receives():
    if me() == 0:
        dist.send(torch.ones(2), 1)


def irecv_that_nobody_answers():
    if me() == 0:
        dist.irecv(torch.ones(2), 1)


def recv_from_any_rank_that_nobody_answers():
    if me() == 0:
        dist.recv(torch.ones(2))


def asynchronous_and_never_joined():
    if me() == 0:
        dist.all_reduce(torch.ones(2), async_op=True)


def rank_1_returns_early():
    for step in range(3):
        if step == 1 and me() == 1:
            return
        dist.all_reduce(torch.ones(2))


def recv_with_the_wrong_size():
    if me() == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(2), 0)


def recv_with_the_wrong_dtype():
    if me() == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(3, dtype=torch.int32), 0)


def splits_that_do_not_agree():
    sends, receives = ([1, 3], [1, 2]) if me() == 0 else ([2, 2], [2, 2])
    x, y = torch.ones(sum(sends)), torch.ones(sum(receives))
    dist.all_to_all_single(y, x, receives, sends)


def list_too_short():
    dist.all_gather([torch.ones(2)], torch.ones(2))


def list_with_a_wrong_shape():
    dist.scatter(torch.ones(2), [torch.ones(2), torch.ones(3)] if me() == 0 else None)


def peer_that_is_not_there():
    dist.send(torch.ones(2), 5)


def transposed_send():
    if me() == 0:
        dist.send(torch.ones(2, 3).t(), 1)
    else:
        dist.recv(torch.ones(3, 2), 0)


def raises_while_the_other_waits():
    if me() == 1:
        raise ValueError("my own mistake")
    dist.all_reduce(torch.ones(2))


def raises_from_another():
    try:
        dist.barrier()
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("could not go on") from error


def raises_in_finally():
    try:
        if me() == 1:
            raise ValueError("the first")
        dist.all_reduce(torch.ones(2))
    finally:
        if me() == 0:
            raise KeyError("in finally")


def calls_in_finally():
    try:
        if me() == 1:
            raise ValueError("the first")
        dist.all_reduce(torch.ones(2))
    finally:
        dist.barrier()


def catches_everything_for_ever():
    while True:
        try:
            if me() == 1:
                raise ValueError("the first")
            dist.all_reduce(torch.ones(2))
        except:  # noqa: E722
            if me() == 1:
                raise


def raises_a_timeout():
    raise TimeoutError("of the reader's own")


def leaves_by_exit():
    if me() == 1:
        sys.exit(3)
    dist.barrier()


def polls_for_what_never_comes():
    if me() == 0:
        work = dist.irecv(torch.ones(2), 1)
        while not work.is_completed():
            pass


def both_poll_for_what_never_comes():
    work = dist.irecv(torch.ones(2), 1 - me())
    while not work.is_completed():
        time.sleep(0)


def polls_then_acts():
    """No mistake: the message comes, but only after the poller has sent one itself."""
    x = torch.zeros(2)
    if me() == 0:
        work = dist.irecv(x, 1)
        looks = sum(work.is_completed() for _ in range(100))
        dist.send(torch.ones(2), 1)
        work.wait()
        return looks, x
    dist.recv(x, 0)
    dist.send(x + 1, 0)
    return None


def endless_loop():
    if me() == 1:
        while True:
            pass
    dist.barrier()


def endless_loop_of_calls():
    while True:
        dist.all_reduce(torch.ones(2))


def nested_run():
    World(2).run(only_rank_0_reduces)
