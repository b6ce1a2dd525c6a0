"""The rooms of the course: who imports whom, how large modules are, what imports cost."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.lab_page import ROOT

# A room may import those before it, and itself.
ROOMS = (
    "facts",
    "quantities",
    "costs",
    "parallel",
    "worlds",
    "figures",
    "widgets",
    "checks",
    "drills",
)
# the developers' tool stands beside the rooms: it may import any, none may import it
OUTSIDE = "authoring"
WITHOUT_TORCH = ("facts", "quantities", "costs")
MODULE_LINES, FUNCTION_LINES = 300, 40
IMPORT_S = 0.5

MODULES = sorted((ROOT / "course").rglob("*.py"))
FOLDERS = [ROOT / name for name in ("course", "labs", "tests")]
PYTHON = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
each_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: str(path.relative_to(ROOT))
)
each_file = pytest.mark.parametrize(
    "path", PYTHON, ids=lambda path: str(path.relative_to(ROOT))
)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(module: ast.AST) -> set[str]:
    """Full names of what a module imports, wherever in it."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(name: str) -> str | None:
    """The room of "course.costs.zero.thing": "costs"."""
    parts = name.split(".")
    return one_room(parts[1]) if parts[0] == "course" and len(parts) > 1 else None


def one_room(name: str) -> str:
    """Facts may be split by topic: `facts_nccl.py` is of the room "facts"."""
    return "facts" if name.startswith("facts_") else name


def forbidden(room: str, module: ast.AST) -> set[str]:
    """Imports of a module of that room that point up, or to what has no room."""
    allowed = {*ROOMS[: ROOMS.index(room) + 1]}
    return {n for n in imported(module) if room_of(n) not in {None, *allowed}}


def home(path: Path) -> str:
    return one_room(path.relative_to(ROOT / "course").with_suffix("").parts[0])


@each_module
def test_imports_point_down(path):
    room = home(path)
    if room in ("__init__", OUTSIDE):
        return
    assert room in ROOMS, f"{room} is no room of the course"
    assert forbidden(room, tree(path)) == set()


def test_an_import_that_points_up_is_noticed():
    code = "def f():\n    from course.worlds import World\nfrom course.facts import H100"
    assert forbidden("costs", ast.parse(code)) == {"course.worlds.World"}
    assert forbidden("figures", ast.parse(code)) == set()
    assert forbidden("drills", ast.parse("import course.authoring")) == {"course.authoring"}


@each_module
def test_arithmetic_needs_no_torch(path):
    if home(path) in WITHOUT_TORCH:
        assert {n for n in imported(tree(path)) if n.split(".")[0] == "torch"} == set()


@each_module
def test_modules_are_short(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES, f"{lines} lines, not {MODULE_LINES} or fewer"


@each_file
def test_functions_are_short(path):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, functions)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert not long, f"functions over {FUNCTION_LINES} lines: {long}"


def fresh_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_importing_the_course_is_quick_and_brings_no_torch():
    seconds, loaded = fresh_python(
        "import sys, time; began = time.process_time(); import course\n"
        "print(time.process_time() - began, 'torch' in sys.modules)"
    ).split()
    # processor time, so that a busy machine does not matter
    assert float(seconds) < IMPORT_S
    assert loaded == "False"


def test_arithmetic_runs_without_torch():
    modules = [p for p in MODULES if home(p) in WITHOUT_TORCH]
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in modules]
    imports = "; ".join(f"import {name.removesuffix('.__init__')}" for name in names)
    assert (
        fresh_python(f"{imports}; import sys; print('torch' in sys.modules)") == "False\n"
    )
