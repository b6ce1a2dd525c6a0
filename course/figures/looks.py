"""How each kind of bar looks, and what it says when it is pointed at."""

from __future__ import annotations

from html import escape

from course.figures import theme
from course.figures.bars import Bar
from course.quantities import write_bytes, write_seconds
from course.worlds.run import Message

# a shade darker than the card, so that idle time is seen
IDLE = "#E9ECF0"

# colour and hatch of each kind
LOOK = {
    "forward": (theme.BLUE, ""),
    "backward": (theme.SKY, "/"),
    "recompute": (theme.tint(theme.BLUE, 0.45), "x"),
    "optimizer": (theme.INK, ""),
    "compute": (theme.tint(theme.BLUE, 0.75), ""),
    "all_reduce": (theme.VERMILLION, ""),
    "reduce_scatter": (theme.ORANGE, "\\"),
    "all_gather": (theme.GREEN, "/"),
    "all_to_all": (theme.PURPLE, "x"),
    "broadcast": (theme.YELLOW, "."),
    "barrier": ("#6B7280", "|"),
    "send": (theme.GREEN, ""),
    "recv": (theme.tint(theme.GREEN, 0.35), "\\"),
    "reduce": (theme.tint(theme.VERMILLION, 0.55), "-"),
    "gather": (theme.tint(theme.PURPLE, 0.55), "-"),
    "scatter": (theme.tint(theme.ORANGE, 0.55), "|"),
    "communication": (theme.tint(theme.VERMILLION, 0.35), "+"),
}


def hover(bar: Bar) -> str:
    """What a bar says when pointed at: what, bytes, with whom, when, which line."""
    times = f" x {bar.count:,}" if bar.count > 1 else ""
    lines = [f"<b>{escape(bar.name)}</b>{times} on rank {bar.rank}"]
    if bar.bytes:
        lines.append(write_bytes(bar.bytes) + ("" if bar.count == 1 else " together"))
    if bar.peer is not None:
        lines.append(f"with rank {bar.peer}")
    lines.append(f"starts {write_seconds(bar.start_s)}, takes {write_seconds(bar.busy_s)}")
    if bar.where:
        lines.append(escape(bar.where))
    return "<br>".join(lines)


def message_hover(m: Message) -> str:
    return (
        f"<b>{escape(m.name)}</b> from rank {m.source} to rank {m.destination}"
        f"<br>{write_bytes(m.bytes)}"
        f"<br>starts {write_seconds(m.start_s)}, takes {write_seconds(m.end_s - m.start_s)}"
    )
