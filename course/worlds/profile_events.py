"""From what a profiler saw on one rank to Events, and to bytes. No torch.

Three things are seen of one collective: a marker (which ranks, how many bytes), the
call ("c10d::allreduce_", when it was asked for), and the work ("gloo:all_reduce", when
it really ran, maybe on another thread). The marker is around the call; the k-th work of
a kind belongs to the k-th call of that kind.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace

from course.costs.traffic import traffic
from course.worlds.run import Event

MARKER = "course.worlds "
BACKENDS = ("gloo:", "nccl:")
WAIT = "_c10d_functional::wait_tensor"

# The call: the event's name; the backend's name for the work, by preference; where among
# the call's values the peer or the root stands. Gloo's reduce-scatter is an all-reduce.
CALLS = {
    "allreduce_": ("all_reduce", ("all_reduce",), None),
    "allreduce_coalesced_": ("all_reduce", ("all_reduce",), None),
    "allgather_": ("all_gather", ("all_gather",), None),
    "_allgather_base_": ("all_gather", ("_all_gather_base", "all_gather"), None),
    "allgather_coalesced_": ("all_gather", ("all_gather",), None),
    "allgather_into_tensor_coalesced_": ("all_gather", ("all_gather",), None),
    "reduce_scatter_": ("reduce_scatter", ("reduce_scatter", "all_reduce"), None),
    "_reduce_scatter_base_": (
        "reduce_scatter",
        ("_reduce_scatter_base", "reduce_scatter", "all_reduce"),
        None,
    ),
    "reduce_scatter_tensor_coalesced_": (
        "reduce_scatter",
        ("reduce_scatter", "all_reduce"),
        None,
    ),
    "broadcast_": ("broadcast", ("broadcast",), 2),
    "reduce_": ("reduce", ("reduce",), 3),
    "gather_": ("gather", ("gather",), 3),
    "scatter_": ("scatter", ("scatter",), 3),
    "alltoall_": ("all_to_all", ("all_to_all",), None),
    "alltoall_base_": ("all_to_all", ("all_to_all",), None),
    "barrier": ("barrier", ("barrier", "all_reduce_barrier"), None),
    "send": ("send", ("send",), 2),
    "recv_": ("recv", ("recv",), 2),
    "recv_any_source_": ("recv", ("recvAnySource",), None),
}
DTYPE_BYTES = {"float": 4, "double": 8, "int": 4, "long int": 8, "short int": 2}
DTYPE_BYTES |= {"c10::Half": 2, "c10::BFloat16": 2}  # all others are one byte


@dataclass(frozen=True)
class Seen:
    """One span of the profiler. Times in ns since the recording began."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 0
    shapes: list = field(default_factory=list)
    dtypes: list = field(default_factory=list)
    values: list = field(default_factory=list)
    on_gpu: bool = False
    is_span: bool = False  # named by the rank's code

    def holds(self, other: Seen) -> bool:
        inside = self.start_ns <= other.start_ns and other.end_ns <= self.end_ns
        return inside and self.thread == other.thread and self is not other

    @property
    def work(self) -> str:
        """ "send" for "gloo:send" and for "nccl:send 0->1", "" for anything else."""
        known = self.name.startswith(BACKENDS) and not self.on_gpu
        return self.name.split(":", 1)[1].split()[0] if known else ""

    @property
    def nbytes(self) -> int:
        sizes = zip(self.shapes, self.dtypes, strict=False)
        return sum(math.prod(shape) * DTYPE_BYTES.get(dtype, 1) for shape, dtype in sizes)


@dataclass(frozen=True)
class Trace:
    """One rank's part of a recorded run.

    events:    times since `origin_ns`, which is by this machine's clock
    spans:     likewise, of what the rank's code named
    sent_to:   {rank: bytes} this rank sent. For a send and an all-to-all: what was given
               to be sent. For other collectives: what a ring would send, since gloo and
               NCCL do not tell what they did
    received:  bytes that came, likewise
    """

    events: tuple[Event, ...]
    spans: tuple[Event, ...]
    sent_to: dict[int, int]
    received: int
    origin_ns: int

    @property
    def sent(self) -> int:
        return sum(self.sent_to.values())


def read(seen: list[Seen], rank: int, world: list[int], origin_ns: int = 0) -> Trace:
    """The Trace of one rank. `world` is the group of a call that has no marker."""
    seen = sorted(seen, key=lambda s: (s.start_ns, -s.end_ns))
    marks = [s for s in seen if s.name.startswith(MARKER)]
    calls = [_call(call, marks, rank, world) for call in seen if _kind(call)]
    talk = _with_works(calls, seen)
    sent_to, received = Counter(), 0
    for event, ranks, moves in talk:
        for source, target, nbytes in _moved(event, ranks, moves):
            sent_to[target] += nbytes if source == rank else 0
            received += nbytes if target == rank else 0
    events = [event for event, *_ in talk] + _compute(seen, rank)
    sent_to = {r: nbytes for r, nbytes in sorted(sent_to.items()) if nbytes}
    return Trace(tuple(events), _spans(seen, rank), sent_to, received, origin_ns)


def merge(traces: list[Trace], start_ns: int, kind: str = "events") -> tuple[Event, ...]:
    """The events, or spans, of all ranks on one clock that starts at `start_ns`."""
    events = []
    for trace in traces:
        shift = (trace.origin_ns - start_ns) / 1e9
        events += [
            replace(e, start_s=e.start_s + shift, end_s=e.end_s + shift)
            for e in getattr(trace, kind)
        ]
    return tuple(sorted(events, key=lambda e: (e.start_s, e.rank)))


