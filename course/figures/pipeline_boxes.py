"""Work of a pipeline as arrays: predicted, from a timeline, or measured, from spans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from course.parallel.schedules import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

# (rank, kind, stage, micro_batch, start_s, end_s)
Span = tuple[int, str, int, int, float, float]

KINDS = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


@dataclass(frozen=True)
class Boxes:
    """Pieces of work, one an entry of each array.

    kind:  the place in KINDS
    chunk: which of the stages of its rank, 0 for the first in the model
    """

    ranks: int
    chunks: int
    rank: np.ndarray
    kind: np.ndarray
    stage: np.ndarray
    chunk: np.ndarray
    micro_batch: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def makespan_s(self) -> float:
        """When the last one ends."""
        return float(self.end_s.max(initial=0.0))

    @property
    def busy_s(self) -> np.ndarray:
        """Seconds of work of each rank."""
        seconds = self.end_s - self.start_s
        return np.bincount(self.rank, weights=seconds, minlength=self.ranks)

    @property
    def bubble_of_total(self) -> float:
        """Idle share of all ranks' time, from 0 to the last end."""
        total_s = self.makespan_s * self.ranks
        return 1 - float(self.busy_s.sum()) / total_s if total_s else 0.0

    def only(self, chosen: np.ndarray) -> Boxes:
        """Those where chosen is true."""
        kept = (
            getattr(self, f)[chosen]
            for f in ("rank", "kind", "stage", "chunk", "micro_batch", "start_s", "end_s")
        )
        return Boxes(self.ranks, self.chunks, *kept)


def boxes_of(timeline) -> Boxes:
    """The boxes of a `schedule_time.Timeline`."""
    schedule = timeline.schedule
    actions = [a for order in schedule.orders for a in order]
    code = {kind: i for i, kind in enumerate(KINDS)}
    stage = np.array([a.stage for a in actions], np.int32)
    return Boxes(
        schedule.ranks,
        schedule.chunks,
        np.repeat(np.arange(schedule.ranks), [len(order) for order in schedule.orders]),
        np.array([code[a.kind] for a in actions], np.int32),
        stage,
        _chunk_of_stage(schedule.owner)[stage],
        np.array([a.micro_batch for a in actions], np.int32),
        np.concatenate([np.asarray(s, float) for s in timeline.start_s]),
        np.concatenate([np.asarray(e, float) for e in timeline.end_s]),
    )


def _chunk_of_stage(owner: Sequence[int]) -> np.ndarray:
    """For each stage, how many earlier stages its rank holds."""
    held: dict[int, int] = {}
    chunks = []
    for rank in owner:
        chunks.append(held.get(rank, 0))
        held[rank] = chunks[-1] + 1
    return np.array(chunks, np.int32)


def boxes_from_spans(spans: Iterable[Span], *, ranks: int | None = None) -> Boxes:
    """The boxes of measured work; the first start of all becomes 0.

    ranks: how many there are (default: up to the largest named)
    Raises ValueError where there is no span, a kind or rank that there is not, or a
    span that ends before it starts.
    """
    spans = sorted(spans, key=lambda span: (span[0], span[4]))
    if not spans:
        raise ValueError("spans must hold one span or more")
    for span in spans:
        _check_span(span, ranks)
    rank, kind, stage, micro_batch, start_s, end_s = map(list, zip(*spans, strict=True))
    held = {r: sorted({s[2] for s in spans if s[0] == r}) for r in set(rank)}
    first_s = min(start_s)
    return Boxes(
        ranks or max(rank) + 1,
        max(map(len, held.values())),
        np.array(rank, np.int32),
        np.array([KINDS.index(k) for k in kind], np.int32),
        np.array(stage, np.int32),
        np.array([held[r].index(s) for r, s in zip(rank, stage, strict=True)], np.int32),
        np.array(micro_batch, np.int32),
        np.array(start_s) - first_s,
        np.array(end_s) - first_s,
    )


def _check_span(span: Span, ranks: int | None) -> None:
    if span[1] not in KINDS:
        raise ValueError(f"a span's kind must be one of {KINDS}, not {span[1]!r}")
    if not 0 <= span[0] < (ranks or span[0] + 1):
        rule = f"from 0 to {ranks - 1}" if ranks else "0 or more"
        raise ValueError(f"a span's rank must be {rule}, not {span[0]}")
    if span[5] < span[4]:
        raise ValueError(f"a span must not end before it starts: {span}")


_NAME = re.compile(r"([FBIW])(\d+)@(\d+)")


def spans_of(named_spans: Iterable) -> list[Span]:
    """The pipeline's work in `run.spans`: those named like an action, "F3@1"."""
    named = ((e, _NAME.fullmatch(e.name)) for e in named_spans)
    return [
        (e.rank, found[1], int(found[3]), int(found[2]), e.start_s, e.end_s)
        for e, found in named
        if found
    ]


def bubble_of_run(run) -> float:
    """Idle share of all ranks' time in the pipeline's work that a run has recorded."""
    return boxes_from_spans(spans_of(run.spans), ranks=run.ranks).bubble_of_total
