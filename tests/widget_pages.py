"""Notebooks of widgets for the browser tests and the bench, and when they are drawn."""

from __future__ import annotations

from pathlib import Path

import nbformat

EIGHT_SETUP = """\
import numpy as np
from course import widgets
from course.figures import theme

def curve(ranks=4, kind="ring"):
    x = np.linspace(0, 6, 500)
    figure = theme.new_figure(f"A wave of {ranks} ranks", x="x", y="y")
    figure.add_scatter(x=x, y=np.sin(ranks * x), name="sine")
    figure.add_scatter(x=x, y=np.cos(ranks * x), name="cosine")
    return figure, f"ranks is {ranks}"
"""
EIGHT = [EIGHT_SETUP, *['widgets.explore(curve, ranks=(1, 60), kind=["ring", "tree"])'] * 8]


def write_notebook(path: Path, cells: list[str]) -> Path:
    """A notebook of these code cells at that path; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)
    return path


def drawn_figures() -> str:
    """JavaScript: how many live figures were drawn since the last `run_to_drawn`."""
    return (
        "[...document.querySelectorAll('.rr-plot')]"
        ".filter(plot => plot.rrFigure && plot.querySelector('.main-svg'))"
        ".filter(plot => !plot.dataset.before).length"
    )


def run_to_drawn(lab_page, figures: int, timeout_ms: int) -> float:
    """Run All; seconds until so many figures are drawn, by the page's own clock."""
    page = lab_page.page
    page.evaluate(
        """() => {
            const plots = document.querySelectorAll(".rr-plot");
            plots.forEach(plot => { plot.dataset.before = 1; });
            window.ranAt = performance.now();
            window.jupyterapp.commands.execute("notebook:run-all-cells");
        }"""
    )
    page.wait_for_function(
        f"{drawn_figures()} >= {figures}", polling=50, timeout=timeout_ms
    )
    return page.evaluate("performance.now() - window.ranAt") / 1000
