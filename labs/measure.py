"""Lab 11 on any number of machines: alpha, B, and the fastest all-reduce by size.

On one machine, with as many ranks as you like:

    torchrun --standalone --nproc-per-node 4 labs/measure.py

On each of two nodes with 8 GPUs, HOST being one of them:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 labs/measure.py

Ranks use nccl where each has a GPU, else gloo. The first wire is between ranks 0 and 1,
the last between 0 and n - 1: with two nodes that one crosses the network. Every second
size is fitted, the others are predicted; fits are to the best repeats, the table holds
medians. `--most MIB` sets the largest message,
`--repeats` how often.
"""

import argparse
import functools
import os

import torch.distributed as dist

from course.costs.collectives import cost
from course.costs.fitting import Fit, all_messages, fastest_of, fit_half
from course.facts import KIB, MIB
from course.parallel.timed import ALL_REDUCES, COLLECTIVES, round_trip
from course.quantities import write_bytes, write_rate, write_seconds
from course.worlds import torchrun_main
from course.worlds.box import describe_box
from course.worlds.timing import bests, lines_of, medians, table, time_calls

VERSIONS = {**ALL_REDUCES, "torch": dist.all_reduce}
MODELS = {
    "a wire each": lambda name, n, m: cost("all_reduce", name, n, m),
    "one box": all_messages,
}


def divisible_sizes(most: int, ranks: int) -> list[int]:
    """Powers of two times 4 KiB up to most bytes, rounded up to whole float32 pieces."""
    piece = 4 * ranks
    count = (most // (4 * KIB)).bit_length()
    return [-(-(4 * KIB << k) // piece) * piece for k in range(count)]


def one_rank(most: int, repeats: int):
    """(timings of wires, of all-reduces, of torch's collectives, the box) of this rank."""
    n = dist.get_world_size()
    sizes = divisible_sizes(most, n)
    peers = dict.fromkeys((1, n - 1))  # one peer where there are two ranks
    wires = {f"0 and {p}": functools.partial(round_trip, peer=p) for p in peers}
    largest = sizes[-1:]
    return (
        time_calls(wires, sizes, repeats),
        time_calls(VERSIONS, sizes, repeats),
        time_calls(COLLECTIVES, largest, repeats),
        describe_box(dist.get_backend(), n),
    )


def report(run) -> str:
    """The lab's tables, from rank 0's answer."""
    wires, versions, collectives, box = run.results[0]
    parts = [
        "\n".join(f"{what}: {words}" for what, words in box.items()),
        wire_lines(bests(wires)),
        table(medians(versions), run.ranks),
        model_lines(bests(versions), run.ranks),
        collective_lines(medians(collectives), run.ranks),
    ]
    return "\n\n".join(parts)


def wire_lines(trips) -> str:
    """alpha and B of each wire, and how far off they are on the sizes held out."""
    rows = [["wire between", "alpha", "B", "error"]]
    for name, curve in trips.items():
        costs = {m: cost("send", "ring", 2, m) for m in curve}
        fit = fit_half({name: costs}, {name: {m: s / 2 for m, s in curve.items()}})
        rows.append([name, *link_words(fit)])
    return lines_of(rows)


def link_words(fit: Fit) -> list[str]:
    link = fit.link
    return [write_seconds(link.latency_s), write_rate(link.bytes_per_s), f"{fit.error:.0%}"]


def model_lines(times, ranks: int) -> str:
    """Both models fitted to all algorithms at once, and who they say is fastest."""
    by_hand = {name: times[name] for name in ALL_REDUCES}
    fits = [["model", "alpha", "B", "error"]]
    rows = {"measured": fastest_of(by_hand)}
    for model, count in MODELS.items():
        costs = {n: {m: count(n, ranks, m) for m in c} for n, c in by_hand.items()}
        fit = fit_half(costs, by_hand)
        fits.append([model, *link_words(fit)])
        rows[model] = fastest_of(fit.predict(costs))
    fastest = [["fastest by hand", *rows]]
    fastest += [
        [write_bytes(m), *(row[m] for row in rows.values())] for m in rows["measured"]
    ]
    return f"{lines_of(fits)}\n\n{lines_of(fastest)}"


def collective_lines(times, ranks: int) -> str:
    (nbytes,) = {m for curve in times.values() for m in curve}
    rows = [["torch's", f"{write_bytes(nbytes)} in", "the busiest rank should send"]]
    for name, curve in times.items():
        sent = cost(name, "ring", ranks, nbytes).bytes_sent
        rows.append([name, write_seconds(curve[nbytes]), write_bytes(sent)])
    return lines_of(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=16, metavar="MIB")
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", 2)) < 2:
        raise SystemExit("a wire needs 2 ranks or more: write --nproc-per-node 2")
    if run := torchrun_main(one_rank, asked.most * MIB, asked.repeats):
        print(report(run))


if __name__ == "__main__":
    main()
