"""The layer spread over ranks: outputs and all gradients are those of one process."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from course import World
from course.parallel.hierarchical import node_groups
from course.parallel.moe import DenseMoE, MoE, move_bias, reduce_gradients, total_load
from course.parallel.moe_balance import switch_loss, z_loss
from course.parallel.moe_exchange import all_to_all, two_level_all_to_all
from course.parallel.moe_router import NoisyRouter, SoftmaxRouter
from course.worlds import RankError
from tests.sameness import difference

H, F = 6, 10  # hidden, inner width of an expert
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Layer:
    """A layer to try. tokens: of each rank. ep: ranks that divide the experts.

    nodes: exchange in two levels, between so many nodes. pairs: with sends and receives.
    like: this expert is preferred
    """

    tokens: tuple[int, ...]
    experts: int
    top_k: int = 2
    ep: int | None = None
    factor: float | None = None
    router: str = "softmax"
    nodes: int | None = None
    pairs: bool = False
    like: int | None = None
    dtype: torch.dtype = torch.float64
    seed: int = 0

    @property
    def ranks(self) -> int:
        return len(self.tokens)

    def options(self) -> dict:
        router = self.router
        if router == "noisy":
            router = KnownNoise(H, self.experts, self.top_k, seed=self.seed)
        return {"capacity_factor": self.factor, "router": router, "seed": self.seed}

    def inputs(self) -> torch.Tensor:
        random = torch.Generator().manual_seed(self.seed)
        return torch.randn(sum(self.tokens), H, generator=random).to(self.dtype)

    def prepare(self, layer):
        """The same small changes for the layer and its reference."""
        with torch.no_grad():
            if self.like is not None:
                layer.router.weight[self.like] += 5  # inputs are mostly positive then
            if hasattr(layer.router, "bias"):
                layer.router.bias[0] += 0.1
            if hasattr(layer.router, "spread"):
                layer.router.spread += 0.1
        return layer.to(self.dtype)


class KnownNoise(NoisyRouter):
    """Noise that depends on the token, so that it is the same on whichever rank it is."""

    def noise(self, logits):
        return (logits.detach() * 1e4).sin()


def left_by(y, x, layer) -> tuple:
    return y.detach(), x.grad, {name: p.grad for name, p in layer.named_parameters()}


def dense(case: Layer) -> tuple:
    """(outputs, gradients of the inputs, {parameter: gradient}) of one process."""
    layer = DenseMoE(H, F, case.experts, case.top_k, **case.options())
    case.prepare(layer)
    x = (case.inputs().abs() if case.like is not None else case.inputs()).requires_grad_()
    y = layer(x, case.tokens)
    y.sin().sum().backward()
    dropped = sum(routing.dropped for routing in layer.routings)
    return *left_by(y, x, layer), dropped


def on_rank(case: Layer) -> tuple:
    """The same, of this rank's tokens and experts."""
    inside, across = node_groups(case.ep or case.ranks)
    levels = node_groups(case.ranks // case.nodes) if case.nodes else None
    layer = MoE(
        H, F, case.experts, case.top_k, group=inside, replicas=across, levels=levels,
        pairs=case.pairs, **case.options(),
    )  # fmt: skip
    case.prepare(layer)
    x = case.inputs().abs() if case.like is not None else case.inputs()
    x = x.split(case.tokens)[dist.get_rank()].clone().requires_grad_()
    y = layer(x)
    y.sin().sum().backward()
    reduce_gradients(layer, mean=False)
    return left_by(y, x, layer)


def assert_same(case: Layer, results: list, tolerance: float = TOLERANCE) -> None:
    outputs, inputs, parameters, _ = dense(case)
    ep = case.ep or case.ranks
    assert not difference(torch.cat([r[0] for r in results]), outputs, tolerance=tolerance)
    assert not difference(torch.cat([r[1] for r in results]), inputs, tolerance=tolerance)
    for name, want in parameters.items():
        if want is None:  # a parameter that nobody has used
            want = torch.zeros_like(results[0][2][name])
        for start in range(0, case.ranks, ep):
            each = [r[2][name] for r in results[start : start + ep]]
            held = [torch.cat(each)] if name.startswith("experts") else each
            for got in held:
                assert not difference(got, want, tolerance=tolerance, path=name)


CASES = {
    "even": Layer((4, 4, 4, 4), 8),
    "one expert a rank": Layer((4, 4, 4, 4), 4),
    "uneven tokens": Layer((3, 9, 1, 6), 8),
    "ranks without tokens": Layer((0, 9, 0, 6), 8),
    "no tokens at all": Layer((0, 0, 0, 0), 8),
    "an expert receives nothing": Layer((2, 1, 0, 1), 8, 1),
    "all to one expert": Layer((5, 3, 0, 2), 8, 1, like=5),
    "tokens dropped": Layer((6, 9, 3, 0), 8, 2, factor=0.7),
    "nearly all dropped": Layer((6, 9, 3, 0), 8, 2, factor=0.01, like=2),
    "capacity for all": Layer((6, 9, 3, 0), 8, 2, factor=8.0),
    "every expert": Layer((3, 5, 2, 1), 4, 4),
    "sigmoid": Layer((3, 5, 2, 1), 8, 3, router="sigmoid"),
    "noisy": Layer((3, 5, 2, 1), 8, 2, router="noisy"),
    "replicas": Layer((3, 5, 2, 1), 8, 2, ep=2),
    "replicas only": Layer((3, 5, 2, 1), 8, 2, ep=1),
    "replicas and drops": Layer((3, 5, 0, 7), 8, 2, ep=2, factor=0.8, router="sigmoid"),
    "pairs": Layer((3, 5, 0, 7), 8, 2, pairs=True),
    "pairs, an idle expert": Layer((3, 1, 0, 7), 8, 1, factor=0.5, like=6, pairs=True),
    "pairs and replicas": Layer((3, 5, 2, 7), 8, 2, ep=2, pairs=True),
    "two levels": Layer((3, 5, 0, 7), 8, 2, nodes=2),
    "two levels, one expert": Layer((3, 5, 0, 7), 4, 1, nodes=2, like=1),
}


def test_cases_are_what_their_names_say():
    assert dense(CASES["tokens dropped"])[-1] > 0 < dense(CASES["replicas and drops"])[-1]
    assert dense(CASES["capacity for all"])[-1] == 0
    idle = dense(CASES["an expert receives nothing"])[2]["experts.up"]
    assert (idle.abs().sum((1, 2)) == 0).any() and idle.abs().sum() > 0
    crowded = dense(CASES["all to one expert"])[2]["experts.up"]
    assert (crowded.abs().sum((1, 2)) > 0).nonzero().tolist() == [[5]]


@pytest.mark.parametrize("name", CASES)
def test_equal_to_one_process(name):
    assert_same(CASES[name], World(4).run(on_rank, CASES[name]).results)


@pytest.fixture(scope="module")
def gloo():
    with World(4, on="gloo") as world:
        yield world


@pytest.mark.parametrize("name", CASES)
def test_equal_to_one_process_on_gloo(name, gloo):
    assert_same(CASES[name], gloo.run(on_rank, CASES[name]).results)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_equal_to_one_process_on_nccl():
    ranks = torch.cuda.device_count()
    case = Layer(tuple(range(ranks)), 2 * ranks, 2, factor=1.0)
    with World(ranks, on="nccl") as world:
        results = world.run(on_rank, case).results
    assert_same(case, [to_cpu(result) for result in results])


def to_cpu(result):
    y, x, parameters = result
    return y.cpu(), x.cpu(), {name: p.cpu() for name, p in parameters.items()}


@st.composite
def layers(draw) -> Layer:
    ep, replicas = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    experts = ep * draw(st.integers(1, 3))
    tokens = draw(
        st.lists(st.integers(0, 9), min_size=ep * replicas, max_size=ep * replicas)
    )
    return Layer(
        tuple(tokens),
        experts,
        draw(st.integers(1, experts)),
        ep=ep,
        factor=draw(st.sampled_from([None, 0.3, 1.0, 1.25])),
        router=draw(st.sampled_from(["softmax", "sigmoid", "noisy"])),
        like=draw(st.sampled_from([None, 0, experts - 1])),
        pairs=draw(st.booleans()),
        seed=draw(st.integers(0, 50)),
    )


@given(case=layers())
@settings(max_examples=40)
def test_any_layer_is_equal_to_one_process(case):
    assert_same(case, World(case.ranks).run(on_rank, case).results)


@pytest.mark.parametrize("name", ["uneven tokens", "tokens dropped", "replicas"])
def test_bf16_is_as_near_as_its_bits(name):
    case = Layer(**{**vars(CASES[name]), "dtype": torch.bfloat16})
    results = World(4).run(on_rank, case).results
    assert results[0][0].dtype == torch.bfloat16
    assert_same(case, results, tolerance=2e-2)


def test_one_rank_is_the_reference_to_the_bit_but_for_the_order_of_sums():
    case = Layer((11,), 4, 2, factor=1.0)
    assert_same(case, World(1).run(on_rank, case).results, tolerance=1e-12)


def test_a_dropped_token_passes_on_the_residual():
    def apart():
        layer = MoE(H, F, 4, 1, capacity_factor=0.25)
        x = torch.ones(16, H) * torch.linspace(1, 2, 16)[:, None]  # all like one expert
        y = x + layer(x)
        return x, y, layer.routing.kept[:, 0]

    x, y, kept = World(1).run(apart).results[0]
    assert kept.tolist() == [True] + [False] * 15
    assert torch.equal(y[1:], x[1:]) and not torch.equal(y[0], x[0])


def test_any_leading_dims():
    def shapes():
        layer = MoE(H, F, 4, 2)
        x = torch.randn(3, 5, H)
        return layer(x), layer(x.view(15, H))

    for cube, flat in World(2).run(shapes).results:
        assert torch.equal(cube.view(15, H), flat)


# --- Training -------------------------------------------------------------------------

STEPS, BATCH = 6, 8


def loss_of(y, x, routing, load=None):
    return (y - x.roll(1, -1)).square().mean() + switch_loss(routing, load=load)


def train_dense(ranks: int) -> list[float]:
    layer = DenseMoE(H, F, 8, 2, seed=1).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=3.0)
    losses = []
    for step in range(STEPS):
        x = Layer((BATCH,) * ranks, 8, seed=step).inputs()
        loss = loss_of(x + layer(x), x, layer.routings[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_on_rank(ep: int) -> list[float]:
    inside, across = node_groups(ep)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = MoE(H, F, 8, 2, group=inside, replicas=across, seed=1).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=3.0)
    losses = []
    for step in range(STEPS):
        x = Layer((BATCH,) * ranks, 8, seed=step).inputs().chunk(ranks)[rank]
        y = x + layer(x)
        loss = loss_of(y, x, layer.routing, total_load(layer.routing))
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(layer)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    return losses


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_training_equals_one_process(ep, gloo):
    want = train_dense(4)
    assert want[-1] < 0.9 * want[0]
    for world in (World(4), gloo):
        for losses in world.run(train_on_rank, ep).results:
            assert losses == pytest.approx(want, rel=1e-9)


def test_dividing_experts_by_replicas_only_would_be_wrong():
    """The scaling that a mean over the replicas gives is off by the experts' ranks."""

    def gradients(mean):
        inside, across = node_groups(2)
        layer = MoE(H, F, 4, 2, group=inside, replicas=across).double()
        x = Layer((5,) * 4, 4).inputs().split(5)[dist.get_rank()]
        layer(x).square().mean().backward()
        reduce_gradients(layer, mean=mean)
        return [p.grad for p in layer.parameters()]

    whole, summed = (World(4).run(gradients, mean).results for mean in (True, False))
    layer = DenseMoE(H, F, 4, 2).double()
    layer(Layer((5,) * 4, 4).inputs()).square().mean().backward()
    router, *experts = [p.grad for p in layer.parameters()]
    for rank, (mine, total) in enumerate(zip(whole, summed, strict=True)):
        held = [router, *(p.chunk(2)[rank % 2] for p in experts)]
        assert not difference(mine, held, tolerance=1e-9)
        assert not difference([g / 4 for g in total], held, tolerance=1e-9)


def test_the_bias_moves_by_the_load_of_all_ranks(gloo):
    def moved():
        layer = MoE(H, F, 8, 2, router="sigmoid").double()
        case = Layer((3, 5, 0, 7), 8)
        layer(case.inputs().split(case.tokens)[dist.get_rank()])
        move_bias(layer, 0.5)
        return layer.router.bias

    layer = DenseMoE(H, F, 8, 2, router="sigmoid").double()
    layer(Layer((3, 5, 0, 7), 8).inputs())
    load = layer.routings[0].load().double()
    want = 0.5 * torch.sign(load.mean() - load)
    for world in (World(4), gloo):
        assert all(torch.equal(bias, want) for bias in world.run(moved).results)


def test_an_activation_checkpoint_runs_the_exchange_again():
    from torch.utils.checkpoint import checkpoint

    def gradients(twice):
        layer = MoE(H, F, 4, 2).double()
        x = Layer((5, 2), 4).inputs().split((5, 2))[dist.get_rank()].requires_grad_()
        y = checkpoint(layer, x, use_reentrant=False) if twice else layer(x)
        (y.square().sum() + z_loss(layer.routing)).backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    once, twice = (World(2).run(gradients, on).results for on in (False, True))
    assert not difference(once, twice)


def test_a_layer_can_be_copied_before_it_has_run():
    def copied():
        layer = MoE(H, F, 4, 2)
        other = copy.deepcopy(layer)
        x = torch.randn(4, H)
        for one in (layer, other):
            one(x).square().sum().backward()
            reduce_gradients(one)  # a copy knows whose its experts are
        grads = [[p.grad for p in one.parameters()] for one in (layer, other)]
        return difference(*grads)

    assert World(2).run(copied).results == ["", ""]


# --- Bytes and calls ------------------------------------------------------------------


class RoundRobin(SoftmaxRouter):
    """Token t goes to experts t, t + 1, ...: every expert gets equally many."""

    def forward(self, tokens):
        routing = super().forward(tokens)
        t, k = routing.experts.shape
        turn = torch.arange(t)[:, None] + torch.arange(k)
        experts = turn % routing.expert_count
        weights = routing.probabilities.gather(-1, experts)
        return type(routing)(
            experts, weights, routing.probabilities, routing.logits, routing.kept
        )


def balanced_step(tokens: int, experts: int, k: int, layers: int = 1) -> None:
    model = [MoE(H, F, experts, k, router=RoundRobin(H, experts, k)) for _ in range(layers)]
    x = torch.randn(tokens, H, requires_grad=True)
    for layer in model:
        x = x + layer(x)
    x.sum().backward()


@pytest.mark.parametrize(("ranks", "k"), [(1, 1), (2, 1), (4, 2), (8, 3)])
def test_bytes_on_balanced_routing(ranks, k):
    """tokens * k * h * 4 * (n - 1) / n each way, four times, and E counts of 8 bytes."""
    tokens, experts = 16, 16
    run = World(ranks).run(balanced_step, tokens, experts, k)
    one = tokens * k * H * 4 * (ranks - 1) // ranks
    counts = experts * 8 * (ranks - 1) // ranks
    assert run.bytes_sent == run.bytes_received == (4 * one + counts,) * ranks


@pytest.mark.parametrize("layers", [1, 3])
def test_four_all_to_alls_of_rows_a_layer_and_one_of_counts(layers, gloo):
    for world in (World(4), gloo):
        run = world.run(balanced_step, 16, 8, 2, layers, record=True)
        for rank in range(4):
            sizes = [
                e.bytes for e in run.events if e.rank == rank and e.name == "all_to_all"
            ]
            counts, rows = 8 * 8, 16 * 2 * H * 4
            assert sizes == [counts, rows, rows] * layers + [rows, rows] * layers


def test_pairs_send_the_same_bytes_in_place():
    """A message for each expert that is elsewhere, there and back, twice."""

    def step():
        layer = MoE(H, F, 8, 2, router=RoundRobin(H, 8, 2), pairs=True)
        layer(torch.randn(16, H, requires_grad=True)).sum().backward()

    run = World(4).run(step)
    assert run.bytes_sent == World(4).run(balanced_step, 16, 8, 2).bytes_sent
    assert len(run.messages) == 4 * 4 * 6  # exchanges, ranks, experts on other ranks
    assert {m.bytes for m in run.messages} == {16 * 2 // 8 * H * 4}


def numbered(rank: int, ranks: int) -> tuple:
    """Rows that say where they are from and for whom: rank r has (r + 2d) % 4 for d."""
    sends = [(rank + 2 * to) % 4 for to in range(ranks)]
    receives = [(source + 2 * rank) % 4 for source in range(ranks)]
    rows = [[rank, to, i] for to in range(ranks) for i in range(sends[to])]
    return torch.tensor(rows, dtype=torch.float64).view(-1, 3), sends, receives


@pytest.mark.parametrize(("nodes", "g"), [(1, 3), (3, 1), (2, 3), (3, 2), (4, 2)])
def test_two_levels_give_the_same_rows_in_the_same_order(nodes, g):
    def both():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        rows, sends, receives = numbered(rank, ranks)
        inside, across = node_groups(g)
        rows.requires_grad_()
        flat = all_to_all(rows, sends, receives)
        two = two_level_all_to_all(rows, sends, receives, inside=inside, across=across)
        wants = torch.cat([numbered(r, ranks)[0] for r in range(ranks)])
        wants = wants[wants[:, 1] == rank]
        weights = torch.arange(float(wants.numel())).view_as(wants) + rank
        back = [torch.autograd.grad(y, rows, weights.double())[0] for y in (flat, two)]
        return torch.equal(flat, wants), torch.equal(two, wants), torch.equal(*back)

    assert World(nodes * g).run(both).results == [(True, True, True)] * (nodes * g)


def test_two_levels_leave_the_node_on_the_rail_only():
    """The same bytes cross between nodes, in fewer messages: to one peer in each node."""

    def exchanged(two):
        rows = torch.ones(12, 4)
        inside, across = node_groups(3)
        if two:
            two_level_all_to_all(rows, [2] * 6, [2] * 6, inside=inside, across=across)
        else:
            all_to_all(rows, [2] * 6, [2] * 6)

    flat, two = (World(6).run(exchanged, on).bytes_per_link for on in (False, True))
    leaving = [
        {link: n for link, n in links.items() if link[0] // 3 != link[1] // 3}
        for links in (flat, two)
    ]
    assert len(leaving[0]) == 6 * 3 and set(leaving[0].values()) == {2 * 4 * 4}
    assert sorted(leaving[1]) == [(r, (r + 3) % 6) for r in range(6)]
    counts = 3 * 8  # how much is for each of the three ranks there
    assert set(leaving[1].values()) == {3 * 2 * 4 * 4 + counts}


def test_a_rank_that_leaves_out_backward_is_reported_not_waited_for():
    def lazy():
        layer = MoE(H, F, 4, 2)
        y = layer(torch.randn(3, H, requires_grad=True))
        if dist.get_rank():
            y.sum().backward()

    with pytest.raises(RankError, match="all_to_all"):
        World(2).run(lazy)


# --- What is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "options", "message"),
    [
        (6, {}, r"experts must be a multiple of the group's ranks \(4\), not 6"),
        (0, {}, "experts must be 1 or more, not 0"),
        (4, {"top_k": 5}, r"top_k must be from 1 to experts \(4\), not 5"),
        (4, {"top_k": 0}, r"top_k must be from 1 to experts \(4\), not 0"),
        (4, {"capacity_factor": 0.0}, "capacity_factor must be more than 0, not 0.0"),
        (
            4,
            {"router": SoftmaxRouter(H, 4, 2)},
            "router must be for 4 experts and top_k 1, not 4 and 2",
        ),
        (4, {"router": "hash"}, r"router must be one of \['softmax', .*, not 'hash'"),
    ],
)
def test_layers_that_cannot_be(experts, options, message):
    options = {"top_k": 1} | options
    with pytest.raises(RankError, match=message) as caught:
        World(4).run(lambda: MoE(H, F, experts, **options))
    assert isinstance(caught.value.cause, ValueError)
    if "multiple" not in message:
        with pytest.raises(ValueError, match=message):
            DenseMoE(H, F, experts, **options)


def test_levels_must_make_up_the_group():
    def wrong():
        inside, _ = node_groups(2)
        MoE(H, F, 6, 1, levels=(inside, inside))

    with pytest.raises(RankError, match=r"levels must make up .* \(6 ranks\), not 2 nodes"):
        World(6).run(wrong)


def test_one_way_to_exchange_is_chosen():
    def wrong():
        MoE(H, F, 4, 1, levels=node_groups(2), pairs=True)

    with pytest.raises(RankError, match="pairs must be False where levels are given"):
        World(4).run(wrong)


def test_replicas_that_were_forgotten_are_noticed():
    def wrong():
        inside, _ = node_groups(2)
        reduce_gradients(MoE(H, F, 4, 1, group=inside))

    message = r"experts' ranks \(2\) times replicas are the group's 4 ranks, not 1"
    with pytest.raises(RankError, match=message):
        World(4).run(wrong)
