"""Exercises of lab 06: who sends how much to whom, and what is wrong with a run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong
from course.costs.moe import imbalance, in_order, popularity
from course.costs.moe_traffic import routed_matrix

Routes = list[list[list[int]]]  # [rank][token] the experts of its kept copies


# --- The matrix ------------------------------------------------------------------------

# tokens of each rank, experts, choices of a token, bytes of a row
SHAPES = (
    ((6, 4, 0, 9), 8, 2, 128), ((5, 1), 6, 3, 64), ((2, 7, 1), 9, 4, 256),
    ((6, 6, 6, 6), 4, 1, 32),
)  # fmt: skip


def routes_of(shape) -> Routes:
    """Seeded choices, expert 0 the hottest; now and then a copy was dropped."""
    tokens, experts, k, _ = shape
    numbers = np.random.default_rng(sum(tokens))
    shares = popularity(experts, 0.5)
    draw = lambda: numbers.choice(experts, size=k, replace=False, p=shares).tolist()
    routes = [[draw() for _ in range(t)] for t in tokens]
    return [[t[: k - (numbers.random() < 0.2)] for t in one] for one in routes]


def _copies(routes: Routes) -> list[np.ndarray]:
    """The experts of each rank's copies, token after token."""
    return [np.array([e for token in one for e in token], int) for one in routes]


def matrix_of(routes: Routes, experts: int, row_bytes: int) -> np.ndarray:
    """The answer: [source, destination], nothing on the diagonal."""
    matrix = routed_matrix(_copies(routes), experts, row_bytes)
    return matrix * ~np.eye(len(routes), dtype=bool)


@dataclass(frozen=True, repr=False)
class TrafficMatrix(Exercise):
    """Bytes of one dispatch, from the routes."""

    name: str = "traffic matrix"
    chapter: str = "lab 06"
    signature: str = "def my_matrix(routes, experts, row_bytes): return matrix"
    task: str = (
        "`routes[r][t]` lists the experts of token t of rank r (copies that were dropped "
        "are not in it). n ranks, `len(routes)`, share the `experts`: rank 0 has the first "
        "experts / n of them, and so on. A row is `row_bytes` long, and a copy travels for "
        "each expert. Return the bytes of one dispatch as matrix[source][destination]; "
        "what stays on its rank does not count."
    )
    lines: int = 6
    target: str = "right to the byte on 2 to 4 ranks, also where ranks have no tokens"

    def grade(self, function: Callable) -> Verdict:
        for shape in SHAPES:
            tokens, experts, k, row_bytes = shape
            shown = (
                f"tokens {tokens}, {experts} experts, top-{k}, rows of {row_bytes} bytes"
            )
            routes = routes_of(shape)
            try:
                answer = function([[*map(list, one)] for one in routes], experts, row_bytes)
            except Exception as error:
                return of_error(error, shown)
            if fault := _matrix_fault(answer, routes, experts, row_bytes):
                return wrong(*fault, shown)
        return right(f"right: {len(SHAPES)} matrices, every byte")


