"""`python -m course.authoring`: what a build fills, stores, strips and leaves alone."""

import base64
import inspect
import json
import re
import struct
import zlib
from textwrap import dedent

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.authoring import png, shown
from course.authoring.__main__ import problems
from course.authoring.build import BuildError, build, read, tidy
from course.authoring.drafts import from_script, to_script
from course.authoring.pictures import (
    FIGURE_MIME,
    SVG_MIME,
    WIDGET_MIME,
    Painter,
    figure_id,
    keep_picture,
)
from course.authoring.svg import shrink

SHOWN = "# shown from course.authoring.shown: fill"


def quiet(line: str) -> None:
    pass


def stored(path, *sources, **metadata):
    """A notebook of these code cells, on disk."""
    cells = [new_code_cell(source, metadata=metadata) for source in sources]
    nbformat.write(new_notebook(cells=cells), path)
    return path


# --- Shown cells ------------------------------------------------------------------------


def test_a_shown_cell_is_the_source_letter_for_letter():
    notebook = new_notebook(cells=[new_code_cell(SHOWN)])
    assert shown.fill(notebook) == 1
    first, rest = notebook.cells[0].source.split("\n", 1)
    assert first == SHOWN
    assert rest + "\n" == inspect.getsource(shown.fill)
    assert shown.fill(notebook) == 0


def test_an_edited_shown_cell_is_noticed_and_mended():
    notebook = new_notebook(cells=[new_markdown_cell("x"), new_code_cell(SHOWN)])
    shown.fill(notebook)
    filled = notebook.cells[1].source
    notebook.cells[1].source = filled.replace("notebook", "book", 1)
    assert shown.outdated_cells(notebook) == [(1, filled)]


def test_other_cells_are_not_filled():
    for source in ("x = 1", "# shown from elsewhere: fill", "y = 2\n" + SHOWN):
        assert shown.shown_name(source) is None


def test_a_shown_method_is_put_back_into_its_class():
    module, name = "course.authoring.pictures", "Painter.draw"
    first, rest = shown.shown_source(module, name).split("\n", 1)
    assert shown.shown_name(first) == (module, name)
    own = inspect.getsource(Painter.draw)
    assert rest == dedent(own).rstrip() + "\n\n\nPainter.draw = draw"


@pytest.mark.parametrize(
    "line",
    [
        "course.no_such: fill",
        "course.authoring.shown: no_such",
        "course.authoring.pictures: Painter.no_such",
    ],
)
def test_a_name_the_package_lacks_is_named(line):
    module, name = line.split(": ")
    with pytest.raises(ValueError, match=f"cannot show {name} of {module}"):
        shown.shown_source(module, name)


# --- Running and tidying ----------------------------------------------------------------


def test_a_build_runs_from_the_top_and_a_second_changes_nothing(tmp_path):
    path = stored(tmp_path / "a.ipynb", "import os\nprint('one')", "print('two')\n1 + 1")
    said = []
    with Painter() as painter:
        assert build(path, painter, said.append)
        before = path.read_bytes()
        assert not build(path, painter, said.append)
    assert path.read_bytes() == before
    assert [cell.execution_count for cell in read(path).cells] == [1, 2]
    assert said[:2] == [f"{path}: cell 1/2", f"{path}: cell 2/2"]
    assert problems(path) == []


def test_a_failing_cell_is_named_and_the_file_left_as_it_was(tmp_path):
    path = stored(tmp_path / "a.ipynb", "x = 1", "1 / 0")
    before = path.read_bytes()
    with Painter() as painter, pytest.raises(BuildError) as caught:
        build(path, painter, quiet)
    assert f"{path}: code cell 2 of 2: CellExecutionError" in str(caught.value)
    assert "ZeroDivisionError" in str(caught.value) and "\x1b" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_cell_that_is_meant_to_raise_keeps_one_line_without_paths(tmp_path):
    path = stored(tmp_path / "a.ipynb", "1 / 0", tags=["raises-exception"])
    with Painter() as painter:
        build(path, painter, quiet)
    (output,) = read(path).cells[0].outputs
    assert output.traceback == ["ZeroDivisionError: division by zero"]


def test_tidy_drops_what_differs_between_runs():
    cell = new_code_cell("x", metadata={"tags": ["exercise"], "execution": {"a": "now"}})
    cell.outputs = [new_output("stream", text=text) for text in ("one ", "two")]
    notebook = new_notebook(cells=[cell], metadata={"widgets": {"state": 1}})
    notebook.metadata.language_info = {"name": "python", "version": "3.11.7"}
    tidy(notebook)
    assert "widgets" not in notebook.metadata
    assert "version" not in notebook.metadata.language_info
    assert cell.metadata == {"tags": ["exercise"]}
    assert [output.text for output in cell.outputs] == ["one two"]


