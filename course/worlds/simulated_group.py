"""The process group of the simulated world: torch's calls in, `Call`s out.

One object per rank and group. torch renamed some methods between 2.11 and 2.14, so both
names are there. Options that only a network has (timeouts, device ids) are ignored.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.worlds import simulated_data as data
from course.worlds.simulated_calls import Call, GroupCalls
from course.worlds.simulated_tensors import (
    check_contiguous,
    check_dense,
    check_list,
    equal_parts,
    row_parts,
)
from course.worlds.simulated_work import AllOf, SimulatedWork


class _Backend:
    """What torch asks a group's backend for, where it insists on asking."""

    supports_coalescing = False
    supports_splitting = False
    supports_time_estimate = False

    def __getattr__(self, name):
        raise AttributeError(f"the simulated world has no backend attribute {name!r}")


class SimulatedGroup(dist.ProcessGroup):
    """One rank's view of a group. `shared` is what all its members see."""

    def __init__(self, simulation, shared: GroupCalls, rank_in_world: int):
        members = shared.members
        super().__init__(members.index(rank_in_world), len(members))
        self.simulation, self.shared, self.members = simulation, shared, members
        self.rank_in_world = rank_in_world
        self.rank_in_group = members.index(rank_in_world)
        self._coalesced: list | None = None
        self._description = "undefined"

    # --- What torch asks about a group -----------------------------------------------

    def rank(self) -> int:
        return self.rank_in_group

    def size(self) -> int:
        return len(self.members)

    def getBackendName(self) -> str:
        return "simulated"

    def name(self) -> str:
        return "simulated"

    @property
    def group_name(self) -> str:
        return self.shared.name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_name(self, name) -> None:
        pass

    def _set_group_desc(self, description) -> None:
        self._description = description

    @property
    def _device_types(self) -> list:
        return [torch.device("cpu")]

    def _get_backend(self, device):
        return _Backend()

    def _get_backend_name(self) -> str:
        return "simulated"

    def __repr__(self) -> str:
        return f"<simulated group of ranks {self.members}, seen by {self.rank_in_world}>"

    def _check_rank(self, name: str, rank: int) -> None:
        if not 0 <= rank < self.size():
            raise ValueError(
                f"{name}: there is no rank {rank} among the {self.size()} of the group"
            )

    # --- Messages --------------------------------------------------------------------

    def send(self, tensors, destination, tag=0):
        self._check_rank("send", destination)
        check_contiguous("send", tensors[0])
        call = Call("send", self, tensors, [], tensors[0], tag=tag, peer=destination)
        self.simulation.send(call)
        return self._work(call, tensors)

    def recv(self, tensors, source, tag=0):
        self._check_rank("recv", source)
        check_contiguous("recv", tensors[0])
        call = Call("recv", self, [], tensors, tensors[0], tag=tag, peer=source)
        self.simulation.receive(call)
        return self._work(call, tensors)

    def recv_anysource(self, tensors, tag=0):
        check_contiguous("recv", tensors[0])
        call = Call("recv", self, [], tensors, tensors[0], tag=tag)
        self.simulation.receive(call)
        return self._work(call, tensors)

    # --- Collectives -----------------------------------------------------------------

    def _post(self, kind, inputs, outputs, like, value, *, nbytes, **more):
        if more.get("root") is not None:
            self._check_rank(kind, more["root"])
        if inputs is outputs:  # in place
            for tensor in inputs:
                check_dense(kind, tensor)
        call = Call(kind, self, inputs, outputs, like, **more)
        call.nbytes = nbytes
        self.simulation.collective(call)
        return self._work(call, value)

    def _work(self, call: Call, value: list) -> SimulatedWork:
        memory = self.simulation.memories.get(self.rank_in_world)
        if memory is not None:
            memory.note_all((call.inputs, call.outputs, value), "communication")
        work = SimulatedWork(self.simulation, call, value)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def allreduce(self, tensors, opts=None):
        op = _op(opts, tensors[0])
        size = sum(map(_nbytes, tensors))
        return self._post(
            "all_reduce", tensors, tensors, tensors[0], tensors, nbytes=size, op=op
        )

    allreduce_coalesced = allreduce

    def broadcast(self, tensors, opts=None):
        root, tensor = (opts.rootRank if opts else 0), tensors[0]
        return self._post(
            "broadcast",
            tensors,
            tensors,
            tensor,
            tensors,
            nbytes=_nbytes(tensor),
            root=root,
        )

    def reduce(self, tensors, opts=None):
        op = _op(opts, tensors[0])
        root, tensor = (opts.rootRank if opts else 0), tensors[0]
        return self._post(
            "reduce",
            tensors,
            tensors,
            tensor,
            tensors,
            nbytes=_nbytes(tensor),
            op=op,
            root=root,
        )

    def allgather(self, outputs, inputs, opts=None):
        for places, tensor in zip(outputs, inputs, strict=True):
            check_list("all_gather: tensor_list", places, self.size(), tensor)
        return self._all_gather(inputs, outputs, outputs)

    def _all_gather(self, inputs, lists, value):
        size = self.size() * sum(map(_nbytes, inputs))
        return self._post("all_gather", inputs, lists, inputs[0], value, nbytes=size)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """outputs: for each rank a list of k tensors, the other way round than above."""
        lists = [list(of_one_input) for of_one_input in zip(*outputs, strict=True)]
        return self.allgather(lists, inputs, opts)

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        lists = [
            equal_parts("all_gather_into_tensor: output", output, self.size(), tensor)
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._all_gather(inputs, lists, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs, inputs, opts=None):
        root = opts.rootRank if opts else 0
        size = self.size() * _nbytes(inputs[0])
        flat = list(outputs[0]) if outputs else []
        if root == self.rank():
            check_list("gather: gather_list", flat, self.size(), inputs[0])
        return self._post("gather", inputs, flat, inputs[0], inputs, nbytes=size, root=root)

    def scatter(self, outputs, inputs, opts=None):
        root = opts.rootRank if opts else 0
        size = self.size() * _nbytes(outputs[0])
        flat = list(inputs[0]) if inputs else []
        if root == self.rank():
            check_list("scatter: scatter_list", flat, self.size(), outputs[0])
        return self._post(
            "scatter", flat, outputs, outputs[0], outputs, nbytes=size, root=root
        )

    def reduce_scatter(self, outputs, inputs, opts=None):
        for tensor, pieces in zip(outputs, inputs, strict=True):
            check_list("reduce_scatter: input_list", pieces, self.size(), tensor)
        return self._reduce_scatter(inputs, outputs, opts)

    def _reduce_scatter(self, lists, outputs, opts):
        op, size = _op(opts, outputs[0]), self.size() * sum(map(_nbytes, outputs))
        return self._post(
            "reduce_scatter", lists, outputs, outputs[0], outputs, nbytes=size, op=op
        )

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        lists = [
            equal_parts("reduce_scatter_tensor: input", i.contiguous(), self.size(), output)
            for output, i in zip(outputs, inputs, strict=True)
        ]
        return self._reduce_scatter(lists, outputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs, inputs, opts=None):
        check_list("all_to_all: output_tensor_list", outputs, self.size())
        check_list("all_to_all: input_tensor_list", inputs, self.size())
        call = Call("all_to_all", self, list(inputs), list(outputs), inputs[0])
        call.splits = [t.numel() for t in inputs], [t.numel() for t in outputs]
        call.nbytes = sum(map(_nbytes, inputs))
        self.simulation.collective(call)
        return self._work(call, outputs)

    def all_to_all_single(self, output, tensor, out_splits=None, in_splits=None, opts=None):
        check_contiguous("all_to_all_single", output)
        check_contiguous("all_to_all_single", tensor)
        outputs = row_parts(output, out_splits, self.size(), "output")
        inputs = row_parts(tensor, in_splits, self.size(), "input")
        return self.alltoall(outputs, inputs, opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts=None):
        return self._post("barrier", [], [], None, [], nbytes=0)

    # --- Several calls as one --------------------------------------------------------

    def _start_coalescing(self, device=None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device=None):
        works, self._coalesced = self._coalesced, None
        return AllOf(works)

    def abort(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


def _op(opts, tensor: torch.Tensor) -> str:
    return data.op_name(opts.reduceOp if opts else dist.ReduceOp.SUM, tensor.dtype)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
