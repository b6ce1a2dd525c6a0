"""One rank of a pipeline: it executes any schedule, and trains its own stages.

    m   micro-batches in a step          b   rows of one, so m * b rows in a batch
    x   what a stage is given, [b, ...]  y   what it gives, [b, ...], of one shape always

The schedule says what and when (`parallel.schedules`), `parallel.pipeline_messages` adds
sends and receives, `parallel.pipeline_backward` splits a backward in two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from course.parallel.messages import exchange, place, receive, send
from course.parallel.pipeline_backward import PutBy, in_halves
from course.parallel.pipeline_mail import Mail
from course.parallel.pipeline_messages import (
    SEND,
    Order,
    Transfer,
    made_before,
    output_of,
    receives_early,
    with_messages,
)
from course.parallel.schedules import BACKWARD, FORWARD, WEIGHT_GRADIENT, Action, Schedule


class Held(NamedTuple):
    """What a forward leaves for its backward: input, output, and where to put work by."""

    x: torch.Tensor
    y: torch.Tensor
    kept: PutBy | None


class Pipeline:
    """This rank's stages of a model, trained by a schedule.

        pipeline = Pipeline([stage], one_f_one_b(4, 8), cross_entropy)
        loss = pipeline.step(inputs, targets)       # gradients are there, as after backward
        optimizer.step()

    stages:  this rank's modules, by number of stage, or in order of their numbers. Each
             takes one tensor and gives one
    loss:    loss(output, targets) of a micro-batch, a mean over its rows
    tied:    on the ranks of the first and the last stage: the parameter that both use
    like:    a tensor like each activation that is sent; without it the first one of each
             stage comes with a header that tells its shape and dtype
    orders:  for each rank its actions and transfers, in place of `with_messages`'; they
             are executed as they stand, and each send and receive blocks
    group:   the ranks of this pipeline

    Work is recorded by torch.profiler.record_function, under the name of its action,
    "F3@1": `Run.spans` has it. most_held: most forwards, in all steps so far, whose
    backward was still to come.

    Raises ValueError where stages are not those of this rank, or the schedule is for
    another number of ranks.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module] | Sequence[nn.Module],
        schedule: Schedule,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        tied: nn.Parameter | None = None,
        like: torch.Tensor | None = None,
        orders: Sequence[Order] | None = None,
        group=None,
    ):
        ranks, self.rank = place(group)
        if schedule.ranks != ranks:
            raise ValueError(
                f"schedule must be for {ranks} ranks, as the group has, "
                f"not for {schedule.ranks}"
            )
        self.stages = own_stages(stages, schedule, self.rank)
        self.schedule, self.loss, self.group = schedule, loss, group
        all_orders = orders or with_messages(schedule)
        mine = all_orders[self.rank]
        self._order = mine if orders else receives_early(mine)
        self._mail = Mail(all_orders, like=like, blocking=bool(orders), group=group)
        self._halved = {a[1:] for a in mine if getattr(a, "kind", "") == WEIGHT_GRADIENT}
        self._tie(tied)
        self.most_held = 0

    def step(self, inputs=None, targets=None, *, share_loss=False) -> torch.Tensor | None:
        """Forward and backward of one batch. Gradients are added to what is there.

        inputs:      [m * b, ...], needed on the rank of the first stage
        targets:     [m * b, ...], needed on the rank of the last stage
        share_loss:  send the loss to all ranks, as float32

        Returns the mean loss over the micro-batches on the rank of the last stage, None
        on others. Raises ValueError where m does not divide the rows.
        """
        self._inputs = self._cut("inputs", inputs, 0)
        self._targets = self._cut("targets", targets, self._last)
        self._held: dict[tuple, Held] = {}
        self._put_by: dict[tuple, PutBy] = {}
        self._outputs: dict[tuple, torch.Tensor] = {}
        self._losses: list[torch.Tensor] = []
        self._mail.begin()
        before = self._set_tied_aside()
        for item in self._order:
            self._do(item)
        self._mail.finish()
        self._add_up_tied(before)
        self._inputs = self._targets = None
        return self._mean_loss(share_loss)

    @property
    def _last(self) -> int:
        return self.schedule.stages - 1

    def _cut(self, name: str, whole: torch.Tensor | None, stage: int):
        """The micro-batches of a batch, where this rank has the stage that needs them."""
        if stage not in self.stages:
            return None
        m = self.schedule.micro_batches
        if whole is None:
            raise ValueError(f"{name} must be given on rank {self.rank}, of stage {stage}")
        if len(whole) % m or len(whole) == 0:
            raise ValueError(
                f"{name} must have rows for {m} micro-batches of one size, "
                f"not {len(whole)} rows"
            )
        return whole.split(len(whole) // m)

    # --- One thing after the other -----------------------------------------------------

    def _do(self, item: Action | Transfer) -> None:
        if isinstance(item, Transfer):
            if item.kind == SEND:
                self._mail.send(item, self._outputs.pop(output_of(item.made_by)))
            else:
                self._mail.post(item)
            return
        given = self._given(item)
        work = {FORWARD: self._forward, WEIGHT_GRADIENT: self._weight_gradient}
        with record_function(str(item)):
            work.get(item.kind, self._backward)(item, given)

    def _given(self, action: Action) -> torch.Tensor | None:
        """What another stage has made for this action; waits where it is on its way."""
        name = made_before(action)
        if name is None or name == (BACKWARD, self.schedule.stages, action.micro_batch):
            return None
        if name[1] < 0:
            return self._inputs[action.micro_batch]
        if name[1] in self.stages:
            return self._outputs.pop(name)
        return self._mail.take(name)

    def _forward(self, action: Action, x: torch.Tensor) -> None:
        _, stage, i = action
        if stage > 0:
            x.requires_grad_()
        kept = PutBy() if (stage, i) in self._halved else None
        with in_halves(kept):
            y = self.stages[stage](x)
            if not isinstance(y, torch.Tensor):
                given = type(y).__name__
                raise ValueError(f"stage {stage} must give one tensor, not a {given}")
            if stage == self._last:
                # so that gradients are those of the mean over the batch
                y = self.loss(y, self._targets[i]) / self.schedule.micro_batches
        self._held[stage, i] = Held(x, y, kept)
        self.most_held = max(self.most_held, len(self._held))
        if stage == self._last:
            self._losses.append(y.detach())
        else:
            self._outputs[output_of(action)] = y.detach()

    def _backward(self, action: Action, y_grad: torch.Tensor | None) -> None:
        """The whole backward, or all but what the forward has put by."""
        _, stage, i = action
        x, y, kept = self._held.pop((stage, i))
        if y.requires_grad:  # not where all of a first stage is frozen
            y.backward(y_grad)
        if kept is not None:
            self._put_by[stage, i] = kept
        if stage > 0:
            unused = x.grad is None
            self._outputs[output_of(action)] = torch.zeros_like(x) if unused else x.grad

    def _weight_gradient(self, action: Action, _) -> None:
        self._put_by.pop(action[1:]).run()

    def _mean_loss(self, share: bool) -> torch.Tensor | None:
        loss = sum(self._losses) if self._losses else None
        if share:
            loss = torch.zeros(()) if loss is None else loss.float()
            owner = self.schedule.owner[self._last]
            dist.broadcast(loss, group=self.group, group_src=owner)
        return loss

    # --- A parameter that the first and the last stage share ----------------------------

    def _tie(self, tied: nn.Parameter | None) -> None:
        """Both owners begin with the first one's values."""
        ends = [s for s in {0, self._last} if s in self.stages]
        used = [any(tied is p for p in self.stages[s].parameters()) for s in ends]
        if tied is not None and not (ends and all(used)):
            raise ValueError(
                "tied must be a parameter of the first or last stage, one of rank "
                f"{self.rank}'s own, and the same object in both where it has both"
            )
        first, last = self.schedule.owner[0], self.schedule.owner[self._last]
        # where one rank has both, autograd adds the two gradients
        self._tied = tied if first != last else None
        if self._tied is not None:
            self._other = last if self.rank == first else first
            to_other = send if self.rank == first else receive
            to_other(tied.detach(), self._other, self.group)

    def _set_tied_aside(self) -> torch.Tensor | None:
        """The sum so far has both owners' parts already: only what is new is exchanged."""
        if self._tied is None:
            return None
        before, self._tied.grad = self._tied.grad, None
        return before

    def _add_up_tied(self, before: torch.Tensor | None) -> None:
        """An all-reduce of two: each sends its gradient to the other, and adds."""
        if self._tied is None:
            return
        mine = self._tied.grad
        mine = torch.zeros_like(self._tied) if mine is None else mine.contiguous()
        other = torch.empty_like(mine)
        exchange(mine, self._other, other, self._other, self.group)
        self._tied.grad = mine + other if before is None else before + (mine + other)


def own_stages(stages, schedule: Schedule, rank: int) -> dict[int, nn.Module]:
    """{number of stage: module} of a rank. ValueError where they are not all of its own."""
    mine = [s for s, owner in enumerate(schedule.owner) if owner == rank]
    if isinstance(stages, Mapping):
        if sorted(stages) != mine:
            raise ValueError(
                f"stages must be those of rank {rank}, {mine}, not {sorted(stages)}"
            )
        return dict(stages)
    stages = list(stages)
    if len(stages) != len(mine):
        raise ValueError(
            f"stages must be {len(mine)} modules, for stages {mine} of rank {rank}, "
            f"not {len(stages)}"
        )
    return dict(zip(mine, stages, strict=True))
