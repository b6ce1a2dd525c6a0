"""A pytest plugin that closes what nbval 0.11.0 leaves open as a gate over notebooks.

Found by trial, each proven closed in test_nbval_guard.py:
1. a cell that times out but swallows the interrupt passes
2. a cell that was never run has nothing to compare and passes
3. output that child processes write is not captured where pytest runs the kernel
4. the kernel is killed outright, so that its child processes stay behind
5. a kernel that died is noticed only when the cell's whole time is up

It also knows what a notebook stores in place of a live figure: the picture is made by
`make notebooks` only and is not compared; the line of text beside it is.
"""

from __future__ import annotations

import contextlib
import os
import time
from queue import Empty

import nbval.kernel
import nbval.plugin
import psutil
import pytest

from course.authoring.pictures import (
    FIGURE_MIME,
    PLOTLY_MIME,
    SVG_MIME,
    WIDGET_MIME,
    plotly_text,
)

NOT_COMPARED = (SVG_MIME, WIDGET_MIME, FIGURE_MIME, PLOTLY_MIME)
# ipykernel stops capturing file descriptors 1 and 2 when it sees the first of these;
# the second is for `make notebooks` alone
NOT_FOR_KERNELS = ("PYTEST_CURRENT_TEST", "RING_TO_RACK_BUILD")
ALIVE_EVERY_S = 1

_start_new_kernel = nbval.kernel.start_new_kernel
_Kernel = nbval.kernel.RunningKernel
_File, _Cell = nbval.plugin.IPyNbFile, nbval.plugin.IPyNbCell
_kernel_init, _kernel_stop = _Kernel.__init__, _Kernel.stop
_file_init, _file_teardown = _File.__init__, _File.teardown
_compare_outputs = _Cell.compare_outputs


def _start_clean(*args, **kwargs):
    env = {k: v for k, v in os.environ.items() if k not in NOT_FOR_KERNELS}
    return _start_new_kernel(*args, env=env, **kwargs)


def _init_and_remember(self, *args, **kwargs):
    _kernel_init(self, *args, **kwargs)
    # a kernel leads a session of its own, which its children stay in when it is gone
    self.pid = getattr(self.km.provisioner, "pid", None)


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _in_session(pid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == pid:
                found.append(process)
    return found


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=5)


def _stop_with_children(self):
    children = _children(self.pid) if self.pid else []
    _kernel_stop(self)
    _end(children)


def _teardown_with_children(self):
    _file_teardown(self)
    if self.kernel is not None and self.kernel.pid:
        _end(_in_session(self.kernel.pid))


def _await_reply_or_death(self, msg_id, timeout=None):
    deadline = time.monotonic() + (timeout or float("inf"))
    while time.monotonic() < deadline:
        try:
            message = self.get_message("shell", timeout=ALIVE_EVERY_S)
        except Empty:
            if not self.is_alive():
                raise RuntimeError("the kernel died while it ran this cell") from None
            continue
        if message["parent_header"].get("msg_id") == msg_id:
            return
    raise Empty


def _init_without_pictures(self, *args, **kwargs):
    _file_init(self, *args, **kwargs)
    self.skip_compare += NOT_COMPARED


def _compare_with_figure_text(self, test, ref, skip_compare=None):
    for output in test:
        figure = output.get("data", {}).get(PLOTLY_MIME)
        if figure is not None:
            output["data"].setdefault("text/plain", plotly_text(figure))
    return _compare_outputs(self, test, ref, skip_compare)


nbval.kernel.start_new_kernel = _start_clean
_Kernel.__init__ = _init_and_remember
_Kernel.stop = _stop_with_children
_Kernel.await_reply = _await_reply_or_death
_File.__init__ = _init_without_pictures
_File.teardown = _teardown_with_children
_Cell.compare_outputs = _compare_with_figure_text


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    cell = getattr(item, "cell", None)
    if cell is None or item.options.get("skip"):
        return (yield)
    if item.options.get("check") and cell.execution_count is None:
        pytest.fail("never run: there is nothing to compare with", pytrace=False)
    timed_out_before = item.parent.timed_out
    result = yield
    if item.parent.timed_out and not timed_out_before:
        pytest.fail("the cell timed out and swallowed the interrupt", pytrace=False)
    return result
