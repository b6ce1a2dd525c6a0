"""The widgets in a real JupyterLab page: by keyboard, in both themes, after a reload."""

from __future__ import annotations

import nbformat
import pytest

from tests.widget_pages import EIGHT, drawn_figures, run_to_drawn, write_notebook

pytestmark = pytest.mark.browser

# far above the target (see tests/bench/bench_widgets.py): only a hang should fail here
PATIENCE_MS = 60_000

WAVE = """\
import plotly.graph_objects as go
from course import widgets
from course.figures import theme

def wave(ranks=4, kind="ring", big=False):
    if ranks == 7:
        raise ValueError("seven ranks cannot wave")
    figure = theme.new_figure(f"{kind} of {ranks} ranks", x="x", y="y")
    figure.add_scatter(y=[1, ranks, 2 * ranks if big else 2])
    return figure, f"top is {2 * ranks if big else ranks}"
"""
EXPLORE = """\
widgets.explore(wave, ranks=widgets.slider(2, 9, value=4, about="How many wave at once"),
                kind=["ring", "tree"], big=False, caption="Waves, drawn by hand.")
"""
STEPPER = """\
from course import widgets
from course.figures.collectives import ring_frames
widgets.stepper(ring_frames(4), seconds_per_frame=0.2)
"""
PREDICT = """\
def picture(guess):
    figure = theme.new_figure("your guess and the answer", y="GB")
    return figure.add_bar(x=["you", "answer"], y=[guess, 112]), "112 GB = 7e9 x 16 bytes"

widgets.predict("How much memory do 7e9 parameters take with Adam?", "GB", lambda: 112,
                then=picture, hint="Sixteen bytes a parameter.")
"""
REVEAL = 'widgets.reveal("course.costs.collectives.crossover_bytes")'


def titles(page) -> list[str]:
    return page.locator(".rr-plot .gtitle").all_text_contents()


def wait_for_title(page, text: str) -> None:
    page.locator(".rr-plot .gtitle", has_text=text).first.wait_for(timeout=PATIENCE_MS)


def screenshots(lab_page) -> None:
    """The page in the light and in the dark theme, kept under tests/artefacts."""
    lab_page.screenshot("-light")
    set_theme(lab_page.page, "JupyterLab Dark")
    lab_page.screenshot("-dark")
    set_theme(lab_page.page, "JupyterLab Light")  # the server remembers it


def set_theme(page, theme: str) -> None:
    change = (
        'theme => window.jupyterapp.commands.execute("apputils:change-theme", { theme })'
    )
    page.evaluate(change, theme)
    named = f"body[data-jp-theme-name='{theme}']"
    page.wait_for_selector(named, state="attached")


def kernel_sleeps(page, seconds: int) -> None:
    """The page's kernel is busy from now on, for so long.

    It holds Python's lock: widgets have a thread of the kernel to themselves.
    """
    page.evaluate(
        """code => {
            const { sessionContext } = window.jupyterapp.shell.currentWidget;
            sessionContext.session.kernel.requestExecute({ code, store_history: false });
        }""",
        f"import ctypes; ctypes.PyDLL(None).sleep({seconds})",
    )
    page.wait_for_timeout(1000)  # for the sleep to begin


def test_eight_figures_share_one_plotly_and_come_back_after_a_reload(lab_page, tmp_path):
    lab_page.open(write_notebook(tmp_path / "widgets" / "eight.ipynb", EIGHT))
    seconds = run_to_drawn(lab_page, 8, PATIENCE_MS)
    print(f"eight figures drawn {seconds:.1f} s after Run All")
    page = lab_page.page
    assert page.evaluate("Object.keys(ringToRack.plotly).length") == 1
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.locator(".jp-mod-dirty").wait_for(state="detached")
    page.reload()
    page.wait_for_function(f"{drawn_figures()} === 8", timeout=PATIENCE_MS)
    lab_page.assert_clean()


def test_every_control_works_from_the_keyboard(lab_page, tmp_path):
    lab_page.open(write_notebook(tmp_path / "widgets" / "explore.ipynb", [WAVE, EXPLORE]))
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    page = lab_page.page
    assert titles(page) == ["ring of 4 ranks"]
    slider = page.get_by_role("slider", name="ranks")
    slider.press("ArrowRight")
    wait_for_title(page, "ring of 5 ranks")
    slider.press("End")
    wait_for_title(page, "ring of 9 ranks")
    assert slider.get_attribute("aria-valuetext") == "9"
    page.get_by_role("combobox", name="kind").select_option("tree")
    wait_for_title(page, "tree of 9 ranks")
    page.get_by_role("checkbox", name="big").press("Space")
    page.locator(".rr-text", has_text="top is 18").wait_for()
    screenshots(lab_page)
    lab_page.assert_clean()


def test_the_last_value_wins_and_an_error_is_shown(lab_page, tmp_path):
    lab_page.open(write_notebook(tmp_path / "widgets" / "error.ipynb", [WAVE, EXPLORE]))
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    page = lab_page.page
    slider = page.get_by_role("slider", name="ranks")
    for _ in range(3):
        slider.press("ArrowRight")
    alert = page.locator(".rr-error", has_text="ValueError: seven ranks cannot wave")
    alert.wait_for()
    lab_page.screenshot("-shown")
    slider.press("ArrowRight")
    wait_for_title(page, "ring of 8 ranks")
    assert not alert.is_visible()
    lab_page.assert_clean()


