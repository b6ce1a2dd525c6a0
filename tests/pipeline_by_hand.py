"""Answers to the drills on pipelines, played turn by turn in plain Python.

Nothing here comes from course.costs, and no order of a schedule is written down: each
rank takes the next piece of work that its rule allows, as soon as its input is there.
ANSWERS: drill id -> function of the drawn numbers -> answer in base units.
"""

from functools import cache


@cache
def play(ranks, micro, most=None, seconds=(1.0, 1.0, 1.0), late=None):
    """(seconds until all is done, most micro-batches held by each rank), one stage a rank.

    most: how many forwards rank r may be ahead of its backwards is most[r].
          None: no backward before all of the rank's forwards
    late: backwards are split; rank r keeps late[r] weight gradients for later. What it
          holds is then counted until the input gradient
    """
    forward, inputs, weights = seconds
    took = {"F": forward, "B": inputs if late else inputs + weights, "W": weights}
    ready = {("F", 0, i): 0.0 for i in range(micro)}
    done = {(kind, r): 0 for kind in "FBW" for r in range(ranks)}
    free, peak = [0.0] * ranks, [0] * ranks
    while ready:
        allowed = [w for w in ready if _may(w, done, micro, most, late)]
        times = {w: max(ready[w], free[w[1]]) for w in allowed}
        kind, r, i = min(times, key=lambda w: (times[w], "WBF".index(w[0]), w[2]))
        end = free[r] = times[kind, r, i] + took[kind]
        del ready[kind, r, i]
        done[kind, r] += 1
        peak[r] = max(peak[r], done["F", r] - done["B", r])
        if kind == "F":
            ready[("F", r + 1, i) if r + 1 < ranks else ("B", r, i)] = end
        if kind == "B" and r:
            ready["B", r - 1, i] = end
        if kind == "B" and late:
            ready["W", r, i] = end
    assert all(done[kind, r] == micro for kind in "FB" for r in range(ranks))
    return max(free), peak


def _may(work, done, micro, most, late):
    """Whether the rule of its rank lets the work be done now."""
    kind, r, _ = work
    put_off = done["B", r] - done["W", r]
    if kind == "F":
        return most is None or done["F", r] - done["B", r] < most[r]
    if kind == "W":
        return put_off > late[r] or done["B", r] == micro
    if most is None:
        return done["F", r] == micro
    return late is None or put_off <= late[r]


def one_f_one_b(ranks, micro, seconds=(1.0, 1.0, 1.0)):
    return play(ranks, micro, tuple(range(ranks, 0, -1)), seconds)


def idle_s(ranks, micro, seconds=(1.0, 1.0, 1.0)):
    return one_f_one_b(ranks, micro, seconds)[0] - micro * sum(seconds)


def idle_share(ranks, micro):
    return idle_s(ranks, micro) / one_f_one_b(ranks, micro)[0]


def _in_seconds(v):
    """forward and the halves of a backward, from milliseconds."""
    return v["forward"] / 1e3, v["backward"] / 2e3, v["backward"] / 2e3


def _zb_h1(v):
    """1F1B, with weight gradients put off by as many micro-batches as the rank's number."""
    ranks, micro = v["ranks"], v["micro"]
    seconds = tuple(v[name] / 1e3 for name in ("forward", "input", "weight"))
    most, late = tuple(range(ranks, 0, -1)), tuple(range(ranks))
    return play(ranks, micro, most, seconds, late)[0] - micro * sum(seconds)


def _least_micro_batches(v):
    micro = 1
    while (v["ranks"] - 1) / (micro + v["ranks"] - 1) > v["share"] + 1e-12:
        micro += 1
    return micro


def _dealt(batch, pipelines, size):
    """Micro-batches of pipeline 0, when sequences are dealt out one by one."""
    return sum(i % pipelines == 0 for i in range(batch)) / size


def _interleaved_share(v):
    """All p * v stages, breadth first, forwards and then backwards, one turn each."""
    ranks, chunks, micro = v["ranks"], v["chunks"], v["micro"]
    done, free = {}, [0] * ranks
    stages = range(ranks * chunks)
    for order in (stages, reversed(stages)):
        before = None
        for stage in order:
            for i in range(micro):
                start = max(free[stage % ranks], done.get((before, i), 0))
                done[stage, i] = free[stage % ranks] = start + 1
            before = stage
        done = {(None, i): done[stage, i] for i in range(micro)}
    total = max(free)
    return (total - 2 * chunks * micro) / total


def _boundaries(ranks, chunks=1):
    owner = [stage % ranks for stage in range(ranks * chunks)]
    return sum(a != b for a, b in zip(owner, owner[1:], strict=False))


def _row_bytes(v, batch=1):
    return sum(2 * v["hidden"] for _ in range(batch * v["tokens"]))


def _halved(v):
    whole = one_f_one_b(v["ranks"], v["micro"])[0]
    return whole / one_f_one_b(v["ranks"], 2 * v["micro"], (0.5, 0.5, 0.5))[0]


ANSWERS = {
    "P02a": lambda v: idle_share(v["ranks"], v["micro"]),
    "P02b": lambda v: idle_s(v["ranks"], v["micro"], _in_seconds(v)),
    "P03b": _least_micro_batches,
    "P03c": _zb_h1,
    "P04a": lambda v: _dealt(v["batch"], v["dp"], v["size"]),
    "P04c": lambda v: idle_share(v["ranks"], int(_dealt(v["batch"], v["dp"], 1))),
    "P07b": _halved,
    "P10b": lambda v: 4 * v["batch"] * v["tokens"] * (v["model"].vocab // v["tp"]),
    "P11b": lambda v: one_f_one_b(v["ranks"], v["micro"])[1][v["rank"]],
    "P11c": lambda v: (
        play(v["ranks"], v["micro"])[1][0] / one_f_one_b(v["ranks"], v["micro"])[1][0]
    ),
    "P12a": _interleaved_share,
    "P12b": lambda v: _boundaries(v["ranks"], v["chunks"]) / _boundaries(v["ranks"]),
    "P13a": lambda v: _row_bytes(v, v["batch"]),
    "P13d": lambda v: 2 * _boundaries(v["ranks"]) * v["micro"] * _row_bytes(v),
}
