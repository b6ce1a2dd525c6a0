"""Pictures of chapter 04: what they draw is what the algorithms do, and NCCL's choice."""

import pytest
import torch

from course import World
from course.costs import nccl
from course.costs.hierarchical import BY_DISTANCE, all_reduce_by_distance
from course.costs.topology import Cluster
from course.facts import DGX_H100, GB, H100, IB_NDR, KIB, Link, Node
from course.figures.collective_costs import map_of_fastest, time_against_size
from course.figures.exchanges import (
    CHOICES,
    doubling_frames,
    doubling_steps,
    halving_doubling_frames,
    halving_doubling_steps,
    hierarchical_picture,
)
from course.figures.measured import measured_bandwidths
from course.figures.nccl import nccl_choice
from course.figures.trees import KINDS, binomial_tree, sent_by_rank, tree_picture
from course.parallel.halving_doubling import (
    halving_doubling_all_reduce,
    recursive_doubling_all_reduce,
)
from course.parallel.trees import (
    binary_tree,
    double_tree,
    double_tree_all_reduce,
    tree_all_reduce,
)
from course.widgets import choice, explore, log_slider, slider, stepper

# --- Trees ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 13, 16])
def test_what_a_tree_loads_on_each_rank_is_what_a_run_sends(ranks):
    nbytes = 4 * 64 * ranks
    made = {
        tree_all_reduce: [binomial_tree(ranks)],
        double_tree_all_reduce: double_tree(ranks),
    }
    for function, trees in made.items():
        run = World(ranks).run(function, torch.ones(nbytes // 4))
        assert list(run.bytes_sent) == [share * nbytes for share in sent_by_rank(trees)]


@pytest.mark.parametrize("ranks", range(2, 33))
def test_every_tree_joins_all_ranks_with_the_fewest_edges(ranks):
    for tree in (binomial_tree(ranks), binary_tree(ranks), *double_tree(ranks)):
        assert sum(sent_by_rank([tree])) == 2 * (ranks - 1)
        assert [seat.parent for seat in tree].count(None) == 1


def test_one_tree_has_a_busiest_rank_that_two_trees_have_not():
    assert max(sent_by_rank([binomial_tree(32)])) == 5
    assert max(sent_by_rank([binary_tree(32)])) == 3
    assert max(sent_by_rank(double_tree(32))) == 2


def test_the_picture_of_a_tree_has_a_circle_for_each_rank():
    figure, text = tree_picture("double", 8)
    assert sorted(r for trace in figure.data for r in trace.text or ()) == sorted(
        [str(r) for r in range(8)] * 2
    )
    assert text.endswith(" No rank has children in both trees.")
    assert tree_picture("double", 7)[1].endswith(" Rank 0 has children in both trees.")
    _, text = tree_picture("binomial", 8)
    assert text == "Most is sent by ranks 0, 4: 3 M. 4 of 8 ranks have no children."
    assert explore(tree_picture, kind=choice(list(KINDS)), ranks=slider(2, 32)).sweep() > 90


def test_trees_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="kind must be one of"):
        tree_picture("fat")
    with pytest.raises(ValueError, match="ranks must be from 2 to 32, not 1"):
        tree_picture("double", 1)


# --- Butterflies ------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", CHOICES)
@pytest.mark.parametrize("first", ["near", "far"])
def test_drawn_messages_are_the_ones_that_are_sent(ranks, first):
    element = 8
    steps = halving_doubling_steps(ranks, first)
    assert all(len(sources) == ranks for row in steps[-1].held for sources in row)
    x = torch.ones(ranks, dtype=torch.long)
    run = World(ranks).run(lambda: halving_doubling_all_reduce(x.clone(), first=first))
    drawn = [
        (rank, rank ^ step.distance, element * len(step.given[rank]))
        for step in steps[1:]
        for rank in range(ranks)
    ]
    assert sorted((m.source, m.destination, m.bytes) for m in run.messages) == sorted(drawn)


@pytest.mark.parametrize("ranks", CHOICES)
def test_drawn_doubling_is_what_recursive_doubling_sends(ranks):
    steps = doubling_steps(ranks)
    assert all(len(sources) == ranks for row in steps[-1].held for sources in row)
    run = World(ranks).run(recursive_doubling_all_reduce, torch.ones(5))
    drawn = [(r, r ^ step.distance, 20) for step in steps[1:] for r in range(ranks)]
    assert sorted((m.source, m.destination, m.bytes) for m in run.messages) == sorted(drawn)


def test_far_first_leaves_piece_r_to_rank_r_in_between():
    middle = halving_doubling_steps(8, "far")[3]
    finished = [[len(s) == 8 for s in row] for row in middle.held]
    assert finished == [[r == piece for piece in range(8)] for r in range(8)]


def test_frames_say_what_has_been_sent():
    assert doubling_frames(8)[-1][1].endswith("Sent so far: 3 M.")
    frames = halving_doubling_frames(8)
    assert len(frames) == 7 and "14/8 M" in frames[-1][1]
    assert stepper(frames).stored_text().endswith("7 steps")
    with pytest.raises(ValueError, match=r"ranks must be one of \[2, 4, 8, 16\], not 6"):
        halving_doubling_frames(6)
    with pytest.raises(ValueError, match='first must be "near" or "far"'):
        halving_doubling_steps(4, "middle")


def test_the_hierarchy_is_drawn_phase_by_phase():
    scattered, reduced, gathered = hierarchical_picture(4, 2).data
    assert [row.count("4") for row in map(list, scattered.text)] == [1] * 8
    assert [list(row).index("8") for row in reduced.text] == [0, 1, 2, 3] * 2
    assert {text for row in gathered.text for text in row} == {"8"}
    with pytest.raises(ValueError, match="do not fit"):
        hierarchical_picture(8, 4)


# --- Two kinds of wire --------------------------------------------------------------------

HANDS = {
    "tree": tree_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
}


@pytest.mark.parametrize("algorithm", BY_DISTANCE)
@pytest.mark.parametrize("gpus, nodes", [(4, 2), (4, 4), (2, 8), (1, 4), (4, 1)])
def test_distances_on_two_kinds_of_wire_take_what_a_run_takes(algorithm, gpus, nodes):
    fabric, nic = Link("fabric", 5e-6, 100 * GB), Link("card", 20e-6, 10 * GB)
    cluster = Cluster(Node("node", H100, gpus, fabric, nic, gpus), nodes)
    nbytes = 16 * 4 * KIB
    run = World(gpus * nodes, cluster=cluster).run(
        HANDS[algorithm], torch.ones(nbytes // 4)
    )
    cost = all_reduce_by_distance(algorithm, gpus, nodes, nbytes)
    assert run.seconds == pytest.approx(cost.seconds(fabric, nic), rel=1e-9)


def test_distances_need_powers_of_two():
    with pytest.raises(ValueError, match="gpus must be a power of two, not 3"):
        all_reduce_by_distance("tree", 3, 2, 8)
    with pytest.raises(ValueError, match="algorithm must be one of"):
        all_reduce_by_distance("ring", 2, 2, 8)


def test_each_butterfly_has_only_its_own_card_between_nodes():
    """64 H100: 3 steps inside, 3 across, all of M at 50 GB/s a card."""
    figure = time_against_size(64, DGX_H100, algorithms=["recursive_doubling"])
    most = figure.data[0].x[-1]
    by_hand = 3 * (3.4e-6 + most / 450e9) + 3 * (14e-6 + most / 50e9)
    assert figure.data[0].y[-1] == pytest.approx(by_hand)


def test_the_map_gives_many_nodes_to_trees_and_one_wire_to_butterflies():
    names = {trace.name for trace in map_of_fastest(DGX_H100).data if trace.name}
    assert {"ring", "double binary tree"} <= names
    names = {trace.name for trace in map_of_fastest(IB_NDR).data if trace.name}
    assert names == {"halving-doubling", "recursive doubling"}


def test_a_wire_is_drawn_where_it_is():
    figure = measured_bandwidths({"box": {1024: 480 * GB}}, wire_bytes_per_s=450 * GB)
    (line,) = figure.layout.shapes
    assert line.y0 == line.y1 == 450
    assert figure.layout.annotations[0].text == "the wire, 450 GB/s"
    assert not measured_bandwidths({"box": {1024: 480 * GB}}).layout.shapes


# --- NCCL ---------------------------------------------------------------------------------


def test_the_broad_line_is_the_least_of_all_and_the_choice():
    figure, text = nccl_choice(2, "DGX A100")
    least, *curves = figure.data
    assert len(curves) == 6
    for i, nbytes in enumerate(least.x):
        assert least.y[i] == min(curve.y[i] for curve in curves)
        a, p = nccl.choose(nccl.dgx_a100(2), nbytes)
        assert least.y[i] == next(c.y[i] for c in curves if c.name == f"{a}/{p}")
    assert text.startswith("By powers of two: Tree/LL, Tree/LL128 from 256 KiB, Ring/LL128")


def test_nccl_choice_draws_at_every_position():
    made = explore(
        nccl_choice, nodes=log_slider(1, 128), box=choice(["DGX A100", "DGX H100"])
    )
    assert made.sweep() > 20
    with pytest.raises(ValueError, match="box must be one of"):
        nccl_choice(1, "DGX-1")
