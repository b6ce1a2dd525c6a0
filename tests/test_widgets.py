"""The widgets without a page: controls, what is sent, what is stored, what is said."""

import json
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest

from course import widgets
from course.figures import collectives, theme
from course.figures.collectives import ring_frames
from course.widgets import live
from course.widgets.controls import Control, control, controls_for
from course.widgets.guess import verdict
from course.widgets.player import MOST_MOMENTS
from tests.runs_by_hand import ring


def wave(ranks=4, kind="ring", big=False):
    """A figure function in the form that chapters use."""
    figure = theme.new_figure(f"{kind} of {ranks} ranks").add_scatter(y=[1, ranks])
    return figure, "big" if big else "small"


def fails_at_seven(ranks=4):
    if ranks == 7:
        raise ZeroDivisionError("seven ranks")
    return go.Figure()


def sent(widget) -> dict:
    return json.loads(widget.picture)


# --- Controls -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [
        (True, "checkbox", (False, True)),
        (range(2, 9, 3), "slider", (2, 5, 8)),
        ((2, 5), "slider", (2, 3, 4, 5)),
        ((0.0, 1.0, 0.25), "slider", (0.0, 0.25, 0.5, 0.75, 1.0)),
        ([8, 16, 32], "slider", (8, 16, 32)),
        (["ring", "tree"], "choice", ("ring", "tree")),
        ({"one": 1, "two": 2}, "choice", (1, 2)),
    ],
)
def test_short_forms(given, kind, values):
    made = control(given)
    assert (made.kind, made.values) == (kind, values)
    assert len(made.texts) == len(values)


def test_sliders_name_their_unit():
    sizes = widgets.log_slider(2**10, 2**30, value=2**20, unit="bytes")
    assert len(sizes.values) == 21 and sizes.texts[10] == "1 MiB" and sizes.start == 10
    assert widgets.log_slider(1e-6, 1e-3, base=10, unit="s").texts == (
        *("1 µs", "10 µs", "100 µs", "1 ms"),
    )
    assert widgets.slider(0.1, 0.5, 0.1, unit="GB/s").texts[2] == "0.3 GB/s"
    assert widgets.stops([1, 2], text=lambda v: f"{v} node(s)").texts[1] == "2 node(s)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: widgets.slider(1, 0), "high must be 1 or more"),
        (lambda: widgets.slider(0, 1, 0), "step must be positive"),
        (lambda: widgets.slider(0, 5, value=9), "9 is not one of"),
        (lambda: widgets.slider(0, 10**6), "at most 1001 positions"),
        (lambda: widgets.log_slider(0, 8), "0 < low <= high"),
        (lambda: widgets.log_slider(1, 8, base=1), "base must be more than 1"),
        (lambda: Control("slider", (), ()), "at least one value"),
        (lambda: control("ring"), "a control is a bool"),
        (lambda: control([]), "a control is a bool"),
        (lambda: widgets.explore(wave, rank=(1, 2)), "rank is not an argument of wave"),
        (lambda: widgets.explore(lambda a: 0), "needs a control for a"),
    ],
)
def test_a_bad_control_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- explore and show -----------------------------------------------------------------


def test_a_label_is_the_arguments_name_in_words():
    def picture(micro_batches, message_ms, top_k, first_ms):
        return go.Figure()

    in_ms = widgets.slider(0, 1, 0.5, unit="ms")
    given = {"micro_batches": (1, 4), "message_ms": in_ms, "top_k": [1], "first_ms": (0, 2)}
    labels = [c.label for c in controls_for(picture, given).values()]
    assert labels == ["micro-batches", "message", "top k", "first ms"]


def test_explore_starts_at_the_functions_own_defaults():
    widget = widgets.explore(wave, ranks=(1, 9), kind=["tree", "ring"], big=True)
    assert widget.values == {"ranks": 4, "kind": "ring", "big": True}
    assert sent(widget)["text"] == "big"
    assert sent(widget)["figure"]["layout"]["title"]["text"] == "ring of 4 ranks"


