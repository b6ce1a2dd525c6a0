"""Every collective by hand against torch's own, on real ranks and on simulated ones.

A rank compares all elements itself and returns what differs, so that one run of a world
holds many cases.
"""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course import World
from course.costs.collectives import cost
from course.costs.hierarchical import hierarchical_all_reduce as hierarchical_cost
from course.costs.hierarchical import leader_all_reduce as leader_cost
from course.costs.topology import Cluster, uniform
from course.facts import H100, Link, Node
from course.parallel import (
    all_pairs,
    collectives,
    halving_doubling,
    hierarchical,
    segmented,
    trees,
)
from course.parallel.messages import flattened, receive, send

OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}


def far_first(tensor, op=OPS["sum"], group=None):
    halving_doubling.halving_doubling_all_reduce(tensor, op, group, first="far")


def many_segments(tensor, op=OPS["sum"], group=None):
    segmented.segmented_ring_all_reduce(tensor, op, group, segment_bytes=8)


def small_blocks(tensor, op=OPS["sum"], group=None):
    all_pairs.all_pairs_all_reduce(tensor, op, group, block_bytes=20)


def one_segment_trees(tensor, op=OPS["sum"], group=None):
    trees.double_tree_all_reduce(tensor, op, group, segments=1)


ALL_REDUCES = {
    "naive": collectives.naive_all_reduce,
    "ring": collectives.ring_all_reduce,
    "tree": trees.tree_all_reduce,
    "double_tree": trees.double_tree_all_reduce,
    "double_tree, 1 segment": one_segment_trees,
    "recursive_doubling": halving_doubling.recursive_doubling_all_reduce,
    "halving_doubling": halving_doubling.halving_doubling_all_reduce,
    "halving_doubling, far first": far_first,
    "all pairs": all_pairs.all_pairs_all_reduce,
    "all pairs, small blocks": small_blocks,
    "segmented ring": segmented.segmented_ring_all_reduce,
    "segmented ring, small": many_segments,
    "fast": segmented.fast_all_reduce,
}
# Elements: none, fewer than ranks, one each, and sizes that divide by nothing.
SIZES = (0, 1, 3, 7, 32)
OTHER_DTYPES = (torch.bfloat16, torch.float64, torch.int64, torch.uint8)


@pytest.fixture(scope="module", params=["gloo", "simulated"])
def worlds(request):
    """worlds(n): the world of n ranks of this kind, made once."""
    made = {}

    def world(ranks: int) -> World:
        if ranks not in made:
            made[ranks] = World(ranks, on=request.param, timeout_s=120)
        return made[ranks]

    yield world
    for each in made.values():
        each.close()


def values(size: int, dtype, rank: int) -> torch.Tensor:
    """Small whole numbers that differ by rank and place: sums are exact in any order."""
    return ((torch.arange(size) * (rank + 3) + 5 * rank) % 11).to(dtype)


def differs(name: str, found: torch.Tensor, wanted: torch.Tensor) -> list[str]:
    """[] where all elements agree (bf16 within its rounding), else what does not."""
    exact = not found.is_floating_point()
    close = {"rtol": 0, "atol": 0} if exact else {}
    try:
        torch.testing.assert_close(found, wanted, **close)
    except AssertionError as error:
        return [f"rank {dist.get_rank()}: {name}: {error}"]
    return []


def assert_none(run):
    wrong = [line for lines in run.results for line in lines]
    assert wrong == []


# --- All-reduce ----------------------------------------------------------------------


def check_all_reduce(names, sizes, dtypes, group_ranks=None):
    me = dist.get_rank()
    group = dist.new_group(group_ranks) if group_ranks else None
    if group_ranks and me not in group_ranks:
        return []
    wrong = []
    for dtype in dtypes:
        ops = [op for op in OPS if op != "mean" or dtype.is_floating_point]
        for size, op in [(size, op) for size in sizes for op in ops]:
            wanted = values(size, dtype, me)
            dist.all_reduce(wanted, op=OPS[op], group=group)
            for name in names:
                found = values(size, dtype, me)
                ALL_REDUCES[name](found, OPS[op], group)
                wrong += differs(f"{name} {size} {dtype} {op}", found, wanted)
    return wrong


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_all_reduces_equal_torchs(worlds, ranks):
    sizes = SIZES if ranks < 4 else (3, 32)
    names = list(ALL_REDUCES)
    assert_none(worlds(ranks).run(check_all_reduce, names, sizes, (torch.float32,)))


