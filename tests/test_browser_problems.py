"""What goes wrong in a page is noticed."""

from pathlib import Path

import pytest

from tests.widget_pages import write_notebook

pytestmark = pytest.mark.browser


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
    lab_page.open(write_notebook(tmp_path / "bad" / "page.ipynb", [source]))
    lab_page.run_all()
    assert problem in "\n".join(lab_page.problems())
