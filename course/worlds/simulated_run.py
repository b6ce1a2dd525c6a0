"""One run of the simulated world: calls become transfers, transfers become events."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch

from course.costs.topology import Cluster, collective_ports, collective_seconds
from course.costs.traffic import traffic
from course.worlds import simulated_data as data
from course.worlds import simulated_reports as reports
from course.worlds.run import Mismatch, RankError
from course.worlds.simulated_calls import (
    Call,
    GroupCalls,
    MismatchedCalls,
    check_pair,
    check_splits,
    readers_line,
)
from course.worlds.simulated_clock import Clockwork
from course.worlds.simulated_exchange import size_of, uneven_seconds
from course.worlds.simulated_loss import loss_is_parallel, set_loss_parallel
from course.worlds.simulated_network import Network
from course.worlds.simulated_streams import Stream


class Simulation:
    """The state of one run: clock, network, groups, and all that was counted.

    threads:     how many ranks run: all, or 1 where peers are mirror images
    algorithms:  {collective: algorithm}, by which its time and bytes are charged
    moves_data:  False where tensors are fake and hold nothing to move
    """

    def __init__(
        self, ranks: int, threads: int, cluster: Cluster, algorithms: dict, moves_data: bool
    ):
        self.ranks, self.cluster, self.algorithms = ranks, cluster, algorithms
        self.moves_data = moves_data
        self._rng = {}
        self._loss_ops: dict[int, bool] = {}
        self._first_rng = torch.Generator().get_state()
        self.clock = Clockwork(
            threads, explain=self._explain, leave=self._leave, enter=self._enter
        )
        self.network = Network(self.clock.at)
        self.groups: dict[str, GroupCalls] = {}
        # (rank, lane, name, start_s, end_s, bytes, peer, line), made into Events later
        self.events: list[tuple] = []
        self.spans: list[tuple] = []
        self.messages: list[tuple] = []
        self.bytes_per_link: dict[tuple[int, int], int] = {}
        self.memories: dict = {}  # rank: RankMemory, where memory is metered
        self.stepping: set[int] = set()  # ranks inside an optimizer's step
        self.streams = [[] for _ in range(threads)]
        self.current = [Stream() for _ in range(threads)]  # the stream each rank works on
        self._sent_so_far = [0] * threads  # messages that each rank has sent
        self._links: dict[tuple[int, int], tuple] = {}
        self._costs: dict[tuple, tuple] = {}

    # --- Ranks give the baton up and get it ------------------------------------------

    def _leave(self, rank: int) -> None:
        # each rank has a random generator of its own, as a process has
        self._rng[rank] = torch.default_generator.get_state()
        self._loss_ops[rank] = loss_is_parallel()

    def _enter(self, rank: int) -> None:
        torch.default_generator.set_state(self._rng.get(rank, self._first_rng))
        set_loss_parallel(self._loss_ops.get(rank, False))

    def _explain(self) -> BaseException:
        return reports.deadlock(self)

    def _failed(self, error: RankError) -> RankError:
        # The run has failed even where the reader's code catches this
        self.clock.fail(error.rank, error)
        return error

    # --- Groups ----------------------------------------------------------------------

    def group(self, name: str, members: list[int], rank: int) -> GroupCalls:
        known, line = self.groups.get(name), readers_line(sys._getframe(1))
        if known is None:
            known = self.groups[name] = GroupCalls(name, members, len(self.groups))
        elif known.members != members:
            raise Mismatch(reports.wrong_group(known, rank, members, line), rank)
        known.makers[rank] = line
        return known

    # --- Waiting ---------------------------------------------------------------------

    def wait(self, call: Call) -> None:
        self.clock.wait(call.rank, call)

    def poll(self, call: Call) -> None:
        self.clock.poll(call.rank, call)

    def spend(self, rank: int, seconds: float, name: str, line=None) -> None:
        """The rank computes for so long."""
        start_s = self.clock.clock[rank]
        end_s = start_s + seconds * self.cluster.slow_ranks.get(rank, 1.0)
        self.clock.clock[rank] = end_s
        # work on a side stream is the copying around a collective
        lane = "compute" if self.current[rank].is_main else "communication"
        self.events.append((rank, lane, name, start_s, end_s, 0, None, line))

    # --- Messages --------------------------------------------------------------------

    def send(self, call: Call) -> None:
        call.nbytes = call.inputs[0].numel() * call.inputs[0].element_size()
        call.clock_s = self.clock.clock[call.rank]
        # of messages that could start together, each rank's first goes first, and so on
        self._sent_so_far[call.rank] = call.sequence = self._sent_so_far[call.rank] + 1
        receive = call.group.shared.send(call)
        if receive is not None:
            self._start_message(call, receive)
        else:
            self._expect_from_any(call.group.shared, (call.peer, call.tag))

    def receive(self, call: Call) -> None:
        call.clock_s = self.clock.clock[call.rank]
        send = call.group.shared.receive(call)
        if send is not None:
            self._start_message(send, call)
        elif call.peer is None:
            self._expect_from_any(call.group.shared, (call.group_rank, call.tag))

    def _expect_from_any(self, shared: GroupCalls, mine: tuple) -> None:
        """Let a receive from any rank wait for its time: an earlier send may yet come."""
        if mine not in shared.any_source:
            return
        found = shared.next_from_any(mine)
        if found:
            self.clock.at(found[0], partial(self._match_any, shared, mine))

    def _match_any(self, shared: GroupCalls, mine: tuple, now_s: float) -> None:
        found = shared.next_from_any(mine)
        if found and found[0] <= now_s:
            self._start_message(*shared.take_from_any(mine, found[1]))
        self._expect_from_any(shared, mine)

    def _start_message(self, send: Call, receive: Call) -> None:
        try:
            check_pair(send, receive)
        except MismatchedCalls as wrong:
            raise self._failed(reports.mismatch(wrong)) from None
        receive.source, receive.nbytes = send.group_rank, send.nbytes
        ports, latency_s, bytes_per_s = self._link(send.rank, receive.rank)
        hold_s = send.nbytes / bytes_per_s
        self.network.submit(
            max(send.clock_s, receive.clock_s), ports, hold_s, latency_s + hold_s,
            partial(self._end_message, send, receive), turn=send.sequence,
        )  # fmt: skip

    def _link(self, source: int, destination: int) -> tuple:
        """(ports, latency, bandwidth) from rank to rank; nothing for a rank to itself."""
        pair = (source, destination)
        known = self._links.get(pair)
        if known is None:
            link = self.cluster.link(*pair)
            known = self.cluster.ports(*pair), link.latency_s, link.bytes_per_s
            if source == destination:
                known = (), 0.0, float("inf")
            self._links[pair] = known
        return known

    def _end_message(self, send: Call, receive: Call, start_s: float, end_s: float) -> None:
        if self.moves_data:
            self._quietly(data.copy, receive.outputs[0], send.inputs[0])
        source, destination, size = send.rank, receive.rank, send.nbytes
        self._count(source, destination, size)
        self.messages.append((source, destination, size, start_s, end_s, "send"))
        self._finish(send, "send", start_s, end_s, destination)
        self._finish(receive, "recv", start_s, end_s, source)

    def _count(self, source: int, destination: int, size: int) -> None:
        if size and source != destination:
            pair = (source, destination)
            self.bytes_per_link[pair] = self.bytes_per_link.get(pair, 0) + size

    def _finish(self, call: Call, name: str, start_s: float, end_s: float, peer) -> None:
        call.start_s, call.end_s = start_s, end_s
        self.events.append(
            (call.rank, "communication", name, start_s, end_s, call.nbytes, peer, call.line)
        )
        call.inputs = call.outputs = (
            None  # the rank's own references decide how long they live
        )
        self.clock.wake(call.rank, call)

    def _quietly(self, act: Callable, *args) -> None:
        """Move data without gradients, and unseen by the rank's meters."""
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            with torch._C._DisableTorchDispatch():
                act(*args)
        finally:
            torch._C._set_grad_enabled(grad)

    # --- Collectives -----------------------------------------------------------------

    def collective(self, call: Call) -> None:
        call.clock_s = self.clock.clock[call.rank]
        try:
            calls = call.group.shared.collective(call)
            if calls is not None and call.kind == "all_to_all":
                check_splits(calls)
        except MismatchedCalls as wrong:
            raise self._failed(reports.mismatch(wrong)) from None
        if calls is not None:
            self._start_collective(calls)

    def _start_collective(self, calls: list[Call]) -> None:
        ports, seconds = self.collective_cost(
            calls[0].group.shared, calls[0].kind, size_of(calls)
        )
        uneven_s = uneven_seconds(self.cluster, calls)
        seconds = seconds if uneven_s is None else uneven_s
        ready_s = max(c.clock_s for c in calls)
        self.network.submit(
            ready_s, ports, seconds, seconds, partial(self._end_collective, calls)
        )

    def collective_cost(self, shared: GroupCalls, kind: str, nbytes: float) -> tuple:
        """(ports, seconds) of a collective of that group."""
        key = (shared.name, kind, nbytes)
        if key not in self._costs:
            members = shared.members
            self._costs[key] = (
                collective_ports(self.cluster, members) if len(members) > 1 else (),
                collective_seconds(
                    self.cluster, members, kind, self.algorithms[kind], nbytes
                ),
            )
        return self._costs[key]

    def _end_collective(self, calls: list[Call], start_s: float, end_s: float) -> None:
        first = calls[0]
        if self.moves_data:
            self._quietly(data.MOVES[first.kind], calls)
        self._count_collective(calls)
        peer = None if first.root is None else first.group.members[first.root]
        for call in calls:
            self._finish(call, call.kind, start_s, end_s, peer)

    def _count_collective(self, calls: list[Call]) -> None:
        first, members = calls[0], calls[0].group.members
        if first.kind == "all_to_all":
            width = first.dtype.itemsize
            for call in calls:
                for other, elements in enumerate(call.splits[0]):
                    self._count(call.rank, members[other], elements * width)
            return
        way = self.algorithms[first.kind]
        for source, destination, size in traffic(
            first.kind, way, len(members), first.nbytes, first.root or 0
        ):
            self._count(members[source], members[destination], size)

    def open_messages(self) -> list[Call]:
        """Sends and receives of all groups that nobody has answered."""
        return [c for shared in self.groups.values() for c in shared.open_messages()]

    def seconds(self, rank: int) -> float:
        """When the rank's last stream was done."""
        return max([self.clock.clock[rank], *(s.clock_s for s in self.streams[rank])])

    # --- The end ---------------------------------------------------------------------

    def check_nothing_open(self) -> None:
        """Raise where a call was begun and nobody ever answered it."""
        for call in self.open_messages():
            raise Mismatch(reports.unanswered(call), call.rank)
        for shared in self.groups.values():
            for collective in shared.open_collectives():
                raise Mismatch(
                    reports.unfinished(collective, shared), collective.first.rank
                )
            if shared.not_made_by() and self.clock.ranks == self.ranks:
                raise Mismatch(reports.not_made(shared), shared.not_made_by()[0])
