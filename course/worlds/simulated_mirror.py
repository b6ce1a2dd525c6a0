"""Mirrored ranks: rank 0 runs alone, and every peer is its mirror image.

Where all ranks do the same (data parallel, FSDP), 16,384 of them cost what one does. A
collective has all its calls as soon as rank 0 makes its own. A message to the rank k
places on comes back from the rank k places before.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from course.costs.traffic import traffic
from course.worlds import simulated_data as data
from course.worlds.run import RankError
from course.worlds.simulated_calls import Call
from course.worlds.simulated_reports import at
from course.worlds.simulated_run import Simulation

RULE = (
    "mirror=True runs rank 0 alone and takes every other rank for its mirror image. "
    "Leave it out for programs in which ranks do different things."
)


class MirroredSimulation(Simulation):
    """A run of rank 0, on a cluster of many."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._sends: dict[tuple, deque] = {}
        self._receives: dict[tuple, deque] = {}
        self._sent: dict[tuple, list] = {}

    def send(self, call: Call) -> None:
        call.nbytes = call.inputs[0].numel() * call.inputs[0].element_size()
        self._meet(call, call.peer - call.group_rank, self._receives, self._sends)

    def receive(self, call: Call) -> None:
        if call.peer is None:
            raise _not_symmetric(call, "receives from any rank")
        self._meet(call, call.group_rank - call.peer, self._sends, self._receives)

    def _meet(self, call: Call, places: int, others: dict, own: dict) -> None:
        call.clock_s = self.clock.clock[0]
        key = call.group.group_name, places % call.group.size(), call.tag
        if others.get(key):
            other = others[key].popleft()
            pair = (call, other) if call.kind == "send" else (other, call)
            self._start_message(*pair)
        else:
            own.setdefault(key, deque()).append(call)

    def _start_message(self, send: Call, receive: Call) -> None:
        # The peer's receive is this rank's: so are its ports and its sender
        receive.source, receive.nbytes = receive.peer, send.nbytes
        destination = send.group.members[send.peer]
        ports, latency_s, bytes_per_s = self._link(0, destination)
        hold_s = send.nbytes / bytes_per_s
        ready_s = max(send.clock_s, receive.clock_s)
        done = partial(self._end_mirrored_message, send, receive)
        self.network.submit(ready_s, ports[:1], hold_s, latency_s + hold_s, done)

    def _end_mirrored_message(self, send: Call, receive: Call, start_s, end_s) -> None:
        if self.moves_data:
            self._quietly(data.copy, receive.outputs[0], send.inputs[0])
        there = send.group.members[send.peer]
        self._count(0, there, send.nbytes)
        self.messages.append((0, there, send.nbytes, start_s, end_s, "send"))
        self._finish(send, "send", start_s, end_s, there)
        self._finish(receive, "recv", start_s, end_s, receive.group.members[receive.peer])

    def collective(self, call: Call) -> None:
        call.clock_s = self.clock.clock[0]
        if call.kind == "scatter" and not call.inputs and self.moves_data:
            raise _not_symmetric(call, "calls scatter, and its root is another rank")
        if call.kind == "all_to_all" and any(
            s != call.splits[0][call.group_rank] for s in call.splits[1]
        ):
            raise _not_symmetric(call, "expects other numbers of elements than it sends")
        ports, seconds = self.collective_cost(call.group.shared, call.kind, call.nbytes)
        self.network.submit(
            call.clock_s, ports, seconds, seconds, partial(self._end_mirrored, call)
        )

    def collective_cost(self, shared, kind: str, nbytes: float) -> tuple:
        """As for all ranks, but only rank 0's own ports can be in its way."""
        ports, seconds = super().collective_cost(shared, kind, nbytes)
        if len(ports) > 4:
            mine = {*self.cluster.ports(0, 0), *_nic_ports(self.cluster)}
            ports = tuple(port for port in ports if port in mine)
            self._costs[shared.name, kind, nbytes] = ports, seconds
        return ports, seconds

    def _end_mirrored(self, call: Call, start_s: float, end_s: float) -> None:
        if self.moves_data:
            self._quietly(data.mirrored, call, call.group.size())
        for destination, size in self._sends_of(call):
            self._count(0, destination, size)
        self._finish(call, call.kind, start_s, end_s, None)

    def _sends_of(self, call: Call) -> list[tuple[int, int]]:
        """(destination, bytes) of what this rank sends in a collective."""
        members = call.group.members
        if call.kind == "all_to_all":
            width = call.dtype.itemsize
            return [(members[r], s * width) for r, s in enumerate(call.splits[0])]
        key = call.group.group_name, call.kind, call.nbytes, call.root
        if key not in self._sent:
            every = traffic(
                call.kind,
                self.algorithms[call.kind],
                len(members),
                call.nbytes,
                call.root or 0,
            )
            self._sent[key] = [
                (members[there], size)
                for here, there, size in every
                if here == call.group_rank
            ]
        return self._sent[key]

    def _explain(self) -> BaseException:
        call = self.clock.waiting[0]
        return _not_symmetric(
            call, f"waits in {call.describe()}, and its mirror image never answers"
        )

    def open_messages(self) -> list[Call]:
        queues = (*self._sends.values(), *self._receives.values())
        return [call for queue in queues for call in queue]


def _nic_ports(cluster) -> tuple:
    return ("nic out", *cluster.nic_of(0)), ("nic in", *cluster.nic_of(0))


def _not_symmetric(call: Call, what: str) -> RankError:
    return RankError(f"rank 0 {what}{at(call.line, '  ')}\n  {RULE}", 0)
