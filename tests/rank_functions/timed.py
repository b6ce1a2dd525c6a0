"""Communication whose time and bytes have a closed form."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course import spend
from course.parallel.collectives import ring_all_reduce
from tests.rank_functions.values import me, size

MEMBER_BYTES = 8  # of a float64


def _buffer(nbytes: int) -> torch.Tensor:
    return torch.zeros(nbytes // MEMBER_BYTES, dtype=torch.float64)


def ring(nbytes):
    ring_all_reduce(_buffer(nbytes))


def message(nbytes, source=0, destination=1):
    if me() == source:
        dist.send(_buffer(nbytes), destination)
    elif me() == destination:
        dist.recv(_buffer(nbytes), source)


def pairs(nbytes, sources, destinations):
    """Several messages at once, sources[k] to destinations[k]."""
    works = []
    for source, destination in zip(sources, destinations, strict=True):
        if me() == source:
            works.append(dist.isend(_buffer(nbytes), destination))
        if me() == destination:
            works.append(dist.irecv(_buffer(nbytes), source))
    for work in works:
        work.wait()


def push_to_server(nbytes, at_once):
    """Rank 0 is the server; the others push their gradients to it."""
    if me():
        dist.send(_buffer(nbytes), 0)
        return
    workers = range(1, size())
    if at_once:
        for work in [dist.irecv(_buffer(nbytes), r) for r in workers]:
            work.wait()
    else:
        for r in workers:
            dist.recv(_buffer(nbytes), r)


def reduce_in_groups(nbytes, groups):
    """An all-reduce in each group that the rank is in, all of them begun at once."""
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    mine = [group for ranks, group in made if me() in ranks]
    works = [dist.all_reduce(_buffer(nbytes), group=g, async_op=True) for g in mine]
    for work in works:
        work.wait()


def reduce_and_compute(nbytes, compute_s, asynchronous):
    work = dist.all_reduce(_buffer(nbytes), async_op=asynchronous)
    spend(compute_s, "matrix product")
    if asynchronous:
        work.wait()


def compute_then_meet(compute_s):
    spend(compute_s)
    dist.barrier()


def compute_after(compute_s, late):
    """One rank comes later than the others to an all-reduce."""
    spend(compute_s if me() == late else 0.0)
    dist.all_reduce(_buffer(800))


def collective(name, nbytes):
    """One built-in collective with the whole buffer of nbytes."""
    n, whole = size(), _buffer(nbytes)
    piece = _buffer(nbytes // n)
    pieces = list(whole.chunk(n))
    root = me() == 0
    {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce": lambda: dist.reduce(whole, 0),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, piece),
        "gather": lambda: dist.gather(piece, pieces if root else None, 0),
        "scatter": lambda: dist.scatter(piece, pieces if root else None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "barrier": dist.barrier,
    }[name]()


def uneven_all_to_all(splits):
    """splits[i][j]: how many numbers rank i sends to rank j."""
    sends = splits[me()]
    receives = [row[me()] for row in splits]
    x, y = _buffer(8 * sum(sends)), _buffer(8 * sum(receives))
    dist.all_to_all_single(y, x, receives, sends)


def uneven_all_to_all_of(ranks, splits):
    """The same among some ranks, splits by their order."""
    group = dist.new_group(ranks)
    if me() in ranks:
        mine = ranks.index(me())
        sends, receives = splits[mine], [row[mine] for row in splits]
        x, y = _buffer(8 * sum(sends)), _buffer(8 * sum(receives))
        dist.all_to_all_single(y, x, receives, sends, group=group)
