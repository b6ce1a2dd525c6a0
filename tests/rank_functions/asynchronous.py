"""async_op=True, works and futures."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.rank_functions.values import empty, me, mine, size


def all_reduce_then_wait():
    x = mine(3)
    work = dist.all_reduce(x, async_op=True)
    other = torch.ones(2).sum()
    answer = work.wait()
    return x, other, answer


def several_then_wait_backwards():
    tensors = [mine(2) + k for k in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in reversed(works):
        work.wait()
    return tensors


def every_collective():
    n = size()
    reduced, sent = mine(3), mine(3)
    gathered, scattered = empty(n * 3), empty(3)
    exchanged, listed = empty(n, 3), [empty(3) for _ in range(n)]
    works = [
        dist.reduce(reduced, 0, async_op=True),
        dist.broadcast(sent, n - 1, async_op=True),
        dist.all_gather_into_tensor(gathered, mine(3), async_op=True),
        dist.reduce_scatter_tensor(scattered, mine(n * 3), async_op=True),
        dist.all_to_all_single(exchanged, mine(n, 3), async_op=True),
        dist.all_gather(listed, mine(3), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    return reduced if me() == 0 else None, sent, gathered, scattered, exchanged, listed


def poll_until_complete():
    x = mine(3)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x


def is_completed_after_wait():
    work = dist.all_reduce(mine(3), async_op=True)
    work.wait()
    return work.is_completed(), work.is_success()


def result_of_a_work():
    work = dist.all_reduce(mine(3), async_op=True)
    work.wait()
    return work.result()


def future_wait():
    future = dist.all_reduce(mine(3), async_op=True).get_future()
    return future.wait()


def future_then():
    work = dist.all_reduce(mine(3), async_op=True)
    halved = work.get_future().then(lambda f: f.value()[0] / 2)
    return halved.wait()


def future_then_twice():
    work = dist.all_reduce(mine(3), async_op=True)
    first = work.get_future().then(lambda f: f.value()[0] / 2)
    second = first.then(lambda f: f.value() + 1)
    return second.wait(), first.done()


def future_callback_runs_before_wait_returns():
    seen = []
    work = dist.all_reduce(mine(3), async_op=True)
    chained = work.get_future().then(lambda f: seen.append(f.value()[0].clone()))
    chained.wait()
    return seen


def future_of_a_finished_work():
    work = dist.all_reduce(mine(3), async_op=True)
    work.wait()
    return work.get_future().wait()


def futures_collected():
    futures = [dist.all_reduce(mine(2) + k, async_op=True).get_future() for k in range(3)]
    return torch.futures.wait_all(futures)


def second_wait_changes_nothing():
    x = mine(3)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.add_(1)
    work.wait()
    return x
