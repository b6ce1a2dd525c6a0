"""One run made ready to draw: its bars, and the height at which each of them lies.

Pure data, no plotly. A rank is 1 high, rank 0 on top; its lanes share that height.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from course.figures.bars import Bar, bars, thinned
from course.worlds.overlap import total_s
from course.worlds.rows import rows_by_lane
from course.worlds.run import LANES, Message, NotMetered, Run

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MOST_RANKS = 64
MOST_BARS = 1500
MOST_ARROWS = 60
# more concurrent calls than this share the last row of a lane
MOST_ROWS = 4
# share of a rank's height that separates it from the next
GAP = 0.16


@dataclass(frozen=True)
class Panel:
    """One run, ready to draw: its bars, and where ranks, lanes and rows lie.

    seconds_per_x: what one unit of the x axis stands for
    rows:          lane -> how many rows it is split in, the same for every rank
    event_rows:    the row of each event of the run
    joined_events: how many events are drawn as part of another's bar
    """

    run: Run
    ranks: tuple[int, ...]
    lanes: tuple[str, ...]
    bars: list[Bar]
    seconds_per_x: float
    unit: str
    rows: dict[str, int]
    event_rows: list[int]
    joined_events: int

    @property
    def row_height(self) -> float:
        """Of a rank's height, which is 1: all rows of all its lanes are equally high."""
        return (1 - GAP) / (sum(self.rows.values()) or 1)

    def y(self, rank: int, lane: str, row: int = 0) -> float:
        """The middle of a row."""
        above = self.lanes[: self.lanes.index(lane)]
        place = sum(self.rows[k] for k in above) + min(row, self.rows[lane] - 1)
        return self.ranks.index(rank) - 0.5 + GAP / 2 + (place + 0.5) * self.row_height

    def middle(self, rank: int, lane: str) -> float:
        """The middle of a lane, over all its rows."""
        return self.y(rank, lane) + (self.rows[lane] - 1) * self.row_height / 2

    @property
    def unit_label(self) -> str:
        return "µs" if self.unit == "us" else self.unit

    def stretched(self) -> Panel:
        """The same with the x axis in percent of the run."""
        return replace(self, seconds_per_x=(total_s(self.run) or 1) / 100)


def make_panel(run, ranks, lanes, max_bars: int, unit: str, span_s=None) -> Panel:
    """The panel of a run. span_s: the length of the axis where it is not the run's own.

    Raises NotMetered where the run was not recorded, ValueError for a rank, lane or unit
    that there is not.
    """
    if max_bars < 1:
        raise ValueError(f"max_bars must be 1 or more, not {max_bars}")
    ranks, lanes = _checked_ranks(run, ranks), _checked_lanes(run, lanes)
    span_s = total_s(run) if span_s is None else span_s
    unit = _checked_unit(unit, span_s)
    event_rows = rows_by_lane(run.events)
    shown = set(ranks)
    every = [b for b in bars(run.events, event_rows) if b.rank in shown and b.lane in lanes]
    few = thinned(every, max_bars, span_s)
    rows = {k: min(MOST_ROWS, 1 + max(_rows_of(few, k), default=0)) for k in lanes}
    joined_events = len(every) - len(few)
    return Panel(run, ranks, lanes, few, UNITS[unit], unit, rows, event_rows, joined_events)


def _rows_of(some_bars: list[Bar], lane: str) -> list[int]:
    return [b.row for b in some_bars if b.lane == lane]


def _checked_ranks(run: Run, ranks) -> tuple[int, ...]:
    if ranks is None:
        return tuple(range(min(run.ranks, MOST_RANKS)))
    wrong = [r for r in ranks if r not in range(run.ranks)]
    if wrong:
        raise ValueError(f"ranks must be from 0 to {run.ranks - 1}, not {wrong[0]}")
    if not len(ranks):
        raise ValueError("ranks must name one rank or more")
    return tuple(sorted(set(ranks)))


def _checked_lanes(run: Run, lanes) -> tuple[str, ...]:
    if lanes is None:
        return used_lanes(run)
    wrong = [k for k in lanes if k not in LANES]
    if wrong or not lanes:
        raise ValueError(f"lanes must be of {LANES}, not {wrong[0] if wrong else lanes!r}")
    return tuple(k for k in LANES if k in lanes)


def used_lanes(run: Run) -> tuple[str, ...]:
    """Lanes in which anything took time; if none did, lanes that hold any event."""
    timed = {e.lane for e in run.events if e.end_s > e.start_s}
    used = timed or {e.lane for e in run.events}
    return tuple(k for k in LANES if k in used)


def _checked_unit(unit: str, span_s: float) -> str:
    if unit == "auto":
        fits = (u for u, size in UNITS.items() if span_s >= size)
        return next(fits, "ns" if span_s else "s")
    if unit not in UNITS:
        raise ValueError(f'time_unit must be one of {list(UNITS)} or "auto", not {unit!r}')
    return unit


def rank_ticks(panel: Panel) -> tuple[list[float], list[str]]:
    """Ticks at every lane while there is room, then at ranks, then at some of them."""
    if len(panel.ranks) <= 8 and len(panel.lanes) == 2:
        spots = [(r, k) for r in panel.ranks for k in panel.lanes]
        texts = [f"rank {r}  {k}" if k == LANES[0] else k for r, k in spots]
        return [panel.middle(r, k) for r, k in spots], texts
    places = range(0, len(panel.ranks), -(-len(panel.ranks) // 16))
    return list(places), [f"rank {panel.ranks[p]}" for p in places]


def notes(panel: Panel) -> list[str]:
    """What the reader should know about this drawing, a sentence each."""
    said = []
    if len(panel.ranks) > 8 and len(panel.lanes) == 2:
        said.append("upper lane of a rank: compute; lower lane: communication")
    if len(panel.lanes) == 1:
        said.append(f"drawn: {panel.lanes[0]}")
    if len(panel.ranks) < panel.run.ranks:
        said.append(f"{len(panel.ranks)} of {panel.run.ranks} ranks drawn")
    if panel.joined_events:
        said.append(
            f"{panel.joined_events:,} events are joined to a neighbour of their kind:"
            f" {len(panel.bars):,} bars drawn"
        )
    return said


def chosen_memory(choice: str | bool, run: Run):
    """The memory curves to draw, () for none."""
    return _chosen("memory", choice, run, "memory_curve")


def chosen_messages(choice: str | bool, panel: Panel) -> list[Message]:
    """Which messages become arrows: all, none, or for "auto" all if they are few."""
    held = _chosen("messages", choice, panel.run, "messages")
    if choice is True and held and "communication" not in panel.lanes:
        raise ValueError('messages=True needs the lane "communication"')
    if "communication" not in panel.lanes:
        return []
    drawn = [m for m in held if m.source in panel.ranks and m.destination in panel.ranks]
    return [] if choice == "auto" and len(drawn) > MOST_ARROWS else drawn


def _chosen(argument: str, choice, run: Run, name: str):
    """What the run holds under that name, or () where it is not wanted or not there."""
    if choice not in (True, False, "auto"):
        raise ValueError(f'{argument} must be True, False or "auto", not {choice!r}')
    try:
        return getattr(run, name) if choice else ()
    except NotMetered:
        if choice is True:
            raise
        return ()
