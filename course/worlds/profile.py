"""What a real rank did, from torch's profiler.

The profiler sees each operation and each message of gloo and NCCL, also those that
C++ starts (DistributedDataParallel). It does not see which group a collective ran
in. So while a run is recorded, calls to a process group are wrapped in a marker that
says so. `profile_events` turns what was seen into Events.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.profiler import ProfilerActivity, profile, record_function

from course.worlds.profile_events import MARKER, Seen, Trace, read

# Methods of ProcessGroup that send something, by all the names that torch 2.11 to 2.14
# have for them.
METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier"),
    *("allgather", "_allgather_base", "allgather_coalesced", "all_gather_single"),
    *("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    *("gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single"),
    *("send", "recv", "recv_anysource"),
)
EXCHANGES = ("alltoall", "alltoall_base", "all_to_all_single")
# The functional collectives, which DTensor uses, do not go through those methods.
FUNCTIONS = (
    *("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "broadcast"),
    *("all_gather_tensor_autograd", "reduce_scatter_tensor_autograd"),
    *("all_to_all_single", "all_to_all_single_autograd"),
)

USER_SCOPE = 7  # torch's RecordScope of what `record_function` names


@dataclass
class Recording:
    """`trace` is there when the recording is over."""

    trace: Trace | None = None


@contextlib.contextmanager
def recording(wanted: bool):
    """Record what happens inside, if wanted. Yields a Recording."""
    result = Recording()
    if not wanted:
        yield result
        return
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, record_shapes=True)
    world = range(dist.get_world_size())
    with _quiet():
        profiler.start()
    origin_ns = time.time_ns()
    try:
        with _marked_groups():
            yield result
    finally:
        with _quiet():
            profiler.stop()
    # No public call gives start times on a clock that several processes share.
    seen = [_seen(e, origin_ns) for e in profiler.profiler.kineto_results.events()]
    result.trace = read(seen, dist.get_rank(), list(world), origin_ns)


def _seen(event, origin_ns: int) -> Seen:
    return Seen(
        name=event.name(),
        start_ns=event.start_ns() - origin_ns,
        end_ns=event.start_ns() - origin_ns + event.duration_ns(),
        thread=event.start_thread_id(),
        shapes=event.shapes(),
        dtypes=event.dtypes(),
        values=event.concrete_inputs(),
        on_gpu=event.device_type().name == "CUDA",
        is_span=event.scope() == USER_SCOPE,
    )


@contextlib.contextmanager
def _quiet():
    """The profiler says on stderr when it starts and stops: nothing to show a reader."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _marked_groups():
    """Around each call to a process group, a marker with its ranks and its bytes."""
    with contextlib.ExitStack() as undo:
        for name in METHODS:
            if hasattr(dist.ProcessGroup, name):
                _replace(undo, dist.ProcessGroup, name, _marked_method)
        for name in FUNCTIONS:
            if hasattr(functional, name):
                _replace(undo, functional, name, _marked_function)
        yield


def _replace(undo, owner, name, marked):
    # As it stands in the class: what getattr gives would no longer bind to a group.
    original = vars(owner).get(name)
    setattr(owner, name, marked(getattr(owner, name)))
    if original is None:
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, original)


def _marked_method(call):
    @functools.wraps(call)
    def marked(group, *args, **kwargs):
        given, moves = [*args, *kwargs.values()], None
        if call.__name__ in EXCHANGES:  # what this rank gives, and each piece's way
            given, moves = given[1:2], _exchanged(group, *given[:4])
        with record_function(_marker(group, given, moves)):
            return call(group, *args, **kwargs)

    return marked


def _marked_function(call):
    @functools.wraps(call)
    def marked(tensor, *args, **kwargs):
        # Its group may be given in several ways: torch itself says which one it is.
        groups = [a for a in (*args, *kwargs.values()) if _is_group(a)]
        if not groups:
            return call(tensor, *args, **kwargs)
        name = functional._resolve_group_name(groups[-1])
        group = dist.distributed_c10d._resolve_process_group(name)
        with record_function(_marker(group, [])):
            return call(tensor, *args, **kwargs)

    return marked


def _is_group(value) -> bool:
    meshes = dist.device_mesh.DeviceMesh
    pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], meshes)
    return pair or isinstance(value, (dist.ProcessGroup, meshes))


def _marker(group, args, moves=None) -> str:
    facts = {
        "ranks": dist.get_process_group_ranks(group),
        "bytes": max([0, *map(_nbytes, args)]),
        "moves": moves,
    }
    return MARKER + json.dumps(facts)


def _exchanged(group, outputs, inputs, receives=(), sends=()) -> list:
    """[source, destination, bytes] of this rank in an all-to-all, which names its sizes."""
    me = group.rank()
    out, back = _parts(group, inputs, sends), _parts(group, outputs, receives)
    return [[me, r, n] for r, n in enumerate(out) if r != me] + [
        [r, me, n] for r, n in enumerate(back) if r != me
    ]


def _parts(group, given, rows) -> list[int]:
    """Bytes for each rank: a list of tensors, or one that is cut into so many rows each."""
    if not isinstance(given, torch.Tensor):
        return [_nbytes(part) for part in given]
    if not isinstance(rows, (list, tuple)) or not rows:  # not given: in equal parts
        return [_nbytes(given) // group.size()] * group.size()
    return [n * given[:1].numel() * given.element_size() for n in rows]


def _nbytes(value) -> int:
    """Bytes of a tensor, or of all tensors in lists of them."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return 0
