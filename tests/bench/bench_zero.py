"""Our ZeRO-3 beside torch's fully_shard, a small GPT on 4 ranks: time and memory, one run.

    python tests/bench/bench_zero.py [repeats]

Step times are real, on gloo: every repeat runs one step of each, in turn, so that a busy
moment hits all alike; "fully_shard again" is a second copy of it, so what differs from 1
there is noise. Peak tensor bytes are metered in the simulated world.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from course import World
from course.facts_models import gpt
from course.parallel.gpt import SmallGpt, next_token_loss
from course.parallel.zero import Zero1, Zero2, Zero3

RANKS = 4
SHAPE = gpt("bench", 6, 256, 4, vocab=1024, sequence=128)
BATCH = 2  # sequences of each rank
TIME_AIM, MEMORY_AIM = 1.2, 1.05


def theirs():
    """(model, what ends a step) with fully_shard on each block and on the root."""
    model = SmallGpt(SHAPE)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def finish():
        optimizer.step()
        optimizer.zero_grad()

    return model, finish


def ours():
    model = SmallGpt(SHAPE)
    return model, Zero3(model, model.blocks, lr=1e-4).step


def stage_1():
    model = SmallGpt(SHAPE)
    return model, Zero1(model, lr=1e-4, bucket_bytes=2**20).step


def stage_2():
    model = SmallGpt(SHAPE)
    return model, Zero2(model, lr=1e-4, bucket_bytes=2**20).step


VERSIONS = {
    "fully_shard": theirs,
    "fully_shard again": theirs,
    "Zero3": ours,
    "Zero2": stage_2,
    "Zero1": stage_1,
}


def one_step(model, finish) -> None:
    tokens = torch.randint(SHAPE.vocab, (BATCH, SHAPE.sequence + 1))
    next_token_loss(model, tokens).backward()
    finish()


def seconds_of_slowest(step) -> float:
    """Time of a step on the rank that took longest, all having begun together."""
    dist.barrier()
    start = time.perf_counter()
    step()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def measure(repeats: int) -> dict[str, list[float]]:
    """Seconds per repeat of every version."""
    made = {name: make() for name, make in VERSIONS.items()}
    times: dict[str, list[float]] = {name: [] for name in VERSIONS}
    for repeat in range(repeats + 3):
        for name, (model, finish) in made.items():
            took = seconds_of_slowest(lambda m=model, f=finish: one_step(m, f))
            if repeat >= 3:  # the first ones warm up
                times[name].append(took)
    return times


def three_steps(name: str) -> None:
    model, finish = VERSIONS[name]()
    for _ in range(3):
        one_step(model, finish)


def peak_bytes(name: str) -> int:
    world = World(RANKS, memory=True, tensors="fake", mirror=True)
    return world.run(three_steps, name).peak_bytes[0]


def main(repeats: int = 15) -> dict[str, tuple[float, float]]:
    """Print the table; return {version: (time ratio, peak ratio)} to fully_shard."""
    with World(RANKS, on="gloo", timeout_s=600) as world:
        times = world.run(measure, repeats).results[0]
    medians = {name: statistics.median(took) for name, took in times.items()}
    peaks = {name: peak_bytes(name) for name in VERSIONS}
    print(
        f"a GPT of {SHAPE.parameters:,} parameters, float32, ",
        end="",
    )
    print(f"{RANKS} ranks; time on gloo, median of {repeats}; peak of tensors, metered")
    print(f"{'':>18} {'ms':>8} {'ratio':>6} {'peak MB':>8} {'ratio':>6}")
    ratios = {}
    for name in VERSIONS:
        ratios[name] = (
            medians[name] / medians["fully_shard"], peaks[name] / peaks["fully_shard"]
        )  # fmt: skip
        row = f"{name:>18} {medians[name] * 1e3:8.1f} {ratios[name][0]:6.2f} "
        print(row + f"{peaks[name] / 1e6:8.2f} {ratios[name][1]:6.3f}")
    slow, large = ratios["Zero3"]
    print(f"aims for Zero3: time {TIME_AIM} or less, peak {MEMORY_AIM} or less: ", end="")
    print("met" if slow <= TIME_AIM and large <= MEMORY_AIM else "not met")
    return ratios


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
