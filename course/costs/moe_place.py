"""Where experts live, written as slots: which expert lies in each place. No torch.

    E  experts       n  ranks that share them       S  slots, n equal parts in rank order

Slot s is on rank s n // S. An expert has one slot, or several: then it has replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course.costs.moe import placed, replicas_of_hottest, replicated


def slots_apart(loads: Sequence[float], ranks: int, more: int = 0) -> list[int]:
    """The expert in each slot: hot ones apart, with so many more copies of the hottest.

    loads: of each expert. E + more must be a multiple of ranks.
    """
    experts = [*range(len(loads)), *replicas_of_hottest(loads, more)]
    homes = placed(replicated(loads, more), ranks)
    return [experts[i] for i in sorted(range(len(homes)), key=lambda i: homes[i])]


def slot_loads(loads: Sequence[float], slots: Sequence[int]) -> np.ndarray:
    """Load of each slot; copies of one expert share its load evenly."""
    copies = np.bincount(slots, minlength=len(loads))
    if len(copies) != len(loads) or not copies.all():
        raise ValueError(f"slots must hold each of the {len(loads)} experts")
    return (np.asarray(loads, float) / copies)[list(slots)]
