"""Lab 01 on any number of machines: ring all-reduce by hand beside torch's own.

On one machine, with as many ranks as you like:

    torchrun --standalone --nproc-per-node 4 labs/ring.py

On each of two nodes with 8 GPUs, HOST being one of them:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 labs/ring.py

Ranks use nccl where each has a GPU, else gloo. Every second size is fitted, the others
are predicted from the fit. `--most MIB` sets the largest message, `--repeats` how often.
"""

import argparse
import os

import torch
import torch.distributed as dist

from course.costs.bandwidth import fit_link
from course.costs.collectives import cost
from course.facts import KIB, MIB
from course.parallel.collectives import ring_all_reduce
from course.quantities import write_bytes, write_rate, write_seconds
from course.worlds import torchrun_main
from course.worlds.timing import lines_of, medians, table, time_calls

VERSIONS = {"ring": ring_all_reduce, "torch": dist.all_reduce}


def check_equal() -> int:
    """Ring and torch agree on every element, for sizes that do not divide; how many."""
    n, me = dist.get_world_size(), dist.get_rank()
    sizes = [0, 1, n - 1, n, n + 1, 1000, 12_345]
    for elements in sizes:
        ours = torch.arange(elements) * (me + 1)
        theirs = ours.clone()
        ring_all_reduce(ours)
        dist.all_reduce(theirs)
        assert torch.equal(ours, theirs), f"{elements} elements on rank {me}"
    return len(sizes)


def one_rank(sizes: list[int], repeats: int):
    """(sizes that agree, timings) of this rank."""
    return check_equal(), time_calls(VERSIONS, sizes, repeats)


def report(run, sizes: list[int]) -> str:
    """The lab's tables, from rank 0's answer."""
    agreeing, timings = run.results[0]
    seconds = medians(timings)
    lines = [
        f"{run.ranks} ranks on {run.world}",
        f"equal to torch's on every element of {agreeing} sizes",
        "",
        table(seconds, run.ranks),
    ]
    return "\n".join(lines + predictions(seconds["ring"], run.ranks, sizes[::2]))


def predictions(ring: dict[int, float], ranks: int, fitted_on: list[int]) -> list[str]:
    """alpha and B from some sizes, and the other sizes predicted from them."""
    costs = {m: cost("all_reduce", "ring", ranks, m) for m in ring}
    try:
        link = fit_link([costs[m] for m in fitted_on], [ring[m] for m in fitted_on])
    except ValueError as error:
        return ["", f"no fit ({error}): measure again, with more --repeats or --most"]
    alpha, rate = write_seconds(link.latency_s), write_rate(link.bytes_per_s)
    rows = [["size", "predicted", "measured", "ratio"]]
    for m in (m for m in ring if m not in fitted_on):
        predicted_s = costs[m].seconds(link)
        times = write_seconds(predicted_s), write_seconds(ring[m])
        rows.append([write_bytes(m), *times, f"{predicted_s / ring[m]:.2f}"])
    return ["", f"fitted on every second size: alpha {alpha}, B {rate}", lines_of(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=16, metavar="MIB")
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", 2)) < 2:
        raise SystemExit("a ring needs 2 ranks or more: write --nproc-per-node 2")
    sizes = [4 * KIB << k for k in range((asked.most * MIB // (4 * KIB)).bit_length())]
    if run := torchrun_main(one_rank, sizes, asked.repeats):
        print(report(run, sizes))


if __name__ == "__main__":
    main()
