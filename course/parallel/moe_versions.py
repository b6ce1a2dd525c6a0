"""One small mixture of experts, trained in several ways on the same tokens.

    alone        every rank trains all experts on all tokens: one process, `DenseMoE`
    EP           experts spread over all ranks, tokens travel by all-to-all
    EP pairs     likewise, by a message for each expert of each rank
    EP levels    likewise, across nodes first and then inside, as if two ranks were a node
    EP x DP      experts spread over two ranks, each two have them all

Ranks hold different numbers of tokens. All is in float64: a router decides, and where a
rounding moves a token to another expert, two runs part for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from course.costs.moe import popularity
from course.parallel.hierarchical import node_groups
from course.parallel.moe import DenseMoE, MoE, move_bias, reduce_gradients, total_load
from course.parallel.moe_balance import switch_loss, updated_bias
from course.parallel.moe_placement import PlacedRouter, add_up_copies, placed_moe
from course.parallel.moe_router import Routing, SigmoidRouter, fresh

WAYS = ("alone", "EP", "EP pairs", "EP levels", "EP x DP")
PAIR = 2  # ranks of a node in "EP levels", and of an expert-parallel group in "EP x DP"
WIDE = torch.float64


@dataclass(frozen=True)
class Task:
    """What is learned, and by what.

    tokens:   of each rank in each step
    skew:     tokens come in E clusters, of Zipf's popularity: 0 for even ones. At first
              expert i likes cluster i, as a trained router would have it
    balance:  weight of `switch_loss`
    speed:    of the bias, where the router is "sigmoid"
    slots:    the expert in each slot of all ranks, see `moe_placement`; None: in order
    others:   as for `MoE`
    """

    tokens: tuple[int, ...]
    hidden: int = 16
    ffn: int = 32
    experts: int = 8
    top_k: int = 2
    skew: float = 1.0
    capacity_factor: float | None = None
    router: str = "softmax"
    balance: float = 0.0
    speed: float = 0.0
    slots: tuple[int, ...] | None = None
    learning_rate: float = 3.0

    def __post_init__(self):
        if self.experts > self.hidden:
            raise ValueError(
                f"experts must be hidden ({self.hidden}) or fewer, not {self.experts}"
            )
        if self.slots and (self.balance or self.speed):
            raise ValueError("balance and speed must be 0 where slots are given")

    @property
    def layer(self) -> dict:
        """Arguments of `MoE` and `DenseMoE`."""
        names = ("hidden", "ffn", "experts", "top_k", "capacity_factor", "router")
        return {name: getattr(self, name) for name in names}

    def with_(self, **changes) -> Task:
        return replace(self, **changes)


# --- Tokens ---------------------------------------------------------------------------


def centres(task: Task) -> torch.Tensor:
    """[E, h] of the clusters: at right angles, and 2 long."""
    drawn = fresh(task.hidden, task.hidden, seed="centres").cpu()
    return 2 * torch.linalg.qr(drawn.to(WIDE)).Q[: task.experts]


def batches(task: Task) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens [T, h], targets [T, h]) of all ranks, the same on every rank.

    A target is the token, moved by a matrix of its cluster: experts have what to learn.
    """
    numbers = torch.Generator().manual_seed(0)
    shares = torch.tensor(popularity(task.experts, task.skew), device="cpu")
    middle, device = centres(task), torch.get_default_device()
    maps = [fresh(task.hidden, task.hidden, seed=("map", i)) for i in range(task.experts)]
    maps = 2 * torch.stack(maps).cpu().to(WIDE)
    while True:
        cluster = torch.multinomial(shares, sum(task.tokens), True, generator=numbers)
        drawn = torch.randn(
            len(cluster), task.hidden, dtype=WIDE, generator=numbers, device="cpu"
        )
        x = middle[cluster] + 0.5 * drawn
        y = x + torch.einsum("th,thg->tg", x, maps[cluster])
        yield x.to(device), y.to(device)


# --- The model ------------------------------------------------------------------------


