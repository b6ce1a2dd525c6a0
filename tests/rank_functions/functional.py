"""Functional collectives: they return new tensors, and some can be differentiated."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as distnn

from tests.rank_functions.values import me, mine, size


def _everyone():
    return dist.group.WORLD


def all_reduce():
    x = mine(2, 3)
    total = funcol.all_reduce(x, "sum", _everyone())
    return total + 0, x


def all_reduce_then_wait():
    total = funcol.all_reduce(mine(3), "max", _everyone())
    return funcol.wait_tensor(total)


def all_reduce_by_list_of_ranks():
    return funcol.all_reduce(mine(3), "sum", list(range(size()))) + 0


def all_reduce_coalesced():
    totals = funcol.all_reduce_coalesced([mine(2), mine(3)], "sum", _everyone())
    return [t + 0 for t in totals]


def all_gather_tensor():
    return [funcol.all_gather_tensor(mine(2, 3), dim, _everyone()) + 0 for dim in (0, 1)]


def all_gather_into_tensor_coalesced():
    wholes = funcol.all_gather_into_tensor_coalesced([mine(2), mine(3)], _everyone())
    return [t + 0 for t in wholes]


def reduce_scatter_tensor():
    n = size()
    return [
        funcol.reduce_scatter_tensor(mine(2 * n, n), "sum", dim, _everyone()) + 0
        for dim in (0, 1)
    ]


def reduce_scatter_tensor_coalesced():
    parts = funcol.reduce_scatter_tensor_coalesced(
        [mine(size() * 2), mine(size() * 3)], "sum", [0, 0], _everyone()
    )
    return [t + 0 for t in parts]


def all_to_all_single():
    return funcol.all_to_all_single(mine(size() * 2, 2), None, None, _everyone()) + 0


def all_to_all_single_uneven():
    splits = [(me() + r) % 3 for r in range(size())]
    return funcol.all_to_all_single(mine(sum(splits), 2), splits, splits, _everyone()) + 0


def broadcast():
    return funcol.broadcast(mine(3), size() - 1, _everyone()) + 0


def permute_tensor():
    turned = [(r + 1) % size() for r in range(size())]
    return funcol.permute_tensor(mine(3), turned, _everyone()) + 0


def all_gather_single_autograd():
    x = mine(2, 3).requires_grad_()
    whole = funcol.all_gather_tensor_autograd(x, 0, _everyone())
    (whole * (me() + 1)).sum().backward()
    return x.grad


def reduce_scatter_single_autograd():
    x = mine(size() * 2, 3).requires_grad_()
    part = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, _everyone())
    (part * (me() + 1)).sum().backward()
    return x.grad


def all_to_all_single_autograd():
    splits = [(me() + r) % 3 for r in range(size())]
    x = mine(sum(splits), 2).requires_grad_()
    y = funcol.all_to_all_single_autograd(x, splits, splits, _everyone())
    (y * (me() + 1)).sum().backward()
    return x.grad, y.detach()


def nn_all_reduce():
    x = mine(3).requires_grad_()
    y = distnn.all_reduce(x.clone())
    (y * (me() + 1)).sum().backward()
    return y.detach(), x.grad


def nn_all_gather():
    x = mine(3).requires_grad_()
    parts = distnn.all_gather(x)
    (torch.stack(parts) * (me() + 1)).sum().backward()
    return x.grad


def nn_reduce_scatter():
    x = [mine(3).requires_grad_() for _ in range(size())]
    y = distnn.reduce_scatter(torch.empty(3), x)
    (y * (me() + 1)).sum().backward()
    return y.detach(), [t.grad for t in x]


def nn_all_to_all_single():
    x = mine(size(), 2).requires_grad_()
    y = distnn.all_to_all_single(torch.empty(size(), 2), x)
    (y * (me() + 1)).sum().backward()
    return y.detach(), x.grad


def nn_broadcast():
    x = mine(3).requires_grad_()
    y = distnn.broadcast(x.clone(), 0)
    (y * (me() + 1)).sum().backward()
    return y.detach(), x.grad
