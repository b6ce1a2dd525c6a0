"""Every notebook in a real JupyterLab page."""

from pathlib import Path

import pytest

from tests.lab_page import ROOT

pytestmark = pytest.mark.browser

NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/*.ipynb")])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_run_all(lab_page, path: Path):
    lab_page.open(path)
    lab_page.run_all()
    lab_page.screenshot()
    lab_page.assert_clean()
    assert all(c["execution_count"] for c in lab_page.code_cells() if c["source"])
