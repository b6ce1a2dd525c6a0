"""Pictures of memory: what is drawn is what the cost functions say."""

import pytest

from course.costs.memory import COMPONENTS, Setup, estimate
from course.costs.recipes import BF16_ADAM, RECIPES
from course.costs.zero import gather_seconds, granularity, state_bytes_per_rank
from course.facts import GB, GIB, IB_NDR
from course.facts_models import LLAMA3_8B, MODELS
from course.figures.memory import (
    LIMITS,
    in_words,
    memory_bars,
    recipe_memory,
    training_memory,
)
from course.figures.zero import granularity_curve, metered_peaks, wrapped, zero_stages
from course.quantities import write_seconds


def bars(traces):
    """{row: {component: bytes}} as drawn."""
    rows = {}
    for bar in traces:
        for row, value in zip(bar.y, bar.x, strict=True):
            rows.setdefault(row, {})[bar.name] = value * GB
    return rows


def limits(figure):
    """Where GPUs are drawn, in bytes."""
    return [round(shape.x0 * GB) for shape in figure.layout.shapes]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_each_bar_is_an_estimate(recompute):
    figure, _ = training_memory("Llama 3 8B", micro_batch=2, dp=8, zero=3)
    row = "keep all" if recompute == "none" else f"{recompute} recompute"
    setup = Setup(BF16_ADAM, micro_batch=2, dp=8, zero=3, recompute=recompute)
    wanted = estimate(LLAMA3_8B, setup)
    drawn = bars(figure.data)[row]
    for component in COMPONENTS:
        assert drawn.get(component, 0) == pytest.approx(wanted[component], abs=1)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_drawn_under_every_recipe(name):
    assert set(bars(recipe_memory(name)[0].data)) == set(RECIPES)


def test_words_leave_out_what_is_small():
    assert in_words({"weights": 16.06 * GB, "buckets": 0.2 * GB}) == "weights 16.1"
    assert in_words({"weights": GB, "logits": 2 * GB}, 0) == "weights 1.0, logits 2.0"


@pytest.mark.parametrize("total", [3 * GB, 30 * GB, 100 * GB, 179 * GB, 2000 * GB])
def test_the_next_larger_gpu_is_in_the_picture(total):
    figure = memory_bars({"a": {"weights": total}}, "t")
    larger = [gpu.memory_bytes for gpu in LIMITS if gpu.memory_bytes >= total]
    end = figure.layout.xaxis.range[1] * GB
    assert end > total
    assert all(at <= end for at in limits(figure))
    if larger:
        assert larger[0] in limits(figure)
    else:
        assert max(gpu.memory_bytes for gpu in LIMITS) in limits(figure)


def test_a_limit_keeps_its_distance_from_the_next():
    figure = memory_bars({"a": {"weights": 900 * GB}}, "t")
    at = sorted(limits(figure))
    end = figure.layout.xaxis.range[1] * GB
    assert all(b - a >= 0.1 * end for a, b in zip(at, at[1:], strict=False))


def test_the_words_name_the_gpus_that_hold_it():
    _, small = training_memory("GPT-2 small")
    assert "RTX 4090" in small and "B200" in small
    _, large = training_memory("GPT-3 175B")
    assert "None of these GPUs" in large


def test_sums_stand_at_the_ends_of_the_bars():
    figure = memory_bars({"a": {"weights": 10 * GB, "logits": 2 * GB}}, "t")
    written = [note for note in figure.layout.annotations if note.y == "a"]
    assert [note.text for note in written] == ["12 GB"]
    assert written[0].x == 12


@pytest.mark.parametrize(
    "draw, rule",
    [
        (lambda: training_memory("GPT-9"), "model must be one of"),
        (lambda: training_memory(recipe="adam"), "recipe must be one of"),
        (lambda: zero_stages(recipe="adam"), "recipe must be one of"),
        (lambda: zero_stages(0), "parameters must be 1 or more"),
        (lambda: granularity_curve("GPT-9"), "model must be one of"),
        (lambda: memory_bars({}, "t"), "rows must hold one row"),
        (lambda: metered_peaks({}, {}), "must have the same rows"),
        (lambda: metered_peaks({"a": {}}, {"b": 1}), "must have the same rows"),
        (lambda: metered_peaks({"a": {"ghosts": 1}}, {"a": 1}), "kinds must be of"),
        (lambda: memory_bars({"a": {"ghosts": 1}}, "t"), "components must be of"),
    ],
)
def test_what_is_not_there_is_named(draw, rule):
    with pytest.raises(ValueError, match=rule):
        draw()


@pytest.mark.parametrize("stage", range(4))
def test_curves_of_the_stages(stage):
    figure, words = zero_stages(7e9, ranks=4)
    curve = figure.data[stage]
    for ranks, gigabytes in zip(curve.x, curve.y, strict=True):
        wanted = state_bytes_per_rank(BF16_ADAM, 7e9, ranks, stage)
        assert gigabytes * GB == pytest.approx(wanted, rel=1e-12)
    assert "112 GB, 49 GB, 38.5 GB, 28 GB" in words


@pytest.mark.parametrize("model", ["GPT-2 XL", "Llama 3 8B"])
def test_points_of_the_wrapping_curve(model):
    figure, _ = granularity_curve(model)
    for curve, prefetch in zip(figure.data, (1, 0), strict=True):
        for layers, gathers, peak in zip(curve.text, curve.x, curve.y, strict=True):
            units = wrapped(MODELS[model], int(layers))
            wanted = granularity(units, 2, prefetch=prefetch)
            assert gathers == wanted.gathers
            assert peak * GB == pytest.approx(wanted.peak_bytes, rel=1e-12)
        assert int(curve.text[0]) == 1 and int(curve.text[-1]) == MODELS[model].layers


def test_the_words_of_the_wrapping_curve_tell_what_latency_costs():
    words = {n: granularity_curve("Llama 3 8B", n, IB_NDR)[1] for n in (8, 1024)}
    fine, coarse = (wrapped(LLAMA3_8B, layers) for layers in (1, 32))
    for n in words:
        for units in (fine, coarse):
            assert write_seconds(gather_seconds(units, 2, n, IB_NDR)) in words[n]


def test_metered_peaks_beside_what_was_computed():
    metered = {
        "one": {"parameters": 4 * GB, "gradients": 2 * GB},
        "two": {"parameters": GB, "activations": GB},
    }
    computed = {"one": 6 * GB, "two": 1.5 * GB}
    *drawn, marks = metered_peaks(metered, computed).data
    assert bars(drawn) == metered | {
        "one": metered["one"] | {"activations": 0},
        "two": metered["two"] | {"gradients": 0},
    }
    assert drawn[-1].name != "other"
    stand = zip(marks.y, marks.x, strict=True)
    assert {row: gigabytes * GB for row, gigabytes in stand} == computed


def test_what_is_too_small_to_be_seen_counts_as_other():
    metered = {"a": {"parameters": GB, "activations": 1000, "other": 24}}
    *drawn, _ = metered_peaks(metered, {"a": GB}).data
    assert bars(drawn) == {"a": {"parameters": GB, "other": 1024}}


def test_wrapping_loses_no_parameter():
    for layers in (1, 3, 32):
        assert sum(wrapped(LLAMA3_8B, layers)) == LLAMA3_8B.parameters


def test_figures_say_gb_and_mean_it():
    figure = memory_bars({"a": {"weights": 80 * GIB}}, "t")
    assert "(GB)" in figure.layout.xaxis.title.text
    assert figure.data[0].x[0] == pytest.approx(85.9, abs=0.05)
