"""A notebook in a real JupyterLab page, as a reader visits it.

`pytest --dist loadfile` gives a file to one worker: chapters and labs have a file each.
"""

import time
from pathlib import Path

import nbformat
import pytest

from course.authoring.pictures import SVG_MIME
from tests.lab_page import ROOT


def each_notebook(folder: str):
    """A test of one `path`, for each notebook in the folder."""
    paths = sorted((ROOT / folder).glob("*.ipynb"))
    assert paths, f"no notebooks in {folder}"
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def stored_pictures(path: Path) -> int:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return sum(SVG_MIME in output.get("data", {}) for output in outputs)


def visit(lab_page, path: Path) -> None:
    """Look first, then Run All, then move every control. Nothing may complain."""
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
            moves = (shows_other(widget, control, key, before) for key in keys_for(control))
            assert any(moves), f"nothing follows {control.evaluate('e => e.outerHTML')}"
    for stepper in page.locator(".rr-widget:has(button:text('Next'))").all():
        before = stepper.evaluate(SHOWS)
        next_frame = stepper.locator("button:text('Next')")
        assert shows_other(stepper, next_frame, "Enter", before), (
            "Next shows no other frame"
        )


def shows_other(widget, control, key: str, before: str, seconds: float = 5) -> bool:
    """Whether the widget shows something else after a key, in good time."""
    control.press(key)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if widget.evaluate(SHOWS) != before:
            return True
        widget.page.wait_for_timeout(50)
    return False
