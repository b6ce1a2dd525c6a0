"""Lab 03 on any number of machines: ZeRO by hand beside torch's DDP and fully_shard.

On one machine, with as many ranks as you like:

    torchrun --standalone --nproc-per-node 4 labs/zero.py

On each of two nodes with 8 GPUs, HOST being one of them:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 labs/zero.py

Ranks use nccl where each has a GPU, else gloo. All ways train the same small GPT on the
same data; losses must agree, bytes and memory are printed beside the predicted ones, and
times are of one run. `--layers`, `--hidden`, `--vocab`, `--sequence` shape the model,
`--batch` is of one rank, `--steps` and `--repeats` say how often.
"""

import argparse
import functools

import torch.distributed as dist

from course.costs.zero_step import ZeroStep, zero_step
from course.facts_models import Model, gpt
from course.parallel.zero_versions import STAGE, WAYS, begin_training
from course.quantities import write_bytes
from course.worlds import torchrun_main
from course.worlds.box import describe_box
from course.worlds.step_meter import StepCost, meter_steps, time_steps
from course.worlds.timing import lines_of, time_lines

TOLERANCE = 1e-4  # of losses in float32, relative
PARALLEL = [way for way in WAYS if way != "alone"]


def one_rank(shape: Model, micro_batch: int, steps: int, repeats: int):
    """({way: StepCost}, {way: seconds}, the box) of this rank."""
    batch = micro_batch * dist.get_world_size()
    begin = functools.partial(begin_training, shape=shape, batch=batch)
    costs = {way: meter_steps(begin, way, steps=steps) for way in WAYS}
    seconds = time_steps({way: begin(way) for way in PARALLEL}, repeats)
    return costs, seconds, describe_box(dist.get_backend(), dist.get_world_size())


def predicted(way: str, shape: Model, ranks: int, micro_batch: int) -> ZeroStep:
    """What the arithmetic says of a way."""
    if way == "alone":
        return zero_step(shape, 0, 1, micro_batch * ranks)
    return zero_step(shape, STAGE[way], ranks, micro_batch, gradients_stay=way == "DDP")


def report(run, shape: Model, micro_batch: int) -> str:
    """The lab's tables, from rank 0's answer."""
    costs, seconds, box = run.results[0]
    return "\n\n".join(
        [
            "\n".join(f"{what}: {words}" for what, words in box.items()),
            f"{shape.parameters:,} parameters in float32, {micro_batch} sequences a rank",
            loss_lines(costs),
            byte_lines(costs, shape, run.ranks, micro_batch),
            time_lines("a step", seconds, "fully_shard"),
        ]
    )


def loss_lines(costs: dict[str, StepCost]) -> str:
    """First and last loss of each way, and how far it is from one process.

    Raises AssertionError where one differs by more than TOLERANCE.
    """
    rows = [["losses", "first", "last", "differs by"]]
    alone = costs["alone"].losses
    for way, cost in costs.items():
        pairs = zip(cost.losses, alone, strict=True)
        off = max(abs(loss / right - 1) for loss, right in pairs)
        assert off <= TOLERANCE, f"{way} differs from one process by {off:.1e}"
        rows.append([way, f"{cost.losses[0]:.4f}", f"{cost.losses[-1]:.4f}", f"{off:.1e}"])
    return lines_of(rows)


def byte_lines(costs: dict[str, StepCost], shape: Model, ranks: int, batch: int) -> str:
    """Measured bytes of each way, each with its ratio to the prediction."""
    rows = [["one rank", "between steps", "ratio", "at the peak", "ratio", "sent", "ratio"]]
    for way, cost in costs.items():
        said = predicted(way, shape, ranks, batch)
        pairs = [
            (cost.held_bytes, said.held),
            (cost.peak_bytes, said.peak),
            (cost.sent_bytes, said.sent),
        ]
        cells = [[write_bytes(m), f"{m / p:.3f}" if p else "-"] for m, p in pairs]
        rows.append([way, *sum(cells, [])])
    return lines_of(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"layers": 4, "hidden": 128, "vocab": 512, "sequence": 32, "batch": 2}
    for name, default in {**numbers, "steps": 8, "repeats": 9}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    heads = max(1, asked.hidden // 32)
    sizes = {"vocab": asked.vocab, "sequence": asked.sequence}
    shape = gpt("lab GPT", asked.layers, asked.hidden, heads, **sizes)
    if run := torchrun_main(one_rank, shape, asked.batch, asked.steps, asked.repeats):
        print(report(run, shape, asked.batch))


if __name__ == "__main__":
    main()
