"""Lab 11: its grader, and the program that torchrun starts."""

import subprocess
import sys

import pytest

from course.checks import check, exercises
from course.costs.bandwidth import fit_link
from course.costs.collectives import cost
from labs.measure import divisible_sizes
from tests.lab_page import ROOT

# --- Fit by hand ----------------------------------------------------------------------


def ends(times):
    """(bytes between the smallest and the largest, seconds between them, the smallest)."""
    low, high = min(times), max(times)
    return high - low, times[high] - times[low], low


def two_points(ranks, times):
    more_bytes, more_s, low = ends(times)
    rate = 2 * (ranks - 1) / ranks * more_bytes / more_s
    alpha = (times[low] - 2 * (ranks - 1) / ranks * low / rate) / (2 * (ranks - 1))
    return alpha, rate


def least_squares(ranks, times):
    costs = [cost("all_reduce", "ring", ranks, m) for m in times]
    link = fit_link(costs, list(times.values()))
    return [link.latency_s, link.bytes_per_s]


def stub(ranks, times):
    raise NotImplementedError


def only_alpha(ranks, times):
    return two_points(ranks, times)[0]


def words_for_numbers(ranks, times):
    return "10 µs", "10 GB/s"


def the_other_way_round(ranks, times):
    return two_points(ranks, times)[::-1]


def slope_for_b(ranks, times):
    alpha, rate = two_points(ranks, times)
    return alpha, 1 / rate


def forgets_what_a_rank_sends(ranks, times):
    more_bytes, more_s, _ = ends(times)
    return two_points(ranks, times)[0], more_bytes / more_s


def busbw_of_the_largest(ranks, times):
    m = max(times)
    return two_points(ranks, times)[0], 2 * (ranks - 1) / ranks * m / times[m]


def algbw_of_the_largest(ranks, times):
    m = max(times)
    return two_points(ranks, times)[0], m / times[m]


def latency_of_all_steps(ranks, times):
    alpha, rate = two_points(ranks, times)
    return alpha * 2 * (ranks - 1), rate


def smallest_time(ranks, times):
    return min(times.values()), two_points(ranks, times)[1]


def half_of_the_steps(ranks, times):
    alpha, rate = two_points(ranks, times)
    return alpha * 2, rate


def four_ranks_always(ranks, times):
    return two_points(4, times)


def smallest_message_is_all_latency(ranks, times):
    return min(times.values()) / (2 * (ranks - 1)), two_points(ranks, times)[1]


def looks_up_a_size_that_is_not_there(ranks, times):
    return times[1], 1.0


@pytest.mark.parametrize("answer", [two_points, least_squares])
def test_a_right_fit_passes(answer):
    assert exercises("lab 11") == ("fit by hand",)
    assert check("fit by hand", answer).kind == "right"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stub, "not attempted", "not attempted"),
        (only_alpha, "wrong shape", "should be two numbers"),
        (words_for_numbers, "wrong shape", "should be two numbers"),
        (the_other_way_round, "wrong values", "return alpha first"),
        (slope_for_b, "wrong values", "in seconds per byte"),
        (forgets_what_a_rank_sends, "wrong values", "a rank sends 2(n-1)/n bytes"),
        (busbw_of_the_largest, "wrong values", "still holds the latency"),
        (algbw_of_the_largest, "wrong values", "also counts the latency"),
        (latency_of_all_steps, "wrong values", "all 2(n-1) steps"),
        (smallest_time, "wrong values", "that is the smallest time"),
        (half_of_the_steps, "wrong values", "2(n-1) steps, not n-1"),
        (four_ranks_always, "wrong values", "case: 2 ranks"),
        (smallest_message_is_all_latency, "wrong values", "smallest message still count"),
        (looks_up_a_size_that_is_not_there, "raised", "raised KeyError"),
    ],
)
def test_a_wrong_fit_is_told_which_slip_it_is(answer, kind, words):
    verdict = check("fit by hand", answer)
    assert (verdict.kind, verdict.passed) == (kind, False)
    assert words in verdict.text and "course/checks" not in verdict.text


# --- The same lab under torchrun --------------------------------------------------------


def run_lab(ranks: int, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "labs/measure.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_torchrun_prints_the_report_once():
    done = run_lab(2, "--most", "1", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    box, wires, times, models, fastest, collectives = done.stdout.strip().split("\n\n")
    assert "2 ranks on" in box.splitlines()[0]
    assert wires.splitlines()[1].split()[:3] == ["0", "and", "1"]
    sizes = [line.split()[:2] for line in times.splitlines()[1:]]
    assert sizes[0] == ["4", "KiB"] and sizes[-1] == ["1", "MiB"] and len(sizes) == 9
    assert [line.split()[0] for line in models.splitlines()] == ["model", "a", "one"]
    assert [line.split()[:2] for line in fastest.splitlines()[1:]] == sizes
    assert len(collectives.splitlines()) == 7
    assert "deprecated" not in done.stderr


@pytest.mark.parametrize("ranks", [2, 3, 6, 16])
def test_every_size_can_be_cut_into_whole_pieces(ranks):
    sizes = divisible_sizes(1024 * 1024, ranks)
    assert len(sizes) == 9 and all(m % (4 * ranks) == 0 for m in sizes)
    assert sizes == sorted(set(sizes)) and sizes[0] >= 4096


def test_one_rank_is_told_what_is_needed():
    done = run_lab(1)
    assert "write --nproc-per-node 2" in done.stderr and done.returncode != 0
