"""The little markdown of the bank, as HTML for widgets: no library, no request.

Understands paragraphs, - lists, ``` blocks, `code`, **bold** and *emphasis*.
"""

from __future__ import annotations

import html
import re

_INLINE = (
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*(?! )(.+?)(?<! )\*(?![\w*])"), r"<em>\1</em>"),
)
_CODE = re.compile(r"(`[^`]+`)")


def inline(text: str) -> str:
    """One line of markdown as HTML. Nothing inside `code` is touched."""
    parts = _CODE.split(html.escape(text, quote=False))
    return "".join(_code(p) if p.startswith("`") else _marks(p) for p in parts)


def _code(part: str) -> str:
    return f"<code>{part[1:-1]}</code>"


def _marks(part: str) -> str:
    for pattern, replacement in _INLINE:
        part = pattern.sub(replacement, part)
    return part


def plain(text: str) -> str:
    """Without marks, for labels that take no HTML."""
    return re.sub(r"`|\*\*", "", text)


def to_html(text: str) -> str:
    """Blocks parted by blank lines, as HTML."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    if block.startswith("```"):
        code = block.strip("`").split("\n", 1)[-1].rstrip()
        return f"<pre>{html.escape(code, quote=False)}</pre>"
    lines = block.split("\n")
    if all(re.match(r"(- |  )", line) for line in lines):
        items = re.split(r"(?m)^- ", block)[1:]
        return "<ul>" + "".join(f"<li>{inline(_joined(i))}</li>" for i in items) + "</ul>"
    return f"<p>{inline(_joined(block))}</p>"


def _joined(text: str) -> str:
    return " ".join(text.split())
