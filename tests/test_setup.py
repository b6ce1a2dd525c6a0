"""Set-up: the Makefile, the pinned versions, conda's file, CI's script and the README."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.lab_page import ROOT
from tests.notebook_rules import MACHINE_PATHS

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
# conda's name of a package: pip's
CONDA_NAMES = {"pytorch-cpu": "torch"}


def requirements(*extras: str) -> list[Requirement]:
    project = PYPROJECT["project"]
    lines = project["dependencies"] + sum(
        (project["optional-dependencies"][extra] for extra in extras), []
    )
    return [Requirement(line) for line in lines]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): pinned for name, pinned in pairs}


# --- Versions -------------------------------------------------------------------------


def test_torch_is_pinned_first_and_for_every_platform():
    assert next(iter(pins())) == "torch"
    assert [pin for pin in pins().values() if "+" in pin] == []


@pytest.mark.parametrize("needed", requirements("test"), ids=lambda r: r.name)
def test_pins_are_in_range(needed):
    assert needed.specifier.contains(pins()[needed.name])


def test_pins_are_what_these_tests_run_with():
    named = [r.name for r in requirements("test")]
    installed = {name: Version(version(name)).public for name in named}
    assert installed == {name: pins()[name] for name in named}


def test_torch_range_is_the_one_the_simulated_world_supports():
    torch = next(r for r in requirements() if r.name == "torch")
    supported = ["2.11.0", "2.12.0", "2.13.0", "2.14.1"]
    assert [v for v in supported if not torch.specifier.contains(v)] == []
    assert not torch.specifier.contains("2.15.0")


def conda_pins() -> dict[str, str]:
    lines = [line for line in CONDA["dependencies"] if isinstance(line, str)]
    return dict(line.split("=", 1) if "=" in line else (line, "") for line in lines)


def test_conda_agrees_with_the_pins():
    conda = conda_pins()
    python = PYPROJECT["project"]["requires-python"]
    assert Requirement(f"python{python}").specifier.contains(conda.pop("python"))
    assert conda.pop("pip") == ""
    named = {CONDA_NAMES[name]: pinned for name, pinned in conda.items()}
    assert named == {"torch": pins()["torch"]}


def test_conda_installs_the_course_as_make_does():
    pip = [line["pip"] for line in CONDA["dependencies"] if isinstance(line, dict)]
    assert pip == [["-e .[test]"]]
    assert "-e '.[test]'" in (ROOT / "Makefile").read_text()


def test_conda_file_says_what_each_line_is_for():
    lines = (ROOT / "environment.yml").read_text().split("dependencies:\n")[1].splitlines()
    entries = [line for line in lines if line.strip() != "- pip:"]
    assert [line for line in entries if not re.search(r"\S +# \w", line)] == []


# --- The Makefile ---------------------------------------------------------------------

# Stands in for Python: makes an "environment" whose python writes down what pip is asked.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
  "-c import sys; sys.exit"*) exit {old} ;;
  "-c import venv"*) exit {no_venv} ;;
  "--version "*) echo "Python 3.9.1" ;;
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip") echo "$@" >> "$LOG"
    if [ "$STOP_AT" ] && echo "$@" | grep -q -e "$STOP_AT"; then exit 1; fi ;;
esac
exit 0
"""