def test_tidy_keeps_ids_and_names_cells_that_have_none():
    cells = [new_markdown_cell("x", id="mine"), new_markdown_cell("y")]
    notebook = new_notebook(cells=cells)
    cells[1].id = "mine"
    tidy(notebook)
    assert cells[0].id == "mine" and cells[1].id not in ("mine", "")
    named = cells[1].id
    tidy(notebook)
    assert cells[1].id == named


# --- Pictures ---------------------------------------------------------------------------


def figure(title="Ring", ys=(1.23456, 2, 3)):
    return {"data": [{"y": list(ys)}], "layout": {"title": {"text": title}}}


class Counting:
    """Stands in for the painter: how often was it asked?"""

    drawn = 0

    def draw(self, _):
        self.drawn += 1
        return "<svg/>"


def live_output():
    data = {
        FIGURE_MIME: figure(),
        WIDGET_MIME: {"model_id": "a"},
        "text/plain": "Figure: R",
    }
    return new_output("display_data", data=data)


def test_a_live_figure_is_stored_as_picture_and_text():
    output = live_output()
    keep_picture(output, Counting(), {})
    assert output.data == {SVG_MIME: "<svg/>", "text/plain": "Figure: R"}
    assert output.metadata == {"figure": figure_id(figure())}


def test_a_picture_of_the_same_figure_is_used_again():
    painter, output = Counting(), live_output()
    keep_picture(output, painter, {figure_id(figure()): "<svg>old</svg>"})
    assert output.data[SVG_MIME] == "<svg>old</svg>" and painter.drawn == 0
    assert figure_id(figure()) != figure_id(figure(ys=(1, 2, 4)))


def test_drawn_picture_is_small_whole_and_the_same_each_time(chromium_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", chromium_path)
    with Painter() as painter:
        svg = painter.draw(figure())
        assert painter.draw(figure()) == svg
    assert len(svg) < 10_000
    assert ">Ring</text>" in svg
    assert re.search(r"\d\.\d\d", svg) is None
    referred = set(re.findall(r"url\(#([^)]+)\)", svg))
    assert referred and referred == set(re.findall(r' id="([^"]+)"', svg))
    assert all(name.startswith(figure_id(figure())) for name in referred)


def test_shrink_joins_texts_that_look_alike_and_shortens_straight_lines():
    text = (
        '<g transform="translate(0,2)"><text x="{0}" y="1" style="fill:{1}">{0}</text></g>'
    )
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg"><path d="M1,2L1,4L3,4L3,4L5,6Z" />'
        '<path d="M1,2C1,2,3,4,5,6L1,4" /><path d="M1,2L3,2ZL3,5" />'
        + "".join(text.format(*which) for which in ((1, "red"), (2, "red"), (3, "blue")))
        + "</svg>"
    )
    assert shrink(svg, "f") == (
        '<svg xmlns="http://www.w3.org/2000/svg"><path d="M1,2V4H3L5,6Z" />'
        '<path d="M1,2C1,2,3,4,5,6L1,4" /><path d="M1,2L3,2ZL3,5" />'
        '<g style="fill:red" transform="translate(0,2)"><text x="1" y="1">1</text>'
        '<text x="2" y="1">2</text></g><g transform="translate(0,2)">'
        '<text x="3" y="1" style="fill:blue">3</text></g></svg>'
    )


def test_shrink_puts_texts_and_straight_lines_where_their_shift_brings_them():
    start = '<svg xmlns="http://www.w3.org/2000/svg">'
    line = '<path d="M0,5v9" transform="translate({0},0.5)" style="stroke:red" />'
    text = '<text x="1" y="2" transform="translate({0},-3)" style="fill:red">{0}</text>'
    turned = '<text x="1" y="2" transform="rotate(90)">t</text>'
    curve = '<path d="M0,0H3V3Z" transform="translate(1,1)" style="stroke:red" />'
    drawn = [line.format(1.5), line.format(2), text.format(4), text.format(5)]
    assert shrink(start + "".join(drawn) + turned + curve + "</svg>", "f") == (
        start + '<path d="M1.5,5.5v9M2,5.5v9" style="stroke:red" />'
        '<g style="fill:red"><text x="5" y="-1">4</text><text x="6" y="-1">5</text></g>'
        + turned
        + curve
        + "</svg>"
    )


def test_shrink_joins_lines_that_look_alike():
    line = '<path d="M{0},0H9" style="fill:none;stroke:{1}{2}" />'
    which = [(1, "red", ""), (2, "red", ""), (3, "blue", ""), (4, "red", ";opacity:0.5")]
    start = '<svg xmlns="http://www.w3.org/2000/svg">'
    svg = start + "".join(line.format(*look) for look in which) + "</svg>"
    assert shrink(svg, "f") == (
        start + '<path d="M1,0H9M2,0H9" style="fill:none;stroke:red" />'
        '<path d="M3,0H9" style="fill:none;stroke:blue" />'
        '<path d="M4,0H9" style="fill:none;stroke:red;opacity:0.5" /></svg>'
    )