class SmallMoe(nn.Module):
    """An MoE layer with its residual, and a dense layer after it.

    forward: tokens [t, h] -> [t, h]; more arguments go to the layer
    """

    def __init__(self, moe: nn.Module, hidden: int, gate: torch.Tensor):
        super().__init__()
        self.moe = moe
        self.head = nn.Linear(hidden, hidden, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(hidden))
            moe.router.weight.copy_(gate)

    def forward(self, x: torch.Tensor, *how) -> torch.Tensor:
        return self.head(x + self.moe(x, *how))


def build(way: str, task: Task) -> SmallMoe:
    """This rank's part of the model. All ranks must call it: groups are made."""
    if way not in WAYS:
        raise ValueError(f"way must be one of {list(WAYS)}, not {way!r}")
    groups = {} if way == "alone" else groups_of(way)
    if task.slots and way != "alone":
        moe = placed_moe(**task.layer, slots=task.slots, **groups)
    else:
        moe = (DenseMoE if way == "alone" else MoE)(**task.layer, **groups)
    return SmallMoe(moe, task.hidden, centres(task)).to(WIDE)


def groups_of(way: str) -> dict:
    """What `MoE` needs to know of the ranks."""
    if way == "EP pairs":
        return {"pairs": True}
    if way == "EP levels":
        return {"levels": node_groups(PAIR)}
    if way == "EP x DP":
        inside, across = node_groups(PAIR)
        return {"group": inside, "replicas": across}
    return {}


# --- Steps ----------------------------------------------------------------------------


def add_up(model: nn.Module) -> None:
    """Gradients of the sum of all ranks' losses, each over the ranks that hold it."""
    if isinstance(model.moe.router, PlacedRouter):
        add_up_copies(model.moe)
    reduce_gradients(model, mean=False)


def begin_moe(
    way: str, task: Task, reduce: Callable[[nn.Module], None] = add_up
) -> Callable[[], torch.Tensor]:
    """Build the model; what is returned does a step of SGD, and gives the loss of all.

    reduce: adds up gradients over ranks. SGD shows a factor that Adam would hide
    The step has `model`, and `error`: of the last step, the loss without the balance.
    """
    check_tokens(way, task)
    model, data = build(way, task), batches(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    losses_of = _alone if way == "alone" else _on_ranks

    def step() -> torch.Tensor:
        error, balance = losses_of(model, task, *next(data))
        optimizer.zero_grad()
        (error + balance).backward()
        both = torch.stack([error, balance]).detach()
        if way != "alone":
            reduce(model)
            dist.all_reduce(both)
        optimizer.step()
        _move_bias(model.moe, task)
        step.error = both[0]
        return both.sum()

    step.model = model
    return step


def check_tokens(way: str, task: Task) -> None:
    ranks = dist.get_world_size()
    if way != "alone" and len(task.tokens) != ranks:
        raise ValueError(f"tokens must be of {ranks} ranks, not {task.tokens}")


def _alone(model: SmallMoe, task: Task, x, y) -> tuple[torch.Tensor, torch.Tensor]:
    error = (model(x, task.tokens) - y).square().mean()
    routings = model.moe.routings
    load = sum(r.load() for r in routings)
    return error, sum(_balance(r, task, load) for r in routings)


def _on_ranks(model: SmallMoe, task: Task, x, y) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part: those of all ranks add up to the loss."""
    me = dist.get_rank()
    mine, wanted = (both.split(task.tokens)[me] for both in (x, y))
    error = (model(mine) - wanted).square().sum() / y.numel()
    routing = model.moe.routing
    load = total_load(routing) if task.balance else None
    return error, _balance(routing, task, load)


def _balance(routing: Routing, task: Task, load) -> torch.Tensor:
    """f over all ranks, P of this one's tokens: so that parts add up."""
    if not task.balance:
        return routing.logits.new_zeros(())
    part = routing.tokens / sum(task.tokens)
    return part * switch_loss(routing, task.balance, load=load)


def _move_bias(moe: nn.Module, task: Task) -> None:
    if not isinstance(moe.router, SigmoidRouter):
        return
    if isinstance(moe, MoE):
        return move_bias(moe, task.speed)
    load = sum(r.load() for r in moe.routings)
    moe.router.bias.copy_(updated_bias(moe.router.bias, load, task.speed))


def train_moe(way: str, task: Task, steps: int, **how) -> list[float]:
    """The loss of each step, which every rank has."""
    step = begin_moe(way, task, **how)
    return [step().item() for _ in range(steps)]
