"""`python -m course.authoring build|check|from-script|to-script`."""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

from course.authoring import __doc__ as ABOUT
from course.authoring.build import BuildError, build, read, tidy
from course.authoring.cover import write_cover
from course.authoring.drafts import from_script, to_script
from course.authoring.pictures import Painter
from course.authoring.shown import outdated_cells


def all_notebooks() -> list[Path]:
    return sorted([*Path("notebooks").glob("*.ipynb"), *Path("labs").glob("*.ipynb")])


def build_all(paths: list[Path]) -> int:
    failed = 0
    with Painter() as painter:
        for path in paths:
            try:
                changed = build(path, painter)
                print(f"{path}: {'written' if changed else 'unchanged'}")
            except BuildError as error:
                failed += 1
                print(error, file=sys.stderr)
    return 1 if failed else 0


def problems(path: Path) -> list[str]:
    """What a build would mend, as far as that shows without running the notebook."""
    notebook = read(path)
    found = [f"cell {i} differs from the package" for i, _ in outdated_cells(notebook)]
    tidied = copy.deepcopy(notebook)
    tidy(tidied)
    if tidied != notebook:
        found.append("holds what differs between runs: build it")
    return found


def check_all(paths: list[Path]) -> int:
    found = [f"{path}: {problem}" for path in paths for problem in problems(path)]
    print("\n".join(found) or f"{len(paths)} notebooks are as a build would leave them")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m course.authoring",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "check"):
        commands.add_parser(name).add_argument("paths", nargs="*", type=Path)
    commands.add_parser("cover")
    for name in ("from-script", "to-script"):
        command = commands.add_parser(name)
        command.add_argument("source", type=Path)
        command.add_argument("target", type=Path)
    asked = parser.parse_args()
    if asked.command == "from-script":
        from_script(asked.source, asked.target)
        return 0
    if asked.command == "cover":
        with Painter() as painter:
            write_cover(painter)
        return 0
    if asked.command == "to-script":
        to_script(asked.source, asked.target)
        return 0
    run = build_all if asked.command == "build" else check_all
    return run(asked.paths or all_notebooks())


if __name__ == "__main__":
    sys.exit(main())