def test_all_reduces_take_any_dtype(worlds):
    assert_none(worlds(3).run(check_all_reduce, list(ALL_REDUCES), (8,), OTHER_DTYPES))


def test_all_reduces_of_eight_ranks(worlds):
    names = [name for name in ALL_REDUCES if name != "naive"]
    assert_none(worlds(8).run(check_all_reduce, names, (64,), (torch.float32,)))


@pytest.mark.parametrize("group", [[1, 3, 4], [4, 0], [2]])
def test_all_reduces_in_a_group_name_peers_by_their_place_in_it(worlds, group):
    run = worlds(5).run(check_all_reduce, list(ALL_REDUCES), (7,), (torch.float32,), group)
    assert_none(run)


def check_odd_shapes():
    me = dist.get_rank()
    shapes = {
        "scalar": lambda: torch.tensor(float(me)),
        "3 dimensions": lambda: values(24, torch.float32, me).view(2, 3, 4),
        "transposed": lambda: values(12, torch.float32, me).view(3, 4).t(),
        "every second": lambda: values(14, torch.float32, me)[::2],
        "a column": lambda: values(12, torch.float32, me).view(4, 3)[:, 1],
        "no rows": lambda: torch.empty(0, 5),
        "needs a gradient": lambda: values(5, torch.float32, me).requires_grad_(),
    }
    wrong = []
    for (shape, make), name in [(s, n) for s in shapes.items() for n in ALL_REDUCES]:
        # torch's own on a plain copy: it takes no tensor with gaps.
        wanted = make().detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(wanted)
        whole = make()
        with torch.no_grad():
            ALL_REDUCES[name](whole)
        wrong += differs(f"{name} of {shape}", whole.detach().contiguous(), wanted)
    return wrong


def test_any_shape_and_any_strides(worlds):
    assert_none(worlds(3).run(check_odd_shapes))


def check_gaps_are_left_alone():
    base = torch.zeros(4, 4)
    base[:, ::2] = 1
    collectives.ring_all_reduce(base[:, ::2])
    expected = torch.zeros(4, 4)
    expected[:, ::2] = dist.get_world_size()
    return differs("gaps", base, expected)


def test_elements_between_strides_are_left_alone(worlds):
    assert_none(worlds(3).run(check_gaps_are_left_alone))


