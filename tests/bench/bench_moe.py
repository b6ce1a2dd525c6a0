"""Dispatch and combine by hand beside the same bytes through plain all_to_all_single.

    python tests/bench/bench_moe.py [repeats]

By hand: sort the tokens by expert, tell each rank how many will come, send, send back,
un-permute with weights. Plain: two all-to-alls of the same rows that are sorted already,
with sizes that are known. 4 gloo ranks, all versions in turn in every repeat, so that a
busy moment hits all alike; "plain again" is a second copy, so what differs from 1 there is
noise. Then the permutation alone, in one process, for more and more tokens.
"""

import math
import statistics
import sys
import time
from functools import partial

import torch
import torch.distributed as dist

from course import World
from course.parallel.moe_exchange import (
    all_to_all,
    announce,
    combine,
    dispatch,
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


def by_hand(tokens, routing, exchange) -> torch.Tensor:
    """What the layer does around its experts; here they hand their rows back."""
    planned = announce(routing.kept_load())
    rows, order = permute(tokens, routing)
    how = planned()
    rows = dispatch(rows, how, exchange)  # what was sorted is freed, as in the layer
    rows = combine(rows, how, exchange)
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
    how = announce(routing.kept_load())()
    known = partial(plain, rows, totals(how.outgoing), totals(how.incoming))
    hand = partial(by_hand, tokens, routing, partial(all_to_all, group=None))
    return {"plain": known, "by hand": hand, "plain again": known}


def seconds_of_slowest(step) -> float:
    """Time of a step on the rank that took longest, all having begun together."""
    dist.barrier()
    start = time.perf_counter()
    step()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


@torch.no_grad()
def measure(experts: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per repeat of every version."""
    steps = versions(experts)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 3):
        for name, step in steps.items():
            took = seconds_of_slowest(step)
            if repeat >= 3:  # the first ones warm up
                times[name].append(took)
    return times


def exchange_table(world: World, experts: int, repeats: int) -> float:
    """Print a row for each version; the ratio of the medians, by hand to plain."""
    times = world.run(measure, experts, repeats).results[0]
    medians = {name: statistics.median(took) for name, took in times.items()}
    print(f"{experts // RANKS} experts on each rank")
    for name, took in times.items():
        best, ratio = min(took) * 1e3, medians[name] / medians["plain"]
        print(f"{name:>12} {medians[name] * 1e3:8.1f} {best:8.1f} {ratio:6.2f}")
    return medians["by hand"] / medians["plain"]


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
    """Print both tables; (ratio with one expert a rank, power of the permutation)."""
    nbytes = TOKENS * TOP_K * HIDDEN * 4
    print(f"{RANKS} gloo ranks, {nbytes / 1e6:.1f} MB of rows each, there and back")
    print(f"{'':>12} {'ms':>8} {'best':>8} {'ratio':>6}   median of {repeats}")
    with World(RANKS, on="gloo", timeout_s=600) as world:
        ratio = exchange_table(world, RANKS, repeats)
        exchange_table(world, 2 * RANKS, repeats)
    print(
        f"aim with one expert a rank, {AIM} or less: {'met' if ratio <= AIM else 'not met'}"
    )
    torch.set_num_threads(1)
    straight = permutation_table()
    verdict = "met" if straight <= STRAIGHT else "not met"
    print(f"time grows as tokens^{straight:.2f}; aim {STRAIGHT} or less: {verdict}")
    return ratio, straight


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
