"""Stand-in work: so many seconds of computing, in any world."""

from __future__ import annotations

import sys
import time


def spend(seconds: float, name: str = "compute") -> None:
    """Let this rank compute for so long.

    In the simulated world the rank's clock moves on and an event is noted. On real ranks
    the process sleeps, so that ranks which share a core still take their full time.
    Raises ValueError where seconds is negative.
    """
    if seconds < 0:
        raise ValueError(f"seconds must be 0 or more, not {seconds}")
    simulated = sys.modules.get("course.worlds.simulated_torch")
    here = simulated and simulated.simulation_here()
    if not here:
        time.sleep(seconds)
        return
    from course.worlds.simulated_calls import readers_line

    simulation, rank = here
    simulation.spend(rank, seconds, name, readers_line(sys._getframe(1)))