def test_a_step_ahead_is_shown_while_the_kernel_is_busy(lab_page, tmp_path):
    """And when the kernel is back, its answers change nothing that is newer."""
    lab_page.open(write_notebook(tmp_path / "widgets" / "ahead.ipynb", [WAVE, EXPLORE]))
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    page = lab_page.page
    slider = page.get_by_role("slider", name="ranks")
    slider.press("ArrowLeft")
    wait_for_title(page, "ring of 3 ranks")
    page.wait_for_timeout(3000)  # for the picture of two ranks to arrive
    kernel_sleeps(page, 8)
    slider.press("ArrowLeft")
    page.locator(".rr-plot .gtitle", has_text="ring of 2 ranks").wait_for(timeout=5000)
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    wait_for_title(page, "ring of 4 ranks")
    page.wait_for_timeout(3000)  # nothing older comes, and the picture of five does
    assert titles(page) == ["ring of 4 ranks"]
    kernel_sleeps(page, 8)
    slider.press("ArrowRight")
    page.locator(".rr-plot .gtitle", has_text="ring of 5 ranks").wait_for(timeout=5000)
    lab_page.assert_clean()


def test_a_stepper_plays_steps_and_scrubs(lab_page, tmp_path):
    lab_page.open(write_notebook(tmp_path / "widgets" / "stepper.ipynb", [STEPPER]))
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    page = lab_page.page
    caption = page.locator(".rr-text")
    page.get_by_role("button", name="step forward").press("Enter")
    caption.filter(has_text="step 1 of 3: rank 0 sends piece 3 to rank 1").wait_for()
    page.get_by_role("slider", name="step").press("ArrowRight")
    caption.filter(has_text="Reduce-scatter, step 2 of 3").wait_for()
    page.get_by_role("button", name="step back").press("Enter")
    caption.filter(has_text="Reduce-scatter, step 1 of 3").wait_for()
    page.get_by_role("button", name="Play").press("Space")
    page.get_by_role("button", name="Pause").wait_for()
    caption.filter(has_text="All-gather, step 3 of 3").wait_for()
    page.get_by_role("button", name="Play").wait_for()
    cells = page.locator(".rr-plot .hm text").all_text_contents()
    assert {"1111", "2222", "3333", "4444"} <= set(cells)
    screenshots(lab_page)
    lab_page.assert_clean()


def test_a_prediction_is_committed_from_the_keyboard(lab_page, tmp_path):
    cells = [WAVE, PREDICT, REVEAL]
    lab_page.open(write_notebook(tmp_path / "widgets" / "predict.ipynb", cells))
    lab_page.run_all()
    page = lab_page.page
    field = page.get_by_role(
        "textbox", name="How much memory do 7e9 parameters take with Adam?"
    )
    assert "112" not in page.locator(".rr-widget").inner_text()
    field.press("Enter")
    page.locator(".rr-problem", has_text="Write a number first").wait_for()
    page.keyboard.type("fifty")
    page.keyboard.press("Enter")
    page.locator(".rr-problem", has_text="'fifty' is not a number").wait_for()
    field.fill("100e9")
    page.keyboard.press("Enter")
    outcome = page.locator(".rr-outcome", has_text="You: 100 GB. The answer: 112 GB.")
    outcome.wait_for()
    assert "within a factor of 2" in outcome.inner_text()
    wait_for_title(page, "your guess and the answer")
    page.locator("details summary", has_text="crossover_bytes").press("Enter")
    assert page.locator("details pre").is_visible()
    screenshots(lab_page)
    lab_page.assert_clean()


def test_figures_come_back_after_a_restart_and_in_a_second_notebook(lab_page, tmp_path):
    folder = tmp_path / "widgets"
    lab_page.open(write_notebook(folder / "first.ipynb", [WAVE, EXPLORE]))
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    page = lab_page.page
    page.evaluate(
        "async () => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()"
    )
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    page.get_by_role("slider", name="ranks").press("ArrowLeft")
    wait_for_title(page, "ring of 3 ranks")
    second = lab_page.server.add(write_notebook(folder / "second.ipynb", [WAVE, EXPLORE]))
    page.evaluate(
        """async path => {
            const opened = window.jupyterapp.commands.execute("docmanager:open", { path });
            await (await opened).sessionContext.ready;
        }""",
        second,
    )
    run_to_drawn(lab_page, 1, PATIENCE_MS)
    assert page.evaluate("Object.keys(ringToRack.plotly).length") == 1
    assert page.locator(".rr-plot .main-svg").count() >= 2
    assert not lab_page.outside_requests


def test_a_notebook_that_was_not_run_shows_its_pictures(lab_page, tmp_path):
    from course.authoring.build import build
    from course.authoring.pictures import Painter

    path = write_notebook(tmp_path / "widgets" / "stored.ipynb", [WAVE, EXPLORE, STEPPER])
    with Painter() as painter:
        build(path, painter, say=lambda *_: None)
    stored = nbformat.read(path, as_version=4)
    kinds = [set(o.data) for c in stored.cells for o in c.outputs if "data" in o]
    assert kinds == [{"image/svg+xml", "text/plain"}] * 2
    assert "widgets" not in stored.metadata
    lab_page.open(path)
    pictures = lab_page.page.locator(".jp-RenderedSVG img, .jp-RenderedSVG svg")
    pictures.nth(1).wait_for()
    lab_page.screenshot("-light")
    lab_page.assert_clean()
