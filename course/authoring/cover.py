"""The README's picture: what the course is about, drawn by the course."""

from __future__ import annotations

import json
from pathlib import Path

from course.authoring.pictures import Painter

COVER = Path("notebooks/cover.svg")
RANKS, ELEMENTS = 4, 4 * 2**20


def cover_figure():
    """Naive and ring all-reduce of the same 16 MiB, on one axis of time."""
    import torch

    from course import World
    from course.figures.timeline import compare
    from course.parallel.collectives import naive_all_reduce, ring_all_reduce

    def one_rank(all_reduce):
        all_reduce(torch.ones(ELEMENTS))

    with World(RANKS) as world:
        naive = world.run(one_rank, naive_all_reduce, record=True)
        ring = world.run(one_rank, ring_all_reduce, record=True)
    names = ("through rank 0", "around a ring")
    title = "Four ranks add up 16 MiB"
    return compare(naive, ring, names=names, title=title)


def write_cover(painter: Painter) -> None:
    figure = json.loads(cover_figure().to_json())
    COVER.write_text(painter.draw(figure) + "\n", encoding="utf-8")
