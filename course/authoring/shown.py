"""Shown cells: a notebook's copy of a function or method, kept equal to the package.

A method stands without its indent, and a last line puts it back into its class, so that
a reader who edits the cell has changed what runs.
"""

from __future__ import annotations

import inspect
import re
from functools import reduce
from importlib import import_module
from textwrap import dedent

FIRST_LINE = re.compile(r"# shown from (course(?:\.\w+)*): (\w+(?:\.\w+)?)")


def shown_name(source: str) -> tuple[str, str] | None:
    """(module, name) that a cell shows by its first line, or None.

    name: "ring_all_reduce", or "Unit.reduce" for a method
    """
    first = source.split("\n", 1)[0].rstrip()
    match = FIRST_LINE.fullmatch(first)
    return (match[1], match[2]) if match else None


def shown_source(module: str, name: str) -> str:
    """What the whole cell must hold.

    Raises ValueError where the package has no such name, or it has no source.
    """
    try:
        thing = reduce(getattr, name.split("."), import_module(module))
        source = dedent(inspect.getsource(inspect.unwrap(thing))).rstrip()
    except (ImportError, AttributeError, TypeError, OSError) as error:
        raise ValueError(f"cannot show {name} of {module}: {error}") from error
    if "." in name:
        source += f"\n\n\n{name} = {name.split('.')[1]}"
    return f"# shown from {module}: {name}\n{source}"


def outdated_cells(notebook) -> list[tuple[int, str]]:
    """(index in the notebook, what the cell must hold) of shown cells that differ."""
    outdated = []
    for index, cell in enumerate(notebook.cells):
        named = shown_name(cell.source) if cell.cell_type == "code" else None
        if named and cell.source != (source := shown_source(*named)):
            outdated.append((index, source))
    return outdated


def fill(notebook) -> int:
    """Bring every shown cell up to the package; how many were not."""
    outdated = outdated_cells(notebook)
    for index, source in outdated:
        notebook.cells[index].source = source
    return len(outdated)
