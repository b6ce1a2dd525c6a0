"""Lab 06: one MoE in five ways, its traffic, experts asleep, exercises, torchrun."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course import World
from course.checks import check, exercises, moe_answers
from course.checks.lab_06 import RUNS, SHAPES, matrix_of, routes_of, run_of
from course.costs.moe import imbalance, in_order, rank_loads
from course.costs.moe_place import slot_loads, slots_apart
from course.costs.topology import uniform
from course.figures.traffic import link_matrix
from course.figures.traffic_pair import traffic_pair
from course.parallel import moe_traffic as traffic
from course.parallel.moe import reduce_gradients
from course.parallel.moe_placement import PlacedRouter
from course.parallel.moe_router import SoftmaxRouter
from course.parallel.moe_versions import WAYS, Task, batches, centres, train_moe
from course.worlds.hot_experts import Hot, one_hot_step, time_hot
from course.worlds.run import RankError
from course.worlds.sleep_experts import (
    BACKWARD,
    FORWARD,
    SleepExperts,
    asleep_and_talking,
    step_seconds,
)
from course.worlds.window import after
from labs.moe import (
    TOLERANCE,
    byte_lines,
    hot_cases,
    hot_lines,
    loss_lines,
    uneven,
    ways_on,
)
from tests.lab_page import ROOT

UNEVEN = Task((24, 0, 40, 64))
HOT = Task((64,) * 4, top_k=1)
STEPS = 8
KINDS = {
    "dropless": {},
    "dropping": {"capacity_factor": 1.0},
    "top-1": {"top_k": 1},
    "balance loss": {"balance": 0.1},
    "bias": {"router": "sigmoid", "speed": 0.02},
    "apart": {"slots": (0, 6, 1, 7, 2, 4, 3, 5)},
    "replicas": {"slots": (0, 6, 1, 2, 4, 0, 7, 0, 2, 1, 3, 5)},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
spread = [way for way in WAYS if way != "alone"]
straight = [way for way in spread if way != "EP levels"]


def losses_of(ways, task, steps=STEPS):
    return {way: train_moe(way, task, steps) for way in ways}


def alone(task, steps=STEPS):
    return World(1).run(train_moe, "alone", task, steps).results[0]


# --- Equal losses ---------------------------------------------------------------------


@each_kind
def test_losses_equal_those_of_one_process(kind):
    task = UNEVEN.with_(**KINDS[kind])
    want = alone(task)
    ways = ["EP", "EP pairs", "EP levels"] if kind == "replicas" else spread
    for losses in World(4).run(losses_of, ways, task).results:
        for way in ways:
            assert losses[way] == pytest.approx(want, rel=TOLERANCE / 100)
    assert want[-1] < 0.9 * want[0]  # something is learned


def test_twenty_steps_on_real_ranks():
    with World(4, on="gloo") as world:
        found = world.run(losses_of, spread, UNEVEN, 20).results[3]
    for losses in found.values():
        assert losses == pytest.approx(alone(UNEVEN, 20), rel=TOLERANCE / 100)


def over_all(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def half_experts(model):
    reduce_gradients(model, mean=False)
    for parameter in model.moe.experts.parameters():
        parameter.grad /= 2


def copies_apart(model):
    reduce_gradients(model, mean=False)


@pytest.mark.parametrize(
    ("way", "reduce", "kind"),
    [
        ("EP x DP", over_all, "dropless"),
        ("EP", half_experts, "dropless"),
        ("EP", copies_apart, "replicas"),
    ],
)
def test_losses_show_gradients_that_are_added_up_wrongly(way, reduce, kind):
    task = UNEVEN.with_(**KINDS[kind])
    (first, *_, last), want = World(4).run(wrong, way, task, reduce).results[0], alone(task)
    assert first == pytest.approx(want[0], rel=TOLERANCE)  # nothing was updated yet
    assert last != pytest.approx(want[-1], rel=1e-5)


def wrong(way, task, reduce):
    return train_moe(way, task, STEPS, reduce=reduce)


def test_what_cannot_be_is_refused():
    with pytest.raises(RankError, match="tokens must be of 2 ranks"):
        World(2).run(train_moe, "EP", UNEVEN, 1)
    with pytest.raises(RankError, match="way must be one of"):
        World(4).run(train_moe, "DP", UNEVEN, 1)
    with pytest.raises(ValueError, match="experts must be hidden"):
        Task((1,), hidden=4)
    with pytest.raises(ValueError, match="balance and speed must be 0 where slots"):
        Task((1,), slots=(0, 1), balance=0.1)


def test_tokens_are_of_clusters_at_right_angles():
    middle = centres(UNEVEN)
    assert torch.allclose(middle @ middle.t(), 4 * torch.eye(8).double())
    x, _ = next(batches(UNEVEN.with_(tokens=(4000,))))
    shares = torch.bincount((x @ middle.t()).argmax(-1), minlength=8) / 4000
    assert shares[0] == pytest.approx(0.368, abs=0.03)  # 1 of 1 + 1/2 + ... + 1/8


# --- Traffic --------------------------------------------------------------------------


def routes(task):
    return World(1).run(traffic.routes_of, task).results[0]


def between(matrix):
    return matrix * ~np.eye(len(matrix), dtype=bool)


@pytest.mark.parametrize("kind", ["dropless", "dropping", "top-1"])
@pytest.mark.parametrize("way", straight)
def test_bytes_from_rank_to_rank_are_those_of_the_routes(way, kind):
    task = UNEVEN.with_(**KINDS[kind])
    said, small = routes(task), traffic.counts_bytes(way, task)
    once = link_matrix(World(4).run(traffic.dispatch_once, way, task))
    assert (once == between(traffic.dispatch_bytes(way, task, said) + small)).all()
    layer = link_matrix(World(4).run(traffic.layer_once, way, task))
    assert (layer == between(traffic.layer_bytes(way, task, said))).all()
    assert (layer[1] > 0).any() and not (once[1] > small[1]).any()  # rank 1: no tokens


def test_bytes_on_real_ranks():
    said = routes(UNEVEN)
    with World(4, on="gloo") as world:
        for way in straight:
            run = world.run(traffic.layer_once, way, UNEVEN, record=True)
            want = between(traffic.layer_bytes(way, UNEVEN, said))
            assert (link_matrix(run) == want).all()
        exchanges = [e.bytes for e in run_of_ep(world).events if e.name == "all_to_all"]
    assert len(exchanges) == 4 * 5  # counts, and four with rows
    assert exchanges.count(64) == 4


def run_of_ep(world):
    return world.run(traffic.layer_once, "EP", UNEVEN, record=True)


def test_rows_that_are_handed_on_are_not_predicted():
    with pytest.raises(ValueError, match="way must send rows straight"):
        traffic.dispatch_bytes("EP levels", UNEVEN, routes(UNEVEN))


def test_versions_of_the_same_bytes_send_the_same_rows():
    def sent(which):
        traffic.same_bytes(UNEVEN, 4)[which]()

    matrices = {
        which: link_matrix(World(4).run(sent, which))
        for which in ("plain", "EP", "EP pairs")
    }
    counts = between(traffic.counts_bytes("EP", UNEVEN))
    # another exchange of counts is made while they are set up
    assert (matrices["EP"] == matrices["plain"] + counts).all()
    assert (matrices["EP pairs"] == matrices["EP"]).all()
    there = between(traffic.dispatch_bytes("EP", UNEVEN, routes(UNEVEN)))
    rows = (there + there.T) / (16 * 8) * (4 * 4)
    assert (matrices["plain"] == rows + counts).all()


def test_two_matrices_share_a_scale():
    measured = np.arange(16.0).reshape(4, 4) * 1024
    figure, words = traffic_pair(measured / 2, measured)
    assert [trace.zmax for trace in figure.data] == [14, 14]
    assert [trace.xaxis for trace in figure.data] == ["x", "x2"]
    assert np.isnan(figure.data[0].z[2, 2]) and figure.data[1].z[3, 2] == 14
    assert words == (
        "Predicted 45 KiB between ranks, measured 90 KiB. Rank 0 receives most, 24 KiB."
    )
    figure, _ = traffic_pair(
        measured, measured, cluster=uniform(4, latency_s=1e-6, bytes_per_s=1e9)
    )
    with pytest.raises(ValueError, match="measured must have the shape of predicted"):
        traffic_pair(measured, measured[:2, :2])


# --- Slots ----------------------------------------------------------------------------

LOADS = [96, 45, 36, 26, 16, 17, 8, 12]


def test_slots_of_hot_experts_lie_apart():
    slots = slots_apart(LOADS, 4)
    assert sorted(slots) == list(range(8))
    homes = [slots.index(expert) // 2 for expert in (0, 1, 2, 3)]
    assert sorted(homes) == [0, 1, 2, 3]
    more = slots_apart(LOADS, 4, 4)
    assert len(more) == 12 and more.count(0) == 3
    by_rank = [rank_loads(slot_loads(LOADS, s), 4).max() for s in (range(8), slots, more)]
    assert by_rank == [141, 104, 66]


def test_slots_must_hold_every_expert():
    with pytest.raises(ValueError, match="slots must hold each of the 2 experts"):
        slot_loads([1, 2], [0, 0])
    with pytest.raises(ValueError, match="slots must hold each of the 4 experts"):
        PlacedRouter(SoftmaxRouter(8, 4, 2), [0, 1, 2])


def test_copies_of_one_expert_take_turns():
    router = SoftmaxRouter(8, 4, 2)
    placed = PlacedRouter(router, [2, 0, 1, 3, 0, 0])
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    plain, slots = router(x), placed(x)
    assert (torch.tensor(placed.slots)[slots.experts] == plain.experts).all()
    load, wanted = slots.load(), plain.load()
    assert load[[2, 0, 3]].tolist() == wanted[[1, 2, 3]].tolist()
    assert load[[1, 4, 5]].sum() == wanted[0]
    assert load[[1, 4, 5]].max() - load[[1, 4, 5]].min() <= 1
    assert torch.allclose(slots.probabilities.sum(-1), torch.ones(64))


# --- Asleep ---------------------------------------------------------------------------


def in_no_time(ranks):
    return World(ranks, cluster=uniform(ranks, latency_s=0.0, bytes_per_s=1e30))


@pytest.mark.parametrize("kind", ["top-1", "dropping", "replicas"])
def test_a_simulated_step_asleep_is_that_of_the_rank_with_most_rows(kind):
    task = HOT.with_(**KINDS[kind])
    run = after(in_no_time(4).run(one_hot_step, task, 0, 0.001, record=True))
    cases = {"it": (task, 0)}
    results = in_no_time(4).run(time_hot, cases, 0.001).results
    rows = [result["it"].rows for result in results]
    assert sum(rows) == 256 - sum(result["it"].dropped for result in results)
    assert run.seconds == pytest.approx(step_seconds(max(rows), 0.001))
    for rank, own in enumerate(rows):
        naps = [s for s in run.spans if s.rank == rank and s.name in (FORWARD, BACKWARD)]
        seconds = [nap.seconds for nap in naps if nap.seconds]  # the first step took none
        assert seconds == pytest.approx([own * 0.001, 2 * own * 0.001])


def test_real_ranks_sleep_no_less_than_the_hottest():
    cases = {"hot": (HOT, 0), "even": (HOT.with_(skew=0.0), 0)}
    with World(4, on="gloo") as world:
        results = world.run(time_hot, cases, 0.0002, 1).results
        run = after(world.run(one_hot_step, HOT, 0, 0.0002, record=True))
    for name in cases:
        most = max(result[name].rows for result in results)
        assert results[0][name].seconds >= 0.99 * step_seconds(most, 0.0002)
    drawn = asleep_and_talking(run)
    assert {event.name for event in drawn.events} == {FORWARD, BACKWARD, "all_to_all"}
    assert run.seconds >= 0.99 * step_seconds(results[0]["hot"].rows, 0.0002)


def test_each_remedy_helps_the_hottest_rank():
    task = HOT.with_(tokens=(32,) * 4)
    cases = World(4).run(hot_cases, task, 30).results[0]
    results = World(4).run(time_hot, cases, 0.0, 1).results
    most = {name: max(result[name].rows for result in results) for name in cases}
    assert most["hot"] > 1.8 * 32
    for name in set(cases) - {"hot", "even tokens"}:
        assert most[name] < 0.8 * most["hot"], name
    lost = {name: sum(result[name].dropped for result in results) for name in cases}
    assert [name for name in lost if lost[name]] == ["capacity 1"]
    errors = {name: hot.error for name, hot in results[0].items()}
    for name in ("hot apart", "and replicas"):  # the same model, elsewhere
        assert errors[name] == pytest.approx(errors["hot"], rel=TOLERANCE)
    assert errors["capacity 1"] > 1.03 * errors["hot"]


def test_negative_sleep_is_refused():
    with pytest.raises(ValueError, match="seconds_of_row must be 0 or more, not -1"):
        SleepExperts(torch.nn.Identity(), -1)


# --- Exercises ------------------------------------------------------------------------


def bytes_by_hand(routes, experts, row_bytes, home=None):
    ranks = len(routes)
    home = home or (lambda e: e // (experts // ranks))
    matrix = [[0] * ranks for _ in routes]
    for rank, one in enumerate(routes):
        for token in one:
            for expert in token:
                if home(expert) != rank:
                    matrix[rank][home(expert)] += row_bytes
    return matrix


def largest(loads):
    return max(loads) * len(loads) / sum(loads)


def trouble(loads, entropy, dropped):
    if largest(loads[-1]) > 1.5:
        grows = largest(loads[-1]) > 1.3 * largest(loads[0])
        return "router" if grows and entropy[-1] < 0.8 * entropy[0] else "balance"
    return "capacity" if dropped[-1] > 0.05 else "none"


def stub(*_):
    raise NotImplementedError


def test_right_answers_pass():
    assert exercises("lab 06") == ("traffic matrix", "which trouble")
    assert check("traffic matrix", bytes_by_hand).passed
    assert check("traffic matrix", lambda *a: torch.tensor(bytes_by_hand(*a))).passed
    assert check("which trouble", trouble).passed


def test_answers_that_are_shown_pass():
    assert check("traffic matrix", moe_answers.traffic_matrix).passed
    assert check("which trouble", moe_answers.which_trouble).passed


def told(name, answer, kind, words):
    verdict = check(name, answer)
    assert (verdict.kind, verdict.passed) == (kind, False)
    assert words in verdict.text and "course/checks" not in verdict.text


def combined(*args):
    return np.array(bytes_by_hand(*args)).T


def with_own(routes, experts, row_bytes):
    matrix = np.array(bytes_by_hand(routes, experts, row_bytes))
    home = in_order(experts, len(routes))
    for rank, one in enumerate(routes):
        matrix[rank, rank] = row_bytes * sum(home[e] == rank for t in one for e in t)
    return matrix


def first_only(routes, *args):
    return bytes_by_hand([[t[:1] for t in one] for one in routes], *args)


def once_each(routes, experts, row_bytes):
    each = experts // len(routes)
    once = [[list({e // each * each for e in t}) for t in one] for one in routes]
    return bytes_by_hand(once, experts, row_bytes)


def in_turn(routes, experts, row_bytes):
    return bytes_by_hand(routes, experts, row_bytes, home=lambda e: e % len(routes))


def evenly(routes, experts, row_bytes):
    ranks = len(routes)
    copies = [sum(map(len, one)) for one in routes]
    return [
        [(a != b) * copies[a] * row_bytes / ranks for b in range(ranks)]
        for a in range(ranks)
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stub, "not attempted", "not attempted"),
        (
            lambda *_: None,
            "wrong shape",
            "nothing was returned, should be numbers of shape",
        ),
        (lambda r, e, b: [1] * len(r), "wrong shape", "shape [4] was returned"),
        (lambda *_: "many", "wrong shape", "should be numbers of shape [4, 4]"),
        (combined, "wrong values", "that is the combine"),
        (with_own, "wrong values", "what stays on its rank does not count"),
        (lambda r, e, b: bytes_by_hand(r, e, 1), "wrong values", "rows, not bytes"),
        (first_only, "wrong values", "only first choices"),
        (once_each, "wrong values", "once there, but here for each expert"),
        (in_turn, "wrong values", "dealt out in turn"),
        (evenly, "wrong values", "the even share"),
        (lambda r, e, b: np.zeros((len(r),) * 2), "wrong values", "first from rank 0 to "),
        (lambda r, e, b: r[e], "raised", "raised IndexError"),
    ],
)
def test_a_wrong_matrix_is_told_why(answer, kind, words):
    told("traffic matrix", answer, kind, words)


def by_drops(loads, entropy, dropped):
    return "capacity" if dropped[-1] > 0.05 else "none"


def by_last_load(loads, entropy, dropped):
    return "router" if largest(loads[-1]) > 1.5 else "none"


def by_entropy(loads, entropy, dropped):
    return "router" if entropy[-1] < 0.5 else "none"


def by_mean(loads, entropy, dropped):
    """Over all steps: does not see that the balance came."""
    mean = [sum(column) for column in zip(*loads, strict=True)]
    return (
        "balance"
        if largest(mean) > 1.5 and entropy[-1] > 0.3
        else trouble(loads, entropy, dropped)
    )


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stub, "not attempted", "not attempted"),
        (lambda *_: None, "wrong shape", "None was returned, should be one of"),
        (lambda *_: "noise", "wrong shape", "'noise' was returned"),
        (by_drops, "wrong values", "'capacity', but 'router': the largest load grows"),
        (by_last_load, "wrong values", "'router', but 'balance': the load is uneven"),
        (by_entropy, "wrong values", "'router', but 'balance'"),
        (by_mean, "wrong values", "'balance', but 'none': in the end the load is even"),
        (lambda *_: "router", "wrong values", "entropy 4"),
        (lambda loads, *_: loads.router, "raised", "raised AttributeError"),
    ],
)
def test_a_wrong_trouble_is_told_why(answer, kind, words):
    told("which trouble", answer, kind, words)


def test_cases_are_far_from_the_thresholds():
    for case in RUNS:
        loads, entropy, dropped = run_of(case)
        assert not 1.25 < imbalance(loads[-1]) < 2.0
        assert dropped[-1] < 0.01 or dropped[-1] > 0.15
        ratio = entropy[-1] / entropy[0]
        assert ratio < 0.3 or ratio > 0.95


def test_the_first_matrix_tells_all_slips_apart():
    routes, (_, experts, _, row_bytes) = routes_of(SHAPES[0]), SHAPES[0]
    answers = [combined, with_own, first_only, once_each, in_turn, evenly]
    matrices = [matrix_of(routes, experts, row_bytes)]
    matrices += [np.array(answer(routes, experts, row_bytes)) for answer in answers]
    for i, one in enumerate(matrices):
        assert not any(np.allclose(one, other) for other in matrices[:i])


# --- The same lab under torchrun ------------------------------------------------------


def test_torchrun_prints_the_report_once():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    sizes = ["--steps", "3", "--train", "2", "--repeats", "1", "--row-us", "50"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "labs/moe.py", *sizes, "--wide", "64"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    box, model, losses, bytes_, hot, times = done.stdout.strip().split("\n\n")
    assert re.match(r"world: 2 ranks on (gloo|nccl)", box)
    assert model == "4 experts, top-2; tokens of each rank: 64, 0"
    assert [line.split("  ")[0] for line in names(losses)] == list(WAYS)
    assert names(bytes_) == straight
    ratios = [line.split()[-1] for line in bytes_.splitlines()[1:]]
    assert ratios == ["1.000"] * 3
    assert len(names(hot)) == 7
    assert all(float(line.split()[-1]) >= 0.99 for line in hot.splitlines()[1:])
    assert names(times) == ["plain", "EP", "EP pairs"]


def names(table):
    return [re.split(r"\s{2,}", line.strip())[0] for line in table.splitlines()[1:]]


def test_tables_by_hand():
    task, sent = UNEVEN, World(4).run(sent_twice, UNEVEN).results
    line = byte_lines(sent, task).splitlines()[1].split()
    assert line[0] == "EP" and line[-1] == "2.000"
    hot = [{"it": Hot(rows, 1, 0.5, 0.09)} for rows in (10, 30, 20)]
    said, line = "10 30 20 3 0.500 45 ms 90 ms 2.00", hot_lines(hot, 0.0005).splitlines()[1]
    assert " ".join(line.split()) == "it " + said


def sent_twice(task):
    me = dist.get_rank()
    said = between(traffic.layer_bytes("EP", task, traffic.routes_of(task)))
    return {"EP": {r: 2 * int(n) for r, n in enumerate(said[me]) if n}}


def test_losses_that_differ_end_the_program():
    losses = {"alone": [2.0, 1.0], "EP": [2.0, 1.01]}
    with pytest.raises(AssertionError, match="EP differs from one process by 1.0e-02"):
        loss_lines(losses)


def test_what_ranks_can_do():
    assert ways_on(4) == spread and ways_on(3) == ["EP", "EP pairs"]
    assert [uneven(n, 8) for n in (1, 2, 3, 4)] == [
        (8,), (16, 0), (8, 0, 16), (8, 0, 8, 16)
    ]  # fmt: skip
