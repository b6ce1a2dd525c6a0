"""Real ranks, run for real: what they give back, and every way in which they fail."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from course import RankError, World, best_world
from course.worlds.run import NotMetered
from tests import errands

SOON_S = 5  # what takes less than 1 s here may take this long on a busy machine


@pytest.fixture(scope="module")
def world():
    with World(4, on="gloo", timeout_s=30) as world:
        yield world


@pytest.fixture(scope="module")
def pair():
    """A short deadline, for runs that hang."""
    with World(2, on="gloo", timeout_s=2) as world:
        yield world


def failure(world, function, *args) -> RankError:
    with pytest.raises(RankError) as caught:
        world.run(function, *args)
    return caught.value


# -- what a run gives -----------------------------------------------------------


def test_results_come_one_per_rank(world):
    run = world.run(errands.total, torch.arange(3.0))
    assert [r.tolist() for r in run.results] == [[0, 4, 8]] * 4
    assert run.world == "gloo" and run.ranks == 4
    assert run.seconds == max(run.seconds_per_rank) > 0
    assert len(run.seconds_per_rank) == 4


def test_without_record_nothing_was_metered(world):
    run = world.run(errands.rank)
    with pytest.raises(NotMetered, match="record=True"):
        _ = run.events
    with pytest.raises(NotMetered, match="record=True"):
        _ = run.bytes_sent


def test_seconds_are_those_inside_the_function(world):
    run = world.run(lambda: time.sleep(0.2 if errands.rank() == 1 else 0))
    assert run.seconds == run.seconds_per_rank[1] >= 0.2
    assert min(run.seconds_per_rank) < 0.2


def test_closures_lambdas_and_partial_functions_travel(world):
    from functools import partial

    factor = torch.tensor(3)

    def scaled(offset):
        return int(factor) * errands.rank() + offset

    assert world.run(scaled, 1).results == [1, 4, 7, 10]
    assert world.run(lambda: factor.item()).results == [3] * 4
    assert world.run(partial(scaled, offset=2)).results == [2, 5, 8, 11]


def test_an_instance_of_a_class_made_here_comes_back_as_one(world):
    class Point:
        def __init__(self, x):
            self.x = x

    points = world.run(lambda: Point(errands.rank())).results
    assert all(isinstance(p, Point) for p in points)
    assert [p.x for p in points] == [0, 1, 2, 3]


def test_ranks_and_their_process_group_stay(world):
    first = world.run(errands.remember, "a").results
    second = world.run(errands.remember, "b").results
    assert [r[:2] for r in first] == [r[:2] for r in second]
    assert len({pid for pid, _, _ in first}) == 4
    assert all(kept[-2:] == ["a", "b"] for _, _, kept in second)


def test_a_rank_knows_its_place(world):
    for rank, told in enumerate(world.run(errands.surroundings).results):
        assert told["environ"] == {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(rank),
        }
        assert told["threads"] == max(1, len(os.sched_getaffinity(0)) // 4)
        assert (told["device"], told["backend"]) == ("cpu", "gloo")
        assert told["directory"] == os.getcwd()
        assert told["session"] == told["pid"], "the terminal's Ctrl-C would reach it"


def test_ranks_see_the_environment_and_the_directory_of_now(monkeypatch, tmp_path):
    monkeypatch.setenv("SET_AFTER_THE_FORKSERVER", "yes")
    with World(1, on="gloo") as world:
        assert world.run(lambda: os.environ["SET_AFTER_THE_FORKSERVER"]).results == ["yes"]
        (tmp_path / "written_later.py").write_text("value = 7\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        import written_later

        told = world.run(lambda: (os.getcwd(), written_later.value)).results[0]
        assert told == (str(tmp_path), 7)


def test_ranks_talk_over_the_loopback_only(world):
    """So a host name that does not resolve is no matter, nor is a firewall."""

    def addresses():
        import psutil

        return {c.laddr.ip for c in psutil.Process().net_connections("inet")}

    assert set().union(*world.run(addresses).results) <= {"127.0.0.1", "::1"}


def test_tensors_come_back_by_value(world):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        results = world.run(lambda: {"x": torch.full((1000,), errands.rank())}).results
        assert not results[3]["x"].is_shared()
        assert results[3]["x"].sum() == 3000
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_views_and_modules_keep_their_shared_storage(world):
    base = torch.zeros(4)

    def tied(pair):
        pair[0].fill_(1)
        return pair

    left, right = world.run(tied, (base, base[2:])).results[0]
    assert right.tolist() == [1, 1]
    left.fill_(2)
    assert right.tolist() == [2, 2]
    assert base.tolist() == [0, 0, 0, 0], "the notebook's tensor stays as it was"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_of_any_kind_go_there_and_back(pair, name, shape):
    x = torch.ones(shape, dtype=getattr(torch, name))
    for y in pair.run(lambda: x.t() if x.dim() == 2 else x).results:
        assert y.dtype == x.dtype
        assert torch.equal(y, x.t() if x.dim() == 2 else x)


def test_parameters_keep_their_gradients_and_their_ties(pair):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    back = pair.run(lambda: model).results[1]
    assert back[0].weight is back[1].weight and back[0].weight.requires_grad


def test_sixty_four_ranks():
    with World(64, on="gloo", timeout_s=120) as world:
        results = world.run(errands.total, torch.ones(2)).results
    assert [r.tolist() for r in results] == [[64, 64]] * 64


def test_two_worlds_at_once(world):
    with World(2, on="gloo") as other:
        answers = {}

        def ask(name, of):
            answers[name] = of.run(errands.total, torch.ones(1)).results[0].item()

        threads = [
            threading.Thread(target=ask, args=pair)
            for pair in (("four", world), ("two", other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {"four": 4, "two": 2}


def test_a_run_that_destroys_its_group_does_not_spoil_the_next():
    with World(2, on="gloo") as world:
        world.run(errands.destroy_group)
        assert world.run(errands.total, torch.ones(1)).results[0].item() == 2


# -- what ranks print --------------------------------------------------------------


def test_output_comes_in_rank_order_whoever_wrote_it(capfd):
    with World(2, on="gloo") as world:
        world.run(errands.chatter)
        lines = capfd.readouterr().out.splitlines()
        parts = {"error", "C library", "descriptor", "child process", "no newline"}
        for rank in (0, 1):
            mine = {line for line in lines if line.startswith(f"[rank {rank}] ")}
            assert mine == {f"[rank {rank}] {p}" for p in parts | {f"python {rank}"}}
        assert [line[6] for line in lines] == ["0"] * 6 + ["1"] * 6
        world.run(errands.rank)
        assert capfd.readouterr().out == "", "printed once, not again"


def test_output_is_shown_when_the_run_fails(pair, capfd):
    failure(pair, errands.raise_on, 1)
    assert capfd.readouterr().out == "[rank 0] before\n[rank 1] before\n"


def test_huge_output_is_no_deadlock(pair, capfd):
    assert pair.run(errands.flood, 3).results == ["done"] * 2
    out = capfd.readouterr().out
    assert "[rank 1] ... and 2000003 bytes more" in out


# -- ranks that fail ------------------------------------------------------------------


def test_a_rank_that_raises_is_named_with_its_line(world):
    start = time.monotonic()
    error = failure(world, errands.raise_on, 2)
    assert time.monotonic() - start < SOON_S
    lines = str(error).splitlines()
    assert lines[0] == "rank 2 raised ValueError: no such luck"
    assert lines[1].startswith("  tests/errands.py line ")
    assert lines[1].endswith(', in raise_on: raise error or ValueError("no such luck")')
    assert len(lines) == 2, "the peers have nothing to add"
    assert error.rank == 2
    assert isinstance(error.cause, ValueError)
    assert error.__cause__ is None and error.__suppress_context__


def test_ranks_are_replaced_after_a_failure(world):
    before = [pid for pid, _, _ in world.run(errands.remember, 1).results]
    failure(world, errands.raise_on, 0)
    after = world.run(errands.remember, 2).results
    assert not {pid for pid, _, _ in after} & set(before)
    assert all(kept == [2] for _, _, kept in after)
    assert not any(map(psutil.pid_exists, before))


def test_the_line_is_the_readers_not_torchs(pair):
    error = failure(pair, errands.raise_in_torch, 1)
    assert "rank 1 raised RuntimeError: The size of tensor a (3)" in str(error)
    assert "in raise_in_torch: torch.ones(3) + torch.ones(4)" in str(error)


def test_an_exception_of_a_class_of_ones_own_is_the_cause(pair):
    error = failure(pair, errands.raise_on, 1, errands.Custom(5, "mine"))
    assert isinstance(error.cause, errands.Custom) and error.cause.number == 5


def test_an_exception_that_cannot_travel_is_still_told(pair):
    error = failure(pair, errands.raise_on, 1, None)
    assert error.rank == 1

    def raise_with_a_lock():
        raise RuntimeError("held", threading.Lock())

    error = failure(pair, raise_with_a_lock)
    assert "rank 0 raised RuntimeError: ('held'" in str(error)
    assert error.cause is None


def test_ranks_that_raise_alike_are_told_once(world):
    def wrong():
        raise KeyError("all")

    error = failure(world, wrong)
    assert str(error).startswith("rank 0 raised KeyError: 'all'")
    assert str(error).endswith("and so did ranks 1-3")


def test_the_traceback_ends_at_the_callers_line(pair):
    error = failure(pair, errands.raise_on, 1)
    files = []
    trace = error.__traceback__
    while trace:
        files.append(os.path.basename(trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    assert files == ["test_processes.py", "__init__.py"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda: sys.exit(3), "rank 1 left the run by sys.exit(3)"),
        (lambda: sys.exit(), "rank 1 left the run by sys.exit(None)"),
        (lambda: os._exit(3), "rank 1 ended its process with exit code 3"),
        (lambda: os._exit(0), "rank 1 ended its process with exit code 0"),
        (lambda: os.kill(os.getpid(), 9), "rank 1 was killed by signal SIGKILL"),
        (lambda: os.kill(os.getpid(), 11), "rank 1 was killed by signal SIGSEGV"),
    ],
    ids=["sys.exit", "sys.exit-0", "os._exit", "os._exit-0", "killed", "crashed"],
)
def test_a_rank_that_is_gone_is_named(world, how, told):
    start = time.monotonic()
    error = failure(world, errands.leave_on, 1, how)
    assert time.monotonic() - start < SOON_S
    assert str(error).startswith(told)
    assert error.rank == 1
    assert "Connection closed" not in str(error)


def test_a_killed_rank_gets_a_hint_at_memory(pair):
    error = failure(pair, errands.leave_on, 1, lambda: os.kill(os.getpid(), 9))
    assert "memory ran out" in str(error)


def test_a_rank_that_dies_between_runs_is_replaced(capfd):
    with World(2, on="gloo") as world:
        pid = world.run(errands.remember, 1).results[1][0]
        psutil.Process(pid).kill()
        psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], 5)
        assert world.run(errands.total, torch.ones(1)).results[1].item() == 2
        assert "start anew" in capfd.readouterr().out


# -- runs that never end ----------------------------------------------------------------


def test_peers_of_a_rank_that_returned_early(pair):
    error = failure(pair, errands.return_early, 0)
    assert "did not end within 2 s" in str(error)
    assert "rank 1 waited for ranks that had returned" in str(error)
    assert "\n  rank 0 returned" in str(error)
    assert "\n  rank 1 waits in all_reduce, tests/errands.py line " in str(error)
    assert ", in return_early: dist.all_reduce(torch.ones(2))" in str(error)


def test_a_rank_that_does_not_come(pair):
    error = failure(pair, errands.sleep_on, 1)
    assert "rank 0 waited, and rank 1 did not come" in str(error)
    assert "\n  rank 1 is at tests/errands.py line " in str(error)
    assert ", in sleep_on: time.sleep(600)" in str(error)
    assert error.rank == 1


def test_ranks_that_wait_for_each_other(pair):
    error = failure(pair, errands.everyone_receives)
    assert "all ranks waited for each other" in str(error)
    assert "\n  ranks 0 and 1 waits in recv" not in str(error)
    assert "\n  ranks 0 and 1 wait in recv" in str(error)
    assert error.rank is None


def test_a_rank_in_native_code_that_answers_nothing(pair):
    error = failure(pair, errands.hold_the_lock_on, 0)
    assert "rank 0 gave no answer, so it is in native code" in str(error)
    assert error.rank == 0
    assert pair.run(errands.rank).results == [0, 1]


# -- what cannot be sent -----------------------------------------------------------------


def test_an_argument_that_cannot_be_sent_is_named(pair):
    with pytest.raises(
        ValueError, match="argument 2 of the function, a lock, cannot be sent"
    ):
        pair.run(errands.remember, 1, threading.Lock())


def test_a_variable_that_cannot_be_sent_is_named(pair):
    lock = threading.Lock()

    def uses_lock():
        return lock

    with pytest.raises(ValueError, match="'lock', a lock that uses_lock uses, cannot be"):
        pair.run(uses_lock)


def test_a_world_cannot_be_sent(pair):
    with pytest.raises(ValueError, match="argument 1.*a World stays in the notebook"):
        pair.run(errands.remember, pair)


def test_a_result_that_cannot_be_sent_is_named(pair):
    error = failure(pair, errands.give_a_lock, 1)
    assert str(error).startswith("rank 1 returned a lock, which cannot be sent back")
    assert "Return numbers, tensors" in str(error)


# -- worlds that cannot be ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: World(0, on="gloo"), r"ranks must be 1 or more, not 0"),
        (lambda: World(2.0), r"ranks must be a whole number, not 2.0"),
        (lambda: World(True), r"ranks must be a whole number"),
        (lambda: World(2, on="mpi"), r"no world 'mpi': write one of .*on=\"gloo\""),
        (lambda: World(2, on="gloo", timeout_s=0), r"timeout_s must be more than 0"),
        (lambda: World(2, on="gloo", timeout_s="1"), r"timeout_s must be more than 0"),
        (lambda: World(2, on="gloo", memory=True), r"memory is an option of the simulat"),
        (lambda: World(4096, on="nccl"), r"write World\(4096, on=\"gloo\"\)"),
    ],
)
def test_a_world_that_cannot_be_says_what_to_write(make, told):
    with pytest.raises(ValueError, match=f"(?i){told}"):
        make()


def test_an_unknown_option_is_an_unexpected_argument():
    with pytest.raises(TypeError, match="'colour'"):
        World(2, on="gloo", colour="red")


def test_best_world_says_which_and_why(capsys):
    with best_world(2) as world:
        gpus = torch.cuda.device_count()
        assert world.on == ("nccl" if gpus >= 2 else "gloo")
    line = capsys.readouterr().out
    assert line.startswith(f'World(2, on="{world.on}"): this machine has')
    assert line.count("\n") == 1


def test_a_closed_world_says_so():
    world = World(1, on="gloo")
    world.close()
    world.close()
    with pytest.raises(RuntimeError, match=r'World\(1, on="gloo"\) is closed'):
        world.run(errands.rank)


def test_a_world_in_a_run_says_so(pair):
    thread = threading.Thread(target=pair.run, args=(lambda: time.sleep(0.5),))
    thread.start()
    time.sleep(0.2)
    with pytest.raises(RuntimeError, match="in the middle of a run"):
        pair.run(errands.rank)
    thread.join()
    assert pair.run(errands.rank).results == [0, 1]


def test_something_that_is_no_function_says_so(pair):
    with pytest.raises(ValueError, match=r"not world.run\(step\(x\)\)"):
        pair.run(3)


def test_a_rank_starts_no_ranks(pair):
    error = failure(pair, errands.nest)
    assert "a rank cannot start ranks of its own" in str(error)


def test_course_is_imported_without_torch():
    code = "import sys, course; from course import World; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "False"


# -- on GPUs ------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_each_rank_has_its_gpu_and_tensors_travel_to_it_and_back():
    gpus = torch.cuda.device_count()
    x = torch.ones(3)

    def where():
        here = torch.ones(3)
        torch.distributed.all_reduce(here)
        return str(here.device), str(x.device), here

    with World(gpus, on="nccl") as world:
        results = world.run(where).results
    for rank, (made, sent, back) in enumerate(results):
        assert made == sent == f"cuda:{rank}"
        assert back.device.type == "cpu" and back.tolist() == [gpus] * 3


@pytest.mark.gpu
@needs_gpu
def test_recorded_collectives_have_the_times_of_their_kernels():
    gpus = torch.cuda.device_count()
    with World(gpus, on="nccl") as world:
        run = world.run(errands.total, torch.ones(1 << 20), record=True)
    reduces = [e for e in run.events if e.name == "all_reduce"]
    assert [e.rank for e in reduces] == list(range(gpus))
    assert all(e.bytes == 4 << 20 and e.seconds > 0 for e in reduces)
