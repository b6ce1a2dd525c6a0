"""Python objects instead of tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.rank_functions.values import me, mine, size


def _thing(rank: int):
    return {"rank": rank, "text": "x" * (rank + 1), "tensor": mine(2, rank=rank)}


def all_gather_object():
    got = [None] * size()
    dist.all_gather_object(got, _thing(me()))
    return got


def broadcast_object_list():
    got = [_thing(me()), me() * 2, None if me() else "from rank 0"]
    dist.broadcast_object_list(got, src=0)
    return got


def gather_object():
    got = [None] * size() if me() == size() - 1 else None
    dist.gather_object(_thing(me()), got, dst=size() - 1)
    return got


def scatter_object_list():
    got = [None]
    things = [_thing(r) for r in range(size())] if me() == 0 else None
    dist.scatter_object_list(got, things, src=0)
    return got


def send_and_recv_object_list():
    got = [None, None]
    if me() == 0 and size() > 1:
        dist.send_object_list([_thing(0), "second"], dst=1)
    elif me() == 1:
        dist.recv_object_list(got, src=0)
    return got


def objects_in_a_sub_group():
    group = dist.new_group([0, size() - 1]) if size() > 1 else dist.group.WORLD
    got = [None] * dist.get_world_size(group) if me() in (0, size() - 1) else None
    if got is not None:
        dist.all_gather_object(got, torch.tensor(me()), group=group)
    return got
