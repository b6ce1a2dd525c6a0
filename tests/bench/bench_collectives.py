"""Our all-reduces beside gloo's own: ratios of times, 4 ranks, 4 KiB to 64 MiB, one run.

    python tests/bench/bench_collectives.py [repeats]

Each repeat times every version once, in an order drawn anew, and in every run other
orders: so a busy moment hits all alike, and none gains from the one that it follows (one
list of orders, kept, moved a ratio by 0.03). Ratios are to both gloo columns together,
and theirs to that: what differs from 1 there is noise.
"""

import random
import statistics
import sys
import time

import torch
import torch.distributed as dist

from course import World
from course.facts import KIB, MIB
from course.parallel.collectives import ring_all_reduce
from course.parallel.segmented import fast_all_reduce, segmented_ring_all_reduce

RANKS = 4
SIZES = [4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
VERSIONS = {
    "gloo": dist.all_reduce,
    "gloo again": dist.all_reduce,
    "plain ring": ring_all_reduce,
    "segmented": segmented_ring_all_reduce,
    "fast": fast_all_reduce,
}


def seconds_of_slowest(all_reduce, buffer: torch.Tensor) -> float:
    """Time of one call on the rank that took longest, all having begun together."""
    buffer.fill_(1.0)
    dist.barrier()
    start = time.perf_counter()
    all_reduce(buffer)
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    assert buffer[0] == buffer[-1] == dist.get_world_size()
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def measure(nbytes: int, repeats: int, seed: int) -> dict[str, list[float]]:
    """Seconds per repeat of every version, on float32. The seed is that of the orders."""
    buffer = torch.empty(nbytes // 4)
    times: dict[str, list[float]] = {name: [] for name in VERSIONS}
    order, draw = list(VERSIONS), random.Random(seed)
    for repeat in range(repeats + 2):
        draw.shuffle(order)
        for name in order:
            took = seconds_of_slowest(VERSIONS[name], buffer)
            if repeat >= 2:  # the first two warm up
                times[name].append(took)
    return times


def main(repeats: int = 100) -> dict[int, dict[str, float]]:
    """Print the table; return {nbytes: {version: median ratio to gloo}}."""
    names = list(VERSIONS)
    print(f"all-reduce, {RANKS} gloo ranks, float32: median time / gloo's")
    print(f"{'KiB':>8} {'gloo ms':>9} " + " ".join(f"{name:>11}" for name in names))
    ratios = {}
    with World(RANKS, on="gloo", timeout_s=600) as world:
        for nbytes in SIZES:
            few = max(15, min(repeats, repeats * 32 * MIB // nbytes))
            times = world.run(measure, nbytes, few, time.time_ns()).results[0]
            gloo = statistics.median(times["gloo"] + times["gloo again"])
            ratios[nbytes] = {name: statistics.median(times[name]) / gloo for name in names}
            row = " ".join(f"{ratios[nbytes][name]:11.2f}" for name in names)
            print(f"{nbytes // KIB:8} {gloo * 1e3:9.2f} {row}", flush=True)
    return ratios


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