def errors_of_bad_calls():
    calls = {
        "product": lambda: collectives.ring_all_reduce(
            torch.ones(3), dist.ReduceOp.PRODUCT
        ),
        "tree": lambda: trees.tree_all_reduce(torch.ones(3), dist.ReduceOp.PRODUCT),
        "middle": lambda: halving_doubling.halving_doubling_all_reduce(
            torch.ones(3), first="middle"
        ),
        "segment_bytes": lambda: segmented.segmented_ring_all_reduce(
            torch.ones(3), segment_bytes=0
        ),
        "block_bytes": lambda: all_pairs.all_pairs_all_reduce(torch.ones(3), block_bytes=0),
        "segments": lambda: trees.double_tree_all_reduce(torch.ones(3), segments=0),
        "gpus": lambda: hierarchical.node_groups(2),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


def test_bad_calls_are_refused_by_all_ranks(worlds):
    words = {
        "product": "op must be ReduceOp.SUM, AVG or MAX",
        "tree": "op must be",
        "middle": 'first must be "near" or "far"',
        "segment_bytes": "segment_bytes must be 1 or more, not 0",
        "block_bytes": "block_bytes must be 1 or more, not 0",
        "segments": "segments must be 1 or more, not 0",
        "gpus": r"gpus must divide the world size (3), not 2",
    }
    for found in worlds(3).run(errors_of_bad_calls).results:
        assert found.keys() == words.keys()
        for name, part in words.items():
            assert part in found[name]


# --- The other collectives -------------------------------------------------------------


def check_rooted(root):
    n, me = dist.get_world_size(), dist.get_rank()
    mine = values(7, torch.float32, me)
    wrong = []

    found, wanted = mine.clone(), mine.clone()
    collectives.naive_broadcast(found, root)
    dist.broadcast(wanted, root)
    wrong += differs("broadcast", found, wanted)

    for op in OPS.values():
        found, wanted = mine.clone(), mine.clone()
        collectives.naive_reduce(found, root, op)
        dist.all_reduce(wanted, op=op)
        wrong += differs("reduce", found, wanted if me == root else mine)

    pieces = [values(5, torch.float32, r + 10) for r in range(n)]
    found, wanted = torch.empty(5), torch.empty(5)
    collectives.naive_scatter(found, pieces if me == root else None, root)
    dist.scatter(wanted, pieces if me == root else None, root)
    wrong += differs("scatter", found, wanted)

    found, wanted = ([torch.empty(7) for _ in range(n)] for _ in range(2))
    collectives.naive_gather(mine, found if me == root else None, root)
    dist.gather(mine, wanted if me == root else None, root)
    if me == root:
        wrong += differs("gather", torch.stack(found), torch.stack(wanted))
    return wrong


@pytest.mark.parametrize("ranks, root", [(1, 0), (3, 0), (3, 2), (4, 1)])
def test_rooted_collectives_equal_torchs(worlds, ranks, root):
    assert_none(worlds(ranks).run(check_rooted, root))


def check_pieces():
    n, me = dist.get_world_size(), dist.get_rank()
    wrong = []

    piece = values(6, torch.float32, me).view(2, 3)
    found, wanted = torch.empty(2 * n, 3), torch.empty(2 * n, 3)
    collectives.naive_all_gather(found, piece)
    dist.all_gather(list(wanted.tensor_split(n)), piece)
    wrong += differs("all_gather", found, wanted)

    found = torch.zeros(2 * n, 3)
    found[2 * me : 2 * me + 2] = piece
    collectives.ring_all_gather(found)
    wrong += differs("ring all_gather", found, wanted)

    whole = values(2 * n * 3, torch.float32, me).view(2 * n, 3)
    for op in OPS.values():
        summed = whole.clone()
        dist.all_reduce(summed, op=op)
        wanted = summed[2 * me : 2 * me + 2]
        found = torch.empty(2, 3)
        before = whole.clone()
        collectives.naive_reduce_scatter(found, whole, op)
        wrong += differs("reduce_scatter", found, wanted)
        wrong += differs("reduce_scatter leaves its input", whole, before)
        found = collectives.ring_reduce_scatter(whole.clone(), op)
        wrong += differs("ring reduce_scatter", found.view(2, 3), wanted)

    sent = [values(4, torch.float32, 10 * me + q) for q in range(n)]
    found, wanted = [torch.empty(4) for _ in range(n)], torch.empty(n, 4)
    collectives.naive_all_to_all(found, sent)
    dist.all_to_all_single(wanted, torch.stack(sent))
    wrong += differs("all_to_all", torch.stack(found), wanted)
    collectives.naive_barrier()
    return wrong


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives_of_pieces_equal_torchs(worlds, ranks):
    assert_none(worlds(ranks).run(check_pieces))


def check_ring_halves_of_uneven_sizes(size):
    n, me = dist.get_world_size(), dist.get_rank()
    summed = values(size, torch.int64, me)
    dist.all_reduce(summed)
    pieces = summed.tensor_split(n)
    found = collectives.ring_reduce_scatter(values(size, torch.int64, me))
    wrong = differs(f"reduce_scatter of {size}", found, pieces[me])
    mine = torch.zeros(size, dtype=torch.int64)
    mine.tensor_split(n)[me].copy_(pieces[me])
    collectives.ring_all_gather(mine)
    return wrong + differs(f"all_gather of {size}", mine, summed)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 13])
def test_ring_halves_take_sizes_that_do_not_divide(worlds, size):
    assert_none(worlds(3).run(check_ring_halves_of_uneven_sizes, size))


def check_strided_messages():
    me = dist.get_rank()
    grid = torch.arange(12.0).view(3, 4)
    if me == 0:
        send(grid.t(), 1)
        return []
    found = torch.zeros(4, 6)
    receive(found[:, ::2], 0)
    expected = torch.zeros(4, 6)
    expected[:, ::2] = grid.t()
    return differs("strided message", found, expected)


