"""Answers to drills, counted message by message in plain Python.

Nothing here comes from course.costs. Each function moves sets of contributions from rank
to rank, checks that everybody ends with the whole sum, and counts what was sent.
ANSWERS: drill id -> function of the drawn numbers -> answer in base units.
"""

import math
from functools import cache
from itertools import product
from operator import truediv

# A chain of 20,000 segments and 32 ranks is this far from the limit of fine cutting.
TOLERANCE = 2e-3


def ring(n, nbytes):
    """Ring all-reduce: (bytes each rank sends, steps)."""
    sent, steps = _ring_of_sets(n) if n <= 64 else (2 * (n - 1) / n, 2 * (n - 1))
    return sent * nbytes, steps


@cache
def _ring_of_sets(n):
    """Buffers each rank sends, and steps. Beyond 64 ranks it takes seconds to move."""
    held = [[{rank} for _ in range(n)] for rank in range(n)]
    messages, steps = [0] * n, 0
    for phase in ("add", "overwrite"):
        for step in range(n - 1):
            shift = 0 if phase == "add" else 1
            moves = [(r, (r + shift - step) % n) for r in range(n)]
            data = [set(held[r][chunk]) for r, chunk in moves]
            for (r, chunk), what in zip(moves, data, strict=True):
                target = held[(r + 1) % n]
                target[chunk] = target[chunk] | what if phase == "add" else what
                messages[r] += 1
            steps += 1
    assert all(chunk == set(range(n)) for rank in held for chunk in rank)
    assert len(set(messages)) == 1
    return messages[0] / n, steps


def ring_all_gather(n, nbytes):
    held = [{rank} for rank in range(n)]
    newest, sent = list(range(n)), [0.0] * n
    for _ in range(n - 1):
        newest = [newest[(r - 1) % n] for r in range(n)]
        for r in range(n):
            held[r].add(newest[r])
            sent[(r - 1) % n] += nbytes / n
    assert all(h == set(range(n)) for h in held)
    return sent[0]


def halving_doubling(n):
    """(steps, buffers sent by the busiest rank); surplus ranks fold in and out."""
    core = 1
    while core * 2 <= n:
        core *= 2
    steps = 2 if core < n else 0
    held = [{r} | ({r + core} if r + core < n else set()) for r in range(core)]
    sizes, size = [], 1.0
    for distance in _distances(core):
        size /= 2
        sizes.append(size)
        held = [held[r] | held[r ^ distance] for r in range(core)]
    assert all(h == set(range(n)) for h in held)
    return steps + 2 * len(sizes), 2 * sum(sizes)


def _distances(n):
    distance = n // 2
    while distance:
        yield distance
        distance //= 2


def butterfly(n):
    """(steps, buffers sent by a rank) of recursive doubling."""
    held, steps = [{r} for r in range(n)], 0
    for distance in _distances(n):
        held = [held[r] | held[r ^ distance] for r in range(n)]
        steps += 1
    assert all(h == set(range(n)) for h in held)
    return steps, steps


@cache
def chain_seconds(n, segments, nbytes, bytes_per_s):
    """A pipelined chain, as a table of when each segment has reached each rank."""
    slot = nbytes / segments / bytes_per_s
    done = [0.0] * segments
    for _ in range(n - 1):
        free = 0.0
        for i, ready in enumerate(done):
            free = max(free, ready) + slot
            done[i] = free
    return done[-1]


def tree_steps(n):
    """Rounds of a binomial reduce and a binomial broadcast."""
    have, rounds = 1, 0
    while have < n:
        have = min(2 * have, n)
        rounds += 1
    return 2 * rounds