def _matrix_slips(routes: Routes, experts: int, row_bytes: int) -> dict[str, np.ndarray]:
    ranks, want = len(routes), matrix_of(routes, experts, row_bytes)
    homes = np.array(in_order(experts, ranks))
    whole = _copies(routes)
    first = [[token[:1] for token in one] for one in routes]
    once = [[[*{homes[e]: e for e in token}.values()] for token in one] for one in routes]
    in_turn = [[[e % ranks * (experts // ranks) for e in t] for t in o] for o in routes]
    even = np.array([[len(one) / ranks * row_bytes] * ranks for one in whole])
    away = ~np.eye(ranks, dtype=bool)
    return {
        "that is the combine: source and destination are exchanged": want.T,
        "what stays on its rank does not count": routed_matrix(whole, experts, row_bytes),
        "those are rows, not bytes": want / row_bytes,
        "only first choices travel there: there is a copy for each expert": matrix_of(
            first, experts, row_bytes
        ),
        "a row goes to each rank once there, but here for each expert": matrix_of(
            once, experts, row_bytes
        ),
        "experts are dealt out in turn there: rank 0 has the first ones": matrix_of(
            in_turn, experts, row_bytes
        ),
        "that is the even share, (n - 1)/n of all: routes say more": even * away,
    }


def _matrix_fault(answer, routes: Routes, experts: int, row_bytes: int):
    want = matrix_of(routes, experts, row_bytes)
    try:
        got = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        got = np.zeros(())
    if answer is None or got.shape != want.shape:
        what = "nothing" if answer is None else f"shape {list(got.shape)}"
        should = f"numbers of shape {list(want.shape)}"
        return "wrong shape", f"wrong shape: {what} was returned, should be {should}"
    if np.allclose(got, want):
        return None
    slips = _matrix_slips(routes, experts, row_bytes).items()
    why = next((f"; {says}" for says, values in slips if np.allclose(got, values)), "")
    s, d = np.argwhere(~np.isclose(got, want))[0]
    says = f"from rank {s} to rank {d}: {got[s, d]:g}, should be {want[s, d]:g}"
    return "wrong values", f"right shape, wrong values (first {says}){why}"


# --- What is wrong ---------------------------------------------------------------------

TROUBLES = ("router", "balance", "capacity", "none")
EXPERTS, STEPS, COPIES = 8, 10, 4096
EVEN, ZIPF, TWO = (
    popularity(EXPERTS),
    popularity(EXPERTS, 1.0),
    np.eye(EXPERTS)[:2].sum(0) / 2,
)
# what it is, the trouble, then first and last: shares, entropy, share dropped
RUNS = (
    ("drifts to two experts", "router", (EVEN, TWO), (0.95, 0.15), (0.02, 0.60)),
    ("drifts, dropless", "router", (EVEN, TWO), (0.90, 0.20), (0.0, 0.0)),
    ("the same favourites from the first step", "balance", (ZIPF, ZIPF), (0.4, 0.4),
     (0.31, 0.31)),
    ("the same favourites, dropless", "balance", (ZIPF, ZIPF), (0.5, 0.5), (0.0, 0.0)),
    ("even, and drops", "capacity", (EVEN, EVEN), (0.93, 0.93), (0.18, 0.18)),
    ("even, no drops", "none", (EVEN, EVEN), (0.6, 0.6), (0.0, 0.0)),
    ("uneven at first, then balanced", "none", (ZIPF, EVEN), (0.5, 0.8), (0.31, 0.0)),
)  # fmt: skip


def run_of(case) -> tuple[list[list[int]], list[float], list[float]]:
    """(loads, entropy, dropped), step by step, with a few per cent of noise."""
    _, _, shares, entropy, dropped = case
    noise = random.Random(case[0])
    loads, sure, lost = [], [], []
    for step in range(STEPS):
        at = step / (STEPS - 1)
        between = lambda ends, at=at: ends[0] + at * (ends[1] - ends[0])
        shaken = between(shares) * [1 + 0.06 * noise.uniform(-1, 1) for _ in range(EXPERTS)]
        loads.append([round(COPIES * share) for share in shaken / shaken.sum()])
        sure.append(between(entropy) * (1 + 0.02 * noise.uniform(-1, 1)))
        lost.append(between(dropped) * (1 + 0.05 * noise.uniform(-1, 1)))
    return loads, sure, lost


@dataclass(frozen=True, repr=False)
class WhichTrouble(Exercise):
    """Router, balance or capacity, from three curves."""

    name: str = "which trouble"
    chapter: str = "lab 06"
    signature: str = "def my_trouble(loads, entropy, dropped): return trouble"
    task: str = (
        "Three lists, an entry for each step: `loads`, the copies that chose each expert; "
        "`entropy` of the router, as a share of the most that it can be; `dropped`, the "
        'share of copies. Return "router" where the largest load grows to more than 1.5 '
        'times the mean and the entropy falls: it collapses. "balance" where it is as '
        'uneven, but was so from the start. "capacity" where loads end even, but more than '
        '5 % are dropped all the same. Else "none".'
    )
    lines: int = 8
    target: str = f"right on {len(RUNS)} runs, a few per cent of noise in each step"

    def grade(self, function: Callable) -> Verdict:
        for case in RUNS:
            try:
                answer = function(*run_of(case))
            except Exception as error:
                return of_error(error, case[0])
            if fault := _trouble_fault(answer, case):
                return wrong(*fault, case[0])
        return right(f"right: {len(RUNS)} runs, each with its own trouble or none")


_SAYS = {
    "router": "the largest load grows, and the entropy falls",
    "balance": "the load is uneven, and as uneven in the first step",
    "capacity": "the load is even, and yet many are dropped",
    "none": "in the end the load is even and nothing is dropped",
}


def _trouble_fault(answer, case) -> tuple[str, str] | None:
    _, should, *_ = case
    if not isinstance(answer, str) or answer not in TROUBLES:
        says = f"wrong shape: {answer!r:.60} was returned, should be one of {TROUBLES}"
        return "wrong shape", says
    if answer == should:
        return None
    loads, entropy, dropped = run_of(case)
    ends = [f"{imbalance(loads[i]):.1f}" for i in (0, -1)]
    says = f"wrong values: {answer!r}, but {should!r}: {_SAYS[should]}. First and last: "
    says += f"largest load {ends[0]} and {ends[1]} times the mean, "
    says += f"entropy {entropy[0]:.0%} and {entropy[-1]:.0%}, "
    return "wrong values", says + f"dropped {dropped[0]:.0%} and {dropped[-1]:.0%}"


EXERCISES = (TrafficMatrix(), WhichTrouble())
