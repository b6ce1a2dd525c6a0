"""ZeRO in rows of text: model states by stage, metered peaks, the collectives of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course.costs.recipes import Recipe
from course.costs.zero import STAGES, state_bytes_per_rank
from course.facts import GB
from course.worlds.run import Run

SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR"}


def states_table(
    recipe: Recipe, sizes: Mapping[str, float], ranks: Sequence[int], fits_bytes: float
) -> str:
    """GB of model states on a rank: a row for each N, stages 1, 2, 3 for each size.

    sizes:      {name: parameters}
    fits_bytes: what holds no more than this has a star
    """
    stages = STAGES[1:]
    names = "".join(f"{name:>{9 * len(stages)}}" for name in sizes)
    numbers = "".join(f"{f'stage {s}':>9}" for s in stages) * len(sizes)
    rows = [f"{'':>4}{names}", f"{'N':>4}{numbers}"]
    for n in ranks:
        held = [
            state_bytes_per_rank(recipe, p, n, s) for p in sizes.values() for s in stages
        ]
        cells = [f"{b / GB:>8.2f}{'*' if b <= fits_bytes else ' '}" for b in held]
        rows.append(f"{n:>4}" + "".join(cells).rstrip())
    return "\n".join(rows)


def peaks_table(
    metered: Mapping[str, Mapping[str, float]], computed: Mapping[str, float]
) -> str:
    """A row for each way: model states as computed, and how much more the peak was.

    metered:  {way: {kind: bytes}}, as `Run.peak_kinds` has them
    computed: {way: bytes of model states}
    """
    rows = []
    for name, kinds in metered.items():
        ratio = sum(kinds.values()) / computed[name]
        states = f"{computed[name] / GB:5.2f} GB"
        rows.append(f"{name:<7} {states} computed, metered {ratio:.3f} of it")
    return "\n".join(rows)


def collectives_in_short(run: Run, names: Mapping[int, str] | None = None) -> str:
    """What rank 0 called, in order: AG all-gather, RS reduce-scatter, AR all-reduce.

    names: {bytes of the whole buffer: what it belongs to}, written behind, "AG(root)"
    """
    calls = [e for e in run.events if e.rank == 0 and e.name in SHORT]
    if names is None:
        return " ".join(SHORT[e.name] for e in calls)
    return " ".join(f"{SHORT[e.name]}({names[e.bytes]})" for e in calls)
