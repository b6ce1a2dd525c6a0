"""The rules of notebook_rules.py over every chapter and lab; and each rule, broken."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.authoring.__main__ import problems
from course.authoring.pictures import WIDGET_MIME
from course.authoring.shown import shown_source
from tests import notebook_rules as rules
from tests.lab_page import ROOT

NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/*.ipynb")])
each_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)


@each_notebook
def test_keeps_the_rules(path):
    complaints = rules.complaints(nbformat.read(path, as_version=4))
    assert not complaints, "\n".join(complaints)


@each_notebook
def test_is_as_a_build_leaves_it(path):
    assert problems(path) == []


def test_first_chapter_stands_where_the_readme_sends_readers():
    assert ROOT / "notebooks" / "00_start_here.ipynb" in NOTEBOOKS


# --- Each rule fails on a notebook that breaks it, and only then ------------------------


def good():
    cells = [
        new_markdown_cell("# Title\n\nThe question."),
        new_code_cell("import torch", execution_count=1),
        new_markdown_cell("What comes next."),
        new_code_cell("torch.ones(1)", execution_count=2),
    ]
    text = {"text/plain": "tensor([1.])"}
    cells[3].outputs = [new_output("execute_result", data=text, execution_count=2)]
    return new_notebook(cells=cells)


def with_code(source: str, *outputs, **metadata):
    notebook = good()
    notebook.cells[3].update(source=source, outputs=list(outputs))
    notebook.cells[3].metadata.update(metadata)
    return notebook


def with_cells(*cells):
    notebook = good()
    notebook.cells += cells
    for number, cell in enumerate(rules.code_cells(notebook), 1):
        cell.execution_count = number
    return notebook


def with_first(cell):
    notebook = good()
    notebook.cells[0] = cell
    return notebook


def with_metadata(**metadata):
    notebook = good()
    notebook.metadata.update(metadata)
    return notebook


def with_count(count):
    notebook = good()
    notebook.cells[3].execution_count = count
    return notebook


def without_imports():
    notebook = good()
    del notebook.cells[1]
    return notebook


def shown(first_line_only: bool = False):
    source = shown_source("course.authoring.shown", "fill")
    return with_code(source.splitlines()[0] if first_line_only else source)


def error():
    return new_output("error", ename="ValueError", evalue="no", traceback=[])


def display(**data):
    return new_output(
        "display_data", data={k.replace("_", "/"): v for k, v in data.items()}
    )


def code(lines: int = 1):
    return new_code_cell("\n".join(["x = 1"] * lines))


def prose():
    return new_markdown_cell("Words.")


BROKEN = [
    (rules.run_from_the_top, with_count(None)),
    (rules.run_from_the_top, with_count(3)),
    (rules.no_state_of_a_run, with_metadata(widgets={"a": 1})),
    (rules.no_state_of_a_run, with_code("x = 1", execution={"iopub.execute_input": "now"})),
    (rules.no_unexpected_errors, with_code("x = 1", error())),
    (rules.no_warnings, with_code("x = 1", new_output("stream", name="stderr", text="!"))),
    (
        rules.pictures_with_text,
        with_code(
            "x", new_output("display_data", data={WIDGET_MIME: {}, "text/plain": "x"})
        ),
    ),
    (rules.pictures_with_text, with_code("x", display(image_png="", text_plain="x"))),
    (
        rules.pictures_with_text,
        with_code("x", new_output("display_data", data={"image/svg+xml": "<svg/>"})),
    ),
    (rules.pictures_with_text, with_code("x", display(text_plain="<A at 0x7f00>"))),
    (rules.title_and_opening_first, with_first(new_markdown_cell("# Only a title"))),
    (rules.title_and_opening_first, with_first(new_markdown_cell("No title.\n\nText."))),
    (rules.imports_first, without_imports()),
    (rules.short_code_cells, with_code("\n".join(["x = 1"] * 21))),
    (rules.few_code_cells_in_a_row, with_cells(prose(), prose(), code(), code(), code())),
    (
        rules.enough_prose,
        with_cells(code(), prose(), code(), code(), prose(), code(), code()),
    ),
    (rules.short_prose_cells, with_cells(new_markdown_cell("word " * 151))),
    (rules.small, with_cells(*[prose() for _ in range(97)])),
    (rules.small, with_code("x = 1", new_output("stream", text="y" * 200_000))),
    (rules.no_set_up, with_code("import sys\nsys.path.append('..')")),
    (rules.no_set_up, with_code("%pip install torch")),
    (rules.no_set_up, with_code("from urllib.request import urlopen")),
    (rules.no_machine_paths, with_code("open('/home/me/data')")),
    (rules.no_machine_paths, with_code("x = '../" + "shared/facts.md'")),
    (rules.shown_cells_equal_the_package, shown(first_line_only=True)),
    (rules.one_home_for_each_name, with_code("class World:\n    pass")),
]


def test_a_good_notebook_is_not_complained_about():
    for notebook in (good(), shown(), with_code("x", error(), tags=["raises-exception"])):
        assert rules.complaints(notebook) == []
    exercise = with_code("class World:\n    pass", tags=["exercise"])
    assert rules.complaints(exercise) == []


def ids(case):
    return getattr(case, "__name__", "")


@pytest.mark.parametrize(("rule", "notebook"), BROKEN, ids=ids)
def test_rule_notices(rule, notebook):
    assert rule(notebook), f"{rule.__name__} let it pass"


def test_every_rule_is_broken_here():
    assert {rule for rule, _ in BROKEN} == set(rules.RULES)


def test_words_leaves_formulas_and_code_out():
    assert rules.words("two words $a + b$ <b>bold</b>\n```\ncode is none\n```") == 3
