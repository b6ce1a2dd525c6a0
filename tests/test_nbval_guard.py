"""The nbval guard, on tiny notebooks that plain nbval would let through, or stop.

All run in one pytest of their own, once; each test then reads its notebook's outcomes.
"""

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.authoring.pictures import SVG_MIME
from tests.lab_page import ROOT

TIMEOUT_S = 6
SWALLOW = """import time
try:
    time.sleep(600)
except KeyboardInterrupt:
    pass"""
CHILD = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
_ = open({path!r}, "a").write(f"{{child.pid}}\\n")"""
OWN_SESSION = CHILD.replace("])", "], start_new_session=True)")
ECHO = """import subprocess
_ = subprocess.run(["echo", "from a child"])"""
WIDGET = """from IPython.display import display
display({{
    "application/vnd.jupyter.widget-view+json": {{"model_id": "abc"}},
    "text/plain": {text!r},
}}, raw=True)"""
PLOTLY = """from IPython.display import display
figure = {"data": [], "layout": {"title": {"text": "Ring"}}}
display({"application/vnd.plotly.v1+json": figure}, raw=True)"""


def cell(source: str, *outputs, count: int | None = 1):
    return new_code_cell(source, execution_count=count, outputs=list(outputs))


def stdout(text: str):
    return new_output("stream", name="stdout", text=text)


def picture(text: str):
    return new_output("display_data", data={SVG_MIME: "<svg/>", "text/plain": text})


def notebooks(pids: Path) -> dict[str, list]:
    child = CHILD.format(path=str(pids))
    own_session = OWN_SESSION.format(path=str(pids))
    return {
        "swallowed_timeout": [cell(SWALLOW), cell("1")],
        "never_run": [cell("1 + 1", count=None)],
        "child_output": [cell(ECHO, stdout("from a child\n"))],
        "children_left": [cell(child), cell(own_session)],
        "kernel_dies": [cell(f"{child}\nimport os\nos._exit(1)")],
        "picture": [cell(WIDGET.format(text="Figure: a"), picture("Figure: a"))],
        "picture_text": [cell(WIDGET.format(text="Figure: b"), picture("Figure: a"))],
        "plotly": [cell(PLOTLY, picture("Figure: Ring"))],
        "plotly_text": [cell(PLOTLY, picture("Figure: Tree"))],
        "building": [
            cell("import os\nprint(os.environ.get('RING_TO_RACK_BUILD'))", stdout("None\n"))
        ],
    }


class Outcomes:
    """What one pytest said about every notebook."""

    def __init__(self, folder: Path, pids: Path):
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "tests.nbval_guard", "--nbval"]
        command += ["--nbval-current-env", f"--nbval-cell-timeout={TIMEOUT_S}", "-q"]
        command += ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
        command += [f"--junitxml={report}", str(folder)]
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        self.seconds = time.monotonic() - began
        self.returncode = done.returncode
        self.pids = [int(line) for line in pids.read_text().split()]
        self.cells: dict[str, list[str]] = defaultdict(list)
        self.messages: dict[str, str] = defaultdict(str)
        for case in ElementTree.parse(report).iter("testcase"):
            self._read(case)

    def _read(self, case) -> None:
        name = case.get("classname").removesuffix(".ipynb")
        problem = next(iter(case), None)
        self.cells[name].append("passed" if problem is None else problem.tag)
        if problem is not None:
            self.messages[name] += f"{problem.get('message')}\n{problem.text}"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    pids = tmp_path_factory.mktemp("pids") / "pids"
    for name, cells in notebooks(pids).items():
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    return Outcomes(folder, pids)


def test_timeout_that_swallows_the_interrupt_fails(outcomes):
    assert outcomes.cells["swallowed_timeout"][0] == "failure"
    assert "swallowed the interrupt" in outcomes.messages["swallowed_timeout"]


def test_cell_that_was_never_run_fails(outcomes):
    assert outcomes.cells["never_run"] == ["failure"]
    assert "never run" in outcomes.messages["never_run"]


def test_output_of_a_child_process_is_compared(outcomes):
    assert outcomes.cells["child_output"] == ["passed"]


def test_children_of_a_kernel_are_ended(outcomes):
    assert outcomes.cells["children_left"] == ["passed", "passed"]
    assert len(outcomes.pids) == 3
    assert [pid for pid in outcomes.pids if psutil.pid_exists(pid)] == []


def test_dead_kernel_is_noticed_before_the_timeout(outcomes):
    assert outcomes.cells["kernel_dies"] == ["failure"]
    assert "the kernel died" in outcomes.messages["kernel_dies"]


def test_picture_of_a_figure_is_not_compared_but_its_text_is(outcomes):
    assert outcomes.cells["picture"] == ["passed"]
    assert outcomes.cells["picture_text"] == ["failure"]
    assert "Figure: a" in outcomes.messages["picture_text"]


def test_plain_plotly_figure_is_compared_by_its_title(outcomes):
    assert outcomes.cells["plotly"] == ["passed"]
    assert outcomes.cells["plotly_text"] == ["failure"]


def test_kernels_are_not_told_that_a_build_runs(outcomes):
    assert outcomes.cells["building"] == ["passed"]


def test_a_failing_cell_fails_the_run(outcomes):
    assert outcomes.returncode == 1
