"""Lab 06 on any number of machines: a mixture of experts over ranks, and hot experts.

On one machine, with as many ranks as you like:

    torchrun --standalone --nproc-per-node 4 labs/moe.py

On each of two nodes with 8 GPUs, HOST being one of them:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 labs/moe.py

Ranks use nccl where each has a GPU, else gloo. All ways train the same small model on the
same tokens, of which ranks hold different numbers; losses must agree with one process, and
the bytes from rank to rank with the routes. Then experts sleep for each row, which shows
that the rank with most rows sets the step, and what helps; then dispatch and combine are
timed beside two plain all-to-alls of the same bytes. `--tokens` is of a rank, on average,
`--experts` is of all, `--hidden` of the model, `--wide` of the rows that are timed,
`--row-us` is a row's sleep.
"""

import argparse
import os

import numpy as np
import torch.distributed as dist

from course.costs.moe_place import slots_apart
from course.parallel.moe_traffic import (
    layer_bytes,
    layer_once,
    routes_of,
    same_bytes,
)
from course.parallel.moe_versions import PAIR, WAYS, Task, train_moe
from course.quantities import write_bytes, write_seconds
from course.worlds import torchrun_main
from course.worlds.box import describe_box
from course.worlds.hot_experts import Hot, time_hot
from course.worlds.profile import recording
from course.worlds.sleep_experts import step_seconds
from course.worlds.step_meter import time_steps
from course.worlds.timing import lines_of, time_lines

TOLERANCE = 1e-9  # of losses in float64, relative
STRAIGHT = ("EP", "EP pairs", "EP x DP")  # ways whose rows go straight to their experts


def uneven(ranks: int, tokens: int) -> tuple[int, ...]:
    """Tokens of each rank, so many on average: rank 1 has none, the last has its share."""
    counts = [tokens] * ranks
    if ranks > 1:
        counts[1] = 0
        counts[-1 if ranks > 2 else 0] += tokens
    return tuple(counts)


def hot_cases(task: Task, train: int) -> dict[str, tuple[Task, int]]:
    """{name: (task, steps of training)}: even tokens, skewed ones, and what helps.

    All with top-1. Slots are made from the loads of one batch, so all ranks agree.
    """
    task = task.with_(tokens=(max(task.tokens),) * len(task.tokens), top_k=1)
    ranks = len(task.tokens)
    loads = np.bincount(np.concatenate(routes_of(task)), minlength=task.experts)
    changes = {
        "even tokens": {"skew": 0.0},
        "hot": {},
        "capacity 1": {"capacity_factor": 1.0},
        "balance loss": {"balance": 0.1},
        "bias": {"router": "sigmoid", "speed": 0.01},
        "hot apart": {"slots": tuple(slots_apart(loads, ranks))},
        "and replicas": {"slots": tuple(slots_apart(loads, ranks, ranks))},
    }
    return {name: (task.with_(**change), train) for name, change in changes.items()}


def one_rank(task: Task, steps: int, train: int, row_s: float, wide: int, repeats: int):
    """({way: losses}, {way: {rank: bytes}}, {case: Hot}, {way: seconds}, the box)."""
    ways = ways_on(dist.get_world_size())
    losses = {way: train_moe(way, task, steps) for way in ("alone", *ways)}
    sent = {way: sent_by_layer(way, task) for way in ways if way in STRAIGHT}
    hot = time_hot(hot_cases(task, train), row_s, repeats)
    seconds = time_steps(same_bytes(task, wide), 3 * repeats)
    return losses, sent, hot, seconds, describe_box(dist.get_backend(), len(task.tokens))


def ways_on(ranks: int) -> list[str]:
    """Those that so many ranks can do: pairs of ranks need an even number."""
    whole = ranks % PAIR == 0
    return [way for way in WAYS[1:] if whole or way not in ("EP levels", "EP x DP")]


def sent_by_layer(way: str, task: Task) -> dict[int, int]:
    with recording(True) as recorded:
        layer_once(way, task)
    return recorded.trace.sent_to


