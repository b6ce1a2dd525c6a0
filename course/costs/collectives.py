"""What a collective costs: latencies, bytes, seconds. Arithmetic only, no torch.

    n  ranks                       alpha  link.latency_s
    M  nbytes, the whole buffer    B      link.bytes_per_s, one direction

M follows nccl-tests: for reduce-scatter and all-gather it is one rank's piece times n,
for all-to-all what one rank holds, for scatter and gather the root's whole buffer.
A port carries one message at a time in each direction, and sends while it receives.
"""

from dataclasses import dataclass

from course.facts import Link


@dataclass(frozen=True)
class Cost:
    """The critical path of one collective.

    steps:       messages that must follow one another, each pays one latency
    bytes_sent:  bytes that must follow one another through one port, one direction
    """

    steps: int
    bytes_sent: float

    def __add__(self, other: "Cost") -> "Cost":
        """One after the other."""
        return Cost(self.steps + other.steps, self.bytes_sent + other.bytes_sent)

    def seconds(self, link: Link) -> float:
        """steps * alpha + bytes_sent / B."""
        return self.steps * link.latency_s + self.bytes_sent / link.bytes_per_s

    def latency_seconds(self, link: Link) -> float:
        return self.steps * link.latency_s

    def bandwidth_seconds(self, link: Link) -> float:
        return self.bytes_sent / link.bytes_per_s


FREE = Cost(0, 0)


def check_ranks(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}")


def check_nbytes(nbytes: float) -> None:
    if nbytes < 0:
        raise ValueError(f"nbytes must be 0 or more, not {nbytes}")


def rounds(ranks: int) -> int:
    """log2(ranks), rounded up: how often must one double to reach all ranks?"""
    return (ranks - 1).bit_length()


def core(ranks: int) -> int:
    """The largest power of two that is not above ranks."""
    return 1 << (ranks.bit_length() - 1)


# --- One formula for each way of moving bytes ---------------------------------------


def _in_turn(n: int, m: float) -> Cost:
    """One rank sends M to each other, or takes M from each, one after another."""
    return Cost(n - 1, (n - 1) * m)


def _pieces(n: int, m: float) -> Cost:
    """n - 1 steps with one piece, M / n, each. Half of a ring all-reduce."""
    return Cost(n - 1, (n - 1) / n * m)


def _pipeline(n: int, m: float) -> Cost:
    """A chain of n ranks, M cut so fine that all wires are busy at once: M passes once."""
    return Cost(n - 1, m)


def _doubling_whole(n: int, m: float) -> Cost:
    """A binomial tree: ceil(log2 n) rounds, each moves all of M."""
    return Cost(rounds(n), rounds(n) * m)


def _doubling_pieces(n: int, m: float) -> Cost:
    """A binomial tree of pieces: the root still moves all but its own piece."""
    return Cost(rounds(n), (n - 1) / n * m)


def _fold(n: int, m: float) -> Cost:
    """Ranks beyond a power of two hand M to a partner, and take the result back."""
    return FREE if core(n) == n else Cost(2, 2 * m)


def _butterfly(n: int, m: float) -> Cost:
    """Recursive doubling, every step sends all of M: best for latency only."""
    steps = rounds(core(n))
    return Cost(steps, steps * m) + _fold(n, m)


def _halving_doubling(n: int, m: float) -> Cost:
    """Halve the buffer each step, then double it back (Rabenseifner)."""
    p = core(n)
    return Cost(2 * rounds(p), 2 * (p - 1) / p * m) + _fold(n, m)


def _halving(n: int, m: float) -> Cost:
    """Half of halving-doubling. Only for powers of two: the fold needs the other half."""
    if core(n) != n:
        raise ValueError(
            f"ranks must be a power of two for half of halving_doubling, not {n}"
        )
    return Cost(rounds(n), (n - 1) / n * m)


def _double_tree(n: int, m: float) -> Cost:
    """Two binary trees, half of M each, cut fine: M up and M down through every port."""
    return Cost(2 * rounds(n), 2 * m)


def _one_message(n: int, m: float) -> Cost:
    return Cost(1, m)


def _after(*parts):
    """The parts one after another."""
    return lambda n, m: sum((part(n, m) for part in parts), FREE)


def _empty(formula):
    """The same messages with nothing in them."""
    return lambda n, m: formula(n, 0)


