"""The picture of prices shows what simulated collectives really take."""

import pytest
import torch
import torch.distributed as dist

from course import World
from course.costs.topology import uniform
from course.facts import GB, MIB, NVLINK4, Link
from course.figures.collective_prices import PRICED, collective_prices

WIRE = Link("wire", 10e-6, 10 * GB)


def call(name: str, nbytes: int):
    n = dist.get_world_size()
    whole = torch.zeros(nbytes // 4)
    piece = torch.zeros(nbytes // 4 // n)
    parts = list(whole.tensor_split(n))
    at_root = parts if dist.get_rank() == 0 else None
    {
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_reduce": lambda: dist.all_reduce(whole),
        "scatter": lambda: dist.scatter(piece, at_root, 0),
        "gather": lambda: dist.gather(piece, at_root, 0),
        "all_gather": lambda: dist.all_gather(parts, piece),
        "reduce_scatter": lambda: dist.reduce_scatter(piece, parts),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "barrier": dist.barrier,
    }[name]()


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_each_bar_is_as_long_as_the_simulated_call(ranks):
    nbytes = ranks * 40_000
    figure, _ = collective_prices(ranks, nbytes, WIRE)
    latency, bandwidth = figure.data
    wires = uniform(ranks, latency_s=WIRE.latency_s, bytes_per_s=WIRE.bytes_per_s)
    for place, name in enumerate(PRICED):
        run = World(ranks, cluster=wires).run(call, name, nbytes)
        drawn_s = (latency.x[place] + bandwidth.x[place]) * 1e-6
        assert drawn_s == pytest.approx(run.seconds, rel=1e-9), name


def test_the_unit_follows_the_longest_bar():
    for nbytes, unit in ((1000, "µs"), (256 * MIB, "ms"), (1e13, "s")):
        figure, _ = collective_prices(8, nbytes, NVLINK4)
        assert figure.layout.xaxis.title.text == f"time ({unit})"
        assert max(figure.data[1].x) < 1e6


def test_text_names_the_bytes_of_the_busiest_port():
    _, text = collective_prices(4, 4 * MIB, WIRE, "naive")
    assert "broadcast 12 MiB, all-gather 15 MiB, all-reduce 24 MiB" in text
    _, text = collective_prices(4, 4 * MIB, WIRE)
    assert "broadcast 4 MiB, all-gather 3 MiB, all-reduce 6 MiB" in text


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="ranks must be 2 or more, not 1"):
        collective_prices(1)
    with pytest.raises(ValueError, match="way must be one of"):
        collective_prices(way="tree")
