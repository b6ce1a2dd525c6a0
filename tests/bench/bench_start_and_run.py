"""How long real ranks take to start, to run, to fail and to be replaced. 4 gloo ranks.

python tests/bench/bench_start_and_run.py
"""

import statistics
import time

import torch
import torch.distributed as dist

from course import RankError, World

RANKS = 4


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def start_and_run(ranks: int = RANKS) -> World:
    world = World(ranks, on="gloo")
    world.run(int)
    return world


def fail_on_rank_1():
    if dist.get_rank() == 1:
        raise ValueError
    dist.all_reduce(torch.ones(1))


def failing_run(world: World) -> None:
    try:
        world.run(fail_on_rank_1)
    except RankError:
        return
    raise AssertionError("the run must fail")


def main() -> dict[str, float]:
    """Print the table; return {what: seconds}."""
    rows = {"first world": seconds(start_and_run)}
    rows["a later world"] = statistics.median(seconds(start_and_run) for _ in range(5))
    world = start_and_run()
    rows["a further run"] = statistics.median(
        seconds(lambda: world.run(int)) for _ in range(100)
    )
    rows["one that fails"] = seconds(lambda: failing_run(world))
    rows["the run after it"] = seconds(lambda: world.run(int))
    x = torch.ones(16 << 20)
    rows["a run with 64 MiB"] = seconds(lambda: world.run(len, x))
    rows["64 ranks"] = seconds(lambda: start_and_run(64))
    for name, value in rows.items():
        print(f"{name:<18} {1000 * value:9.1f} ms")
    return rows


if __name__ == "__main__":
    main()
