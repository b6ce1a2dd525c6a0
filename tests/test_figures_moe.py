"""Pictures of experts: what is drawn is what was routed, counted and computed."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course import World
from course.costs import moe, moe_size, moe_time
from course.costs.recipes import BF16_ADAM
from course.costs.topology import Cluster
from course.facts import DGX_H100, GB
from course.figures import moe as routes
from course.figures import moe_costs, toy_router
from course.figures.moe_costs import dispatch_matrix, experts_and_ranks, mixture
from course.figures.moe_frames import moving_frames
from course.figures.moe_load import load_histogram, load_over_steps
from course.parallel import moe_exchange, moe_router
from course.widgets import checkbox, choice, explore, log_slider, slider, stops

# --- The toy router -----------------------------------------------------------------------


@pytest.mark.parametrize("skew, top_k", [(0, 1), (1, 1), (1, 2), (2, 4)])
def test_without_training_the_toy_has_zipfs_loads(skew, top_k):
    logits = toy_router.preferences(20_000, 8, skew)
    loads = toy_router.loads(toy_router.choices(logits, top_k), 8)
    wanted = moe.loads_of(20_000, top_k, 8, skew=skew)
    assert loads == pytest.approx(wanted, abs=5 * np.sqrt(wanted).max())


def test_the_slope_is_that_of_the_loss():
    """Of E sum f P with f held still, by small differences."""
    logits = toy_router.preferences(100, 5, 1.0)
    f = toy_router.loads(toy_router.choices(logits, 2), 5) / 200

    def loss(bias):
        p = np.exp(logits + bias)
        return 5 * f @ (p / p.sum(axis=1, keepdims=True)).mean(axis=0)

    steps = 1e-6 * np.eye(5)
    wanted = [(loss(s) - loss(-s)) / 2e-6 for s in steps]
    assert toy_router._balance_slope(logits, 2) == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("skew, top_k", [(1.0, 1), (1.0, 2), (2.5, 1), (2.5, 2), (2.5, 4)])
def test_more_weight_balances_more(skew, top_k):
    fresh = toy_router.preferences(2000, 8, skew, seed=9)
    loads = [
        toy_router.loads(
            toy_router.choices(fresh + toy_router.trained_bias(skew, 8, top_k, w), top_k), 8
        )
        for w in (0, 0.03, 0.1, 1)
    ]
    used = [moe.effective_experts(one) for one in loads]
    assert used == sorted(used) and used[-1] > 1.1 * used[0]


def test_queues_serve_first_choices_first():
    chosen = np.array([[0, 1], [0, 2], [1, 0]])
    assert toy_router.places(chosen).tolist() == [[0, 1], [1, 0], [0, 2]]


# --- Route tokens -------------------------------------------------------------------------


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def drawn_copies(figure, name):
    """{(token, expert, place)} of the squares of that name."""
    trace = named(figure, name)
    heights = [float(routes._expert_y(e)) for e in range(routes.EXPERTS)]
    spots = zip(trace.text, trace.y, trace.x, strict=True)
    return {(int(t), heights.index(y), int(x)) for t, y, x in spots}


@pytest.mark.parametrize(
    "setting", [(1, 1.0, 1, 0, 0), (2, 1.25, 2, 0.5, 0.1), (4, 0.5, 0, 0, 1)]
)
def test_every_copy_is_drawn_once_on_its_side_of_the_capacity(setting):
    figure, words = routes.route_tokens(*setting)
    slots = moe.capacity(24, setting[0], 8, setting[1])
    kept, lost = (drawn_copies(figure, n) for n in ("in its place", "beyond the capacity"))
    assert len(kept) + len(lost) == 24 * setting[0]
    assert len({(t, e) for t, e, _ in kept | lost}) == 24 * setting[0]
    assert all(place < slots for _, _, place in kept)
    assert all(place >= slots for _, _, place in lost)
    loads = np.bincount([e for _, e, _ in kept | lost], minlength=8)
    assert moe.dropped(loads, slots) == len(lost)
    for expert in range(8):
        queue = sorted(place for _, e, place in kept | lost if e == expert)
        assert queue == list(range(loads[expert]))
    empty = len(named(figure, "empty place").x)
    assert empty + len(kept) == 8 * slots
    assert f"{len(lost)} of {24 * setting[0]} copies dropped" in words
    assert f"{empty} of {8 * slots} places empty" in words
    lines = [
        sum(x is None for x in named(figure, n).x) for n in ("kept copy", "dropped copy")
    ]
    assert lines == [len(kept), len(lost)]


def test_tokens_run_down_from_0_and_lost_ones_are_marked():
    figure, words = routes.route_tokens(1, 0.5, 2.0)
    tokens = named(figure, "token")
    assert list(tokens.y) == list(range(24))
    low, high = figure.layout.yaxis.range
    assert low > high
    lost = [t for t, c in enumerate(tokens.marker.color) if c == routes.DROPPED]
    assert {t for t, _, _ in drawn_copies(figure, "beyond the capacity")} == set(lost)
    assert f"{len(lost)} of 24 tokens pass by" in words


def test_each_control_has_its_effect():
    dropped = lambda **k: len(
        named(routes.route_tokens(2, **k)[0], "beyond the capacity").x
    )
    assert dropped(skew=2) > dropped(skew=0)
    assert dropped(skew=2, capacity_factor=2) < dropped(skew=2)
    assert dropped(skew=2, auxiliary=1) < dropped(skew=2)
    assert dropped(skew=2, noise=3) < dropped(skew=2)


def test_chapter_11_says_what_its_router_shows():
    said = lambda **k: routes.route_tokens(**k)[1]
    lost = lambda **k: int(said(**k).split("each expert. ")[1].split()[0])
    assert lost(skew=0) == 3
    assert lost(skew=2) == 15 and ", 15 of 24 tokens pass" in said(skew=2)
    assert "; 15 of 24 places empty. Largest load: 6.00 times" in said(skew=2)
    assert lost(skew=2, capacity_factor=6.0) == 0
    assert "; 120 of 144 places empty" in said(skew=2, capacity_factor=6.0)
    assert [lost(skew=2, auxiliary=weight) for weight in (0.1, 1)] == [10, 6]
    assert lost(skew=2, noise=2.0) == 10
    assert ", 8 of 24 tokens pass by" in said(skew=1)
    assert ", 2 of 24 tokens pass by" in said(skew=1, top_k=2)


def test_route_tokens_draws_at_every_position():
    made = explore(
        routes.route_tokens,
        top_k=slider(1, 4),
        capacity_factor=slider(0.5, 2, 0.25, value=1),
        skew=slider(0, 3, 0.5, value=1),
        noise=slider(0, 2, 0.5),
        auxiliary=stops([0, 0.01, 0.03, 0.1, 0.3, 1]),
    )
    assert made.sweep() > 80


# --- Loads --------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 40, 41, 500])
def test_areas_of_each_step_fill_the_height(steps):
    rng = np.random.default_rng(0)
    runs = {"a": rng.integers(1, 9, (steps, 8)), "b": rng.integers(1, 9, (steps, 8))}
    figure = load_over_steps(runs)
    for row, table in enumerate(runs.values()):
        areas = [a for a in figure.data if a.yaxis == ("y" if row == 0 else "y2")]
        assert [area.name for area in areas] == [f"expert {e}" for e in range(8)]
        assert {area.stackgroup for area in areas} == {f"panel {row}"}
        *at, end = areas[0].x
        assert len(at) <= 40 and end > at[-1] and len(set(np.diff([*at, end]))) == 1
        shares = np.array([area.y for area in areas]).T
        assert shares.sum(axis=1) == pytest.approx(1)
        assert shares[:-1] == pytest.approx((table / table.sum(axis=1, keepdims=True))[at])
        assert shares[-1] == pytest.approx(shares[-2])


def test_a_collapse_is_named():
    collapsed, even = [[5] * 4, [20, 0, 0, 0]], [[5] * 4] * 2
    notes = [
        note.text
        for note in load_over_steps({"without": collapsed, "with": even}).layout.annotations
    ]
    assert notes[0].startswith("<b>without") and "as good as 1.0 of 4" in notes[0]
    assert "as good as 4.0 of 4" in notes[1]
    spans = [
        load_over_steps({"a": even, "b": even}).layout[f"yaxis{m}"].domain
        for m in ("", "2")
    ]
    assert spans[0][0] > spans[1][1]


def test_histogram_is_sorted_and_cut_at_the_capacity():
    figure, words = load_histogram([5, 40, 0, 15], slots=20)
    assert list(named(figure, "worked on").y) == [20, 15, 5, 0]
    assert list(named(figure, "dropped").y) == [20, 0, 0, 0]
    assert list(figure.layout.xaxis.ticktext) == ["1", "3", "0", "2"]
    assert "2.67 times the mean" in words and "1 get nothing" in words
    assert "Dropped: 33.3 %" in words
    whole, words = load_histogram([5, 40, 0, 15])
    assert [trace.name for trace in whole.data] == ["worked on", "mean: 15"]
    assert "Dropped: 0 %" in words


def test_histogram_draws_at_every_position():
    def drawn(experts, skew, factor):
        loads = moe.loads_of(1000, 2, experts, skew=skew)
        return load_histogram(loads, moe.capacity(1000, 2, experts, factor))

    made = explore(
        drawn, experts=log_slider(4, 128), skew=slider(0, 2, 0.5), factor=slider(1, 2, 0.25)
    )
    assert made.sweep() > 30


# --- The matrix ---------------------------------------------------------------------------


@pytest.mark.parametrize("once", [False, True])
def test_cells_of_the_matrix_are_the_tokens_routed(once):
    figure, _ = dispatch_matrix(1, 4, 1.0, once=once)
    shown = np.array(figure.data[0].z, float) * 2**20
    choices = moe_costs._routes(8, 4, 1.0)
    for i in range(8):
        for j in range(8):
            if i != j:
                visits = [[e // 8 == j for e in row] for row in choices[i]]
                copies = sum(any(v) if once else sum(v) for v in visits)
                assert shown[i, j] == pytest.approx(copies * 8192)


def test_a_combine_sends_back_what_the_dispatch_sent():
    there, back = (dispatch_matrix(2, 2, 1.0, way=w)[0] for w in ("dispatch", "combine"))
    at = lambda figure: np.nan_to_num(np.array(figure.data[0].z, float))
    assert at(there) == pytest.approx(at(back).T)


def test_hot_experts_draw_everything_to_the_first_node():
    figure, words = dispatch_matrix(4, 2, 2.0, by="node")
    into = np.array(figure.data[0].z, float).sum(axis=0)
    assert into[0] > 0.6 * into.sum()
    assert "network card into node 0" in words
    leaving = int(dispatch_matrix(4, 2, 0.0)[1].split(" %")[0])
    assert abs(leaving - 75) <= 1
    assert "fabric port into rank 0" in dispatch_matrix(1, 2, 2.0)[1]


def test_the_matrix_draws_at_every_position():
    made = explore(
        dispatch_matrix,
        nodes=log_slider(1, 4),
        top_k=slider(1, 8),
        skew=slider(0, 2, 0.5),
        once=checkbox(False),
        by=choice(["rank", "node"]),
        way=choice(["dispatch", "combine"]),
        box=choice(["DGX H100", "AWS P4d"]),
    )
    assert made.sweep() > 60


# --- Experts and ranks --------------------------------------------------------------------


def test_bars_are_what_the_cost_functions_say():
    figure, words = experts_and_ranks(32, 4, 4096, 0.5)
    cluster, model = Cluster(DGX_H100, 4), mixture(32, 4)
    visits = moe.visits_of(moe.popularity(32, 0.5), 4)
    layer = moe_time.Layer(4096, 4096, 7168, 32, 4)
    sizes = [1, 2, 4, 8, 16, 32]
    assert list(figure.layout.xaxis2.ticktext) == [str(n) for n in sizes]
    bar = lambda name: named(figure, name).y
    for i, ep in enumerate(sizes):
        step = moe_time.step_seconds(layer, cluster, ep, visits)
        both = bar("experts at work")[i] + bar("four exchanges")[i]
        assert both == pytest.approx(1e3 * step)
        states = moe_size.state_bytes_per_rank(model, BF16_ADAM, 32, ep, zero=1)
        drawn = bar("all but experts")[i] + bar("a rank's experts")[i]
        assert drawn * GB == pytest.approx(states)
    fits = [ep for ep, a, b in zip(sizes, bar("all but experts"), bar("a rank's experts"),
                                   strict=True) if a + b <= 80]  # fmt: skip
    assert f"from EP {fits[0]} on" in words


def test_chapter_11_says_what_its_ranks_show():
    figure, words = experts_and_ranks()
    assert "fit from EP 16 on. At EP 32: 19.5 ms" in words
    assert named(figure, "all but experts").y[-1] == pytest.approx(7, abs=0.1)
    assert "At EP 32: 55.4 ms" in experts_and_ranks(skew=0.5)[1]
    narrow = experts_and_ranks(experts=128, top_k=8)[1]
    assert "never fit. At EP 32" in narrow and "60 % of it in exchanges" in narrow


def test_the_work_of_a_token_is_mixtrals_whatever_k():
    flops = {moe_size.training_flops_per_token(mixture(64, k)) for k in (1, 2, 4, 8)}
    assert len(flops) == 1


def test_experts_and_ranks_draws_at_every_position():
    made = explore(
        experts_and_ranks,
        experts=log_slider(8, 128, value=32),
        top_k=log_slider(1, 8),
        tokens=log_slider(512, 16384),
        skew=slider(0, 1.5, 0.5),
        nodes=log_slider(1, 8),
        box=choice(["DGX H100", "DGX A100", "AWS P4d"]),
    )
    assert made.sweep() > 70
    assert "EP 8" in experts_and_ranks(nodes=1, box="GB200 NVL72")[1]


@pytest.mark.parametrize(
    "draw, rule",
    [
        (lambda: routes.route_tokens(9), "top_k must be from 1 to experts"),
        (lambda: routes.route_tokens(capacity_factor=0), "factor must be positive"),
        (lambda: routes.route_tokens(noise=-1), "noise must be 0 or more"),
        (lambda: load_over_steps({}), "runs must hold one run"),
        (lambda: load_over_steps({"a": [1, 2]}), "as .steps, experts., 0 or more, in 'a'"),
        (lambda: load_over_steps({"a": [[0, 0]]}), "at least one copy in every step"),
        (lambda: load_histogram([0, 0]), "loads must have a positive sum"),
        (lambda: dispatch_matrix(box="DGX-1"), "box must be one of"),
        (lambda: dispatch_matrix(way="back"), "way must be"),
        (lambda: experts_and_ranks(nodes=10), "nodes must make 72 ranks or fewer"),
        (lambda: experts_and_ranks(experts=2, top_k=4), "top_k must be from 1"),
    ],
)
def test_what_is_not_there_is_named(draw, rule):
    with pytest.raises(ValueError, match=rule):
        draw()


# --- Tokens on their way ------------------------------------------------------------------


CHOSEN = [[[1, 6], [1, 0]], [[4, 1], [7, 3]], [[1, 5], [6, 7]], [[0, 1], [4, 6]]]


def rows_of(frame):
    return [[text for text in row if text] for row in frame[0].data[0].text]


def named_rows(rank_rows, form):
    """Rows of the package's own exchange, [[token number, expert], ...], in words."""
    return [form.format("abcdefgh"[int(t)], int(e)) for t, e in rank_rows]