def test_a_moved_control_redraws():
    widget = widgets.explore(wave, ranks=(1, 9), kind=["tree", "ring"])
    widget.positions = {"ranks": 8, "kind": 0}  # as the page sends it
    assert widget.values == {"ranks": 9, "kind": "tree"}
    assert sent(widget)["figure"]["layout"]["title"]["text"] == "tree of 9 ranks"
    assert widget.move(ranks=3).layout.title.text == "tree of 3 ranks"


def asked_ahead(widget, positions: dict, monkeypatch) -> list[dict]:
    """What the widget sends when the page asks for a picture ahead of need."""
    messages = []
    monkeypatch.setattr(widget, "send", messages.append)
    widget._handle_custom_msg({"ahead": positions}, [])
    return [json.loads(message["ahead"]) for message in messages]


def test_a_picture_drawn_ahead_is_the_picture_and_is_drawn_once(monkeypatch):
    drawn = []

    def counted(ranks=4):
        drawn.append(ranks)
        return wave(ranks)

    widget = widgets.explore(counted, ranks=(1, 9))
    (ahead,) = asked_ahead(widget, {"ranks": 5}, monkeypatch)
    assert widget.values == {"ranks": 4} and sent(widget)["at"] == {"ranks": 3}
    widget.positions = {"ranks": 5}
    assert ahead == sent(widget)
    assert drawn == [4, 6]
    widget.positions = {"ranks": 6}
    widget.positions = {"ranks": 5}
    assert drawn == [4, 6, 7, 6]


def test_what_fails_or_is_slow_is_not_drawn_ahead(monkeypatch):
    widget = widgets.explore(fails_at_seven, ranks=(1, 9))
    assert asked_ahead(widget, {"ranks": 6}, monkeypatch) == []
    assert len(asked_ahead(widget, {"ranks": 7}, monkeypatch)) == 1
    monkeypatch.setattr("course.widgets.explorer.AHEAD_AT_MOST_S", -1.0)
    assert asked_ahead(widget, {"ranks": 7}, monkeypatch) == []


def test_arrays_are_sent_as_base64():
    figure = go.Figure(go.Scatter(y=np.arange(500.0)))
    trace = sent(widgets.show(figure))["figure"]["data"][0]
    assert set(trace["y"]) == {"dtype", "bdata"}


def test_an_error_is_raised_at_first_and_shown_later():
    with pytest.raises(ZeroDivisionError):
        widgets.explore(fails_at_seven, ranks=widgets.slider(7, 9))
    widget = widgets.explore(fails_at_seven, ranks=(1, 9))
    widget.positions = {"ranks": 6}
    assert sent(widget)["error"] == "ZeroDivisionError: seven ranks"
    widget.positions = {"ranks": 7}
    assert "error" not in sent(widget)
    with pytest.raises(ZeroDivisionError):
        widget.move(ranks=7)


def test_sweep_finds_the_one_value_that_fails():
    widget = widgets.explore(fails_at_seven, ranks=(1, 9))
    with pytest.raises(ZeroDivisionError) as caught:
        widget.sweep()
    assert caught.value.__notes__ == ["explore was drawing {'ranks': 7}"]
    swept = widgets.explore(wave, ranks=(1, 9), kind=["tree", "ring"], big=True)
    assert swept.sweep() == 1 + 3 * (9 + 2 + 2)


def test_a_function_that_returns_no_figure_is_named():
    with pytest.raises(TypeError, match="forty must return a plotly Figure"):
        widgets.explore(forty)


def forty():
    return 40


@pytest.mark.parametrize(
    "widget",
    [
        lambda: widgets.explore(
            collectives.collective_grid,
            collective=list(collectives.COLLECTIVES),
            ranks=(2, 8),
        ),
        lambda: widgets.explore(collectives.time_against_size, ranks=(2, 64)),
        lambda: widgets.explore(
            collectives.map_of_fastest, most_ranks=widgets.log_slider(2, 1024)
        ),
    ],
    ids=["grid", "curves", "map"],
)
def test_controls_over_our_figures_can_be_swept(widget):
    assert widget().sweep() > 20


