"""Where ranks live. One function, three worlds: simulated, gloo, nccl.

Nothing heavy is imported until a world is made, so `from course import World`
is instant.
"""

from __future__ import annotations

from course.worlds.run import Deadlock, Event, Message, Mismatch, RankError, Run

__all__ = [
    "Deadlock",
    "Event",
    "Message",
    "Mismatch",
    "RankError",
    "Run",
    "World",
    "best_world",
    "torchrun_main",
]

WORLDS = ("simulated", "gloo", "nccl")
SIMULATED_ONLY = ("cluster", "compute", "tensors", "mirror", "memory", "algorithms")


class World:
    """Some ranks that live until the world is closed, and run what they are given.

        with World(4, on="gloo") as world:
            run = world.run(step, torch.ones(8))
        run.results          # what step returned, one per rank

    ranks:     how many, 1 or more
    on:        "simulated": threads here, on a virtual clock
               "gloo": real processes on this machine's CPUs
               "nccl": real processes, one GPU each
    timeout_s: a real run that takes longer is stopped, and the error says where
               each rank stood
    options:   of the simulated world only: cluster, compute, tensors, mirror, memory,
               algorithms; `course.worlds.simulated.SimulatedRanks` tells what they do

    Ranks stay between runs, with what they hold: module globals, the process group,
    a CUDA context. After a run that failed they are replaced by new ones. They see
    the environment variables that were set when they started.

    Raises ValueError where the world cannot be made, and says what to write instead.
    """

    def __init__(
        self, ranks: int, on: str = "simulated", *, timeout_s: float = 60, **options
    ):
        _check(ranks, on, timeout_s, options)
        self.ranks = ranks
        self.on = on
        self._closed = False
        self._busy = False
        self._engine = _engine(ranks, on, timeout_s, options)

    def run(self, function, *args, record: bool = False) -> Run:
        """Call `function(*args)` on every rank, and wait for all of them.

        record: ask real ranks for their events too (torch's profiler, which costs
                time). The simulated world always has them.

        Raises RankError where a rank fails or the run takes too long, ValueError
        where the function or an argument cannot be sent to another process.
        """
        __tracebackhide__ = True  # IPython and pytest then show the caller's line
        self._check_free(function)
        self._busy = True
        try:
            return self._engine.run(function, args, record)
        except RankError as error:
            # The way through the launcher tells the reader nothing.
            raise error.with_traceback(None) from None
        finally:
            self._busy = False

    def _check_free(self, function):
        if self._closed:
            raise RuntimeError(f"{self!r} is closed: make a new one to run more")
        if self._busy:
            raise RuntimeError(
                f"{self!r} is in the middle of a run: make a second World for a second run"
            )
        if not callable(function):
            raise ValueError(
                f"function must be something to call, not {function!r}: "
                "write world.run(step, x), not world.run(step(x))"
            )

    def close(self) -> None:
        """End the ranks. A world that is closed twice stays closed."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __reduce__(self):
        raise TypeError("a World stays in the notebook and cannot be sent to its ranks")

    def __repr__(self) -> str:
        return f'World({self.ranks}, on="{self.on}")'


def best_world(ranks: int, *, timeout_s: float = 60) -> World:
    """A world of real ranks: nccl where there are enough GPUs, else gloo.

    Prints one line that says which and why.
    """
    _check(ranks, "gloo", timeout_s, {})
    gpus = _gpus()
    on = "nccl" if gpus >= ranks else "gloo"
    print(f'World({ranks}, on="{on}"): {_why(ranks, gpus)}')
    return World(ranks, on=on, timeout_s=timeout_s)


def torchrun_main(function, *args):
    """Run `function(*args)` as this one of the ranks that torchrun started.

    See `course.worlds.torchrun`.
    """
    from course.worlds.torchrun import torchrun_main as main

    return main(function, *args)


def _engine(ranks, on, timeout_s, options):
    if on == "simulated":
        from course.worlds.simulated import SimulatedRanks

        return SimulatedRanks(ranks, timeout_s=timeout_s, **options)
    from course.worlds.processes import ProcessRanks

    return ProcessRanks(ranks, on, timeout_s)


def _check(ranks, on, timeout_s, options):
    if not isinstance(ranks, int) or isinstance(ranks, bool):
        raise ValueError(f"ranks must be a whole number, not {ranks!r}: write World(4)")
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}: write World(1)")
    if on not in WORLDS:
        known = ", ".join(f'on="{name}"' for name in WORLDS)
        raise ValueError(f"there is no world {on!r}: write one of {known}")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ValueError(f"timeout_s must be more than 0, not {timeout_s!r}: write 60")
    if on != "simulated":
        _check_real(ranks, on, options)


def _check_real(ranks, on, options):
    for name in options:
        if name not in SIMULATED_ONLY:
            raise TypeError(f"World() got an unexpected keyword argument {name!r}")
        raise ValueError(
            f'{name} is an option of the simulated world, not of on="{on}": '
            f"write World({ranks}, {name}=...) or leave it out"
        )
    if on == "nccl" and (gpus := _gpus()) < ranks:
        raise ValueError(
            f'World({ranks}, on="nccl") needs a GPU for each rank: {_why(ranks, gpus)}. '
            f'Write World({ranks}, on="gloo")'
        )


def _gpus() -> int:
    """GPUs that NCCL can use here. Counting them makes no CUDA context."""
    import torch
    import torch.distributed as dist

    return torch.cuda.device_count() if dist.is_nccl_available() else 0


def _why(ranks: int, gpus: int) -> str:
    if gpus == 0:
        return "this machine has no GPU that NCCL can use"
    return (
        f"this machine has {gpus} GPU{'s' * (gpus > 1)} for {ranks} rank{'s' * (ranks > 1)}"
    )
