"""Small SVG out of what plotly draws: the same picture in a fraction of the bytes."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from xml.etree import ElementTree

from course.authoring.png import shrink_data_uris

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)

# style properties that say what an image shows anyway
DEFAULTS = {
    "vector-effect": "none",
    "opacity": "1",
    "fill-opacity": "1",
    "stroke-opacity": "1",
    "font-style": "normal",
    "font-variant": "normal",
    "font-weight": "normal",
    "text-shadow": "none",
}
# properties and attributes that only matter to a live page
LIVE_STYLES = {"pointer-events", "white-space", "cursor", "user-select"}
LIVE_ATTRIBUTES = ("class", "pointer-events", "data-")
NUMBERS = ("d", "transform", "x", "y", "x1", "x2", "y1", "y2", "points", "width", "height")
COLOR = re.compile(r"rgb\((\d+), ?(\d+), ?(\d+)\)")
LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
STEP = re.compile(r"([ML])(-?[\d.]+),(-?[\d.]+)")
SHIFT = re.compile(r"translate\((-?[\d.]+),(-?[\d.]+)\)")
STRAIGHT = re.compile(r"M(-?[\d.]+),(-?[\d.]+)([hv]-?[\d.]+)")  # a line along an axis
GROUP, TEXT = f"{{{SVG}}}g", f"{{{SVG}}}text"


def shrink(svg: str, name: str) -> str:
    """The same picture with short numbers, small PNGs, and ids made from `name`.

    name: letters and digits that no other picture of the page shares
    """
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        _short_attributes(element)
    _hoist_font(root)
    while _drop_empty(root):
        pass
    _unwrap_groups(root)
    for element in root.iter():
        _shift_inside(element)
    _join_texts(root)
    for group in root.iter():
        _join_lines(group)
    text = shrink_data_uris(ElementTree.tostring(root, encoding="unicode"))
    return _rename(text, name)


def _short_attributes(element) -> None:
    for key in list(element.attrib):
        if key.startswith(LIVE_ATTRIBUTES):
            del element.attrib[key]
        elif key in NUMBERS:
            element.set(key, LONG_NUMBER.sub(_one_decimal, element.get(key)))
    if "d" in element.attrib:
        element.set("d", _short_path(element.get("d")))
    style = _short_style(element.attrib.pop("style", ""))
    if style:
        element.set("style", style)


def _one_decimal(match: re.Match) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")


def _short_path(d: str) -> str:
    """A horizontal or vertical line is told by the one number that changes."""
    if STEP.sub("", d).strip("Z") or "ZL" in d:  # curves, or a line from a closed shape
        return d
    at = ["", ""]

    def short(match: re.Match) -> str:
        command, x, y = match.groups()
        before, at[:] = tuple(at), (x, y)
        if command == "M" or (x != before[0] and y != before[1]):
            return match[0]
        if (x, y) == before:
            return ""
        return f"V{y}" if x == before[0] else f"H{x}"

    return STEP.sub(short, d)


def _short_style(style: str) -> str:
    kept = []
    for name, value in _properties(COLOR.sub(_hex, style)):
        if value != DEFAULTS.get(name) and name not in LIVE_STYLES:
            kept.append(f"{name}:{value}")
    return ";".join(kept)


def _properties(style: str) -> list[tuple[str, str]]:
    pairs = (part.split(":", 1) for part in style.split(";") if ":" in part)
    return [(name.strip(), value.strip()) for name, value in pairs]


def _hex(match: re.Match) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in match.groups())


def _hoist_font(root) -> None:
    """Say the commonest font once, on the root."""
    font = re.compile(r"(?:^|;)(font-family:[^;]+)")
    found = Counter(m[1] for e in root.iter() for m in font.finditer(e.get("style", "")))
    if not found:
        return
    common = found.most_common(1)[0][0]
    for element in root.iter():
        if common in element.get("style", ""):
            element.set("style", element.get("style").replace(common, "").strip(";"))
    root.set("style", common)


def _drop_empty(element) -> int:
    """Remove groups with nothing in them and paths without a course; how many."""
    dropped = 0
    for child in list(element):
        dropped += _drop_empty(child)
        tag = child.tag.removeprefix(f"{{{SVG}}}")
        nothing = tag in ("g", "defs") and not len(child) and not (child.text or "").strip()
        if nothing or (tag == "path" and child.get("d", "M0,0Z") == "M0,0Z"):
            element.remove(child)
            dropped += 1
    return dropped


def _unwrap_groups(element) -> None:
    """Replace a group that says nothing by what it holds."""
    children = []
    for child in element:
        _unwrap_groups(child)
        plain = child.tag == GROUP and not child.attrib
        children += list(child) if plain else [child]
    element[:] = children


def _shift_inside(element) -> None:
    """A shifted text or straight line begins where the shift would have brought it."""
    shift = SHIFT.fullmatch(element.get("transform", ""))
    line = STRAIGHT.fullmatch(element.get("d", ""))
    text = element.tag == TEXT and not len(element) and {"x", "y"} <= set(element.attrib)
    if not shift or not (line or text):
        return
    place = line.groups()[:2] if line else (element.get("x"), element.get("y"))
    x, y = (
        f"{float(a) + float(b):.1f}" for a, b in zip(place, shift.groups(), strict=True)
    )
    x, y = x.removesuffix(".0"), y.removesuffix(".0")
    if line:
        element.set("d", f"M{x},{y}{line[3]}")
    else:
        element.set("x", x)
        element.set("y", y)
    del element.attrib["transform"]


def _join_texts(element) -> None:
    """Neighbouring texts say their place and style once, in a common group."""
    children = []
    for look, run in groupby(element, _look_of_text):
        run = list(run)
        if look and len(run) > 1:
            children.append(_joined(run, look))
            continue
        for child in run:
            _join_texts(child)
        children += run
    element[:] = children


def _look_of_text(group) -> tuple | None:
    """Of a text, or a shifted group with one text in it: how it looks, and the shift."""
    if group.tag == TEXT and not len(group) and "transform" not in group.attrib:
        return tuple(sorted((k, v) for k, v in group.attrib.items() if k not in ("x", "y")))
    only_text = group.tag == GROUP and [child.tag for child in group] == [TEXT]
    if not only_text or set(group.attrib) != {"transform"}:
        return None
    look = {k: v for k, v in group[0].attrib.items() if k not in ("x", "y")}
    return tuple(sorted((look | group.attrib).items()))


def _joined(groups: list, look: tuple):
    joined = ElementTree.Element(GROUP, dict(look))
    for text in (e if e.tag == TEXT else e[0] for e in groups):
        for key in set(text.attrib) - {"x", "y"}:
            del text.attrib[key]
        joined.append(text)
    return joined


def _join_lines(group) -> None:
    """Neighbouring lines that look alike become one path."""
    children = []
    for look, run in groupby(group, _look_of_line):
        first, *others = run
        children += [first] if look else [first, *others]
        if look:
            first.set("d", first.get("d") + "".join(line.get("d") for line in others))
    group[:] = children


def _look_of_line(path) -> tuple | None:
    """Of a line that hides what it crosses and begins at a stated point: its look."""
    style, d = path.get("style", ""), path.get("d", "")
    hollow = "fill:none" in style or all(map(STRAIGHT.fullmatch, re.findall("M[^M]*", d)))
    if not hollow or "opacity" in style or not d.startswith("M"):
        return None
    return tuple(sorted((k, v) for k, v in path.attrib.items() if k != "d"))


def _rename(text: str, name: str) -> str:
    """Give ids names that are the same in every build; drop those nobody refers to."""
    referred = set(re.findall(r"url\(['\"]?#([^)'\"]+)", text))
    referred |= set(re.findall(r'href="#([^"]+)"', text))
    text = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in referred else "", text)
    text = re.sub(r"<clipPath>.*?</clipPath>", "", text)
    for number, old in enumerate(sorted(referred, key=text.index)):
        text = re.sub(rf'(?<=[#"\'])({re.escape(old)})(?=["\')])', f"{name}-{number}", text)
    return text