def test_shrink_keeps_what_shows_and_drops_what_does_not():
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg"><defs><clipPath id="a"><rect/></clipPath>'
        '<clipPath id="b"><rect/></clipPath></defs><g class="x"><g/><path d="M0,0Z"/>'
        '<path clip-path="url(#a)" d="M1.2345,-0.02L3,4" '
        'style="fill: rgb(0, 158, 115); opacity: 1; stroke-opacity: 0.5;"/></g></svg>'
    )
    assert shrink(svg, "f") == (
        '<svg xmlns="http://www.w3.org/2000/svg"><defs><clipPath id="f-0"><rect />'
        '</clipPath></defs><path clip-path="url(#f-0)" d="M1.2,-0L3,4" '
        'style="fill:#009e73;stroke-opacity:0.5" /></svg>'
    )


def filtered(pixels: np.ndarray, kind: int) -> bytes:
    """An RGBA PNG whose lines all have this filter: byte by byte, as the standard says."""
    height, width, _ = pixels.shape
    old = np.zeros((height + 1, 4 * (width + 1)), int)  # a line above, a pixel to the left
    old[1:, 4:] = pixels.reshape(height, -1)
    raw = bytearray()
    for y in range(1, height + 1):
        raw.append(kind)
        for x in range(4, 4 * (width + 1)):
            a, b, c = old[y, x - 4], old[y - 1, x], old[y - 1, x - 4]
            paeth = min((a, b, c), key=lambda near: abs(a + b - c - near))
            guess = (0, a, b, (a + b) // 2, paeth)[kind]
            raw.append((old[y, x] - guess) % 256)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    half = zlib.compress(bytes(raw))
    parts = [(b"IHDR", head), (b"IDAT", half[:9]), (b"IDAT", half[9:]), (b"IEND", b"")]
    return png.SIGNATURE + b"".join(png._chunk(name, data) for name, data in parts)


def palette_pixels(data: bytes) -> np.ndarray:
    chunks = png._chunks(data)
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, kind) == (8, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    index = lines.reshape(height, width + 1)[:, 1:]
    colors = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    return np.dstack([colors[index], np.frombuffer(chunks[b"tRNS"], np.uint8)[index]])


@pytest.mark.parametrize("kind", range(5), ids=["none", "sub", "up", "average", "paeth"])
def test_a_png_by_palette_has_the_same_pixels(kind):
    some = np.random.default_rng(kind).integers(0, 256, (9, 4), np.uint8)
    pixels = some[np.random.default_rng(1).integers(0, 9, (13, 17))]
    assert np.array_equal(palette_pixels(png.with_palette(filtered(pixels, kind))), pixels)


def test_a_png_of_many_colours_stays_as_it_is():
    many = np.random.default_rng(0).integers(0, 256, (20, 20, 4), np.uint8)
    assert png.with_palette(filtered(many, 0)) == filtered(many, 0)


def test_a_heatmap_is_stored_small_and_can_still_be_seen(chromium_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", chromium_path)
    heat = {"type": "heatmap", "z": [[0, 1], [2, 3]], "xgap": 2, "showscale": False}
    with Painter() as painter:
        svg = painter.draw({"data": [heat], "layout": {}})
    address = re.search(r"data:image/png;base64,([^\"]+)", svg)
    assert len(address[0]) < 2000
    pixels = palette_pixels(base64.b64decode(address[1]))
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) == 5  # and the gap


def test_a_build_stores_a_live_figure_s_picture(tmp_path, chromium_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", chromium_path)
    source = (
        "from course.figures.theme import new_figure\nfrom course.widgets import show\n"
        "show(new_figure('Ring').add_bar(y=[1, 2]))"
    )
    path = stored(tmp_path / "a.ipynb", source)
    with Painter() as painter:
        build(path, painter, quiet)
        before = path.read_bytes()
        assert not build(path, painter, quiet)
    assert path.read_bytes() == before
    (output,) = read(path).cells[0].outputs
    assert set(output.data) == {SVG_MIME, "text/plain"}
    assert output.data["text/plain"] == "Figure: Ring"


# --- Drafts -----------------------------------------------------------------------------


def test_a_draft_keeps_ids_and_outputs_of_cells_that_did_not_change(tmp_path):
    path, script = tmp_path / "a.ipynb", tmp_path / "a.py"
    with Painter() as painter:
        build(stored(path, "x = 1", "x + 1", SHOWN), painter, quiet)
    before = read(path).cells
    to_script(path, script)
    assert "def fill" not in script.read_text()
    text = script.read_text().replace("x = 1", "# %% [markdown]\n# new\n\n# %%\nx = 1", 1)
    script.write_text(text)
    from_script(script, path)
    after = read(path).cells
    assert [cell.source for cell in after if cell.source == "x + 1"]
    kept = next(cell for cell in after if cell.source == "x + 1")
    assert kept.id == before[1].id and kept.outputs == before[1].outputs
    assert len({cell.id for cell in after}) == len(after)
    assert "jupytext" not in json.dumps(read(path).metadata)
