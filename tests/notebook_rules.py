"""What every chapter and lab keeps to. Each rule: notebook in, list of complaints out."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import groupby

import nbformat

from course.authoring.pictures import SVG_MIME, WIDGET_MIME
from course.authoring.shown import outdated_cells, shown_name
from tests.lab_page import ROOT

LINES, SHOWN_LINES = 20, 41  # a shown function of 40 lines, and the line that names it
CODE_CELLS_IN_A_ROW = 2
PROSE_PER_CODE = 0.8
WORDS, CELLS, FILE_BYTES = 150, 100, 200_000

SET_UP = (
    r"sys\.path",
    r"^\s*[%!]\s*(pip|conda|uv|apt)\b",
    r"pip install",
    r"\b(wget|curl|urlretrieve|urlopen)\b",
    r"\brequests\.(get|post)",
    r"from_pretrained|load_dataset|torch\.hub",
)
MACHINE_PATHS = (
    r"(?<![\w.])/(work|root|home|Users|opt|usr/local)/\w",
    r"ipykernel_\d+",
    re.escape("../" + "shared"),
)
# Names of these rooms are taken in a notebook: the package is their one home.
ROOMS = ("costs", "parallel", "worlds", "figures", "widgets", "checks", "drills")


def code_cells(notebook) -> list:
    return [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def prose_cells(notebook) -> list:
    return [c for c in notebook.cells if c.cell_type == "markdown"]


def tagged(cell, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def outputs(notebook) -> list:
    return [(c, o) for c in code_cells(notebook) for o in c.outputs]


def start_of(cell) -> str:
    return repr(cell.source.strip().split("\n")[0][:50])


# --- How it was run -------------------------------------------------------------------


def run_from_the_top(notebook) -> list[str]:
    counts = [c.execution_count for c in code_cells(notebook)]
    expected = list(range(1, len(counts) + 1))
    return [] if counts == expected else [f"execution counts are {counts}"]


def no_state_of_a_run(notebook) -> list[str]:
    found = ["widget state is stored"] if "widgets" in notebook.metadata else []
    timed = [c for c in notebook.cells if "execution" in c.metadata]
    return found + [f"execution times are stored: {start_of(c)}" for c in timed]


def no_unexpected_errors(notebook) -> list[str]:
    return [
        f"{output.ename} in {start_of(cell)}"
        for cell, output in outputs(notebook)
        if output.output_type == "error" and not tagged(cell, "raises-exception")
    ]


def no_warnings(notebook) -> list[str]:
    return [
        f"stderr under {start_of(cell)}: {output.text[:80]!r}"
        for cell, output in outputs(notebook)
        if output.get("name") == "stderr"
    ]


def pictures_with_text(notebook) -> list[str]:
    found = []
    for cell, output in outputs(notebook):
        data = output.get("data", {})
        if WIDGET_MIME in data:
            found.append(f"a widget without a kernel is stored under {start_of(cell)}")
        if any(m.startswith("image/") and m != SVG_MIME for m in data):
            found.append(f"a picture that is not SVG under {start_of(cell)}")
        if data and "text/plain" not in data:
            found.append(f"an output without text under {start_of(cell)}")
        if " at 0x" in data.get("text/plain", ""):
            found.append(f"a memory address under {start_of(cell)}")
    return found


# --- How it reads ---------------------------------------------------------------------


def title_and_opening_first(notebook) -> list[str]:
    first = notebook.cells[0]
    lines = [line for line in first.source.splitlines() if line.strip()]
    opens = first.cell_type == "markdown" and lines and lines[0].startswith("# ")
    return [] if opens and len(lines) > 1 else ["the first cell is no title and opening"]


def imports_first(notebook) -> list[str]:
    first = code_cells(notebook)[0]
    body = ast.parse(plain_python(first.source)).body
    imports = body and isinstance(body[0], ast.Import | ast.ImportFrom)
    return [] if imports else ["the first code cell does not begin with imports"]


def short_code_cells(notebook) -> list[str]:
    found = []
    for cell in code_cells(notebook):
        lines = sum(1 for line in cell.source.splitlines() if line.strip())
        if lines > (SHOWN_LINES if shown_name(cell.source) else LINES):
            found.append(f"{lines} lines in {start_of(cell)}")
    return found


def few_code_cells_in_a_row(notebook) -> list[str]:
    cells = [c for c in notebook.cells if c.source.strip()]
    runs = [
        list(run) for kind, run in groupby(cells, lambda c: c.cell_type) if kind == "code"
    ]
    return [
        f"{len(run)} code cells in a row from {start_of(run[0])}"
        for run in runs
        if len(run) > CODE_CELLS_IN_A_ROW
    ]


def enough_prose(notebook) -> list[str]:
    prose, code = len(prose_cells(notebook)), len(code_cells(notebook))
    few = prose < PROSE_PER_CODE * code
    return [f"{prose} prose cells to {code} code cells"] if few else []


def words(markdown: str) -> int:
    """Words of prose: no formulas, no HTML tags, no code blocks."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$|\$[^$\n]*\$|<[^>]*>", " ", markdown, flags=re.S)
    return sum(1 for token in text.split() if re.search(r"\w", token))