# --- Tables ---------------------------------------------------------------------------


def report(run, task: Task, row_s: float) -> str:
    """The lab's tables, from all ranks' answers."""
    losses, _, _, seconds, box = run.results[0]
    sent = [result[1] for result in run.results]
    hot = [result[2] for result in run.results]
    tokens = f"tokens of each rank: {', '.join(map(str, task.tokens))}"
    return "\n\n".join(
        [
            "\n".join(f"{what}: {words}" for what, words in box.items()),
            f"{task.experts} experts, top-{task.top_k}; {tokens}",
            loss_lines(losses),
            byte_lines(sent, task),
            hot_lines(hot, row_s),
            time_lines("dispatch and combine", seconds, "plain"),
        ]
    )


def loss_lines(losses: dict[str, list[float]]) -> str:
    """First and last loss of each way, and how far it is from one process.

    Raises AssertionError where one differs by more than TOLERANCE.
    """
    rows = [["losses", "first", "last", "differs by"]]
    for way, own in losses.items():
        off = max(abs(a / b - 1) for a, b in zip(own, losses["alone"], strict=True))
        assert off <= TOLERANCE, f"{way} differs from one process by {off:.1e}"
        rows.append([way, f"{own[0]:.4f}", f"{own[-1]:.4f}", f"{off:.1e}"])
    return lines_of(rows)


def byte_lines(sent: list[dict[str, dict[int, int]]], task: Task) -> str:
    """Forward and backward of the layer: measured, its ratio to predicted, by rank."""
    routes = routes_of(task)
    rows = [["bytes of a layer", "by all", "ratio", "most by a rank", "worst pair's ratio"]]
    for way in sent[0]:
        found = np.zeros((len(sent), len(sent)))
        for rank, each in enumerate(sent):
            for to, nbytes in each[way].items():
                found[rank, to] = nbytes
        said = layer_bytes(way, task, routes) * ~np.eye(len(sent), dtype=bool)
        pairs = found[said > 0] / said[said > 0]
        worst = max(pairs, key=lambda ratio: abs(ratio - 1), default=1.0)
        ratio = f"{found.sum() / said.sum():.3f}" if said.any() else "-"
        most = write_bytes(found.sum(axis=1).max())
        rows.append([way, write_bytes(found.sum()), ratio, most, f"{worst:.3f}"])
    return lines_of(rows)


def hot_lines(hot: list[dict[str, Hot]], row_s: float) -> str:
    """A step of the layer with experts that sleep, against the rank with most rows."""
    rows = [
        ["asleep", "rows by rank", "dropped", "error", "predicted", "measured", "ratio"]
    ]
    for name, mine in hot[0].items():
        each = [rank[name].rows for rank in hot]
        said, dropped = step_seconds(max(each), row_s), sum(r[name].dropped for r in hot)
        cells = [" ".join(map(str, each)), str(dropped), f"{mine.error:.3f}"]
        times = [write_seconds(said), write_seconds(mine.seconds)]
        rows.append([name, *cells, *times, f"{mine.seconds / said:.2f}"])
    return lines_of(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    sizes = {"tokens": 32, "experts": 2 * ranks, "top-k": min(2, ranks), "wide": 1024}
    counts = {"steps": 20, "train": 30, "repeats": 3}
    hidden = max(16, 2 * ranks)
    for name, default in {**sizes, "hidden": hidden, **counts}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--row-us", type=float, default=300.0)
    asked = parser.parse_args()
    if asked.experts % ranks:
        raise SystemExit(f"--experts must be a multiple of the {ranks} ranks")
    shape = {"hidden": asked.hidden, "experts": asked.experts, "top_k": asked.top_k}
    task, row_s = Task(uneven(ranks, asked.tokens), **shape), asked.row_us / 1e6
    how = asked.steps, asked.train, row_s, asked.wide, asked.repeats
    if run := torchrun_main(one_rank, task, *how):
        print(report(run, task, row_s))


if __name__ == "__main__":
    main()