# --- stepper --------------------------------------------------------------------------


def played(film: dict, position: int) -> dict:
    """The figure of one frame, put together as stepper.js does it."""
    base, shot = film["base"], film["frames"][position]
    data = [shot["data"].get(str(i)) or base["data"][i] for i in range(shot["traces"])]
    layout = {**base["layout"], **shot["layout"]}
    return {"data": data, "layout": {k: v for k, v in layout.items() if v is not None}}


def test_a_film_gives_every_frame_back():
    frames = ring_frames(5)
    widget = widgets.stepper(frames)
    film = json.loads(widget.film)
    for position, (figure, caption) in enumerate(frames):
        assert played(film, position) == json.loads(live.figure_json(figure))
        assert film["frames"][position]["caption"] == caption


def test_a_film_repeats_nothing():
    widget = widgets.stepper(ring(4))
    whole = sum(len(live.figure_json(figure)) for figure, _ in widget.frames)
    assert len(widget.film) < 0.35 * whole


def test_a_chosen_frame_is_stored_and_playing_starts_at_the_first():
    frames = ring_frames(4)
    widget = widgets.stepper(frames, still=3)
    assert widget.stored_figure() == frames[3][0] != frames[0][0]
    assert widget.position == 0 and json.loads(widget.film)["frames"][0]["data"] == {}
    with pytest.raises(ValueError, match="still must be from 0 to 6, not 7"):
        widgets.stepper(frames, still=7)


def test_stepper_plays_a_run_over_its_timeline():
    run = ring(4)
    widget = widgets.stepper(run)
    assert len(widget.frames) == 2 * 3 + 1
    figure, caption = widget.frames[1]
    assert caption.startswith("At 1 ms: rank 0: ") and "rank 1" in caption
    now = figure.layout.shapes[-1]
    assert now.x0 == now.x1 == pytest.approx(1.0)
    assert "nothing is under way" in widget.frames[-1][1]
    assert len(widgets.stepper(ring(40)).frames) == MOST_MOMENTS


@pytest.mark.parametrize(
    ("frames", "error", "message"),
    [
        ([], ValueError, "frames must be from 1 to 400, not 0"),
        ([go.Figure()] * 401, ValueError, "not 401"),
        (["a"], TypeError, "a frame must return a plotly Figure"),
    ],
)
def test_bad_frames_are_named(frames, error, message):
    with pytest.raises(error, match=message):
        widgets.stepper(frames)


# --- predict --------------------------------------------------------------------------


def test_the_answer_is_not_asked_for_before_a_guess():
    asked = []
    widget = widgets.predict("How much?", "GB", lambda: asked.append(1) or 12.5)
    # with its point: digits alone may stand in the state's random ids
    assert not asked and widget.reply == "" and "12.5" not in json.dumps(widget.get_state())
    outcome = widget.commit("10e9")
    assert asked and outcome.ratio == pytest.approx(10 / 12.5)
    assert outcome.sentence().startswith("You: 10 GB. The answer: 12.5 GB.")
    assert "0.8 times" in outcome.sentence()


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (112, "That is it."),
        ("45.6 GiB", "Within a factor of 10"),
        (120, "Close: within 10 %."),
        (112 / 1.1, "Close: within 10 %."),
        (112 * 1.1, "Close: within 10 %."),
        (200, "within a factor of 2"),
        (57, "within a factor of 2"),
        (12, "Within a factor of 10"),
        (11, "More than a factor of 10"),
        (0, "Zero is no multiple"),
        (-112, "The sign is wrong."),
    ],
)
def test_verdicts(guess, said):
    assert said in widgets.predict("How much?", "GB", "112 GB").commit(guess).sentence()


def test_an_answer_of_zero_has_no_ratio():
    assert widgets.predict("How many?", "messages", 0).commit(3).ratio is None
    assert verdict(0, 0) == "That is it."


