"""The first page leads everywhere: its map, and every link of every notebook."""

import re

import nbformat

from tests.lab_page import ROOT

NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/*.ipynb")])
START = ROOT / "notebooks" / "00_start_here.ipynb"


def links(path) -> list[str]:
    """Targets of the links in a notebook's prose, as written, without #anchors."""
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    found = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [link.split("#")[0] for link in found if "://" not in link and link[0] != "#"]


def test_every_link_of_every_notebook_leads_to_a_file():
    dead = {
        f"{path.name}: {link}"
        for path in NOTEBOOKS
        for link in links(path)
        if not (path.parent / link).exists()
    }
    assert dead == set()


def test_the_map_links_every_chapter_and_lab():
    linked = {(START.parent / link).resolve() for link in links(START)}
    assert {path.name for path in NOTEBOOKS} <= {path.name for path in linked}


def rows_of_the_map() -> list[tuple[str, str]]:
    """(number, what stands in the title's column) of chapters and labs."""
    cells = nbformat.read(START, as_version=4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    return re.findall(r"^\| (\d\d) \| ([^|]+) \|", prose, flags=re.M)


def test_numbers_on_the_map_are_those_of_the_files():
    for number, title in rows_of_the_map():
        for link in re.findall(r"\]\(([^)]+)\)", title):
            assert link.split("/")[-1].startswith(number + "_")
    chapters, labs = 20, 11
    assert len(rows_of_the_map()) == chapters + labs
