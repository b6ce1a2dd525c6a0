"""ZeRO's arithmetic: the paper's tables cell by cell, and what simulated ranks do."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course import World
from course.costs import zero
from course.costs.collectives import cost
from course.costs.recipes import (
    BF16_ADAM,
    BF16_ADAM_FP32_GRADIENTS,
    FP16_MEGATRON,
    FP32_ADAM,
    FSDP2_BF16,
    RECIPES,
)
from course.facts import NVLINK4

WHOLE = [r for r in RECIPES.values() if r.frozen_weights is None]

# --- Published tables ---------------------------------------------------------------------

# ZeRO paper, table 1: GB for stages 1, 2, 3 of 7.5B, 128B and 1T parameters, as printed
TABLE_1 = {
    1: "120 120 120 2048 2048 2048 16000 16000 16000",
    4: "52.5 41.3 30 896 704 512 7000 5500 4000",
    16: "35.6 21.6 7.5 608 368 128 4750 2875 1000",
    64: "31.4 16.6 1.88 536 284 32 4187 2218 250",
    256: "30.4 15.4 0.47 518 263 8 4046 2054 62.5",
    1024: "30.1 15.1 0.12 513 257 2 4011 2013 15.6",
}
CELLS = [
    (ranks, size, stage, cell)
    for ranks, row in TABLE_1.items()
    for (size, stage), cell in zip(
        [(size, stage) for size in (7.5e9, 128e9, 1e12) for stage in (1, 2, 3)],
        row.split(),
        strict=True,
    )
]


@pytest.mark.parametrize("ranks, size, stage, cell", CELLS)
def test_table_1_of_the_zero_paper(ranks, size, stage, cell):
    gigabytes = zero.state_bytes_per_rank(BF16_ADAM, size, ranks, stage) / 1e9
    digit = 10.0 ** -len(cell.partition(".")[2])
    # as printed: rounded, or cut off (4187.5 is printed as 4187, 2218.75 as 2218)
    assert -digit / 2 - 1e-9 <= gigabytes - float(cell) < digit


def test_seven_billion_on_four_gpus_both_ways():
    """Corrections D3: 16 and 18 bytes are both right, the width of gradients differs."""
    for recipe, row in (
        (BF16_ADAM, [112, 49, 38.5, 28]),
        (BF16_ADAM_FP32_GRADIENTS, [126, 63, 42, 31.5]),
    ):
        got = [zero.state_bytes_per_rank(recipe, 7e9, 4, stage) for stage in range(4)]
        assert got == [gigabytes * 1e9 for gigabytes in row]


@pytest.mark.parametrize(
    "recipe, whole, divided",
    [(FP16_MEGATRON, 4, 16), (BF16_ADAM_FP32_GRADIENTS, 6, 12), (FP32_ADAM, 8, 8)],
)
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_megatrons_distributed_optimizer_is_stage_1(recipe, whole, divided, ranks):
    got = zero.state_bytes_per_rank(recipe, 1, ranks, 1)
    assert got == pytest.approx(whole + divided / ranks, rel=1e-12)


def test_only_stage_3_divides_everything():
    """Corrections D4."""
    for stage in (0, 1, 2):
        assert zero.state_bytes_per_rank(BF16_ADAM, 1, 10**9, stage) > 1.9
    assert zero.state_bytes_per_rank(BF16_ADAM, 1, 8, 3) == 16 / 8


def test_the_full_gradient_would_undo_stage_2():
    """Corrections D6: reduced after backward, gradients are there in full at the peak."""
    reduced = zero.state_bytes_per_rank(BF16_ADAM, 1, 64, 2)
    after_backward = reduced - 2 / 64 + 2
    assert after_backward == zero.state_bytes_per_rank(BF16_ADAM, 1, 64, 1)


def test_hpz_costs_memory():
    """Corrections D7: the second copy is many times stage 3's own weights."""
    shards = zero.staged({"weights": 2.0 * 7e9}, 3, 64)["weights"]
    assert zero.hpz_bytes(BF16_ADAM, 7e9, 8) == 8 * shards


def test_fsdp2_keeps_16_bytes_all_of_them_sharded():
    assert zero.state_bytes_per_rank(FSDP2_BF16, 1, 8, 3) == 16 / 8


# --- Communication ------------------------------------------------------------------------


