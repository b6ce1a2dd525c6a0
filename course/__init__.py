"""Ring to Rack: how large models are trained on many GPUs.

Names are looked up on first use, so that `import course` costs nothing until
torch is needed.
"""

from importlib import import_module

_HOMES = {
    "World": "course.worlds",
    "spend": "course.worlds.spend",
    "Run": "course.worlds",
    "Event": "course.worlds",
    "RankError": "course.worlds",
    "best_world": "course.worlds",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'course' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOMES])
