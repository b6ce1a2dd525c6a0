"""Where in the reader's code something happened, and how to say it in a line.

A rank knows the file and the line. The notebook's own process knows the text of
its cells, so the text is looked up there, when the line is printed.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from dataclasses import dataclass

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_COURSE = os.path.dirname(os.path.dirname(_HERE)) + os.sep
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")}
)
_PLUMBING = (
    "wrapper",
    "_wrapped_call_impl",
    "_call_impl",
    "_fn",
    "inner",
    "decorate_context",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the reader's code.

    call:  the library function that this line is in, "" where it is in none
    waits: whether that call is one of torch.distributed's
    """

    file: str
    line: int
    function: str
    call: str = ""
    waits: bool = False


def is_readers(file: str) -> bool:
    """Whether a source file is the reader's or a chapter's, not the machinery's."""
    if file.startswith(_HERE) or file.startswith("<frozen"):
        return False
    return file.startswith(_COURSE) or not file.startswith(_LIBRARIES)


def of_traceback(trace) -> tuple[Place, ...]:
    """The reader's lines in a traceback, innermost last. The whole if it has none."""
    places = _places([(frame, line) for frame, line in traceback.walk_tb(trace)])
    return tuple(p for p in places if is_readers(p.file)) or tuple(places[-1:])


def of_frame(frame) -> Place | None:
    """The innermost line of the reader in a stack that runs now."""
    stack = [(f, line) for f, line in traceback.walk_stack(frame)][::-1]
    readers = [p for p in _places(stack) if is_readers(p.file)]
    return readers[-1] if readers else None


def _places(stack) -> list[Place]:
    """One place for each (frame, line) of a stack, outermost first."""
    names = [(f.f_code.co_filename, f.f_code.co_name) for f, _ in stack]
    places = []
    for depth, (_frame, line) in enumerate(stack):
        file, function = names[depth]
        call, waits = _call(names[depth + 1 :])
        places.append(Place(file, line, function, call, waits))
    return places


def _call(inner) -> tuple[str, bool]:
    """The library call that the rest of a stack is in: its name, is it distributed."""
    if any(is_readers(file) for file, _ in inner):
        return "", False
    names = [(file, name) for file, name in inner if name not in _PLUMBING]
    distributed = [n for file, n in names if f"torch{os.sep}distributed{os.sep}" in file]
    if distributed:
        return distributed[0], True
    return (names[0][1] if names else ""), False


def short_file(file: str) -> str:
    """A file's name as a reader knows it: a cell's number, or a path from here."""
    cell = _cell(file)
    if cell:
        return cell
    if file.startswith(_COURSE):
        return os.path.join("course", os.path.relpath(file, _COURSE))
    if file.startswith(os.getcwd() + os.sep):
        return os.path.relpath(file)
    return os.path.basename(file)


def _cell(file: str) -> str:
    """ "cell In[3]" for a notebook cell's made-up file name, else ""."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    named = shell and getattr(shell.compile, "format_code_name", lambda _: None)(file)
    if named:
        return " ".join(named).lower().replace("in[", "In[")
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        return "a cell"
    return ""


def source_line(place: Place) -> str:
    """The text of a place, "" where nobody has it."""
    return linecache.getline(place.file, place.line).strip()


def describe(place: Place) -> str:
    """ "cell In[3] line 5, in step: dist.all_reduce(x)"."""
    text = source_line(place)
    where = f"{short_file(place.file)} line {place.line}"
    if place.function != "<module>":
        where += f", in {place.function}"
    return f"{where}: {text}" if text else where
