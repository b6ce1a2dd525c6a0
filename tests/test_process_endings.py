"""How real ranks end: with their world, with an interrupt, with a killed notebook.

Each test runs a program or a kernel of its own, as a reader does, and looks at the
processes from outside.
"""

import contextlib
import gc
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from course import World
from tests import errands

SOON_S = 5  # what takes less than 1 s here may take this long on a busy machine


@contextlib.contextmanager
def program(text):
    """A Python program with a process group of its own, as a terminal would start it."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    family = []
    try:
        yield process
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        pass
    finally:
        for member in [process, *family]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                member.kill()
        process.communicate()


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return line
    pytest.fail(f"{text!r} was never printed")


def family_of(pid):
    """A process's descendants: the forkserver, its resource tracker, the ranks."""
    return psutil.Process(pid).children(recursive=True)


def all_gone(processes, seconds=SOON_S):
    gone, alive = psutil.wait_procs(processes, timeout=seconds)
    alive = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, [(p.pid, p.cmdline()) for p in alive]


START = """
    import os, re, subprocess, time
    import torch, torch.distributed as dist
    from course import World
"""


def test_a_killed_notebook_leaves_nothing_behind():
    """Ranks in a collective, asleep, in native code that holds Python's lock, and idle."""
    text = (
        START
        + """
    idle = World(2, on="gloo")
    idle.run(lambda: None)
    world = World(3, on="gloo", timeout_s=300)
    world.run(lambda: None)
    print(idle._engine._crew.directory, world._engine._crew.directory, flush=True)
    def hang():
        if dist.get_rank() == 2:
            re.match("(a+)+$", "a" * 60 + "b")
        subprocess.Popen(["sleep", "300"])
        if dist.get_rank() == 1:
            time.sleep(300)
        dist.all_reduce(torch.ones(2))
    print("about to hang", flush=True)
    world.run(hang)
    """
    )
    with program(text) as process:
        directories = process.stdout.readline().split()
        assert all(map(os.path.isdir, directories)) and len(directories) == 2
        wait_for_line(process, "about to hang")
        time.sleep(1)
        family = family_of(process.pid)
        assert len(family) == 2 + 3 + 2 + 2, "ranks, sleeps, forkserver and its tracker"
        process.kill()
        process.wait()
        all_gone(family)
        assert not any(map(os.path.exists, directories))


def test_interrupt_from_a_terminal_ends_the_run_and_the_next_one_works():
    text = (
        START
        + """
    world = World(3, on="gloo", timeout_s=300)
    world.run(lambda: None)
    print("about to hang", flush=True)
    try:
        world.run(lambda: dist.recv(torch.ones(2)) or time.sleep(300))
    except KeyboardInterrupt:
        print("back", flush=True)
    print("next", world.run(dist.get_rank).results, flush=True)
    """
    )
    with program(text) as process:
        wait_for_line(process, "about to hang")
        time.sleep(1)
        before = family_of(process.pid)
        start = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
        wait_for_line(process, "back")
        assert time.monotonic() - start < SOON_S
        assert "[0, 1, 2]" in wait_for_line(process, "next")
        assert process.wait(timeout=30) == 0
        all_gone(before)


def test_a_script_that_forgets_to_close_and_to_guard_its_main_ends_cleanly():
    """It runs once, not again in each rank; and its fork has no hand on the ranks."""
    text = """
    print("top level", flush=True)
    import os
    from course import World
    world = World(2, on="gloo")
    print("pids", *world.run(os.getpid).results, flush=True)
    child = os.fork()
    if child == 0:
        world.close()
        os._exit(0)
    os.waitpid(child, 0)
    print("pids", *world.run(os.getpid).results, flush=True)
    """
    with program(text) as process:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
    top, first, second = out.splitlines()
    assert top == "top level" and first == second
    assert not any(psutil.pid_exists(int(pid)) for pid in first.split()[1:])


def test_close_ends_the_ranks_and_what_they_started():
    with World(2, on="gloo") as world:
        pids = world.run(lambda: subprocess.Popen(["sleep", "300"]).pid).results
        ranks = world.run(errands.surroundings).results
        processes = [psutil.Process(p) for p in [*pids, *(r["pid"] for r in ranks)]]
    all_gone(processes)


def test_a_world_that_nobody_holds_ends():
    world = World(2, on="gloo")
    ranks = [psutil.Process(r["pid"]) for r in world.run(errands.surroundings).results]
    del world
    gc.collect()
    all_gone(ranks)