def _spans(seen: list[Seen], rank: int) -> tuple[Event, ...]:
    """What the rank's code named: as the GPU did it, where the profiler saw it there."""
    ours = (MARKER, *BACKENDS)
    named = [s for s in seen if s.is_span and not s.name.startswith(ours)]
    names = {s.name for s in named}
    on_gpu = [s for s in seen if s.on_gpu and s.name in names]
    there = {s.name for s in on_gpu}
    spans = on_gpu + [s for s in named if not s.on_gpu and s.name not in there]
    spans.sort(key=lambda s: s.start_ns)
    return tuple(_event(s, rank, "compute", s.name) for s in spans)


# -- communication --------------------------------------------------------------


def _kind(span: Seen):
    scope, _, name = span.name.partition("::")
    return CALLS.get(name) if scope == "c10d" else None


def _call(call: Seen, marks: list[Seen], rank: int, world: list[int]):
    """(event without its real times, (ranks of its group, moves), names of work, works)."""
    name, works, at = _kind(call)
    around = [mark for mark in marks if mark.holds(call)]
    facts = json.loads(around[-1].name[len(MARKER) :]) if around else {}
    ranks, nbytes = facts.get("ranks", world), facts.get("bytes", 0)
    peer = ranks[int(call.values[at])] if at is not None else None
    if name in ("gather", "scatter") and rank != peer:
        nbytes *= len(ranks)  # this rank saw one piece of the whole
    event = _event(call, rank, "communication", name, nbytes, peer)
    # gloo reduces a list of pieces one by one
    count = len(ranks) if call.name == "c10d::reduce_scatter_" else 1
    return event, (ranks, facts.get("moves")), works, count


def _with_works(calls, seen: list[Seen]):
    """(event, ranks, moves) for each call, with the times and the bytes of its work."""
    waiting = defaultdict(deque)
    for span in _works(seen):
        waiting[span.work].append(span)
    found = []
    for event, (ranks, moves), names, count in calls:
        queue = next((waiting[name] for name in names if waiting[name]), None)
        if queue:
            many = count if queue[0].work == "all_reduce" else 1
            works = [queue.popleft() for _ in range(min(many, len(queue)))]
            event = _as_worked(event, works, ranks)
        found.append((event, ranks, moves))
    return found


def _as_worked(event: Event, works: list[Seen], ranks: list[int]) -> Event:
    nbytes = event.bytes or sum(work.nbytes for work in works)
    if not event.bytes and event.name == "all_gather":
        nbytes *= len(ranks)  # the work saw one piece of the whole
    start, end = min(w.start_ns for w in works) / 1e9, max(w.end_ns for w in works) / 1e9
    if event.name in ("send", "recv"):  # these start before the call comes back
        start = min(start, event.start_s)
    return replace(event, start_s=start, end_s=end, bytes=nbytes)


def _works(seen: list[Seen]) -> list[Seen]:
    """The backend's own spans. On NCCL they end early: its kernels have the times."""
    works = [s for s in seen if s.work]
    kernels = [s for s in seen if s.on_gpu and s.name.startswith("ncclDevKernel")]
    if len(kernels) != len(works):  # gloo; or one kernel for several sends
        return works
    pairs = zip(works, kernels, strict=True)
    return [replace(w, start_ns=k.start_ns, end_ns=k.end_ns) for w, k in pairs]


def _moved(event: Event, ranks: list[int], moves: list | None) -> list:
    """(source, destination, bytes) of one event, in ranks of the world."""
    if event.name == "send":
        return [(event.rank, event.peer, event.bytes)]
    if event.name == "recv":
        return [(event.peer, event.rank, event.bytes)]
    root = ranks.index(event.peer) if event.peer is not None else 0
    if moves is None:
        moves = traffic(event.name, "ring", len(ranks), event.bytes, root)
    return [(ranks[source], ranks[target], nbytes) for source, target, nbytes in moves]


def _event(span: Seen, rank: int, lane: str, name: str, nbytes=0, peer=None) -> Event:
    return Event(rank, lane, name, span.start_ns / 1e9, span.end_ns / 1e9, nbytes, peer)


# -- computation ------------------------------------------------------------------


def _compute(seen: list[Seen], rank: int) -> list[Event]:
    """Kernels where there is a GPU, else the outermost torch operations."""
    on_cpu = {s.name for s in seen if not s.on_gpu}
    kernels = [s for s in seen if s.on_gpu and s.name not in on_cpu]
    spans = [s for s in kernels if not s.name.startswith("nccl")] or _outermost(seen)
    return [_event(s, rank, "compute", _short(s.name)) for s in spans]


def _short(name: str) -> str:
    """ "mm" for "aten::mm", "void kernel" for "void kernel<float>(int)"."""
    return name.removeprefix("aten::").split("<")[0].split("(")[0]


def _outermost(seen: list[Seen]) -> list[Seen]:
    """Operations that are in no other operation and in no collective.

    One that first waits for a collective is not shown: its parts are.
    """
    waits = [s for s in seen if s.name == WAIT]
    found, end = [], defaultdict(int)
    for span in seen:
        if span.on_gpu or span.start_ns < end[span.thread]:
            continue
        if _kind(span) or span.work not in ("", "send", "recv", "recvAnySource"):
            end[span.thread] = span.end_ns
        elif span.name.startswith("aten::") and not any(map(span.holds, waits)):
            end[span.thread] = span.end_ns
            found.append(span)
    return found
