"""Routers and balance, against the papers' formulas written out token by token."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from course.parallel.moe_balance import (
    drop,
    gshard_loss,
    mean_probability,
    places,
    switch_loss,
    updated_bias,
    z_loss,
)
from course.parallel.moe_exchange import permute, unpermute
from course.parallel.moe_router import (
    NoisyRouter,
    Routing,
    SigmoidRouter,
    SoftmaxRouter,
    limit_nodes,
    noisy_top_k,
    sigmoid_top_k,
    softmax_top_k,
)

T, E, K = 7, 5, 3


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def best(row: list[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i])[:k]


# --- Routers --------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, K, E])
@pytest.mark.parametrize("renormalise", [None, True, False])
def test_softmax_token_by_token(k, renormalise):
    logits = numbers(T, E)
    routing = softmax_top_k(logits, k, renormalise=renormalise)
    for t, row in enumerate(logits.tolist()):
        total = sum(map(math.exp, row))
        p = [math.exp(x) / total for x in row]
        chosen = best(p, k)
        scaled = k > 1 if renormalise is None else renormalise
        share = sum(p[i] for i in chosen) if scaled else 1
        assert routing.experts[t].tolist() == chosen
        assert routing.weights[t].tolist() == pytest.approx([p[i] / share for i in chosen])
        assert routing.probabilities[t].tolist() == pytest.approx(p)
    assert routing.kept.all() and routing.dropped == 0


def test_one_renormalised_weight_would_teach_the_gate_nothing():
    for renormalise, learns in ((True, False), (None, True)):
        logits = numbers(T, E).requires_grad_()
        softmax_top_k(logits, 1, renormalise=renormalise).weights.sum().backward()
        assert bool(logits.grad.abs().max() > 1e-6) == learns


def test_the_bias_chooses_but_does_not_weigh():
    logits, bias = numbers(T, E), torch.tensor([0, 0, 5.0, 0, 0], dtype=torch.float64)
    routing = sigmoid_top_k(logits, 2, bias, scale=2.5)
    for t, row in enumerate(logits.tolist()):
        s = [1 / (1 + math.exp(-x)) for x in row]
        chosen = best([x + b for x, b in zip(s, bias.tolist(), strict=True)], 2)
        total = sum(s[i] for i in chosen)
        assert chosen[0] == 2 and routing.experts[t].tolist() == chosen
        weights = [2.5 * s[i] / total for i in chosen]
        assert routing.weights[t].tolist() == pytest.approx(weights)
        assert routing.probabilities[t].tolist() == pytest.approx([x / sum(s) for x in s])


def test_noise_is_as_wide_as_learned_and_softmax_is_over_the_chosen():
    logits, spread, noise = (numbers(T, E, seed=seed) for seed in range(3))
    routing = noisy_top_k(logits, 2, spread, noise)
    noisy = logits + noise * softplus(spread)
    for t, row in enumerate(noisy.tolist()):
        chosen = best(row, 2)
        total = sum(math.exp(row[i]) for i in chosen)
        weights = [math.exp(row[i]) / total for i in chosen]
        assert routing.experts[t].tolist() == chosen
        assert routing.weights[t].tolist() == pytest.approx(weights)


def test_noise_in_training_only():
    router = NoisyRouter(6, E, 2, seed=1)
    tokens = numbers(40, 6).float()
    calm = router.eval()(tokens).logits
    assert torch.equal(calm, router.logits(tokens))
    assert not torch.equal(router.train()(tokens).logits, calm)
    router.eval()(tokens).weights.square().sum().backward()
    assert router.weight.grad.abs().sum() > 0


def test_a_gate_is_wide_where_tokens_are_not():
    router = SoftmaxRouter(6, E, 2).bfloat16()
    routing = router(numbers(T, 6).bfloat16())
    assert routing.logits.dtype == routing.weights.dtype == torch.float32


def test_the_bias_has_no_gradient_and_is_saved():
    router = SigmoidRouter(6, E, 2)
    assert "bias" in router.state_dict()
    assert [name for name, _ in router.named_parameters()] == ["weight"]


def test_tokens_leave_for_few_nodes():
    scores = numbers(T, 8).sigmoid()
    limited = limit_nodes(scores, 4, 2, best=1)
    for row, kept in zip(scores.tolist(), limited.tolist(), strict=True):
        chosen = best([max(row[2 * n : 2 * n + 2]) for n in range(4)], 2)
        want = [x if i // 2 in chosen else -math.inf for i, x in enumerate(row)]
        assert kept == want
    router = SigmoidRouter(6, 8, 4, nodes=4, most_nodes=2)
    router.bias[1] = 0.2
    routing = router(numbers(40, 6).float())
    assert all(len(set(row)) == 2 for row in (routing.experts // 2).tolist())
    free = sigmoid_top_k(routing.logits, 4, router.bias)
    assert any(len(set(row)) > 2 for row in (free.experts // 2).tolist())


@pytest.mark.parametrize(
    ("nodes", "most", "message"),
    [
        (3, 1, r"nodes must divide the experts \(8\), not 3"),
        (4, 5, r"most_nodes must be from 2 to nodes \(4\), not 5"),
        (4, 1, r"most_nodes must be from 2 to nodes \(4\), not 1"),  # 2 experts for k = 4
    ],
)
def test_nodes_must_hold_what_a_token_visits(nodes, most, message):
    with pytest.raises(ValueError, match=message):
        SigmoidRouter(6, 8, 4, nodes=nodes, most_nodes=most)
    with pytest.raises(ValueError, match=message):
        sigmoid_top_k(numbers(T, 8), 4, torch.zeros(8), nodes=nodes, most_nodes=most)


@pytest.mark.parametrize("k", [0, E + 1])
def test_top_k_must_fit(k):
    message = rf"top_k must be from 1 to experts \({E}\), not {k}"
    for choose in (
        lambda: softmax_top_k(numbers(T, E), k),
        lambda: sigmoid_top_k(numbers(T, E), k, torch.zeros(E)),
        lambda: SoftmaxRouter(6, E, k),
    ):
        with pytest.raises(ValueError, match=message):
            choose()


# --- Capacity -------------------------------------------------------------------------


def choices(tokens: int, k: int, experts: int, seed: int) -> torch.Tensor:
    """[tokens, k] different experts, low numbers liked more."""
    liked = torch.arange(experts).flip(0) * 0.5
    return (numbers(tokens, experts, seed=seed) + liked).topk(k).indices


def queued(experts: torch.Tensor) -> list[list[int]]:
    """Places by walking through all first choices, then all second ones."""
    length, place = {}, [[0] * experts.shape[1] for _ in range(experts.shape[0])]
    for j in range(experts.shape[1]):
        for t in range(experts.shape[0]):
            expert = int(experts[t, j])
            place[t][j] = length.get(expert, 0)
            length[expert] = place[t][j] + 1
    return place


many = given(
    tokens=st.integers(0, 20), experts=st.integers(1, 6), data=st.data(),
    seed=st.integers(0, 99),
)  # fmt: skip


def routed(tokens: int, experts: int, k: int, seed: int) -> Routing:
    chosen = choices(tokens, k, experts, seed)
    scores = numbers(tokens, experts, seed=seed).softmax(-1)
    weights = scores.gather(-1, chosen)
    return Routing(chosen, weights, scores, scores.log(), torch.ones_like(chosen).bool())


@many
@settings(max_examples=60)
def test_first_choices_queue_before_second_ones(tokens, experts, data, seed):
    k = data.draw(st.integers(1, experts))
    room = data.draw(st.integers(0, 8))
    routing = routed(tokens, experts, k, seed)
    assert places(routing.experts).tolist() == queued(routing.experts)
    cut = drop(routing, room)
    assert cut.kept_load().tolist() == routing.load().clamp(max=room).tolist()
    assert cut.dropped == tokens * k - int(cut.kept_load().sum())
    assert torch.equal(cut.weights, routing.weights)


# --- Order ----------------------------------------------------------------------------


@many
@settings(max_examples=60)
def test_permute_sorts_by_expert_and_unpermute_undoes_it(tokens, experts, data, seed):
    k = data.draw(st.integers(1, experts))
    routing = drop(routed(tokens, experts, k, seed), data.draw(st.integers(0, 8)))
    x = numbers(tokens, 4, seed=seed)
    rows, order = permute(x, routing)
    pairs = [
        (int(routing.experts[t, j]), t)
        for t in range(tokens) for j in range(k) if routing.kept[t, j]
    ]  # fmt: skip
    wanted = sorted(pairs)
    assert len(rows) == len(wanted)
    assert all(torch.equal(row, x[t]) for row, (_, t) in zip(rows, wanted, strict=True))
    share = (routing.weights * routing.kept).sum(-1, keepdim=True)
    torch.testing.assert_close(unpermute(rows, order, routing), x * share)


def test_gradients_of_the_order_are_those_of_the_formula():
    routing = drop(routed(9, 4, 2, 3), 3)
    assert routing.dropped > 0
    x, weights = numbers(9, 3).requires_grad_(), routing.weights.requires_grad_()

    def there_and_back(x, weights):
        rows, order = permute(x, routing)
        return unpermute(rows.sin(), order, replace(routing, weights=weights))

    assert torch.autograd.gradcheck(there_and_back, (x, weights))


# --- Losses ---------------------------------------------------------------------------


def balanced(tokens: int = 8, experts: int = 4) -> Routing:
    """Every expert is chosen equally often, by a router without a preference."""
    chosen = (torch.arange(tokens) % experts)[:, None]
    even = torch.full((tokens, experts), 1 / experts)
    return Routing(chosen, even[:, :1], even, even.log(), torch.ones_like(chosen).bool())


def test_balance_losses_when_balanced():
    assert switch_loss(balanced(), 0.3).item() == pytest.approx(0.3)
    assert gshard_loss(balanced(), 0.3).item() == pytest.approx(0.3 / 4**2)


@pytest.mark.parametrize("k", [1, 2])
def test_balance_losses_expert_by_expert(k):
    routing = routed(11, E, k, 0)
    f = [(routing.experts == e).sum().item() / (11 * k) for e in range(E)]
    first = [(routing.experts[:, 0] == e).sum().item() / 11 for e in range(E)]
    p = [routing.probabilities[:, e].mean().item() for e in range(E)]
    switch = 1e-2 * E * sum(a * b for a, b in zip(f, p, strict=True))
    gshard = 1e-2 / E * sum(a * b for a, b in zip(first, p, strict=True))
    assert switch_loss(routing).item() == pytest.approx(switch)
    assert gshard_loss(routing, 1e-2).item() == pytest.approx(gshard)
    z = [row.exp().sum().log().item() ** 2 for row in routing.logits]
    assert z_loss(routing).item() == pytest.approx(1e-3 * sum(z) / 11)


def test_the_loss_pushes_down_the_popular_expert():
    logits = torch.zeros(8, 4)
    logits[:, 1] = 1.0
    logits.requires_grad_()
    switch_loss(softmax_top_k(logits, 1)).backward()
    assert (logits.grad[:, 1] > 0).all() and (logits.grad[:, 0] < 0).all()


def test_losses_without_tokens_are_zero():
    routing = softmax_top_k(torch.zeros(0, 4), 2)
    assert [loss(routing).item() for loss in (switch_loss, gshard_loss, z_loss)] == [0] * 3
    assert mean_probability(routing).tolist() == [0] * 4


def test_shares_of_all_ranks_make_the_loss_of_all_tokens():
    whole = routed(12, E, 2, 5)
    cut = [slice(0, 6), slice(6, 12)]
    parts = [Routing(*(getattr(whole, n)[some] for n in vars(whole))) for some in cut]
    each = [switch_loss(part, load=whole.load()) for part in parts]
    assert sum(each).item() / 2 == pytest.approx(switch_loss(whole).item())
    assert sum(map(switch_loss, parts)).item() / 2 != pytest.approx(each[0].item())


# --- Without a loss -------------------------------------------------------------------


def test_the_bias_goes_against_the_load():
    load = torch.tensor([4, 0, 2, 2])
    moved = updated_bias(torch.zeros(4), load, 0.5)
    assert moved.tolist() == [-0.5, 0.5, 0, 0]


def test_a_moving_bias_balances_a_router_that_has_favourites():
    logits = numbers(512, 8) + torch.arange(8) * 0.5
    bias = torch.zeros(8, dtype=torch.float64)
    before = sigmoid_top_k(logits, 2, bias).load()
    for _ in range(300):
        bias = updated_bias(bias, sigmoid_top_k(logits, 2, bias).load(), 5e-3)
    after = sigmoid_top_k(logits, 2, bias).load()
    assert before.max() > 2 * 128 and after.max() < 1.15 * 128 and after.min() > 0.85 * 128
