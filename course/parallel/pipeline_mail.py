"""The messages of one rank in a pipeline, over plain torch.distributed.

Sends are started and not waited for; receives are posted, and waited for before use.
A message is one tensor. All that leave a stage have one shape and dtype; the first says
which, in a header that is sent ahead of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from course.parallel.pipeline_messages import (
    Order,
    Transfer,
    made_before,
    output_of,
)
from course.parallel.schedules import FORWARD, Action

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MOST_DIMS = 8
HEADER_BYTES = (2 + MOST_DIMS) * 8

Name = tuple[str, int, int]  # of an output: kind, stage, micro-batch


class Form(NamedTuple):
    """What messages of a stage look like."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


class Mail:
    """Sends and receives of one rank.

    orders:    of all ranks
    like:      a tensor like every activation that is sent; None: headers tell
    blocking:  wait for each message where it stands in the order
    """

    def __init__(self, orders: Sequence[Order], *, like=None, blocking=False, group=None):
        self.group, self.blocking, self._like = group, blocking, like
        # of an output: (rank, position) where it is made, and where it is used
        self._made_at: dict[Name, tuple[int, int]] = {}
        self._used_at: dict[Name, tuple[int, int]] = {}
        for rank, order in enumerate(orders):
            for position, item in enumerate(order):
                if isinstance(item, Action):
                    self._made_at[output_of(item)] = rank, position
                    self._used_at[made_before(item)] = rank, position
        self._forms: dict[int, Form] = {}  # of what a stage gives, by stage
        self.begin()

    def begin(self) -> None:
        """A new step."""
        self._sending: dict[Name, list[tuple]] = {}
        self._coming: dict[Name, tuple] = {}

    def send(self, end: Transfer, tensor: torch.Tensor) -> None:
        """Start to send; the tensor is kept until it has been received."""
        name = output_of(end.made_by)
        if name[0] == FORWARD:
            self._agree(end, tensor)
        self._start_send(name, tensor.contiguous(), end.peer)

    def _start_send(self, name: Name, tensor: torch.Tensor, to: int) -> None:
        work = dist.isend(tensor, group=self.group, group_dst=to)
        self._sending.setdefault(name, []).append((work, tensor))
        if self.blocking:
            self._let_go(name)

    def post(self, end: Transfer) -> None:
        """Make a buffer and start to receive into it."""
        name = output_of(end.made_by)
        buffer = self._form(end).empty()
        work = dist.irecv(buffer, group=self.group, group_src=end.peer)
        self._coming[name] = work, buffer
        if self.blocking:
            work.wait()
            self._coming[name] = None, buffer

    def take(self, name: Name) -> torch.Tensor:
        """Wait for what was posted. It tells, too, which sends the peer has received."""
        work, buffer = self._coming.pop(name)
        if work is not None:
            work.wait()
        peer, position = self._made_at[name]
        for sent in list(self._sending):
            user, used = self._used_at[sent]
            if user == peer and used < position:  # it has used that before it made this
                self._let_go(sent)
        return buffer

    def _let_go(self, name: Name) -> None:
        for work, _ in self._sending.pop(name):
            work.wait()

    def finish(self) -> None:
        """Wait for all sends."""
        for name in list(self._sending):
            self._let_go(name)

    # --- Shapes ----------------------------------------------------------------------

    def _agree(self, end: Transfer, tensor: torch.Tensor) -> None:
        """Tell the receiver what messages of this stage look like, if this is the first."""
        stage, form = end.made_by.stage, Form(tuple(tensor.shape), tensor.dtype)
        known = self._forms.get(stage)
        if known is None and self._like is not None:
            known = Form(tuple(self._like.shape), self._like.dtype)
        if known is None:
            self._start_send(output_of(end.made_by), header_of(form, stage), end.peer)
        elif known != form:
            raise ValueError(
                f"stage {stage} must give {known.dtype} of shape {list(known.shape)} each "
                f"time, not {form.dtype} of shape {list(form.shape)}"
            )
        self._forms[stage] = form

    def _form(self, end: Transfer) -> Form:
        """A gradient is like the activation that went the other way."""
        kind, stage = end.made_by.kind, end.made_by.stage
        maker = stage if kind == FORWARD else stage - 1
        if maker not in self._forms and self._like is not None:
            self._forms[maker] = Form(tuple(self._like.shape), self._like.dtype)
        if maker not in self._forms:
            header = torch.empty(2 + MOST_DIMS, dtype=torch.int64)
            dist.recv(header, group=self.group, group_src=end.peer)
            self._forms[maker] = form_of(header)
        return self._forms[maker]


def header_of(form: Form, stage: int) -> torch.Tensor:
    """[2 + MOST_DIMS] whole numbers: which dtype, how many dims, their sizes, zeros."""
    if form.dtype not in DTYPES or len(form.shape) > MOST_DIMS:
        raise ValueError(
            f"stage {stage} must give a tensor of at most {MOST_DIMS} dims and one of "
            f"{', '.join(map(str, DTYPES))}, not {form.dtype} of {len(form.shape)} dims"
        )
    dims = len(form.shape)
    numbers = [DTYPES.index(form.dtype), dims, *form.shape, *[0] * (MOST_DIMS - dims)]
    return torch.tensor(numbers, dtype=torch.int64)


def form_of(header: torch.Tensor) -> Form:
    dtype, dims, *sizes = header.tolist()
    return Form(tuple(sizes[:dims]), DTYPES[dtype])
