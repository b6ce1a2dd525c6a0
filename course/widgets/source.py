"""`reveal` shows a function's source, folded: the package is its one home."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from html import escape
from importlib import import_module
from textwrap import dedent

from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Operator, Token

# on the light card of every figure; each has a contrast of at least 4.5 to white
COLORS = {
    Keyword: "#00509E",
    Operator.Word: "#00509E",
    Literal.String: "#A33B00",
    Literal.Number: "#00694F",
    Comment: "#5B6470",
    Name.Function: "#8A2C6B",
    Name.Class: "#8A2C6B",
    Name.Decorator: "#8A2C6B",
}
CARD = (
    "background:#ffffff;color:#20242b;border:1px solid #d9dde2;border-radius:6px;"
    "padding:10px 14px;margin:8px 0;white-space:pre;overflow-x:auto"
)


def reveal(function) -> Source:
    """The source of a function or class, folded; a click or Enter opens it.

    function: the object, or its full name: "course.parallel.collectives.ring_all_reduce"

    Raises ValueError where there is no such name, or it has no source to show.
    """
    found = _named(function) if isinstance(function, str) else function
    try:
        source = inspect.getsource(inspect.unwrap(found))
    except (OSError, TypeError) as error:
        raise ValueError(f"{function!r} has no source to show") from error
    name = getattr(found, "__qualname__", getattr(found, "__name__", str(function)))
    return Source(name, getattr(found, "__module__", ""), dedent(source))


def _named(path: str):
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no {path!r} to reveal: {error}") from error


class Source:
    """Folded source. As text it is one stable line; str(source) is the source itself."""

    def __init__(self, name: str, module: str, source: str):
        self.name, self.module, self.source = name, module, source.rstrip()

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        home = f"{self.module}." if self.module not in ("", "__main__") else ""
        return f"Source of {home}{self.name}"

    def _repr_html_(self) -> str:
        lines = self.source.count("\n") + 1
        words = f"{escape(repr(self))}, {lines} line{'s' * (lines != 1)}"
        return (
            f'<details><summary style="cursor:pointer">{words}</summary>'
            f'<pre style="{CARD}">{highlighted(self.source)}</pre></details>'
        )


def highlighted(source: str) -> str:
    """The source as HTML. Neighbours of one colour share a span: notebooks store it."""
    parts = []
    for color, text in _runs(source):
        shown = escape(text, quote=False)
        parts.append(f'<span style="color:{color}">{shown}</span>' if color else shown)
    return "".join(parts).rstrip("\n")


def _runs(source: str) -> Iterator[tuple[str, str]]:
    now, held = "", ""
    for kind, text in lex(source, PythonLexer(stripnl=False, ensurenl=False)):
        color = now if not text.strip() else _color(kind)
        if color != now and held:
            yield now, held
            held = ""
        now, held = color, held + text
    if held:
        yield now, held


def _color(kind) -> str:
    while kind is not Token:
        if kind in COLORS:
            return COLORS[kind]
        kind = kind.parent
    return ""