def test_messages_take_any_strides(worlds):
    assert_none(worlds(2).run(check_strided_messages))


def test_flattened_shares_memory_where_it_can():
    whole = torch.zeros(2, 3)
    with flattened(whole) as row:
        assert row.data_ptr() == whole.data_ptr()
        row += 1
    with flattened(whole.t()) as row:
        row += 1
    assert (whole == 2).all()


# --- Two levels ------------------------------------------------------------------------


def check_two_levels(gpus):
    me = dist.get_rank()
    inside, across = hierarchical.node_groups(gpus)
    wrong = []
    for size, op in [(size, op) for size in (0, 5, 32) for op in OPS]:
        wanted = values(size, torch.float32, me)
        dist.all_reduce(wanted, op=OPS[op])
        for all_reduce in (
            hierarchical.hierarchical_all_reduce,
            hierarchical.leader_all_reduce,
        ):
            found = values(size, torch.float32, me)
            all_reduce(found, OPS[op], inside=inside, across=across)
            wrong += differs(f"{all_reduce.__name__} {size} {op}", found, wanted)
    return wrong


@pytest.mark.parametrize("ranks, gpus", [(1, 1), (4, 2), (4, 1), (4, 4), (8, 4), (8, 2)])
def test_two_levels_equal_torchs(worlds, ranks, gpus):
    assert_none(worlds(ranks).run(check_two_levels, gpus))


# --- Trees as data ---------------------------------------------------------------------


@given(st.integers(1, 300))
def test_both_trees_span_all_ranks_and_no_rank_is_inner_twice(n):
    seats = trees.double_tree(n)
    for tree in seats:
        roots = [r for r, seat in enumerate(tree) if seat.parent is None]
        assert len(roots) == 1
        for rank, seat in enumerate(tree):
            assert len(seat.children) <= 2
            assert all(tree[child].parent == rank for child in seat.children)
            assert seat.parent is None or rank in tree[seat.parent].children
            assert depth(tree, rank) <= math.log2(n) + 1
    twice = [r for r in range(n) if seats[0][r].children and seats[1][r].children]
    assert twice == [] if n % 2 == 0 else set(twice) <= {0}
    # So no two ranks are parent and child in both, and no messages can be mixed up.
    assert n == 3 or not set(seats[0][0].children) & set(seats[1][0].children)


def depth(tree, rank) -> int:
    steps = 0
    while tree[rank].parent is not None:
        rank, steps = tree[rank].parent, steps + 1
        assert steps <= len(tree), "the tree has a cycle"
    return steps


# --- Predicted is simulated ---------------------------------------------------------------

ALPHA, B = 3e-6, 1e9
WIRE = Link("wire", ALPHA, B)


def all_reduce_on_wire(name: str, ranks: int, numel: int):
    world = World(ranks, cluster=uniform(ranks, latency_s=ALPHA, bytes_per_s=B))
    with world:
        return world.run(lambda: ALL_REDUCES[name](torch.ones(numel)))


