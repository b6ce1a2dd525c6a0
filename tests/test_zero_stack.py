"""The stack of chapter 08, and the rows of text that the chapter prints."""

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from course import World
from course.costs.recipes import BF16_ADAM
from course.costs.zero import state_bytes_per_rank
from course.facts import GB
from course.figures.zero_tables import collectives_in_short, peaks_table, states_table
from course.parallel.zero_stack import (
    STAGE,
    WAYS,
    BlocksAndRoot,
    accumulate,
    stack,
    train_stack,
    two_layers,
    widths_at_rest,
)

AT_ONCE = {
    "plain": "AR AR AR",
    "ZeRO-1": "RS AG",
    "ZeRO-2": "RS AG",
    "ZeRO-3": "AG AG AG AG AG RS AG RS RS",
    "FSDP2": "AG AG AG AG AG RS AG RS RS",
    "FSDP2, root only": "AG RS",
    "FSDP2, back to 4": "AG AG AG AG AG RS AG RS RS",
    "HSDP of 4": "AG AG AG AG AG RS AR AG RS AR RS AR",
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_calls_its_own_collectives(way):
    run = World(8).run(train_stack, 1, way, 8, 3)
    assert collectives_in_short(run) == AT_ONCE[way]


def test_each_stage_is_one_of_the_ways():
    assert set(STAGE) < set(WAYS)


@pytest.mark.parametrize(
    "stage, reduce, gathers, reductions",
    [(2, "last", 1, 1), (2, "each", 1, 2), (3, "last", 24, 6), (3, "each", 24, 12)],
)
def test_two_micro_batches_are_reduced_once_or_each(stage, reduce, gathers, reductions):
    run = World(2).run(accumulate, 1, stage, reduce, 2)
    calls = collectives_in_short(run).split()
    assert (calls.count("AG"), calls.count("RS")) == (gathers, reductions)


def test_shards_have_the_dtype_that_the_model_was_created_in():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert World(2).run(widths_at_rest, torch.float32, policy).results[0] == [4, 4, 4, 4]
    assert World(2).run(widths_at_rest, torch.bfloat16, policy).results[0] == [2, 2, 2, 2]


def numel(model):
    return sum(p.numel() for p in model.parameters())


def test_the_models_are_as_large_as_the_chapter_says():
    model = BlocksAndRoot()
    assert [numel(block) for block in model.blocks] == [40, 108, 208]
    assert numel(model) == 80 + 40 + 108 + 208
    assert numel(two_layers()) == 32
    assert two_layers()[0].weight.equal(two_layers()[0].weight)
    assert numel(stack(24, 6)) == 6 * 24 * 24


def test_collectives_bear_the_name_of_their_bytes():
    run = World(2).run(train_stack, 1, "FSDP2, root only", 4, 3)
    assert collectives_in_short(run, {4 * 48: "all"}) == "AG(all) RS(all)"
    with pytest.raises(KeyError):
        collectives_in_short(run, {1: "none"})


def test_the_table_of_states_holds_what_the_costs_say():
    table = states_table(BF16_ADAM, {"7.5B": 7.5e9, "1T": 1e12}, (1, 64), 32 * GB)
    names, stages, first, second = (row.split() for row in table.splitlines())
    assert names == ["7.5B", "1T"]
    assert stages == ["N"] + 2 * ["stage", "1", "stage", "2", "stage", "3"]
    assert first == ["1"] + 3 * ["120.00"] + 3 * ["16000.00"]
    assert second[:4] == ["64", "31.41*", "16.64*", "1.88*"]
    assert float(second[4]) == state_bytes_per_rank(BF16_ADAM, 1e12, 64, 1) / GB


def test_the_table_of_peaks_has_the_ratio():
    table = peaks_table({"ZeRO-1": {"a": 3e9, "b": 3e9}}, {"ZeRO-1": 4e9})
    assert table == "ZeRO-1   4.00 GB computed, metered 1.500 of it"
