"""Messages from one rank to another."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.rank_functions.values import empty, me, mine, size


def _others() -> list[int]:
    return [r for r in range(size()) if r != me()]


def send_and_recv_along_a_line():
    received = mine(3)
    if me() > 0:
        dist.recv(received, me() - 1)
    if me() < size() - 1:
        dist.send(received + 10, me() + 1)
    return received


def recv_says_who_sent():
    if size() < 2:
        return None
    x = empty(2)
    if me() == 0:
        return [dist.recv(x, r) for r in _others()], x
    dist.send(mine(2), 0)
    return x


def recv_from_any_rank():
    if me() != 0:
        dist.send(mine(2), 0)
        return None
    got = {}
    for _ in _others():
        x = empty(2)
        got[dist.recv(x)] = x
    return [got[r] for r in sorted(got)]


def isend_and_irecv_around_a_ring():
    if size() < 2:
        return None
    left, right, x = (me() - 1) % size(), (me() + 1) % size(), empty(2, 3)
    works = dist.isend(mine(2, 3), right), dist.irecv(x, left)
    for work in works:
        work.wait()
    return x


def isend_waited_last():
    if size() < 2:
        return None
    x = empty(4)
    work = dist.isend(mine(4), me() ^ 1) if me() ^ 1 < size() else None
    if work:
        dist.recv(x, me() ^ 1)
        work.wait()
    return x


def messages_of_one_pair_stay_in_order():
    got = [empty(1) for _ in range(4)]
    if me() == 0 and size() > 1:
        for k in range(4):
            dist.send(torch.tensor([float(k)]), 1)
    elif me() == 1:
        for x in got:
            dist.recv(x, 0)
    return got


def tags_pick_the_message():
    first, second = empty(1), empty(1)
    if me() == 0 and size() > 1:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (7, 8)]
        for work in works:
            work.wait()
    elif me() == 1:
        later = dist.irecv(first, 0, tag=8)
        dist.recv(second, 0, tag=7)
        later.wait()
    return first, second


def batch_around_a_ring():
    if size() < 2:
        return None
    x = empty(3)
    ops = [
        dist.P2POp(dist.isend, mine(3), (me() + 1) % size()),
        dist.P2POp(dist.irecv, x, (me() - 1) % size()),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return x


def batch_with_everyone():
    if size() < 2:
        return None
    got = {r: empty(2) for r in _others()}
    ops = [dist.P2POp(dist.isend, mine(2) + 10 * r, r) for r in _others()]
    ops += [dist.P2POp(dist.irecv, got[r], r) for r in _others()]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return list(got.values())


def empty_message():
    x = torch.empty(0)
    if me() == 0 and size() > 1:
        dist.send(x, 1)
    elif me() == 1:
        dist.recv(x, 0)
    return x


def shape_may_differ_if_the_number_of_elements_does_not():
    x = empty(6)
    if me() == 0 and size() > 1:
        dist.send(mine(2, 3), 1)
    elif me() == 1:
        dist.recv(x, 0)
    return x


def bfloat16_and_bool_messages():
    got = []
    for dtype in (torch.bfloat16, torch.bool, torch.int64, torch.complex64):
        x = empty(3, dtype=dtype)
        if me() == 0 and size() > 1:
            dist.send(mine(3, dtype=dtype), 1)
        elif me() == 1:
            dist.recv(x, 0)
        got.append(x)
    return got


def the_sender_may_change_its_tensor_after_wait():
    x = mine(3)
    if me() == 0 and size() > 1:
        work = dist.isend(x, 1)
        work.wait()
        x.zero_()
        dist.send(x, 1)
    elif me() == 1:
        first, second = empty(3), empty(3)
        dist.recv(first, 0)
        dist.recv(second, 0)
        return first, second
    return x


def send_to_oneself_is_refused():
    try:
        dist.send(mine(1), me())
    except ValueError as error:
        return str(error)


def recv_into_a_view():
    x = empty(4, 2)
    if me() == 0 and size() > 1:
        dist.send(mine(2), 1)
    elif me() == 1:
        dist.recv(x[2], 0)
    return x