def all_to_all(n, nbytes):
    """(bytes a rank sends, bytes that cross from the lower half to the upper)."""
    pairs = [(s, d) for s, d in product(range(n), repeat=2) if s != d]
    block = nbytes / n
    crossing = sum(block for s, d in pairs if s < n // 2 <= d)
    return sum(block for s, _ in pairs if s == 0), crossing


def server_seconds(workers, servers, nbytes, bytes_per_s):
    """Pushes and pulls queue at the servers' ports, one message at a time."""
    clock = [0.0] * servers
    for _phase in ("push", "pull"):
        for _worker, server in product(range(workers), range(servers)):
            clock[server] += nbytes / servers / bytes_per_s
    return max(clock)


def slow_ring_seconds(n, nbytes, bytes_per_s, factor):
    """A ring whose last link is slower, every rank waiting for what it must pass on."""
    speeds = [bytes_per_s] * (n - 1) + [bytes_per_s / factor]
    clock = [0.0] * n
    for _ in range(2 * (n - 1)):
        arrived = [clock[r] + nbytes / n / speeds[r] for r in range(n)]
        clock = [max(arrived[r], arrived[(r - 1) % n]) for r in range(n)]
    return max(clock)


def leaving_a_node(gpus, nodes, nbytes):
    """(flat ring, hierarchical): bytes that leave node 0."""
    n = gpus * nodes
    each, _ = ring(n, nbytes)
    crossing = [r for r in range(n) if r // gpus == 0 and (r + 1) % n // gpus != 0]
    shard, _ = ring(nodes, nbytes / gpus)
    return len(crossing) * each, gpus * shard


def two_level_seconds(v):
    """Reduce-scatter, all-reduce across, all-gather: whole rings or halves of them."""
    nbytes, fabric, nic = v["gb"] * 1e9, v["fabric"], v["nic"]
    inside, steps = ring(8, nbytes)
    across, more = ring(v["nodes"], nbytes / 8)
    slow = steps * fabric.latency_s + inside / fabric.bytes_per_s
    return slow + more * nic.latency_s + across / nic.bytes_per_s


def _two_level_latency(v):
    inside, across = ring(8, 0)[1], ring(v["nodes"], 0)[1]
    flat = 2 * (8 * v["nodes"] - 1)
    fast = inside * v["fabric_us"] + across * v["nic_us"]
    return flat * v["nic_us"] / fast


def _gradient(v, each=2):
    return v["billions"] * 1e9 * v.get("bytes_each", each)


def _reduce_and_broadcast(v):
    both = 2 * chain_seconds(v["ranks"], 20_000, 1.0, 1.0)
    return both / ring(v["ranks"], 1.0)[0]


def _ring_seconds(n, nbytes, link):
    sent, steps = ring(n, nbytes)
    return steps * link.latency_s + sent / link.bytes_per_s


def _butterfly_gain(v):
    nbytes, link = v["kib"] * 1024, v["link"]
    steps, buffers = butterfly(v["ranks"])
    fast = steps * link.latency_s + buffers * nbytes / link.bytes_per_s
    return _ring_seconds(v["ranks"], nbytes, link) / fast


def _double_tree_gain(v):
    """Up and down as many levels as a tree has; every port passes M up and M down."""
    nbytes, link = v["kib"] * 1024, v["link"]
    fast = tree_steps(v["ranks"]) * link.latency_s + 2 * nbytes / link.bytes_per_s
    return _ring_seconds(v["ranks"], nbytes, link) / fast


def _store_and_forward(v):
    one = v["link"].latency_s + v["mib"] * 2**20 / v["link"].bytes_per_s
    return tree_steps(v["ranks"]) * one


def _slope(v):
    return (v["large"] - v["small"]) / (v["t_large"] - v["t_small"])


def _crossover(v):
    """The size at which bytes take as long as latency, by halving an interval."""
    low, high = 1.0, 1e15
    for _ in range(200):
        middle = math.sqrt(low * high)
        sent, steps = ring(v["ranks"], 1.0)
        slower = sent * middle / v["link"].bytes_per_s > steps * v["link"].latency_s
        low, high = (low, middle) if slower else (middle, high)
    return low


ANSWERS = {
    "C04b": _reduce_and_broadcast,
    "C05b": lambda v: (
        ring(v["ranks"], 1.0)[0] / chain_seconds(v["ranks"], 20_000, 1.0, 1.0)
    ),
    "C06b": lambda v: ring_all_gather(v["ranks"], v["gb"] * 1e9),
    "C06c": lambda v: ring(v["ranks"], v["gb"] * 1e9)[0] / 2 / v["link"].bytes_per_s,
    "C10b": lambda v: all_to_all(v["ranks"], v["tokens"] * v["hidden"] * 2)[0],
    "C10c": lambda v: all_to_all(v["ranks"], v["mb"] * 1e6)[1] / (v["cut"] * 1e9),
    "C12a": lambda v: ring(v["ranks"], _gradient(v))[0] / (v["gbps"] * 1e9),
    "C13b": _slope,
    "C13c": lambda v: v["t_small"] - v["small"] / _slope(v),
    "C16a": lambda v: ring(v["ranks"], _gradient(v))[0],
    "C16b": lambda v: v["ranks"] * ring(v["ranks"], _gradient(v))[0],
    "C16c": lambda v: ring(v["ranks"], v["gb"] * 1e9)[0] / v["link"].bytes_per_s,
    "C16d": lambda v: ring(v["ranks"], v["mib"] * 2**20)[0] / (v["ms"] / 1e3),
    "C16e": lambda v: ring(v["ranks"], v["gb"] * 1e9)[0] / (v["busbw"] * 1e9),
    "C17b": lambda v: ring(v["ranks"], 1.0)[0],
    "C18a": lambda v: _ring_seconds(v["ranks"], v["kib"] * 1024, v["link"]),
    "C18b": _crossover,
    "C19b": lambda v: sum(v["alpha_us"] / 1e6 for _ in range(2 * v["ranks"] - 2)),
    "C20b": lambda v: (
        slow_ring_seconds(v["ranks"], 1e10, v["link"].bytes_per_s, v["factor"])
        / slow_ring_seconds(v["ranks"], 1e10, v["link"].bytes_per_s, 1)
    ),
    "C22a": lambda v: server_seconds(v["workers"], 1, v["gb"] * 1e9, v["gbps"] * 1e9),
    "C22b": lambda v: server_seconds(
        v["workers"], v["servers"], v["gb"] * 1e9, v["gbps"] * 1e9
    ),
    "C24b": lambda v: sum(
        v["gb"] * 1e9 for _ in range(v["workers"]) for _ in ("in", "out")
    ),
    "C29b": _store_and_forward,
    "C30a": lambda v: halving_doubling(v["ranks"])[0],
    "C30d": lambda v: halving_doubling(v["ranks"])[0],
    "C31b": lambda v: butterfly(v["ranks"])[1] / (2 * (v["ranks"] - 1) / v["ranks"]),
    "C31c": _butterfly_gain,
    "C32b": _double_tree_gain,
    "C32d": lambda v: (6.8 + 2 * (7 * 0.6 + math.log2(v["nodes"]) * 5)) / 1e6,
    "C33b": two_level_seconds,
    "C33c": _two_level_latency,
    "C34b": lambda v: ring(v["nodes"], v["gb"] * 1e9 / v["gpus"])[0],
    "C35a": lambda v: leaving_a_node(v["gpus"], v["nodes"], v["gb"] * 1e9)[1],
    "C35b": lambda v: truediv(*leaving_a_node(v["gpus"], v["nodes"], 1.0)),
    "C36b": lambda v: v["link"].bytes_per_s * ring(v["ranks"], 1.0)[0],
}