class Copy:
    """The Makefile in a folder of its own, with a Python that installs nothing."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "log"
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        self.stamp = folder / ".venv" / ".installed"

    def make(self, *words: str, old: int = 0, no_venv: int = 0, stop_at: str = ""):
        python = self.folder / "fake_python"
        if not python.exists():
            python.write_text(FAKE_PYTHON.format(old=old, no_venv=no_venv))
            python.chmod(0o755)
        env = {**os.environ, "LOG": str(self.log), "STOP_AT": stop_at}
        for inherited in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
            env.pop(inherited, None)
        return subprocess.run(
            ["make", f"PYTHON={python}", *words],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def installs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def test_make_alone_lists_every_target(copy):
    listed = re.findall(r"^make (\S+) +\S", copy.make().stdout, flags=re.M)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    assert sorted([*listed, "setup"]) == sorted(phony[1].split())


def test_torch_is_installed_first_under_the_pins_and_from_no_named_index(copy):
    assert copy.make("setup").returncode == 0
    first, second = copy.installs()
    assert first.endswith(" torch") and second.endswith(" -e .[test]")
    assert all("-c .venv/constraints.txt" in line for line in (first, second))
    assert "index" not in first + second
    kept = (copy.folder / ".venv" / "constraints.txt").read_text()
    assert kept == (ROOT / "constraints.txt").read_text()


def test_an_index_is_used_for_torch_alone(copy):
    copy.make("setup", "TORCH_INDEX=https://wheels.invalid/cpu")
    first, second = copy.installs()
    assert "--index-url https://wheels.invalid/cpu torch" in first
    assert "index" not in second


def test_a_second_call_installs_nothing_until_the_requirements_change(copy):
    copy.make("setup")
    assert copy.make("setup").returncode == 0
    assert len(copy.installs()) == 2
    later = copy.stamp.stat().st_mtime + 10
    os.utime(copy.folder / "constraints.txt", (later, later))
    copy.make("setup")
    assert len(copy.installs()) == 4


@pytest.mark.parametrize("stop_at", ["torch$", "test"])
def test_an_interrupted_install_leaves_no_stamp(copy, stop_at):
    assert copy.make("setup", stop_at=stop_at).returncode != 0
    assert not copy.stamp.exists()
    assert copy.make("setup").returncode == 0
    assert copy.stamp.exists()


def test_an_interrupted_update_leaves_no_stamp(copy):
    copy.make("setup")
    later = copy.stamp.stat().st_mtime + 10
    os.utime(copy.folder / "pyproject.toml", (later, later))
    assert copy.make("setup", stop_at="test").returncode != 0
    assert not copy.stamp.exists()


def test_another_torch_gets_an_environment_of_its_own(copy):
    copy.make("setup", "VENV=.venv-torch-2.14.1", "TORCH=2.14.1")
    kept = (copy.folder / ".venv-torch-2.14.1" / "constraints.txt").read_text()
    assert "torch==2.14.1\n" in kept and f"torch=={pins()['torch']}" not in kept
    assert not copy.stamp.exists()


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ({"old": 1}, "Python 3.11 or later is needed, not Python 3.9.1"),
        ({"no_venv": 1}, "venv module is missing"),
    ],
)
def test_an_unfit_python_is_named(copy, trouble, says):
    done = copy.make("setup", **trouble)
    assert done.returncode != 0 and says in done.stdout
    assert copy.installs() == []


@pytest.mark.parametrize(
    ("words", "opens"),
    [
        ((), "/lab/tree/notebooks/00_start_here.ipynb"),
        (("NOTEBOOK=labs/01_ring.ipynb",), "/lab/tree/labs/01_ring.ipynb"),
    ],
)
def test_lab_opens_a_notebook_in_the_whole_course(copy, words, opens):
    (command,) = re.findall(r".*/jupyter lab .*", copy.make("-n", "lab", *words).stdout)
    assert f"--LabApp.default_url={opens} " in command
    assert f'--ServerApp.root_dir="{copy.folder}"' in command


def test_a_missing_python_is_named(copy):
    done = copy.make("setup", "PYTHON=no-such-python")
    assert done.returncode != 0 and "no-such-python was not found" in done.stdout


# --- CI, README, and what no file may name ----------------------------------------------


def test_ci_script_is_executable_and_well_formed():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_readme_commands_are_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.M))
    assert {"lab", "test"} <= named <= targets


def test_readme_names_files_that_exist():
    paths = set(re.findall(r"^- `([^`]+)`:", README, flags=re.M))
    paths |= set(re.findall(r"\]\(([^)#:]+)\)", README))
    assert len(paths) >= 7
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def title(path: Path) -> str:
    first = nbformat.read(path, as_version=4).cells[0].source
    return first.splitlines()[0].removeprefix("# ").strip()


def test_readme_table_holds_every_notebook_with_its_title_and_a_caption():
    rows = re.findall(
        r"^\| \[([^]]+)\]\(([^)]+\.ipynb)\) \| (\S.*) \|$", README, flags=re.M
    )
    written = [(path, name) for name, path, _ in rows]
    files = [*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("labs/*.ipynb"))]
    assert written == [(str(f.relative_to(ROOT)), title(f)) for f in files]


def test_readme_is_about_one_screen():
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(prose) <= 60


def tracked_texts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kinds = {".py", ".md", ".ipynb", ".toml", ".yml", ".yaml", ".txt", ".cfg", ".js", ""}
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [p for p in paths if p.suffix in kinds and p.exists()]


def test_no_file_names_a_place_on_one_machine():
    own = {ROOT / "tests" / name for name in ("notebook_rules.py", "test_notebooks.py")}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked_texts()
        if path not in own
        for pattern in MACHINE_PATHS
        if (match := re.search(pattern, path.read_text(encoding="utf-8")))
    ]
    assert found == []