def test_the_picture_follows_the_guess():
    def picture(guess):
        return go.Figure(go.Bar(y=[guess, 112])), "both"

    widget = widgets.predict("How much?", "GB", 112, then=picture)
    widget.guess = {"text": "50 GB", "try": 1}  # as the page sends it
    reply = json.loads(widget.reply)
    assert reply["figure"]["data"][0]["y"] == [50.0, 112] and reply["text"] == "both"
    plain = widgets.predict("How much?", "GB", 112, then=go.Figure)
    assert plain.commit(1).figure is not None


def test_a_guess_that_is_no_number_is_answered_and_can_be_tried_again():
    widget = widgets.predict("How much?", "GB", 112)
    widget.guess = {"text": "lots", "try": 1}
    assert "'lots' is not a number" in json.loads(widget.reply)["error"]
    assert widget.outcome is None
    widget.guess = {"text": "3 s", "try": 2}
    assert "asks for GB" in json.loads(widget.reply)["error"]
    widget.guess = {"text": "112", "try": 3}
    assert widget.outcome.ratio == 1


def test_an_error_in_the_answer_is_shown():
    widget = widgets.predict("How much?", "GB", lambda: 1 / 0)
    widget.guess = {"text": "1", "try": 1}
    assert json.loads(widget.reply)["error"] == "ZeroDivisionError: division by zero"
    with pytest.raises(ValueError, match="question must not be empty"):
        widgets.predict(" ", "GB", 1)


# --- reveal ---------------------------------------------------------------------------


def test_reveal_shows_the_source_whole_and_folded():
    shown = widgets.reveal("tests.test_widgets.wave")
    assert repr(shown) == "Source of tests.test_widgets.wave"
    html = shown._repr_html_()
    assert html.startswith("<details>") and "6 lines</summary>" not in html
    assert "".join(text_of(html).split()).endswith("".join(str(shown).split()))
    assert str(shown).startswith("def wave(") and 'else "small"' in str(shown)
    assert widgets.reveal(wave)._repr_html_() == html


def text_of(html: str) -> str:
    from html.parser import HTMLParser

    texts = []
    parser = HTMLParser()
    parser.handle_data = texts.append
    parser.feed(html)
    return "".join(texts)


def test_reveal_names_what_it_cannot_find():
    with pytest.raises(ValueError, match="there is no 'course.figures.nothing' to reveal"):
        widgets.reveal("course.figures.nothing")
    with pytest.raises(ValueError, match="has no source to show"):
        widgets.reveal(len)


# --- What is stored -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: widgets.explore(wave, ranks=(1, 9)), "Figure: ring of 4 ranks"),
        (lambda: widgets.explore(wave, ranks=(1, 9), title="Waves"), "Figure: Waves"),
        (lambda: widgets.show(go.Figure()), "Figure"),
        (lambda: widgets.stepper([go.Figure()], title="One"), "Stepper: One, 1 step"),
        (lambda: widgets.predict("How much?", "GB", 1), "Predict: How much? (GB)"),
    ],
)
def test_the_bundle_is_a_widget_and_a_stable_line(make, text, monkeypatch):
    monkeypatch.delenv(live.BUILDING, raising=False)
    data, _ = make()._repr_mimebundle_()
    assert set(data) == {live.WIDGET_MIME, "text/plain"}
    assert data["text/plain"] == text


def test_the_figure_is_in_the_bundle_only_while_building(monkeypatch):
    monkeypatch.setenv(live.BUILDING, "1")
    data, _ = widgets.explore(wave, ranks=(1, 9))._repr_mimebundle_()
    assert data[live.FIGURE_MIME]["layout"]["title"]["text"] == "ring of 4 ranks"
    data, _ = widgets.predict("How much?", "GB", 1)._repr_mimebundle_()
    assert live.FIGURE_MIME not in data


def test_plotly_is_sent_once_and_figures_are_light():
    first, second = (widgets.explore(wave, ranks=(1, 9)) for _ in range(2))
    assert first.library == second.library == live.library().model_id
    assert len(json.dumps(first.get_state(), default=str)) < 30_000
    live.library().close()
    assert widgets.explore(wave, ranks=(1, 9)).library != first.library


def test_widgets_start_without_torch():
    code = "import sys; from course import widgets; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
