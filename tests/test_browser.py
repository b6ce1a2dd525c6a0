"""Every notebook in a real JupyterLab page."""

import time
from pathlib import Path

import nbformat
import pytest

from course.authoring.pictures import SVG_MIME
from tests.lab_page import ROOT

pytestmark = pytest.mark.browser

NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/*.ipynb")])
each_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)


def stored_pictures(path: Path) -> int:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return sum(SVG_MIME in output.get("data", {}) for output in outputs)


@each_notebook
def test_pictures_before_and_widgets_after_running(lab_page, path: Path):
    """One visit, as a reader makes it: look first, then Run All."""
    lab_page.open(path)
    shown = lab_page.page.locator(".jp-RenderedSVG img")
    assert shown.count() == stored_pictures(path)
    for i in range(shown.count()):
        lab_page.page.wait_for_function(
            "image => image.complete && image.naturalWidth > 0",
            arg=shown.nth(i).element_handle(),
        )
    lab_page.assert_clean()

    lab_page.run_all()
    lab_page.screenshot()
    move_every_control(lab_page.page)
    lab_page.assert_clean()
    assert all(c["execution_count"] for c in lab_page.code_cells() if c["source"])


# What a widget shows: its picture's shapes and words, and the line under it
SHOWS = """widget => [...widget.querySelectorAll(".main-svg, .rr-text, .rr-caption")]
    .map(part => part.outerHTML).join()"""


def keys_for(control) -> list[str]:
    """Keys that bring a control to other positions, near ones first."""
    if control.get_attribute("type") == "checkbox":
        return ["Space"]
    if control.evaluate("e => e.tagName") == "SELECT":
        return ["ArrowDown", "ArrowUp", "End", "Home"]
    return ["ArrowRight", "ArrowLeft", "End", "Home"]


def move_every_control(page) -> None:
    """Move each slider, list and box by keyboard, and see the picture follow."""
    for widget in page.locator(".rr-widget:has(.rr-control)").all():
        for control in widget.locator(".rr-control input, .rr-control select").all():
            before = widget.evaluate(SHOWS)
            assert any(
                shows_other(widget, control, key, before) for key in keys_for(control)
            )
    for stepper in page.locator(".rr-widget:has(button:text('Next'))").all():
        before = stepper.evaluate(SHOWS)
        next_frame = stepper.locator("button:text('Next')")
        assert shows_other(stepper, next_frame, "Enter", before)


def shows_other(widget, control, key: str, before: str, seconds: float = 5) -> bool:
    """Whether the widget shows something else after a key, in good time."""
    control.press(key)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if widget.evaluate(SHOWS) != before:
            return True
        widget.page.wait_for_timeout(50)
    return False


def new_notebook(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)
    return path


BAD_CELLS = {
    "1 / 0": "ZeroDivisionError",
    "from IPython.display import HTML\n"
    "HTML('<img src=\"http://elsewhere.invalid/x.png\">')": "asked another host",
    "from IPython.display import display\ndisplay({'application/vnd.jupyter.widget-view"
    "+json': {'version_major': 2, 'version_minor': 0, 'model_id': 'gone'}}, raw=True)": (
        "Error displaying widget"
    ),
}


@pytest.mark.parametrize(("source", "problem"), BAD_CELLS.items())
def test_a_bad_page_is_noticed(lab_page, tmp_path: Path, source: str, problem: str):
    lab_page.open(new_notebook(tmp_path / "bad" / "page.ipynb", source))
    lab_page.run_all()
    assert problem in "\n".join(lab_page.problems())
