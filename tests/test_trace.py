"""The Chrome trace holds what the format asks for, and gives the events back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.worlds.rows import joined, rows, rows_by_lane
from course.worlds.run import LANES, Event, Message, NotMetered, Run
from course.worlds.trace import chrome_trace, events_from_trace, write_trace
from tests.runs_by_hand import MS, data_parallel, make_run, pipeline, ring

RUNS = {"ring": ring(4), "data parallel": data_parallel(), "pipeline": pipeline()}


def of_phase(trace, phase):
    return [e for e in trace["traceEvents"] if e["ph"] == phase]


def same_events(a, b):
    """Equal but for rounding of times."""
    assert len(a) == len(b)
    key = lambda e: (
        e.rank,
        e.lane,
        e.name,
        e.bytes,
        e.peer or -1,
        e.where,
        round(e.start_s, 12),
    )
    for x, y in zip(sorted(a, key=key), sorted(b, key=key), strict=True):
        assert key(x)[:-1] == key(y)[:-1] and x.peer == y.peer
        assert x.start_s == pytest.approx(y.start_s, rel=1e-12, abs=1e-15)
        assert x.end_s == pytest.approx(y.end_s, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_round_trip_through_json(run, tmp_path):
    path = write_trace(run, tmp_path / "run.json")
    same_events(events_from_trace(json.loads(path.read_text())), run.events)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_slices_are_well_formed_and_threads_never_overlap(run):
    trace = chrome_trace(run)
    slices = of_phase(trace, "X")
    assert len(slices) == len(run.events)
    threads = {}
    for s in slices:
        assert s["dur"] >= 0 and s["ts"] >= 0 and isinstance(s["args"]["bytes"], int)
        threads.setdefault((s["pid"], s["tid"]), []).append((s["ts"], s["ts"] + s["dur"]))
    for spans in threads.values():
        spans.sort()
        for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
            assert start >= end - 1e-6


def test_times_are_microseconds():
    run = make_run([Event(0, "compute", "mm", 2 * MS, 5 * MS)], 1)
    (s,) = of_phase(chrome_trace(run), "X")
    assert (s["ts"], s["dur"]) == (pytest.approx(2000), pytest.approx(3000))


def test_every_rank_and_thread_is_named_and_sorted():
    trace = chrome_trace(ring(3))
    named = {
        e["pid"]: e["args"]["name"]
        for e in of_phase(trace, "M")
        if e["name"] == "process_name"
    }
    assert named == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in of_phase(trace, "M")
        if e["name"] == "thread_name"
    }
    assert set(threads) == {(s["pid"], s["tid"]) for s in of_phase(trace, "X")}
    assert sorted(n for (pid, _), n in threads.items() if pid == 0) == [
        "communication",
        "communication 2",
    ]


@pytest.mark.parametrize("name", ["ring", "pipeline"])
def test_each_flow_starts_in_a_send_and_finishes_in_its_receive(name):
    run = RUNS[name]
    trace = chrome_trace(run)
    starts = {e["id"]: e for e in of_phase(trace, "s")}
    finishes = {e["id"]: e for e in of_phase(trace, "f")}
    assert starts.keys() == finishes.keys() and len(starts) == len(run.messages)
    for number, m in enumerate(run.messages):
        start, finish = starts[number], finishes[number]
        assert (start["pid"], finish["pid"]) == (m.source, m.destination)
        assert start["ts"] <= finish["ts"] and finish["bp"] == "e"
        assert start["args"]["bytes"] == m.bytes
        assert "send" in slice_around(trace, start)["name"]
        assert slice_around(trace, finish)["name"] == "recv"


def slice_around(trace, flow):
    """The slice that holds the flow; where two touch, the one that starts there."""
    found = [
        s
        for s in of_phase(trace, "X")
        if (s["pid"], s["tid"]) == (flow["pid"], flow["tid"])
        and s["ts"] - 1e-9 <= flow["ts"] < s["ts"] + s["dur"]
    ]
    return max(found, key=lambda s: s["ts"])


def test_memory_is_a_counter_per_rank():
    run = data_parallel(ranks=2)
    counters = of_phase(chrome_trace(run), "C")
    got = [(c["ts"] / 1e6, c["args"]["bytes"]) for c in counters if c["pid"] == 1]
    assert got == [(pytest.approx(s), n) for s, n in run.memory_curve[1]]


def test_without_messages_or_memory_only_slices_and_names():
    trace = chrome_trace(data_parallel(ranks=2))
    assert not of_phase(trace, "s") and not of_phase(trace, "f")
    assert not of_phase(chrome_trace(ring(2)), "C")


def test_a_run_that_was_not_recorded_cannot_be_traced():
    with pytest.raises(NotMetered, match="record=True"):
        chrome_trace(Run("gloo", [None], 1.0))


@pytest.mark.parametrize("bad", [[], {}, {"events": []}])
def test_not_a_trace(bad):
    with pytest.raises(ValueError, match="traceEvents"):
        events_from_trace(bad)


def test_a_foreign_slice_is_refused():
    foreign = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "mm",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 1,
    }
    with pytest.raises(ValueError, match="cpu_op"):
        events_from_trace({"traceEvents": [foreign]})


def test_rows_keep_a_name_on_its_row():
    events = ring(3).events
    chosen = rows_by_lane(events)
    names = {(e.rank, row): e.name for e, row in zip(events, chosen, strict=True)}
    assert all(names[e.rank, row] == e.name for e, row in zip(events, chosen, strict=True))
    assert set(chosen) == {0, 1}


def test_rows_of_touching_events_is_one():
    third = [Event(0, "compute", "mm", i / 3, (i + 1) / 3) for i in range(9)]
    assert set(rows(third)) == {0}


def test_a_message_joins_the_send_and_the_receive_of_an_exchange():
    lane = "communication"
    events = [
        Event(0, lane, "recv", 0.0, 2.0, 8, 1),
        Event(0, lane, "send", 0.0, 1.0, 8, 1),
        Event(1, lane, "send", 0.0, 2.0, 8, 0),
        Event(1, lane, "recv", 0.0, 1.0, 8, 0),
    ]
    sent = [
        Message(0, 1, 8, 0.0, 1.0),
        Message(1, 0, 8, 0.0, 2.0),
        Message(0, 1, 8, 5.0, 6.0),
    ]
    assert joined(events, sent) == [(1, 3), (2, 0), (None, None)]


times = st.integers(0, 40).map(lambda n: n / 8)
events = st.builds(
    lambda rank, lane, name, start, length, n, peer: Event(
        rank, lane, name, start, start + length, n, peer
    ),
    st.integers(0, 3),
    st.sampled_from(LANES),
    st.sampled_from(["mm", "send", "all_reduce"]),
    times,
    times,
    st.integers(0, 2**40),
    st.none() | st.integers(0, 3),
)


@settings(max_examples=60)
@given(st.lists(events, max_size=25))
def test_any_events_come_back(given_events):
    run = make_run(given_events, 4)
    same_events(events_from_trace(json.loads(json.dumps(chrome_trace(run)))), run.events)


@settings(max_examples=60)
@given(st.lists(events, max_size=25))
def test_events_in_a_row_never_overlap(given_events):
    placed = {}
    for e, row in zip(given_events, rows_by_lane(given_events), strict=True):
        placed.setdefault((e.rank, e.lane, row), []).append(e)
    for group in placed.values():
        group.sort(key=lambda e: (e.start_s, e.end_s))
        for a, b in zip(group, group[1:], strict=False):
            assert b.start_s >= a.end_s - 1e-9
