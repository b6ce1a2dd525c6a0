"""Exercise of lab 03: tell a ZeRO stage by what a rank holds at the end of backward.

P parameters, N ranks, everything in float32, Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from course.checks.compare import is_whole
from course.checks.exercise import ITEM, Exercise
from course.checks.verdict import Verdict, of_error, right, wrong
from course.costs.zero import STAGES, shard_numel

# P, N, units that a shard is cut from, elements of one of the largest
CASES = (
    (862_976, 4, 6, 198_272), (1_000, 2, 3, 450), (862_976, 8, 14, 66_048),
    (10_001, 3, 4, 3_000), (12_345_678, 64, 13, 1_180_160), (999, 16, 2, 600),
)  # fmt: skip


def held_at_end(stage: int, parameters: int, ranks: int, units: int, largest: int) -> dict:
    """Bytes by kind when backward has made its last gradient; shards are padded.

    Whole where the stage does not cut them; the last unit's gradients are whole still,
    and two units' parameters, the root's being one.
    """
    whole, unit = ITEM * parameters, ITEM * largest
    shard = ITEM * (shard_numel(parameters, ranks) + units - 1)
    counters = ITEM * units  # AdamW counts its steps
    held = {
        "parameters": shard if stage == 3 else whole,
        "gathered parameters": 2 * unit if stage == 3 else 0,
        "gradients": shard + unit if stage >= 2 else whole,
        "optimizer state": 2 * (shard if stage >= 1 else whole) + counters,
        "activations": unit // 3,
    }
    return {kind: nbytes for kind, nbytes in held.items() if nbytes}


@dataclass(frozen=True, repr=False)
class WhichStage(Exercise):
    """Four answers, none of them a matter of the total."""

    name: str = "which stage"
    chapter: str = "lab 03"
    signature: str = "def my_stage(parameters, ranks, held): return stage"
    task: str = (
        "`held` is {kind: bytes}, what one of N = `ranks` ranks holds when backward has "
        'just made its last gradient: "parameters", "gradients", "optimizer state", and '
        "perhaps others. All is float32, the optimizer Adam; shards are padded, AdamW adds "
        "a few bytes of its own, and the last unit's gradients are still whole. Return the "
        "ZeRO stage, 0 for plain data parallel."
    )
    lines: int = 5
    target: str = "right on 2 to 64 ranks, with sizes that N does not divide"

    def grade(self, function: Callable) -> Verdict:
        for parameters, ranks, units, largest in CASES:
            for stage in STAGES:
                held = held_at_end(stage, parameters, ranks, units, largest)
                shown = f"{parameters:,} parameters, {ranks} ranks, held {held}"
                try:
                    answer = function(parameters, ranks, dict(held))
                except Exception as error:
                    return of_error(error, shown)
                if fault := _fault(answer, stage):
                    return wrong(*fault, shown)
        counts = sorted({case[1] for case in CASES})
        *most, last = map(str, counts)
        return right(f"right: all four stages on {', '.join(most)} and {last} ranks")


_SAYS = (
    "the optimizer state is whole",
    "the optimizer state is in shards, gradients are whole",
    "gradients are in shards, but for the unit that is on its way; parameters are whole",
    "parameters are in shards; gathered ones are extra",
)


def _fault(answer, stage: int) -> tuple[str, str] | None:
    if not is_whole(answer) or answer not in STAGES:
        says = f"wrong shape: {answer!r} was returned, should be one of {STAGES}"
        return "wrong shape", says
    if answer != stage:
        return "wrong values", f"wrong values: stage {answer}, but {_SAYS[stage]}"
    return None


EXERCISES = (WhichStage(),)
