"""Tensors that are not laid out row after row."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.rank_functions.values import empty, me, mine, size


def _refused(act):
    """What act returns, or the word "refused" where torch raises."""
    try:
        return act()
    except (ValueError, RuntimeError):
        return "refused"


def _turned():
    return mine(3, 2).t()


def _every_second():
    return mine(6)[::2]


def send_transposed():
    if me() == 0 and size() > 1:
        return _refused(lambda: dist.send(_turned(), 1))


def recv_transposed():
    if me() == 0 and size() > 1:
        return _refused(lambda: dist.recv(_turned(), 1))


def recv_from_any_strided():
    if me() == 0:
        return _refused(lambda: dist.recv(_every_second()))


def all_reduce_transposed():
    def act():
        x = _turned()
        dist.all_reduce(x)
        return x

    return _refused(act)


def all_reduce_with_gaps_():
    def act():
        x = _every_second()
        dist.all_reduce(x)
        return x

    return _refused(act)


def broadcast_transposed():
    def act():
        x = _turned()
        dist.broadcast(x, 0)
        return x

    return _refused(act)


def all_gather_transposed():
    def act():
        got = [empty(2, 3) for _ in range(size())]
        dist.all_gather(got, _turned())
        return got

    return _refused(act)


def all_gather_into_transposed():
    def act():
        got = [empty(3, 2).t() for _ in range(size())]
        dist.all_gather(got, mine(2, 3))
        return got

    return _refused(act)


def all_gather_into_tensor_transposed():
    def act():
        whole = empty(size() * 2, 3)
        dist.all_gather_into_tensor(whole, _turned())
        return whole

    return _refused(act)


def reduce_scatter_tensor_transposed():
    def act():
        x = empty(2, 3)
        dist.reduce_scatter_tensor(x, mine(3, 2 * size()).t())
        return x

    return _refused(act)


def all_to_all_single_transposed():
    def act():
        x = empty(size(), 2)
        dist.all_to_all_single(x, mine(2, size()).t())
        return x

    return _refused(act)


def channels_last():
    x = mine(1, 2, 3, 3).to(memory_format=torch.channels_last)

    def act():
        dist.all_reduce(x)
        return x

    return _refused(act)
