"""What ranks print: kept while they run, shown in rank order when all is over."""

from __future__ import annotations

import contextlib
import io
import sys
import threading


class _ByThread(io.TextIOBase):
    """Gives what a rank's thread writes to that rank, and the rest to the old stream."""

    def __init__(self, stream, printed: dict[str, list[str]]):
        self._stream, self._printed = stream, printed

    def write(self, text: str) -> int:
        mine = self._printed.get(threading.current_thread().name)
        if mine is None:
            return self._stream.write(text)
        mine.append(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class _Printed(dict):
    """{"rank 2": [text, ...]}, with a place for each rank that asks."""

    def get(self, name: str, default=None):
        return self.setdefault(name, []) if name.startswith("rank ") else default


@contextlib.contextmanager
def printed_by_rank():
    printed = _Printed()
    with (
        contextlib.redirect_stdout(_ByThread(sys.stdout, printed)),
        contextlib.redirect_stderr(_ByThread(sys.stderr, printed)),
    ):
        yield printed


def show(printed: dict[str, list[str]]) -> None:
    for name in sorted(printed, key=lambda name: int(name.split()[1])):
        for line in "".join(printed[name]).splitlines():
            print(f"[{name}] {line}")
