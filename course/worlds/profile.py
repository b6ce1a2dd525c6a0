"""What a real rank did, from torch's profiler, as Events."""

from __future__ import annotations

import contextlib


@contextlib.contextmanager
def recording(wanted: bool):
    yield None
