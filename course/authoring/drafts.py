"""Percent scripts in and out of notebooks, for editing outside JupyterLab."""

from __future__ import annotations

from pathlib import Path

from course.authoring.build import read, tidy, write


def from_script(script: Path, notebook: Path) -> bool:
    """Bring a percent script into a notebook; whether the file changed.

    Cells that match one of the old notebook keep its id and outputs.
    """
    import jupytext
    from jupytext.combine import combine_inputs_with_outputs

    drafted = jupytext.read(script, fmt="py:percent")
    for cell in drafted.cells:
        cell.pop("id", None)
    if notebook.exists():
        drafted = combine_inputs_with_outputs(drafted, read(notebook), fmt="py:percent")
    tidy(drafted)
    return write(drafted, notebook)


def to_script(notebook: Path, script: Path) -> None:
    """Write a notebook as a percent script. Shown cells keep their first line only."""
    import jupytext

    from course.authoring.shown import shown_name

    opened = read(notebook)
    for cell in opened.cells:
        if cell.cell_type == "code" and shown_name(cell.source):
            cell.source = cell.source.split("\n", 1)[0]
    jupytext.write(opened, script, fmt="py:percent")