def test_one_worlds_failure_leaves_another_alone():
    with World(2, on="gloo") as steady, World(2, on="gloo") as shaky:
        pids = steady.run(os.getpid).results
        with pytest.raises(RuntimeError):
            shaky.run(errands.raise_on, 0)
        assert steady.run(os.getpid).results == pids


# -- in a real notebook kernel -----------------------------------------------------


class Kernel:
    """Runs cells and gives back what they printed and the error they showed."""

    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def send(self, code):
        return self.client.execute(textwrap.dedent(code))

    def until_idle(self, request, seconds=60):
        printed, error = "", ""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error
        pytest.fail("the cell did not end")

    def cell(self, code):
        return self.until_idle(self.send(code))

    def pid(self):
        return self.manager.provisioner.process.pid


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.client.stop_channels()
    with contextlib.suppress(Exception):
        kernel.manager.shutdown_kernel(now=True)


def plain(text):
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_notebook_functions_run_and_their_errors_show_the_cell(kernel):
    kernel.cell("import torch, torch.distributed as dist\nfrom course import World")
    printed, error = kernel.cell("""\
        world = World(2, on="gloo", timeout_s=60)
        def step(x):
            print("hello")
            if dist.get_rank() == 1:
                x.view(5)
            dist.all_reduce(x)
            return x.sum().item()
        """)
    assert (printed, error) == ("", "")
    printed, error = kernel.cell("world.run(step, torch.ones(4))")
    assert printed == "[rank 0] hello\n[rank 1] hello\n"
    error = plain(error)
    assert "\nRankError: rank 1 raised RuntimeError: shape '[5]' is invalid" in error
    assert "  cell In[2] line 5, in step: x.view(5)" in error
    assert error.startswith("cell In[3] line 1: world.run(step, torch.ones(4))\n")
    assert len(error.splitlines()) == 3, "nothing of the launcher's own"
    printed, error = kernel.cell("print(world.run(lambda: dist.get_rank()).results)")
    assert (printed, error) == ("[0, 1]\n", "")


def test_interrupting_the_kernel_ends_the_run_and_the_next_one_works(kernel):
    kernel.cell("""\
        import torch, torch.distributed as dist, time
        from course import World
        world = World(2, on="gloo", timeout_s=300)
        def hang():
            print("hanging")
            if dist.get_rank() == 0:
                dist.recv(torch.ones(1), 1)
            time.sleep(300)
        world.run(lambda: None)
        """)
    request = kernel.send("world.run(hang)")
    time.sleep(1)
    start = time.monotonic()
    kernel.manager.interrupt_kernel()
    printed, error = kernel.until_idle(request)
    assert time.monotonic() - start < SOON_S
    assert "KeyboardInterrupt" in error
    assert printed == "[rank 0] hanging\n[rank 1] hanging\n"
    assert kernel.cell("print(world.run(dist.get_rank).results)") == ("[0, 1]\n", "")


def test_a_killed_kernel_leaves_nothing_behind(kernel):
    kernel.cell("""\
        import torch, torch.distributed as dist
        from course import World
        world = World(2, on="gloo", timeout_s=300)
        """)
    kernel.send("world.run(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()))")
    time.sleep(1)
    family = family_of(kernel.pid())
    assert len(family) >= 4
    os.kill(kernel.pid(), signal.SIGKILL)
    all_gone(family)


# -- started by torchrun --------------------------------------------------------------

LAB = """
import torch
import torch.distributed as dist

from course.worlds import torchrun_main


def step(x):
    dist.all_reduce(x)
    return x * dist.get_rank()


if __name__ == "__main__":
    run = torchrun_main(step, torch.ones(2))
    if run:
        print("RUN", run.world, [r.tolist() for r in run.results], run.seconds > 0)
    else:
        print("not rank 0")
"""


def test_a_rank_function_runs_under_torchrun(tmp_path):
    file = tmp_path / "lab.py"
    file.write_text(LAB)
    out = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        + ["--nproc-per-node", "2", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert out.returncode == 0, out.stderr
    assert "RUN gloo [[0.0, 0.0], [2.0, 2.0]] True" in out.stdout
    assert "not rank 0" in out.stdout


def test_without_torchrun_it_says_what_to_write(monkeypatch):
    from course.worlds import torchrun_main

    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="write torchrun --standalone"):
        torchrun_main(errands.rank)
