"""Several collectives in one call."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from tests.rank_functions.values import empty, me, mine, size


def all_reduce_coalesced():
    tensors = [mine(2), mine(3, 2), mine(1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(tensors)
    return tensors


def all_reduce_coalesced_max_async():
    tensors = [mine(2), mine(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = dist.all_reduce_coalesced(tensors, dist.ReduceOp.MAX, async_op=True)
    if hasattr(work, "wait"):
        work.wait()
    return tensors


def all_gather_coalesced():
    got = [[empty(2), empty(3)] for _ in range(size())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_coalesced(got, [mine(2), mine(3)])
    return got


def manager_of_all_reduces():
    tensors = [mine(2), mine(3, 2), mine(1)]
    with dist._coalescing_manager():
        for x in tensors:
            dist.all_reduce(x)
    return tensors


def manager_of_all_reduces_async():
    tensors = [mine(2), mine(3, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    return tensors


def manager_of_all_gathers():
    wholes = [empty(size() * 2), empty(size() * 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(wholes[0], mine(2))
        dist.all_gather_into_tensor(wholes[1], mine(3))
    manager.wait()
    return wholes


def manager_of_reduce_scatters():
    parts = [empty(2), empty(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.reduce_scatter_tensor(parts[0], mine(size() * 2))
        dist.reduce_scatter_tensor(parts[1], mine(size() * 3))
    manager.wait()
    return parts


def nothing_in_the_manager():
    with dist._coalescing_manager():
        pass
    x = torch.tensor([float(me())])
    dist.all_reduce(x)
    return x
