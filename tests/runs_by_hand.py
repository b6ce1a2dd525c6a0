"""Runs written down by hand, whose every number can be checked with pencil and paper."""

from course.worlds.run import Event, Message, Run

MS = 1e-3
MIB = 2**20


def make_run(events, ranks, *, messages=None, memory=None, seconds=None, world="simulated"):
    """A Run of these events; `seconds` is the last end unless given."""
    ends = [
        max((e.end_s for e in events if e.rank == r), default=0.0) for r in range(ranks)
    ]
    return Run(
        world=world,
        results=[None] * ranks,
        seconds=max(ends, default=0.0) if seconds is None else seconds,
        seconds_per_rank=tuple(ends),
        _events=tuple(sorted(events, key=lambda e: (e.start_s, e.rank))),
        _messages=None if messages is None else tuple(messages),
        _bytes_per_link=None if messages is None else per_link(messages),
        _memory_curve=memory,
    )


def per_link(messages):
    totals = {}
    for m in messages:
        pair = m.source, m.destination
        totals[pair] = totals.get(pair, 0) + m.bytes
    return totals


def ring(ranks, chunk_bytes=MIB, step_s=MS):
    """Ring all-reduce: 2(n-1) steps, each sends one chunk to the right."""
    events, messages = [], []
    for step in range(2 * (ranks - 1)):
        start, end = step * step_s, (step + 1) * step_s
        for r in range(ranks):
            right, left = (r + 1) % ranks, (r - 1) % ranks
            line = "ring.py:7", "ring.py:8"
            events += [
                Event(r, "communication", "isend", start, end, chunk_bytes, right, line[0]),
                Event(r, "communication", "recv", start, end, chunk_bytes, left, line[1]),
            ]
            messages.append(Message(r, right, chunk_bytes, start, end))
    return make_run(events, ranks, messages=messages)


def data_parallel(ranks=4, buckets=4, *, overlap=True, bucket_bytes=25 * MIB):
    """Forward 4 ms, backward 2 ms a bucket; a bucket's all-reduce takes 1.5 ms."""
    backward_s, reduce_s, forward_end = 2 * MS, 1.5 * MS, 4 * MS
    backward_end = forward_end + buckets * backward_s
    events, memory = [], []
    for r in range(ranks):
        events.append(Event(r, "compute", "forward", 0, forward_end, where="train.py:20"))
        free = 0.0
        for b in range(buckets):
            start = forward_end + b * backward_s
            events.append(
                Event(
                    r, "compute", "backward", start, start + backward_s, where="train.py:21"
                )
            )
            ready = start + backward_s if overlap else backward_end
            free = max(free, ready)
            name, end = "all_reduce", free + reduce_s
            events.append(
                Event(
                    r, "communication", name, free, end, bucket_bytes, None, "train.py:30"
                )
            )
            free = end
        events.append(Event(r, "compute", "optimizer step", free, free + MS))
        curve = [(0.0, 100 * MIB), (forward_end, 400 * MIB)]
        curve += [
            (forward_end + (b + 1) * backward_s, (400 - 60 * b) * MIB)
            for b in range(buckets)
        ]
        memory.append(curve)
    return make_run(events, ranks, memory=tuple(memory))


def pipeline(stages=4, micro_batches=6, forward_s=MS, activation_bytes=8 * MIB):
    """All forwards, then all backwards (twice as long); a message takes 0.1 ms."""
    wire_s, events, messages = 0.1 * MS, [], []
    ready = [[0.0] * micro_batches for _ in range(stages)]
    clock = [0.0] * stages
    for forward in (True, False):
        order = range(stages) if forward else range(stages - 1, -1, -1)
        cost, word = (forward_s, "forward") if forward else (2 * forward_s, "backward")
        for m in range(micro_batches):
            for s in order:
                start = max(clock[s], ready[s][m])
                clock[s] = start + cost
                events.append(Event(s, "compute", f"{word} {m}", start, clock[s]))
                t = s + (1 if forward else -1)
                if not 0 <= t < stages:
                    ready[s][m] = clock[s]
                    continue
                ready[t][m] = clock[s] + wire_s
                n = activation_bytes
                events.append(
                    Event(s, "communication", "send", clock[s], ready[t][m], n, t)
                )
                events.append(
                    Event(t, "communication", "recv", clock[s], ready[t][m], n, s)
                )
                messages.append(Message(s, t, n, clock[s], ready[t][m]))
    return make_run(events, stages, messages=messages)
