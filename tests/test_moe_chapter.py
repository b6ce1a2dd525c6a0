"""What chapter 11 runs and prints: the collapse, the signs of it, rows of text."""

import math

import pytest
import torch

from course.costs import moe, moe_size
from course.facts import GB
from course.facts_models import MIXTRAL_8X7B
from course.figures import moe_tables
from course.parallel.moe_collapse import families, train_experts
from course.parallel.moe_router import InTurnRouter, softmax_top_k
from course.parallel.moe_signs import logits_of, mean_entropy, signs

# --- The collapse ---------------------------------------------------------------------


def test_families_are_linear_and_share_what_says_nothing():
    x, y = families(torch.Generator().manual_seed(0))
    again, _ = families(torch.Generator().manual_seed(0))
    assert torch.equal(x, again) and x.shape == y.shape == (256, 8)
    assert x.mean(0).norm() > 0.5 * x.norm(dim=1).mean()  # the common part is large


def test_alone_it_collapses_and_a_loss_or_a_bias_prevents_it():
    alone = train_experts()
    balanced = train_experts(weight=0.1)
    biased = train_experts(speed=0.02, top_k=2)
    assert [sum(run.loads[-1]) for run in (alone, balanced, biased)] == [256, 256, 512]
    used = [moe.effective_experts(run.loads[-1]) for run in (alone, balanced, biased)]
    assert used[0] < 3 and min(used[1:]) > 6
    assert balanced.error < 0.8 * alone.error


def test_a_short_training_has_the_mean_of_its_few_steps():
    assert len(train_experts(3).loads) == 3 and math.isfinite(train_experts(3).error)


# --- The signs ------------------------------------------------------------------------


def test_signs_of_six_tokens_by_hand():
    """Two ranks of three tokens, top-1, three experts, room 1 for each on each rank."""
    logits = 50 * torch.eye(3)[[0, 0, 1, 0, 1, 1]]
    found = signs(softmax_top_k(logits, 1), ranks=2, factor=1.0)
    assert (found.largest, found.dead) == (1.5, 1)
    assert found.lost == pytest.approx(2 / 6)
    assert found.entropy == pytest.approx(0, abs=1e-6)


def test_entropy_is_one_where_all_experts_look_alike():
    assert mean_entropy(torch.full((4, 8), 1 / 8)) == pytest.approx(math.log(8))
    found = signs(softmax_top_k(torch.zeros(4, 8), 1), ranks=1, factor=8.0)
    assert found.entropy == pytest.approx(1) and found.lost == 0


def test_three_kinds_of_run_look_different():
    kinds = {kind: signs(softmax_top_k(logits_of(kind), 1), 64, 1.0)
             for kind in ("collapsed", "hot experts", "even")}  # fmt: skip
    assert kinds["collapsed"].dead > 10 and kinds["hot experts"].dead == 0
    assert kinds["hot experts"].largest > 10 > 1.2 > kinds["even"].largest
    assert kinds["even"].entropy > 0.9 > kinds["collapsed"].entropy
    drops = moe.skewed_dropped_share(1024, 1, 64, factor=1.0)
    assert kinds["even"].lost == pytest.approx(drops, abs=0.005)


def test_signs_refuse_what_does_not_divide_and_kinds_that_are_not():
    with pytest.raises(ValueError, match=r"ranks must divide the tokens \(6\), not 4"):
        signs(softmax_top_k(torch.zeros(6, 3), 1), ranks=4, factor=1.0)
    with pytest.raises(ValueError, match="kind must be one of"):
        logits_of("odd")


# --- In turn --------------------------------------------------------------------------


def test_tokens_in_turn_load_all_experts_alike():
    routing = InTurnRouter(4, 8, 2)(torch.randn(16, 4))
    assert routing.experts[:9].tolist() == [[t % 8, (t + 1) % 8] for t in range(9)]
    assert routing.load().tolist() == [4] * 8


# --- Rows of text ---------------------------------------------------------------------


def test_twins_have_the_memory_of_one_and_the_work_of_the_other():
    mixture, work, size = moe_tables.twins_table(MIXTRAL_8X7B, 4096).splitlines()
    assert mixture[18:].split(",")[0] == size[18:].split(",")[0] == "46.7 B parameters"
    assert mixture.split(",")[-1] == work.split(",")[-1] != size.split(",")[-1]


def test_placement_rows_hold_all_copies():
    loads = moe.loads_of(4096, 1, 16, skew=1.0)
    rows = moe_tables.placement_table(loads, 4, more=4).splitlines()
    for row in rows:
        numbers = row[row.index("[") + 1 : row.index("]")].split(", ")
        assert sum(map(int, numbers)) == pytest.approx(4096, abs=2)
    largest = [float(row.split()[-4]) for row in rows]
    assert largest == sorted(largest, reverse=True) and largest[0] == 2.46


def test_gradient_rows_are_those_of_the_costs():
    first, last = moe_tables.gradients_table(MIXTRAL_8X7B, 8, [1, 8]).splitlines()
    sent = moe_size.gradient_bytes_sent(MIXTRAL_8X7B, 8, 1)
    assert f"{sent['experts'] / GB:.1f} GB" in first and " 0.0 GB of experts" in last


def test_bytes_rows():
    assert moe_tables.bytes_table({"all": 2**21, "half": 2**20}) == (
        "all   2 MiB, 100%\nhalf  1 MiB, 50%"
    )