def short_prose_cells(notebook) -> list[str]:
    counts = [(words(cell.source), cell) for cell in prose_cells(notebook)]
    return [f"{n} words in {start_of(cell)}" for n, cell in counts if n > WORDS]


def small(notebook) -> list[str]:
    found = []
    if len(notebook.cells) > CELLS:
        found.append(f"{len(notebook.cells)} cells, not {CELLS} or fewer")
    size = len(nbformat.writes(notebook).encode())
    if size >= FILE_BYTES:
        found.append(f"{size} bytes, not under {FILE_BYTES}")
    return found


# --- What it may not hold -------------------------------------------------------------


def no_set_up(notebook) -> list[str]:
    return [
        f"{match[0].strip()!r} in {start_of(cell)}"
        for cell in code_cells(notebook)
        for pattern in SET_UP
        if (match := re.search(pattern, cell.source, flags=re.M))
    ]


def no_machine_paths(notebook) -> list[str]:
    text = nbformat.writes(notebook)
    return [f"{m[0]!r}" for p in MACHINE_PATHS if (m := re.search(p, text))]


def shown_cells_equal_the_package(notebook) -> list[str]:
    outdated = outdated_cells(notebook)
    return [f"{source.splitlines()[0]!r} differs: make notebooks" for _, source in outdated]


def plain_python(source: str) -> str:
    """A cell without IPython's own lines, so that `ast` can read it."""
    lines = [
        line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))
    ]
    return "\n".join(lines)


def defined(tree: ast.Module) -> set[str]:
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in tree.body if isinstance(node, kinds)}


@cache
def package_names() -> frozenset[str]:
    """Every public function and class of the course's rooms."""
    files = [f for room in ROOMS for f in ROOT.glob(f"course/{room}/**/*.py")]
    files += [ROOT / f"course/{room}.py" for room in ROOMS]
    trees = [ast.parse(f.read_text(encoding="utf-8")) for f in files if f.exists()]
    names = set().union(*map(defined, trees))
    return frozenset(name for name in names if not name.startswith("_"))


def one_home_for_each_name(notebook) -> list[str]:
    own = [
        cell
        for cell in code_cells(notebook)
        if not shown_name(cell.source) and not tagged(cell, "exercise")
    ]
    return [
        f"{name} is defined again in {start_of(cell)}: show it, or use another name"
        for cell in own
        for name in sorted(defined(ast.parse(plain_python(cell.source))) & package_names())
    ]


RULES = (
    run_from_the_top,
    no_state_of_a_run,
    no_unexpected_errors,
    no_warnings,
    pictures_with_text,
    title_and_opening_first,
    imports_first,
    short_code_cells,
    few_code_cells_in_a_row,
    enough_prose,
    short_prose_cells,
    small,
    no_set_up,
    no_machine_paths,
    shown_cells_equal_the_package,
    one_home_for_each_name,
)


def complaints(notebook) -> list[str]:
    return [f"{rule.__name__}: {c}" for rule in RULES for c in rule(notebook)]
