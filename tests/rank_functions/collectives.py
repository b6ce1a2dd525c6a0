"""Every collective, in its plain form."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from tests.rank_functions.values import empty, me, mine, size


def all_reduce():
    x = mine(2, 3)
    returned = dist.all_reduce(x)
    return x, returned


def all_reduce_of_a_number():
    x = torch.tensor(float(me() + 1))
    dist.all_reduce(x)
    return x


def all_reduce_of_nothing():
    x = torch.empty(0)
    dist.all_reduce(x)
    return x


def reduce_to_each_root():
    got = []
    for root in range(size()):
        x = mine(4)
        dist.reduce(x, root)
        got.append(x if me() == root else None)  # elsewhere gloo leaves half-sums
    return got


def broadcast_from_each_root():
    got = [mine(2, 2) for _ in range(size())]
    for root, x in enumerate(got):
        dist.broadcast(x, root)
    return got


def broadcast_into_a_view():
    x = empty(4, 2)
    x[1] = mine(2)
    dist.broadcast(x[1], size() - 1)
    return x


def all_gather():
    got = [empty(2, 3) for _ in range(size())]
    dist.all_gather(got, mine(2, 3))
    return got


def all_gather_into_views_of_one_tensor():
    whole = empty(size(), 3)
    dist.all_gather(list(whole), mine(3))
    return whole


def all_gather_into_tensor_stacked():
    whole = empty(size(), 2, 3)
    dist.all_gather_into_tensor(whole, mine(2, 3))
    return whole


def all_gather_into_tensor_joined():
    whole = empty(size() * 2, 3)
    dist.all_gather_into_tensor(whole, mine(2, 3))
    return whole


def all_gather_into_tensor_in_place():
    whole = empty(size(), 3)
    whole[me()] = mine(3)
    dist.all_gather_into_tensor(whole, whole[me()])
    return whole


def gather_at_each_root():
    got = []
    for root in range(size()):
        places = [empty(3) for _ in range(size())] if me() == root else None
        dist.gather(mine(3), places, root)
        got.append(places)
    return got


def scatter_from_each_root():
    got = []
    for root in range(size()):
        pieces = [mine(3) + 10 * r for r in range(size())] if me() == root else None
        x = empty(3)
        dist.scatter(x, pieces, root)
        got.append(x)
    return got


def reduce_scatter():
    x = empty(3)
    dist.reduce_scatter(x, [mine(3) + 10 * r for r in range(size())])
    return x


def reduce_scatter_tensor_stacked():
    x = empty(2, 3)
    dist.reduce_scatter_tensor(x, mine(size(), 2, 3))
    return x


def reduce_scatter_tensor_joined():
    x = empty(2, 3)
    dist.reduce_scatter_tensor(x, mine(size() * 2, 3))
    return x


def reduce_scatter_tensor_in_place():
    whole = mine(size(), 3)
    dist.reduce_scatter_tensor(whole[me()], whole)
    return whole[me()]


def reduce_scatter_listed():
    x = empty(3)
    dist.reduce_scatter(x, list(mine(size(), 3)))
    return x


def all_to_all():
    got = [empty(2) for _ in range(size())]
    dist.all_to_all(got, [mine(2) + 10 * r for r in range(size())])
    return got


def all_to_all_of_different_sizes():
    got = [empty(r + 1) for r in range(size())]
    dist.all_to_all(got, [mine(me() + 1) + 10 * r for r in range(size())])
    return got


def all_to_all_of_different_sizes_by_messages():
    got = [empty(r + 1) for r in range(size())]
    got[me()] = mine(me() + 1) + 10 * me()
    works = []
    for r in range(size()):
        if r != me():
            works += [dist.isend(mine(me() + 1) + 10 * r, r), dist.irecv(got[r], r)]
    for work in works:
        work.wait()
    return got


def all_to_all_single_even():
    x = empty(size() * 2, 3)
    dist.all_to_all_single(x, mine(size() * 2, 3))
    return x


def all_to_all_single_uneven():
    """Rank i sends (i + j) mod 3 rows to rank j: some of them none."""
    splits = [(me() + r) % 3 for r in range(size())]
    x = empty(sum(splits), 2)
    dist.all_to_all_single(x, mine(sum(splits), 2), splits, splits)
    return x


def all_to_all_single_only_to_rank_0():
    sent = [2] + [0] * (size() - 1)
    received = [2] * size() if me() == 0 else [0] * size()
    x = empty(sum(received), 2)
    dist.all_to_all_single(x, mine(2, 2), received, sent)
    return x


def barrier():
    dist.barrier()
    return me()


def monitored_barrier():
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    return me()


def many_in_a_row():
    x = mine(3)
    for k in range(6):
        dist.all_reduce(x)
        dist.broadcast(x, k % size())
        x = x.remainder(5) + me()
    return x


def collectives_between_messages():
    x, y = mine(2), empty(2)
    if size() < 2:
        return x
    work = dist.isend(x, (me() + 1) % size())
    total = mine(2)
    dist.all_reduce(total)
    dist.recv(y, (me() - 1) % size())
    work.wait()
    return y, total


def of_a_tensor_that_needs_gradients():
    x = mine(3).requires_grad_()
    with torch.no_grad():
        dist.all_reduce(x)
    return x.detach()
