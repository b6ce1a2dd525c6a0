"""Lab 05 on any number of machines: pipeline schedules by hand beside torch's own.

On one machine, with as many ranks as you like:

    torchrun --standalone --nproc-per-node 4 labs/pipeline.py

On each of two nodes with 8 GPUs, HOST being one of them:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 labs/pipeline.py

Ranks use nccl where each has a GPU, else gloo. All ways train the same small GPT, one
stage or two on each rank; losses must agree. Bytes are printed beside the predicted ones.
Then the schedules run over stages that sleep, which shows the bubble also where ranks
share cores; then over the GPT, in times of one run. `--layers`, `--hidden`, `--vocab`,
`--sequence` shape the model, `--micro-batches` of `--rows` sequences are a step,
`--sleep-ms` is for a forward and for each half of a backward.
"""

import argparse
import functools
import os

import torch.distributed as dist

from course.facts_models import Model, gpt
from course.parallel.pipeline_versions import (
    TORCH,
    begin_pipeline,
    bytes_sent,
    schedule_of,
)
from course.parallel.schedule_time import Timeline, Times, lay_out
from course.parallel.torch_schedules import CLASSES
from course.quantities import write_bytes, write_seconds
from course.worlds import torchrun_main
from course.worlds.asleep import begin_asleep
from course.worlds.box import describe_box
from course.worlds.step_meter import StepCost, meter_steps, time_steps
from course.worlds.timing import lines_of, time_lines

TOLERANCE = 1e-4  # of losses in float32, relative
CHUNKS = 2
OURS = ("GPipe", "1F1B", "Interleaved 1F1B", "ZB-H1", "ZB-V")
ALL = (*OURS, *(TORCH + name for name in OURS if name in CLASSES))
ASLEEP = tuple(way for way in ALL if way != "torch ZB-V")  # it would not split a sleep


def one_rank(shape: Model, batch: int, m: int, sleep_s: float, steps: int, repeats: int):
    """({way: StepCost}, {way: seconds asleep}, {way: seconds}, the box) of this rank."""
    begin = functools.partial(
        begin_pipeline, shape=shape, batch=batch, micro_batches=m, chunks=CHUNKS
    )
    costs = {way: meter_steps(begin, way, steps=steps) for way in ("serial", *ALL)}
    naps = {}
    for way in ASLEEP:
        chunks = chunks_in(way, dist.get_world_size(), m)
        naps[way] = begin_asleep(way, m, nap(sleep_s, chunks), CHUNKS)
    asleep = time_steps(naps, repeats)
    seconds = time_steps({way: begin(way) for way in ALL}, repeats)
    return costs, asleep, seconds, describe_box(dist.get_backend(), dist.get_world_size())


def nap(sleep_s: float, chunks: int) -> Times:
    """Of one stage, where a rank has so many."""
    return Times(sleep_s, sleep_s, sleep_s).divided(chunks)


def chunks_in(way: str, ranks: int, m: int) -> int:
    return schedule_of(way, ranks, m, CHUNKS).chunks


def predicted(way: str, ranks: int, m: int, sleep_s: float) -> Timeline:
    """The step asleep, laid out, with messages that take no time."""
    schedule = schedule_of(way, ranks, m, CHUNKS)
    return lay_out(schedule, nap(sleep_s, schedule.chunks))


def report(run, shape: Model, batch: int, m: int, sleep_s: float) -> str:
    """The lab's tables, from all ranks' answers."""
    _, asleep, seconds, box = run.results[0]
    costs = [result[0] for result in run.results]
    return "\n\n".join(
        [
            "\n".join(f"{what}: {words}" for what, words in box.items()),
            f"{shape.parameters:,} parameters in float32, {m} micro-batches a step",
            loss_lines(costs[0]),
            byte_lines(costs, shape, batch, m),
            asleep_lines(asleep, run.ranks, m, sleep_s),
            time_lines("a step of the GPT", seconds, "1F1B"),
        ]
    )


def loss_lines(costs: dict[str, StepCost]) -> str:
    """First and last loss of each way, and how far it is from the serial model.

    Raises AssertionError where one differs by more than TOLERANCE.
    """
    rows = [["losses", "first", "last", "differs by"]]
    serial = costs["serial"].losses
    for way, cost in costs.items():
        off = max(abs(a / b - 1) for a, b in zip(cost.losses, serial, strict=True))
        assert off <= TOLERANCE, f"{way} differs from the serial model by {off:.1e}"
        rows.append([way, f"{cost.losses[0]:.4f}", f"{cost.losses[-1]:.4f}", f"{off:.1e}"])
    return lines_of(rows)


def byte_lines(costs: list[dict[str, StepCost]], shape: Model, batch: int, m: int) -> str:
    """At the peak on the first and the last rank; sent by all, with its ratio."""
    rows = [["bytes", "peak of rank 0", "of the last", "sent by all", "ratio"]]
    for way in ALL:
        schedule = schedule_of(way, len(costs), m, CHUNKS)
        peaks = [write_bytes(costs[rank][way].peak_bytes) for rank in (0, -1)]
        sent = sum(cost[way].sent_bytes for cost in costs)
        said = sum(bytes_sent(schedule, r, shape, batch) for r in range(len(costs)))
        ratio = f"{sent / said:.3f}" if said else "-"
        rows.append([way, *peaks, write_bytes(sent), ratio])
    return lines_of(rows)


def asleep_lines(seconds: dict[str, float], ranks: int, m: int, sleep_s: float) -> str:
    """A step of sleeping stages, and its bubble: what of the time is not sleep."""
    rows = [["asleep", "predicted", "measured", "ratio", "bubble predicted", "measured"]]
    for way, s in seconds.items():
        said = predicted(way, ranks, m, sleep_s)
        bubble = 1 - float(said.busy_s.mean()) / s
        times = write_seconds(said.makespan_s), write_seconds(s)
        shares = f"{said.bubble_of_total():.1%}", f"{bubble:.1%}"
        rows.append([way, *times, f"{s / said.makespan_s:.2f}", *shares])
    return lines_of(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    sizes = {"hidden": 64, "vocab": 128, "sequence": 32, "rows": 2}
    counts = {"layers": 2 * ranks, "micro-batches": 2 * ranks, "steps": 4, "repeats": 3}
    for name, default in {**sizes, **counts}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sleep-ms", type=float, default=5.0)
    asked = parser.parse_args()
    if asked.layers < CHUNKS * ranks or asked.micro_batches % ranks:
        raise SystemExit(
            f"{ranks} ranks need {CHUNKS * ranks} layers or more, and micro-batches in "
            "multiples of the ranks"
        )
    heads = max(1, asked.hidden // 64)
    text = {"vocab": asked.vocab, "sequence": asked.sequence}
    shape = gpt("lab GPT", asked.layers, asked.hidden, heads, **text)
    batch, sleep_s = asked.rows * asked.micro_batches, asked.sleep_ms / 1e3
    step = shape, batch, asked.micro_batches, sleep_s
    if run := torchrun_main(one_rank, *step, asked.steps, asked.repeats):
        print(report(run, *step))


if __name__ == "__main__":
    main()