@pytest.mark.parametrize(
    "name, algorithm",
    [
        ("naive", "naive"),
        ("ring", "ring"),
        ("tree", "tree"),
        ("recursive_doubling", "recursive_doubling"),
        ("halving_doubling", "halving_doubling"),
        ("halving_doubling, far first", "halving_doubling"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 8, 12, 16])
def test_simulated_seconds_are_the_predicted_ones(name, algorithm, ranks):
    numel = 16 * 3 * 5 * 16
    run = all_reduce_on_wire(name, ranks, numel)
    predicted = cost("all_reduce", algorithm, ranks, numel * 4)
    assert run.seconds == pytest.approx(predicted.seconds(WIRE), rel=1e-9)
    assert max(run.bytes_sent) <= predicted.bytes_sent * (1 + 1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_ring_sends_the_same_from_every_rank(ranks):
    numel = 24 * ranks
    run = all_reduce_on_wire("ring", ranks, numel)
    per_rank = 2 * (ranks - 1) * 24 * 4
    assert run.bytes_sent == run.bytes_received == (per_rank,) * ranks
    links = {(r, (r + 1) % ranks): per_rank for r in range(ranks)}
    assert run.bytes_per_link == links


@pytest.mark.parametrize("ranks", [4, 6, 9, 16, 32])
def test_the_double_tree_nears_its_limit_as_segments_get_finer(ranks):
    """Through each port at most M up and M down; the time is that of fine pipelining.

    With an odd number of ranks, rank 0 has children in both trees and takes longer.
    """
    numel = 2**20
    limit = cost("all_reduce", "double_tree", ranks, numel * 4)
    seconds = []
    for segments in (1, 8, 64):
        world = World(ranks, cluster=uniform(ranks, latency_s=ALPHA, bytes_per_s=B))
        with world:
            run = world.run(
                lambda s=segments: trees.double_tree_all_reduce(
                    torch.ones(numel), segments=s
                )
            )
        assert max(*run.bytes_sent, *run.bytes_received) <= limit.bytes_sent
        assert sum(run.bytes_sent) == 2 * (ranks - 1) * numel * 4
        seconds.append(run.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert 1 <= seconds[-1] / limit.seconds(WIRE) < (1.4 if ranks % 2 == 0 else 2)


def two_levels(name: str, gpus: int, numel: int) -> None:
    inside, across = hierarchical.node_groups(gpus)
    getattr(hierarchical, name)(torch.ones(numel), inside=inside, across=across)


@pytest.mark.parametrize("nodes, gpus", [(2, 4), (4, 2), (3, 4)])
@pytest.mark.parametrize(
    "name, predict",
    [("hierarchical_all_reduce", hierarchical_cost), ("leader_all_reduce", leader_cost)],
)
def test_two_levels_take_what_is_predicted(nodes, gpus, name, predict):
    cluster = Cluster(two_level_node(gpus), nodes)
    numel = 4 * 3 * 4 * 100
    with World(nodes * gpus, cluster=cluster) as world:
        run = world.run(two_levels, name, gpus, numel)
    node = cluster.node
    predicted = predict(gpus, nodes, numel * 4).seconds(node.fabric, node.nic)
    assert run.seconds == pytest.approx(predicted, rel=1e-9)


def two_level_node(gpus: int) -> Node:
    fabric, nic = Link("fabric", 1e-6, 1e10), Link("card", 1e-5, 1e9)
    return Node("test node", H100, gpus, fabric, nic, gpus)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_all_pairs_take_two_latencies_and_the_bytes_of_a_ring(ranks):
    nbytes, link = 840 * 4, Link("wire", 1e-5, 1e9)
    cluster = uniform(ranks, latency_s=link.latency_s, bytes_per_s=link.bytes_per_s)
    tensor = torch.ones(nbytes // 4)
    run = World(ranks, cluster=cluster).run(all_pairs.all_pairs_all_reduce, tensor)
    sent = 2 * (ranks - 1) / ranks * nbytes
    assert run.bytes_sent == (sent,) * ranks
    steps = 2 if ranks > 1 else 0
    assert run.seconds == pytest.approx(
        steps * link.latency_s + sent / link.bytes_per_s, rel=1e-12
    )


@pytest.mark.parametrize(
    "ranks, length, reached",
    [(3, 2_500_001, {1, 2}), (3, 8_500_001, {1}), (9, 600_001, {1})],
)
def test_fast_takes_all_pairs_or_the_ring(ranks, length, reached):
    """Blocks on few ranks; long, or many: the ring, where each sends to one other."""

    def summed():
        x = torch.arange(float(length)) * (dist.get_rank() + 1)
        expected = x.clone()
        segmented.fast_all_reduce(x)
        dist.all_reduce(expected)
        return torch.allclose(x, expected)

    run = World(ranks).run(summed)
    assert all(run.results)
    to = {m.destination for m in run.messages if m.source == 0}
    assert to == reached


def test_what_fast_keeps_serves_other_sizes_dtypes_and_ranks(worlds):
    """Room left by one call must not reach into the next, nor from rank to rank."""

    def several():
        me, equal = dist.get_rank(), []
        for length, dtype in ((7, torch.float64), (1000, torch.bfloat16), (3, torch.uint8)):
            x = (torch.arange(length) % 5 + me).to(dtype)
            expected = x.clone()
            segmented.fast_all_reduce(x)
            dist.all_reduce(expected)
            equal.append(torch.equal(x, expected))
        return equal

    for ranks in (3, 2):
        assert all(all(equal) for equal in worlds(ranks).run(several).results)
