"""Every lab in a real JupyterLab page."""

from pathlib import Path

import pytest

from tests.page_visit import each_notebook, visit

pytestmark = pytest.mark.browser


@each_notebook("labs")
def test_pictures_before_and_widgets_after_running(lab_page, path: Path):
    visit(lab_page, path)
