"""Read the question files: course/drills/bank/<topic>.yaml, one topic a file."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import yaml

from course.drills.questions import LEVELS, Choice, Numeric, Question, Slip

BANK = Path(__file__).parent / "bank"


def _known(kind: type, data: dict) -> dict:
    names = {field.name for field in fields(kind)}
    unknown = sorted(set(data) - names)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} (known: {', '.join(sorted(names))})")
    return data


def _build(kind: type, data):
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__.lower()} must be a mapping, not {data!r}")
    try:
        return kind(**_known(kind, data))
    except TypeError as error:  # a required key is missing: the message names it
        raise ValueError(str(error).split("__init__() ")[-1]) from None


def _question(data: dict, topic: str, chapter: str) -> Question:
    data = {"topic": topic, "chapter": chapter, **data}
    data["choices"] = tuple(_build(Choice, c) for c in data.get("choices") or ())
    data["points"] = tuple(data.get("points") or ())
    if "numeric" in data:
        numeric = dict(data["numeric"])
        numeric["slips"] = tuple(_build(Slip, s) for s in numeric.get("slips") or ())
        data["numeric"] = _build(Numeric, numeric)
    return _build(Question, data)


def read(path: Path) -> tuple[Question, ...]:
    """The questions of one file. ValueError names the file, the id and the broken rule."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key in ("topic", "chapter", "questions"):
        if key not in (content or {}):
            raise ValueError(f"{path.name}: the file needs the key {key!r}")
    if content["topic"] != path.stem:
        raise ValueError(f"{path.name}: topic must be the file's name, {path.stem!r}")
    found = []
    for data in content["questions"]:
        try:
            found.append(_question(data, content["topic"], str(content["chapter"])))
        except ValueError as error:
            raise ValueError(f"{path.name}: {data.get('id', 'no id')}: {error}") from None
    return tuple(found)


@lru_cache(maxsize=1)
def every() -> dict[str, Question]:
    """All questions by id, in the order of chapters and files."""
    found: dict[str, Question] = {}
    files = [read(path) for path in sorted(BANK.glob("*.yaml"))]
    for question in sorted((q for file in files for q in file), key=lambda q: q.chapter):
        if question.id in found:
            raise ValueError(f"{question.topic}.yaml: {question.id}: id stands twice")
        found[question.id] = question
    return found


def topics() -> tuple[str, ...]:
    """The topics that have questions, in chapter order."""
    return tuple(dict.fromkeys(question.topic for question in every().values()))


def find(question_id: str) -> Question:
    """The question with this id; ValueError if there is none."""
    try:
        return every()[question_id]
    except KeyError:
        raise ValueError(f"no drill has the id {question_id!r}") from None


def questions(topic: str, *, level: int | None = None) -> tuple[Question, ...]:
    """The questions of a topic, easy ones first. ValueError if there are none."""
    if topic not in topics():
        raise ValueError(f"topic must be one of {', '.join(topics())}, not {topic!r}")
    if level is not None and level not in LEVELS:
        raise ValueError(f"level must be one of {tuple(LEVELS)}, not {level!r}")
    chosen = [q for q in every().values() if q.topic == topic and level in (None, q.level)]
    if not chosen:
        raise ValueError(f"topic {topic} has no questions of level {level}")
    return tuple(chosen)