@pytest.mark.parametrize("stage, volume", [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_volume_of_a_step(stage, volume):
    """ZeRO paper section 7; corrections D8 and D9: gather, gather, reduce-scatter."""
    assert zero.step_volume(stage, 64) == volume
    assert zero.step_volume(stage, 1) == 0


@pytest.mark.parametrize("m", [1, 2, 8])
def test_volume_with_accumulation(m):
    volume = lambda stage, **how: zero.step_volume(stage, 8, micro_batches=m, **how)
    assert volume(0) == volume(1) == 2  # with no_sync: once a step
    assert volume(3) == 2 * m + 1
    assert volume(3, keep="pass") == m + 1  # reshard_after_forward=False
    assert volume(3, keep="step") == 2  # and unsharded over all micro-batches
    assert volume(3, reduce="each") == 3 * m
    assert volume(2, reduce="each") == m + 1


def test_hsdp_gathers_inside_and_reduces_shards_between():
    parts = zero.step_transfers(3, 1e9, 8, recipe=BF16_ADAM, replicas=4)
    between = parts[-1]
    assert (between.collective, between.ranks) == ("all_reduce", 4)
    assert between.elements == 1e9 / 8
    assert between.bytes_sent == 2 * 3 / 4 * 1e9 / 8 * 2
    assert all(part.ranks == 8 for part in parts[:-1])


def test_hpz_takes_only_the_backward_gather_into_the_node():
    parts = zero.step_transfers(3, 1e9, 64, recipe=BF16_ADAM, hpz_ranks=8)
    inside = [part.name for part in parts if part.inside]
    assert inside == ["gather for backward"]
    assert [part.ranks for part in parts] == [64, 8, 64]
    assert zero.step_volume(3, 64, hpz_ranks=8) == 3  # the same, over nearer links


def test_gathers_travel_in_16_bits_and_gradients_in_the_recipes_width():
    widths = lambda recipe: [
        part.itemsize for part in zero.step_transfers(3, 1, 8, recipe=recipe)
    ]
    assert widths(BF16_ADAM) == [2, 2, 2]
    assert widths(FSDP2_BF16) == [2, 2, 4]


# --- Simulated ranks ----------------------------------------------------------------------

WIDTH, DEPTH = 32, 4


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)])


def sharded_steps(micro_batches, keep, last_only):
    """FSDP2 on each layer, none of the weights in the root."""
    model = mlp()
    for layer in model:
        fully_shard(layer, reshard_after_forward=keep == "layer")
    fully_shard(model)
    for i in range(micro_batches):
        last = i == micro_batches - 1
        model.set_requires_gradient_sync(last or not last_only)
        if keep == "step":
            model.set_reshard_after_backward(last)
        model(torch.ones(1, WIDTH)).sum().backward()


def ddp_step():
    model = nn.parallel.DistributedDataParallel(mlp(), init_sync=False)
    model(torch.ones(1, WIDTH)).sum().backward()


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("keep", zero.KEEPS)
@pytest.mark.parametrize("reduce", zero.REDUCES)
def test_fsdp2_sends_what_the_formula_says(m, keep, reduce):
    run = World(4).run(sharded_steps, m, keep, reduce == "last")
    transfers = zero.step_transfers(
        3, WIDTH**2 * DEPTH, 4, recipe=FP32_ADAM, micro_batches=m, keep=keep, reduce=reduce
    )
    assert run.bytes_sent == (zero.step_bytes(transfers),) * 4


