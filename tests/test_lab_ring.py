"""Lab 01: its grader, and the program that torchrun starts."""

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from course.checks import check, exercises
from tests.lab_page import ROOT

# --- The round trip -------------------------------------------------------------------


def there_and_back(tensor):
    me = dist.get_rank()
    if me == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    if me == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def stub(tensor):
    raise NotImplementedError


def one_way(tensor):
    if dist.get_rank() < 2:
        (dist.send if dist.get_rank() == 0 else dist.recv)(tensor, 1 - dist.get_rank())


def both_send_first(tensor):
    if dist.get_rank() < 2:
        peer = 1 - dist.get_rank()
        incoming = torch.empty_like(tensor)
        dist.send(tensor, peer)
        dist.recv(incoming, peer)
        tensor.copy_(incoming)


def twice(tensor):
    there_and_back(tensor)
    there_and_back(tensor)


def to_everybody(tensor):
    dist.broadcast(tensor, 0)


def test_a_round_trip_is_right():
    assert exercises("lab 01") == ("round trip",)
    assert check("round trip", there_and_back).kind == "right"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (stub, "not attempted"),
        (one_way, "too little traffic"),
        (both_send_first, "deadlock"),
        (twice, "too much traffic"),
        (to_everybody, "wrong values"),
    ],
)
def test_what_is_no_round_trip_gets_its_verdict(answer, kind):
    assert check("round trip", answer).kind == kind


# --- The same lab under torchrun --------------------------------------------------------


def torchrun(ranks: int, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "labs/ring.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_torchrun_prints_the_table_once():
    done = torchrun(2, "--most", "4", "--repeats", "5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"2 ranks on (gloo|nccl)", lines[0])
    assert lines[1] == "equal to torch's on every element of 7 sizes"
    measured, predicted = "\n".join(lines[2:]).strip().split("\n\n")
    sizes = [line.split()[:2] for line in measured.splitlines()[1:]]
    assert sizes[0] == ["4", "KiB"] and sizes[-1] == ["4", "MiB"] and len(sizes) == 11
    assert predicted.startswith("fitted on every second size: alpha ")
    assert [line.split()[:2] for line in predicted.splitlines()[2:]] == sizes[1::2]


def alone(**environment: str) -> str:
    """What labs/ring.py says when it is not one of several ranks."""
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "labs/ring.py"],
        cwd=ROOT,
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    return done.stderr


def test_one_rank_is_told_what_is_needed():
    says = alone(RANK="0", WORLD_SIZE="1")
    assert says == "a ring needs 2 ranks or more: write --nproc-per-node 2\n"


def test_without_torchrun_it_says_how_to_start():
    assert "torchrun --standalone --nproc-per-node 2" in alone()