def exchanged():
    """The four orders that the package's functions bring copies into, on one rank."""
    rank = dist.get_rank()
    experts = torch.tensor(CHOSEN[rank])
    weights = torch.ones(2, 2)
    routing = moe_router.routing(experts, weights, weights, torch.zeros(2, 8))
    numbers = torch.arange(2.0)[:, None] + 2 * rank
    rows, order = moe_exchange.permute(numbers, routing)
    rows = torch.cat([rows, experts.flatten()[order][:, None]], dim=1)
    how = moe_exchange.plan(routing.kept_load())
    came = moe_exchange.all_to_all(
        rows, moe_exchange.totals(how.outgoing), moe_exchange.totals(how.incoming)
    )
    sorted_rows = moe_exchange.by_column(came, how.incoming)
    back = moe_exchange.combine(sorted_rows, how, moe_exchange.all_to_all)
    return rows, came, torch.cat(sorted_rows), back


def test_frames_hold_what_the_package_moves():
    frames = moving_frames(CHOSEN, 8)
    assert rows_of(frames[0]) == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]
    for rank, states in enumerate(World(4).run(exchanged).results):
        for step, state, form in zip(
            (2, 3, 4, 5, 6, 7), (*states[:3], *states[2:0:-1], states[3]),
            ["{0}→{1}"] * 3 + ["{1}({0})"] * 3, strict=True,
        ):  # fmt: skip
            assert rows_of(frames[step])[rank] == named_rows(state, form), (step, rank)
    assert "10 of 16 copies change their rank" in frames[3][1]


def test_frames_refuse_what_is_not_there():
    with pytest.raises(ValueError, match="experts from 0 to 3"):
        moving_frames([[[4]], [[0]]], 4)
    with pytest.raises(ValueError, match="1 to 26 tokens, not 27"):
        moving_frames([[[0]] * 27, []], 4)