def hsdp_step():
    """Two replicas of two shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    model = mlp()
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    model(torch.ones(1, WIDTH)).sum().backward()


def test_hsdp_sends_what_the_formula_says():
    transfers = zero.step_transfers(3, WIDTH**2 * DEPTH, 2, recipe=FP32_ADAM, replicas=2)
    assert World(4).run(hsdp_step).bytes_sent == (zero.step_bytes(transfers),) * 4


def test_ddp_sends_what_the_formula_says():
    transfers = zero.step_transfers(0, WIDTH**2 * DEPTH, 4, recipe=FP32_ADAM)
    assert World(4).run(ddp_step).bytes_sent == (zero.step_bytes(transfers),) * 4


def scatter_and_gather():
    """Stage 1 and 2 by hand: reduce-scatter gradients, gather new weights."""
    whole = torch.ones(WIDTH**2 * DEPTH)
    shard = torch.empty(whole.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(shard, whole)
    dist.all_gather_into_tensor(whole, shard)


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_send_what_the_formula_says(stage):
    transfers = zero.step_transfers(stage, WIDTH**2 * DEPTH, 4, recipe=FP32_ADAM)
    assert World(4).run(scatter_and_gather).bytes_sent == (zero.step_bytes(transfers),) * 4


def wrapped_in(per_unit):
    """A forward of FSDP2 over units of so many layers, in order."""
    model = mlp()
    units = [nn.Sequential(*model[i : i + per_unit]) for i in range(0, DEPTH, per_unit)]
    whole = nn.Sequential(*units)
    for unit in units:
        fully_shard(unit)
    fully_shard(whole)
    whole(torch.ones(1, WIDTH)).sum().backward()


@pytest.mark.parametrize("per_unit", [1, 2, 4])
def test_fsdp2_gathers_as_often_as_granularity_says(per_unit):
    run = World(2).run(wrapped_in, per_unit)
    gathers = [e for e in run.events if e.rank == 0 and e.name.startswith("all_gather")]
    units = zero.grouped([WIDTH**2] * DEPTH, per_unit)
    assert len(gathers) == zero.granularity(units, 4).gathers


# --- Granularity --------------------------------------------------------------------------


def test_units_joined():
    assert zero.grouped([1, 2, 3, 4, 5], 2) == (3, 7, 5)
    assert zero.grouped([1, 2, 3], 3) == (6,)


def test_peak_is_the_largest_neighbourhood():
    units = [5, 1, 1, 4]
    assert zero.granularity(units, 2, prefetch=0).peak_bytes == 2 * 5
    assert zero.granularity(units, 2, prefetch=1).peak_bytes == 2 * 6
    assert zero.granularity(units, 2, prefetch=9).peak_bytes == 2 * 11
    assert zero.granularity(units, 2, root=7).peak_bytes == 2 * (7 + 6)
    assert zero.granularity(units, 2, root=7).gathers == 2 * 4 + 1


def test_more_gathers_cost_latency_only():
    fine, coarse = [1e6] * 32, [32e6]
    seconds = [zero.gather_seconds(units, 2, 8, NVLINK4) for units in (fine, coarse)]
    assert seconds[0] - seconds[1] == pytest.approx(31 * 7 * NVLINK4.latency_s, rel=1e-9)


@given(
    units=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    prefetch=st.integers(0, 3),
    per_unit=st.integers(1, 12),
)
def test_coarser_units_never_need_less_memory(units, prefetch, per_unit):
    fine = zero.granularity(units, 2, prefetch=prefetch)
    coarse = zero.granularity(zero.grouped(units, per_unit), 2, prefetch=prefetch)
    assert max(units) * 2 <= fine.peak_bytes <= coarse.peak_bytes <= 2 * sum(units)
    assert coarse.gathers <= fine.gathers


@given(
    recipe=st.sampled_from(WHOLE),
    ranks=st.integers(1, 4096),
    parameters=st.integers(0, 10**12),
)
def test_each_stage_saves_no_less_than_the_one_before(recipe, ranks, parameters):
    bytes_of = [
        zero.state_bytes_per_rank(recipe, parameters, ranks, s) for s in zero.STAGES
    ]
    assert bytes_of[0] == pytest.approx(parameters * recipe.bytes_per_parameter)
    assert all(b <= a + 1e-6 * a for a, b in zip(bytes_of, bytes_of[1:], strict=False))
    assert bytes_of[3] == pytest.approx(bytes_of[0] / ranks)


@given(numel=st.integers(0, 10**6), ranks=st.integers(1, 64))
def test_shards_hold_everything_and_pad_less_than_one_each(numel, ranks):
    shard = zero.shard_numel(numel, ranks)
    assert 0 <= shard * ranks - numel < ranks


def test_a_transfer_is_a_ring_collective():
    part = zero.Transfer("x", "reduce_scatter", 8, 1000, 3, 4)
    assert part.bytes_sent == 3 * cost("reduce_scatter", "ring", 8, 4000).bytes_sent


@pytest.mark.parametrize(
    "wrong, rule",
    [
        ({"stage": 4}, "stage must be one of"),
        ({"ranks": 0}, "ranks must be 1 or more"),
        ({"keep": "none"}, "keep must be one of"),
        ({"reduce": "never"}, "reduce must be one of"),
        ({"micro_batches": 0}, "micro_batches must be 1 or more"),
        ({"hpz_ranks": 3}, "hpz_ranks must divide ranks"),
        ({"stage": 0, "replicas": 2}, "replicas must be 1 or more"),
    ],
)
def test_wrong_arguments_are_named(wrong, rule):
    options = {"stage": 3, "ranks": 8} | wrong
    stage, ranks = options.pop("stage"), options.pop("ranks")
    with pytest.raises(ValueError, match=rule):
        zero.step_volume(stage, ranks, **options)


def test_granularity_refuses_nothing():
    with pytest.raises(ValueError, match="units must name one"):
        zero.granularity([], 2)
    with pytest.raises(ValueError, match="per_unit must be 1"):
        zero.grouped([1], 0)
