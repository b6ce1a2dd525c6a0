"""Run a notebook from the top and keep only what is the same in every run."""

from __future__ import annotations

import copy
import hashlib
import os
import re
from pathlib import Path

import nbformat

from course.authoring.pictures import Painter, keep_picture, stored_pictures
from course.authoring.shown import fill

CELL_TIMEOUT_S = 300
KEPT_METADATA = ("tags", "jupyter")
NOTEBOOK_METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
    },
}


class BuildError(Exception):
    """A notebook did not run. The message names the notebook and the cell."""


def read(path: Path):
    return nbformat.read(path, as_version=4)


def write(notebook, path: Path) -> bool:
    """Write the notebook if that changes the file; whether it did."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook, version=4).rstrip("\n") + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


def build(path: Path, painter: Painter, say=print) -> bool:
    """Fill, run, draw and tidy one notebook; whether its file changed.

    Raises BuildError where a cell fails; the file is then left as it was.
    """
    old = read(path)
    notebook = copy.deepcopy(old)
    fill(notebook)
    execute(notebook, path, say)
    known = stored_pictures(old)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            keep_picture(output, painter, known)
    tidy(notebook)
    return write(notebook, path)


def execute(notebook, path: Path, say=print) -> None:
    """Run every code cell in a fresh kernel, in the notebook's own folder."""
    import nbclient

    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    started = [0]

    def on_start(cell, cell_index):
        if cell.cell_type != "code":
            return
        started[0] = code.index(cell_index) + 1
        say(f"{path}: cell {started[0]}/{len(code)}")

    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
        on_cell_start=on_start,
    )
    try:
        client.execute(env={**os.environ, "RING_TO_RACK_BUILD": "1"})
    except Exception as error:
        where = f"{path}: code cell {started[0]} of {len(code)}"
        text = re.sub(r"\x1b\[[\d;]*m", "", str(error))
        raise BuildError(f"{where}: {type(error).__name__}\n{text}") from error


def tidy(notebook) -> None:
    """Drop what differs between runs and machines: timings, widget state, addresses."""
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    notebook.nbformat_minor = max(notebook.nbformat_minor, 5)
    taken: set[str] = set()
    for cell in notebook.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_METADATA}
        _name(cell, taken)
        if cell.cell_type == "code":
            cell.outputs = [_tidy_output(o) for o in _joined_streams(cell.outputs)]


def _name(cell, taken: set[str]) -> None:
    """Keep a cell's id; where it has none of its own, make one from its source."""
    name = cell.get("id", "")
    number = 0
    while not name or name in taken:
        text = f"{cell.cell_type}{cell.source}{number}"
        name, number = hashlib.sha256(text.encode()).hexdigest()[:8], number + 1
    taken.add(name)
    cell["id"] = name


def _joined_streams(outputs: list) -> list:
    """Text that was printed in a row as one output, however the kernel cut it."""
    joined: list = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.get("name"):
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _tidy_output(output):
    if output.output_type == "error":
        # a traceback names this machine's folders; its last line is what the text is about
        output.traceback = [f"{output.ename}: {output.evalue}"]
    if "metadata" in output:
        output.metadata = {k: v for k, v in output.metadata.items() if k == "figure"}
    return output
