"""Groups of some ranks, and meshes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.rank_functions.values import empty, me, mine, size


def _sum_in(group):
    x = mine(2)
    dist.all_reduce(x, group=group)
    return x


def new_group_of_the_even():
    evens = list(range(0, size(), 2))
    group = dist.new_group(evens)
    if me() not in evens:
        return group is dist.GroupMember.NON_GROUP_MEMBER
    return _sum_in(group), dist.get_rank(group), dist.get_process_group_ranks(group)


def a_rank_outside_gets_nothing_done():
    group = dist.new_group([0])
    return _sum_in(group), dist.get_rank(group), dist.get_world_size(group)


def overlapping_groups():
    pairs = [(r, (r + 1) % size()) for r in range(size())] if size() > 2 else []
    groups = {pair: dist.new_group(sorted(pair)) for pair in pairs}
    x = mine(2)
    for pair, group in groups.items():
        if me() in pair:
            dist.all_reduce(x, group=group)
    return x


def two_groups_of_the_same_ranks():
    first, second = dist.new_group(), dist.new_group()
    a, b = mine(2), mine(2) + 1
    works = [
        dist.all_reduce(a, group=first, async_op=True),
        dist.all_reduce(b, group=second, async_op=True),
    ]
    for work in works[::-1]:
        work.wait()
    return a, b


def ranks_are_sorted_unless_told():
    group = dist.new_group(list(range(size()))[::-1])
    got = empty(size())
    dist.all_gather_into_tensor(got, mine(1), group=group)
    return got, dist.get_rank(group)


def global_and_group_ranks():
    group = dist.new_group(list(range(1, size()))) if size() > 1 else None
    if not me() or group is None:
        return None
    return (
        [dist.get_global_rank(group, r) for r in range(size() - 1)],
        [dist.get_group_rank(group, r) for r in range(1, size())],
    )


def root_in_global_ranks():
    group = dist.new_group(list(range(1, size()))) if size() > 1 else None
    x = mine(2)
    if me():
        dist.broadcast(x, src=size() - 1, group=group)
    return x


def root_in_group_ranks():
    group = dist.new_group(list(range(1, size()))) if size() > 1 else None
    x, y = mine(2), mine(2)
    if me():
        dist.broadcast(x, group=group, group_src=0)
        dist.reduce(y, group=group, group_dst=size() - 2)
    return x, y if me() == size() - 1 else None


def messages_in_group_ranks():
    group = dist.new_group(list(range(1, size()))) if size() > 2 else None
    x = empty(2)
    if group is not None and me() == 1:
        dist.send(mine(2), group=group, group_dst=size() - 2)
    elif group is not None and me() == size() - 1:
        dist.recv(x, group=group, group_src=0)
    return x


def scatter_and_gather_in_group_ranks():
    group = dist.new_group(list(range(1, size()))) if size() > 1 else None
    if not me():
        return None
    x, last, n = empty(2), size() - 2, size() - 1
    pieces = [mine(2) + r for r in range(n)] if me() == size() - 1 else None
    dist.scatter(x, pieces, group=group, group_src=last)
    got = [empty(2) for _ in range(n)] if me() == 1 else None
    dist.gather(x, got, group=group, group_dst=0)
    return x, got


def new_subgroups():
    per_group = 2 if size() % 2 == 0 else size()
    mine_, groups = dist.new_subgroups(per_group)
    return _sum_in(mine_), len(groups)


def new_subgroups_by_enumeration():
    everyone = list(range(size()))
    cut = [part for part in (everyone[::2], everyone[1::2]) if part]
    group, groups = dist.new_subgroups_by_enumeration(cut)
    return _sum_in(group), len(groups)


def destroy_a_group_and_make_another():
    group = dist.new_group()
    first = _sum_in(group)
    dist.destroy_process_group(group)
    return first, _sum_in(dist.new_group())


def barrier_in_a_group():
    half = list(range((size() + 1) // 2))
    group = dist.new_group(half)
    if me() in half:
        dist.barrier(group=group)
    return dist.get_world_size(group) if me() in half else None


def mesh_of_one_axis():
    mesh = init_device_mesh("cpu", (size(),))
    return _sum_in(mesh.get_group()), mesh.get_local_rank(), mesh.shape


def mesh_of_two_axes():
    shape = (2, size() // 2) if size() % 2 == 0 else (1, size())
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    sums = [_sum_in(mesh.get_group(axis)) for axis in ("dp", "tp")]
    part = mesh["tp"]
    return sums, mesh.get_coordinate(), part.mesh, _sum_in(part.get_group())


def mesh_flattened():
    shape = (2, size() // 2) if size() % 2 == 0 else (1, size())
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    flat = mesh._flatten("all")
    return _sum_in(flat.get_group()), flat.mesh


def mesh_given_rank_by_rank():
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", torch.arange(size()).flip(0))
    got = empty(size())
    dist.all_gather_into_tensor(got, mine(1), group=mesh.get_group())
    return got, mesh.get_local_rank()