# --- The table ------------------------------------------------------------------------
# Bounds and names: nccl-tests doc/PERFORMANCE.md (ring, pipelined broadcast and reduce);
# Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations
# in MPICH" (binomial trees, recursive doubling, recursive halving-doubling, folding);
# NCCL src/graph/trees.cc (double binary tree). "naive" goes through one rank.
FORMULAS = {
    ("all_reduce", "naive"): _after(_in_turn, _in_turn),
    ("all_reduce", "ring"): _after(_pieces, _pieces),
    ("all_reduce", "tree"): _after(_doubling_whole, _doubling_whole),
    ("all_reduce", "double_tree"): _double_tree,
    ("all_reduce", "halving_doubling"): _halving_doubling,
    ("all_reduce", "recursive_doubling"): _butterfly,
    ("reduce_scatter", "naive"): _after(_in_turn, _pieces),
    ("reduce_scatter", "ring"): _pieces,
    ("reduce_scatter", "tree"): _after(_doubling_whole, _doubling_pieces),
    ("reduce_scatter", "halving_doubling"): _halving,
    ("all_gather", "naive"): _after(_pieces, _in_turn),
    ("all_gather", "ring"): _pieces,
    ("all_gather", "tree"): _after(_doubling_pieces, _doubling_whole),
    ("all_gather", "halving_doubling"): _halving,
    ("broadcast", "naive"): _in_turn,
    ("broadcast", "ring"): _pipeline,
    ("broadcast", "tree"): _doubling_whole,
    ("reduce", "naive"): _in_turn,
    ("reduce", "ring"): _pipeline,
    ("reduce", "tree"): _doubling_whole,
    ("scatter", "naive"): _pieces,
    ("scatter", "ring"): _pieces,
    ("scatter", "tree"): _doubling_pieces,
    ("gather", "naive"): _pieces,
    ("gather", "ring"): _pieces,
    ("gather", "tree"): _doubling_pieces,
    ("all_to_all", "naive"): _pieces,
    ("all_to_all", "ring"): _pieces,
    ("barrier", "naive"): _empty(_after(_in_turn, _in_turn)),
    ("barrier", "ring"): _empty(_after(_pieces, _pieces)),
    ("barrier", "tree"): _empty(_after(_doubling_whole, _doubling_whole)),
    ("barrier", "recursive_doubling"): _empty(_butterfly),
    ("send", "naive"): _one_message,
    ("send", "ring"): _one_message,
}

COLLECTIVES = tuple(dict.fromkeys(name for name, _ in FORMULAS))


def algorithms(collective: str) -> tuple[str, ...]:
    """The algorithms whose cost is known for a collective."""
    if collective not in COLLECTIVES:
        raise ValueError(
            f"collective must be one of {list(COLLECTIVES)}, not {collective!r}"
        )
    return tuple(a for name, a in FORMULAS if name == collective)


def cost(collective: str, algorithm: str, ranks: int, nbytes: float) -> Cost:
    """Latencies and bytes on the critical path of one collective.

    nbytes:  the whole buffer M (see the top of this module)
    Pieces are M / ranks exactly. "ring" broadcast and reduce and "double_tree" are the
    limit of fine pipelining; `pipeline_seconds` has the segments.
    Raises ValueError for an unknown pair, and names the choices.
    """
    check_ranks(ranks)
    check_nbytes(nbytes)
    if algorithm not in algorithms(collective):
        known = list(algorithms(collective))
        raise ValueError(
            f"algorithm for {collective} must be one of {known}, not {algorithm!r}"
        )
    return FREE if ranks == 1 else FORMULAS[collective, algorithm](ranks, nbytes)


def fastest(collective: str, ranks: int, nbytes: float, link: Link) -> str:
    """The algorithm with the least predicted time; the first in the table where equal."""
    known = [a for a in algorithms(collective) if _applies(collective, a, ranks)]
    return min(known, key=lambda a: cost(collective, a, ranks, nbytes).seconds(link))


def _applies(collective: str, algorithm: str, ranks: int) -> bool:
    return FORMULAS[collective, algorithm] is not _halving or core(ranks) == ranks


def crossover_bytes(collective: str, algorithm: str, ranks: int, link: Link) -> float:
    """The M at which latency and bandwidth cost the same. For a ring: n * alpha * B.

    Below it the number of steps decides, above it the bytes do. 0 for one rank.
    """
    unit = cost(collective, algorithm, ranks, 1)
    if unit.bytes_sent == 0:
        return 0.0
    return unit.latency_seconds(link) / unit.bandwidth_seconds(link)


def pipeline_seconds(hops: int, segments: int, nbytes: float, link: Link) -> float:
    """Seconds until M, cut into equal segments, has passed through a chain of wires.

    (hops + segments - 1) * (alpha + M / (segments * B)). One segment is store-and-forward.
    """
    if hops < 0:
        raise ValueError(f"hops must be 0 or more, not {hops}")
    if segments < 1:
        raise ValueError(f"segments must be 1 or more, not {segments}")
    check_nbytes(nbytes)
    return (hops + segments - 1) * link.seconds(nbytes / segments) if hops else 0.0


def best_segments(hops: int, nbytes: float, link: Link) -> int:
    """The segments that make `pipeline_seconds` least: sqrt((hops-1) M / (alpha B))."""
    if hops < 2 or nbytes == 0:
        return 1
    if link.latency_s == 0:
        raise ValueError("latency_s must be positive, or ever more segments are better")
    ideal = ((hops - 1) * nbytes / (link.latency_s * link.bytes_per_s)) ** 0.5
    choices = {max(1, int(ideal)), int(ideal) + 1}
    return min(sorted(choices), key=lambda s: pipeline_seconds(hops, s, nbytes, link))
