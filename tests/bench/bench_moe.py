"""Dispatch and combine by hand beside the same bytes through plain all_to_all_single.

    python tests/bench/bench_moe.py [repeats]

By hand: tell each rank how many rows will come, dispatch, combine; "all-to-all" and "pairs"
are the layer's two ways to send. Plain: two all-to-alls of the same rows, with sizes that
are known. "and order" is by hand with all that the layer does around its experts: permute,
dispatch, combine, un-permute. 4 gloo ranks, all versions in turn in every repeat, so that a
busy moment hits all alike; "plain again" is a second copy, so what differs from 1 there is
noise. CPU is that of one rank: on gloo a byte sent costs as much as a few bytes copied, and
where cores are shared with other work, each copy counts in full. Then the permutation
alone, in one process, for more and more tokens.
"""

import math
import statistics
import sys
import time
from functools import partial

import torch
import torch.distributed as dist

from course import World
from course.parallel.moe import ways_over
from course.parallel.moe_exchange import (
    announce,
    permute,
    totals,
    unpermute,
)
from course.parallel.moe_router import softmax_top_k

RANKS, TOKENS, HIDDEN, TOP_K = 4, 2048, 1024, 2  # tokens of each rank
AIM, STRAIGHT = 1.3, 1.15  # STRAIGHT: the most that time may grow with, as a power of t
SIZES = [2**i for i in range(12, 18)]


def inputs(tokens: int, hidden: int, experts: int):
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    routing = softmax_top_k(torch.randn(tokens, experts), TOP_K)
    return torch.randn(tokens, hidden), routing


def by_hand(rows, load, ways) -> torch.Tensor:
    """There and back; the experts hand their rows back."""
    there, back = ways
    how = announce(load)()
    return back(there(rows, how), how)


def and_order(tokens, routing, ways) -> torch.Tensor:
    """What the layer does around its experts."""
    there, back = ways
    planned = announce(routing.kept_load())
    rows, order = permute(tokens, routing)
    how = planned()
    rows = there(rows, how)  # what was sorted is freed, as in the layer
    rows = back(rows, how)
    return unpermute(rows, order, routing)


def plain(rows, sends: list[int], receives: list[int]) -> torch.Tensor:
    there = rows.new_empty(sum(receives), rows.shape[1])
    dist.all_to_all_single(there, rows, receives, sends)
    back = torch.empty_like(rows)
    dist.all_to_all_single(back, there, sends, receives)
    return back


def versions(experts: int) -> dict:
    """{name: what to time}"""
    tokens, routing = inputs(TOKENS, HIDDEN, experts)
    rows, _ = permute(tokens, routing)
    load = routing.kept_load()
    how = announce(load)()
    known = partial(plain, rows, totals(how.outgoing), totals(how.incoming))
    steps = {"plain": known}
    for name, pairs in (("all-to-all", False), ("pairs", True)):
        ways = ways_over(None, None, pairs)
        steps[name] = partial(by_hand, rows, load, ways)
        steps[f"{name} and order"] = partial(and_order, tokens, routing, ways)
    return steps | {"plain again": known}


def seconds_of_slowest(step) -> float:
    """Time of a step on the rank that took longest, all having begun together."""
    dist.barrier()
    start = time.perf_counter()
    step()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


@torch.no_grad()
def measure(experts: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(seconds, CPU seconds of this rank) per repeat of every version."""
    steps = versions(experts)
    times: dict[str, list] = {name: [] for name in steps}
    for repeat in range(repeats + 3):
        for name, step in steps.items():
            before = time.process_time()
            took = seconds_of_slowest(step)
            if repeat >= 3:  # the first ones warm up
                times[name].append((took, time.process_time() - before))
    return times


def exchange_table(world: World, experts: int, repeats: int) -> dict[str, float]:
    """Print a row for each version; {version: ratio of its median time to plain's}."""
    times = world.run(measure, experts, repeats).results[0]
    columns = {name: list(zip(*took, strict=True)) for name, took in times.items()}
    medians = {n: [statistics.median(c) for c in both] for n, both in columns.items()}
    base = medians["plain"]
    print(f"experts on each rank: {experts // RANKS}")
    for name, (took, cpu) in medians.items():
        best, ratio = min(columns[name][0]), took / base[0]
        row = f"{name:>20} {took * 1e3:8.1f} {ratio:6.2f} {best * 1e3:8.1f}"
        print(f"{row} {cpu * 1e3:8.1f} {cpu / base[1]:6.2f}")
    return {name: took / base[0] for name, (took, _) in medians.items()}


# --- The permutation ------------------------------------------------------------------


@torch.no_grad()
def permutation_s(tokens: int, repeats: int = 9) -> float:
    """CPU seconds of one thread: the quickest of some permutes and un-permutes.

    Tokens are narrow, so that it is the order that counts: wide ones are mostly copied,
    and a copy that leaves the cache costs more.
    """
    x, routing = inputs(tokens, 16, 64)

    def once() -> float:
        start = time.process_time()
        unpermute(*permute(x, routing), routing)
        return time.process_time() - start

    return min(once() for _ in range(repeats))


def power(sizes: list[int], seconds: list[float]) -> float:
    """p of the best fit seconds = c sizes^p."""
    x, y = ([math.log(value) for value in values] for values in (sizes, seconds))
    return statistics.linear_regression(x, y).slope


def permutation_table() -> float:
    took = [permutation_s(tokens) for tokens in SIZES]
    print("permute and un-permute in one process, 64 experts, 16 elements a token")
    for tokens, seconds in zip(SIZES, took, strict=True):
        print(
            f"{tokens:>12} tokens {seconds * 1e3:8.2f} ms {seconds / tokens * 1e9:6.0f} ns"
        )
    return power(SIZES, took)


def main(repeats: int = 30) -> tuple[float, float]:
    """Print all; (ratio of dispatch + combine to plain, power of the permutation)."""
    nbytes = TOKENS * TOP_K * HIDDEN * 4
    print(f"{RANKS} gloo ranks, {nbytes / 1e6:.1f} MB of rows each, there and back")
    head = f"median of {repeats} repeats"
    print(f"{head:>20} {'ms':>8} {'ratio':>6} {'best':>8} {'CPU ms':>8} {'ratio':>6}")
    with World(RANKS, on="gloo", timeout_s=600) as world:
        both = [exchange_table(world, each * RANKS, repeats) for each in (1, 2)]
    ratio = max(min(each["all-to-all"], each["pairs"]) for each in both)
    verdict = "met" if ratio <= AIM else "not met"
    print(f"dispatch + combine, the better way: {ratio:.2f}; aim {AIM} or less: {verdict}")
    torch.set_num_threads(1)
    straight = permutation_table()
    verdict = "met" if straight <= STRAIGHT else "not met"
    print(f"time grows as tokens^{straight:.2f}; aim {STRAIGHT} or less: {verdict}")
    return ratio, straight


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
