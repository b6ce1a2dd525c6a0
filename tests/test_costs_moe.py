"""Costs of expert parallelism, against routing played by numpy, links added by hand, torch
where a simulated rank exchanges, and published counts."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from course import World
from course.costs import moe, moe_size, moe_time, moe_traffic
from course.costs.recipes import BF16_ADAM
from course.costs.topology import Cluster, collective_seconds, uniform
from course.costs.zero import state_bytes_per_rank
from course.facts import AWS_P4D, DGX_H100, GB
from course.facts_models import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from course.parallel import moe_balance
from course.parallel.moe_router import softmax_top_k

SMALL = {"max_examples": 40}


def routes(rng, tokens, shares, top_k):
    """Top-k of log(share) + Gumbel noise: experts of each token, shape (tokens, k)."""
    noisy = np.log(shares) + rng.gumbel(size=(tokens, len(shares)))
    return np.argsort(-noisy, axis=1)[:, :top_k]


# --- Capacity and drops -------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens, experts, top_k, factor, slots",
    [(6, 3, 1, 1.0, 2), (6, 3, 1, 1.5, 3), (100, 10, 1, 1.1, 11), (1000, 10, 1, 1.1, 110)]
    + [(7, 4, 2, 1.0, 4), (4096, 64, 8, 1.25, 640), (5, 8, 1, 1.0, 1), (0, 8, 2, 1.25, 0)],
)
def test_capacity(tokens, experts, top_k, factor, slots):
    assert moe.capacity(tokens, top_k, experts, factor) == slots


@given(
    st.integers(1, 500),
    st.integers(1, 16),
    st.integers(1, 4),
    st.sampled_from([1, 5 / 4, 3 / 2, 2]),
)
def test_capacity_is_the_least_whole_number_that_is_enough(tokens, experts, top_k, factor):
    top_k = min(top_k, experts)
    slots = moe.capacity(tokens, top_k, experts, factor)
    assert slots * experts >= tokens * top_k * factor > (slots - 1) * experts


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 20))
def test_drops_of_given_loads_are_those_of_queues(loads, slots):
    """Copies come one by one; whoever finds his expert full is lost."""
    taken, lost = [0] * len(loads), 0
    for expert, load in enumerate(loads):
        for _copy in range(load):
            full = taken[expert] == slots
            lost, taken[expert] = lost + full, taken[expert] + (not full)
    assert moe.dropped(loads, slots) == lost
    share = lost / sum(loads) if sum(loads) else 0
    assert moe.dropped_share(loads, slots) == pytest.approx(share)


@given(st.integers(1, 40), st.floats(0.01, 0.99), st.integers(0, 45))
def test_mean_excess_of_a_binomial_load(tokens, chance, slots):
    wanted = sum(
        max(0, x - slots) * math.comb(tokens, x) * chance**x * (1 - chance) ** (tokens - x)
        for x in range(tokens + 1)
    )
    found = moe.expected_dropped_share(tokens, [chance], slots) * tokens * chance
    assert found == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    "experts, top_k, factor, skew", [(8, 1, 1.0, 0), (8, 2, 1.25, 0.7), (16, 4, 1.0, 1.2)]
)
def test_mean_drops_are_those_of_a_thousand_batches(experts, top_k, factor, skew):
    rng, tokens, batches = np.random.default_rng(1), 64, 1000
    slots = moe.capacity(tokens, top_k, experts, factor)
    shares = moe.popularity(experts, skew)
    found = []
    for _batch in range(batches):
        chosen = routes(rng, tokens, shares, top_k)
        loads = np.bincount(chosen.ravel(), minlength=experts)
        found.append(moe.dropped_share(loads, slots))
    wanted = moe.skewed_dropped_share(tokens, top_k, experts, factor=factor, skew=skew)
    assert np.mean(found) == pytest.approx(wanted, abs=5 * np.std(found) / batches**0.5)


def test_a_balanced_router_drops_too_and_less_where_batches_are_large():
    drops = [moe.skewed_dropped_share(t, 1, 64) for t in (64, 1024, 65536)]
    assert drops[0] > 0.3 > drops[1] > drops[2] > 0
    # half of a normal spread: sqrt(64 / (2 pi 1024)) = 10 % at a mean load of 16
    assert drops[1] == pytest.approx(math.sqrt(64 / (2 * math.pi * 1024)), rel=0.05)


@given(st.integers(2, 12), st.integers(1, 4), st.floats(0, 2), st.integers(8, 200))
@settings(**SMALL)
def test_drops_fall_with_the_factor_and_rise_with_skew(experts, top_k, skew, tokens):
    top_k = min(top_k, experts)
    at = lambda f, s: moe.skewed_dropped_share(tokens, top_k, experts, factor=f, skew=s)
    assert at(1.0, skew) >= at(1.5, skew) - 1e-9 >= at(experts / top_k, skew) - 2e-9
    assert at(experts / top_k, skew) == pytest.approx(0, abs=1e-9)
    assert at(1.0, skew + 0.5) >= at(1.0, skew) - 1e-9


# --- Skew ---------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0.001, 1), min_size=1, max_size=6).flatmap(
        lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights)))
    )
)
@settings(**SMALL)
def test_visits_are_the_sum_over_every_order_of_choices(case):
    weights, top_k = case
    total = sum(weights)
    wanted = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), top_k):
        chance, left = 1.0, total
        for expert in order:
            chance, left = chance * weights[expert] / left, left - weights[expert]
        for expert in order:
            wanted[expert] += chance
    assert moe.visits_of(weights, top_k) == pytest.approx(wanted, rel=1e-6)


@given(st.integers(1, 64), st.integers(1, 8), st.floats(0, 3))
@settings(**SMALL)
def test_loads_add_up_and_fall_from_the_hottest(experts, top_k, skew):
    top_k = min(top_k, experts)
    loads = moe.loads_of(100, top_k, experts, skew=skew)
    assert loads.sum() == pytest.approx(100 * top_k)
    assert (np.diff(loads) <= 1e-7).all() and loads.max() <= 100 + 1e-6
    if skew == 0:
        assert loads == pytest.approx([100 * top_k / experts] * experts)


def test_many_experts_add_up_to_nine_digits():
    visits = moe.visits_of(moe.popularity(256, 1.5), 8)
    assert visits.sum() == pytest.approx(8, rel=1e-9)


# --- Balance ------------------------------------------------------------------------------


def test_balance_at_its_ends():
    even, collapsed = [5.0] * 8, [40.0] + [0.0] * 7
    assert (moe.imbalance(even), moe.imbalance(collapsed)) == (1, 8)
    assert moe.effective_experts(even) == pytest.approx(8)
    assert moe.effective_experts(collapsed) == pytest.approx(1)
    assert moe.balance_loss([1 / 8] * 8, [1 / 8] * 8) == pytest.approx(moe.ALPHA)
    assert moe.balance_loss([1, 0], [1, 0], alpha=1) == 2


@pytest.mark.parametrize("top_k", [1, 3])
def test_the_loss_is_that_of_a_router_in_torch(top_k):
    torch.manual_seed(0)
    routing = softmax_top_k(torch.randn(50, 8), top_k)
    fractions = routing.load() / (50 * top_k)
    found = moe.balance_loss(fractions.numpy(), routing.probabilities.mean(0).numpy())
    assert found == pytest.approx(float(moe_balance.switch_loss(routing)))


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=10))
def test_the_loss_is_least_where_loads_are_equal(weights):
    shares = np.array(weights) / sum(weights)
    assert moe.balance_loss(shares, shares) >= moe.ALPHA - 1e-12


@given(
    st.lists(st.floats(0, 50), min_size=8, max_size=8),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 6),
)
def test_placing_and_replicating_keep_every_copy(loads, ranks, more):
    homes = moe.placed(loads, ranks)
    assert [homes.count(r) for r in range(ranks)] == [8 // ranks] * ranks
    for sums in (moe.rank_loads(loads, ranks), moe.rank_loads(loads, ranks, homes)):
        assert sums.sum() == pytest.approx(sum(loads))
    copies = moe.replicated(loads, more)
    assert len(copies) == 8 + more and copies.sum() == pytest.approx(sum(loads))
    assert copies.max() <= max(loads) + 1e-9


def test_hot_experts_apart_beat_neighbours():
    loads = moe.loads_of(1000, 2, 16, skew=1)
    near, apart = (
        moe.rank_loads(loads, 4, homes).max() for homes in (None, moe.placed(loads, 4))
    )
    assert apart < 0.7 * near
    # two experts on two ranks, three quarters on one: a replica makes it even
    assert moe.replicated([3.0, 1.0], 1) == pytest.approx([1.5, 1, 1.5])


# --- Bytes --------------------------------------------------------------------------------


def uniform_routes(rng, ranks, tokens, experts, top_k):
    return [routes(rng, tokens, np.ones(experts), top_k) for _ in range(ranks)]


def test_bytes_of_an_exchange_are_those_of_evenly_dealt_tokens():
    """Token t visits experts t, t + 1, ...: every expert equally often."""
    ranks, experts, top_k, hidden = 4, 8, 2, 16
    dealt = [(t + i) % experts for t in range(24) for i in range(top_k)]
    choices = np.array(dealt).reshape(24, top_k)
    matrix = moe_traffic.routed_matrix([choices] * ranks, experts, hidden * 2)
    sent = matrix.sum(axis=1) - np.diag(matrix)
    wanted = moe_traffic.exchange_bytes(24, top_k, hidden, ranks)
    assert sent == pytest.approx([wanted] * ranks)
    visits = [top_k / experts] * experts
    mean = moe_traffic.expected_matrix([24] * ranks, visits, hidden * 2)
    assert mean == pytest.approx(matrix)


def test_four_exchanges_a_step():
    one = moe_traffic.exchange_bytes(4096, 8, 7168, 64)
    assert one == 4096 * 8 * 7168 * 2 * 63 / 64
    assert moe_traffic.step_bytes(4096, 8, 7168, 64) == 4 * one
    narrow = moe_traffic.step_bytes(4096, 8, 7168, 64, dispatch_itemsize=1)
    assert narrow == 3 * one


def test_expert_parallelism_sends_k_over_n_of_tensor_parallelism():
    for ranks, top_k in ((8, 2), (16, 8), (4, 4)):
        ours = 2 * moe_traffic.exchange_bytes(100, top_k, 64, ranks)
        theirs = moe_traffic.tensor_parallel_bytes(100, 64, ranks)
        assert ours / theirs == pytest.approx(top_k / ranks)


@pytest.mark.parametrize(
    "experts, top_k, places", [(4, 2, 2), (8, 3, 4), (8, 2, 8), (6, 6, 3)]
)
def test_places_reached_by_every_set_of_experts(experts, top_k, places):
    sets = list(itertools.combinations(range(experts), top_k))
    found = [len({e * places // experts for e in chosen}) for chosen in sets]
    wanted = sum(found) / len(sets)
    assert moe_traffic.reached(top_k, experts, places) == pytest.approx(wanted)


@pytest.mark.parametrize("places", [4, 8])
def test_places_reached_within_a_limit(places):
    """Every pair of 4 groups, then every set of 3 of their 8 experts."""
    experts, groups, limit, top_k = 16, 4, 2, 3
    found = [
        len({e * places // experts for e in chosen})
        for pair in itertools.combinations(range(groups), limit)
        for chosen in itertools.combinations(
            [e for e in range(experts) if e * groups // experts in pair], top_k
        )
    ]
    options = {"groups": groups, "limit": limit}
    reached = moe_traffic.reached(top_k, experts, places, **options)
    assert reached == pytest.approx(np.mean(found))


@pytest.mark.parametrize("places", [4, 8])
def test_deduplicated_bytes_are_the_mean_of_played_routes(places):
    rng, hidden = np.random.default_rng(2), 8
    choices = uniform_routes(rng, places, 3000, 16, 4)
    matrix = moe_traffic.routed_matrix(choices, 16, hidden * 2, deduplicate=True)
    sent = (matrix.sum() - np.trace(matrix)) / places
    wanted = moe_traffic.deduplicated_bytes(3000, 4, hidden, 16, places)
    assert sent == pytest.approx(wanted, rel=0.01)
    assert wanted < moe_traffic.exchange_bytes(3000, 4, hidden, places)


def test_deepseek_v3_reaches_fewer_nodes_under_its_limit():
    free = moe_traffic.reached(8, 256, 8)
    limited = moe_traffic.reached(8, 256, 8, groups=8, limit=4)
    assert limited < 4 < free < 8


@pytest.mark.parametrize("node", [DGX_H100, AWS_P4D])
def test_bytes_through_each_port_are_a_sum_over_links(node):
    cluster, rng = Cluster(node, 2), np.random.default_rng(3)
    matrix = rng.integers(0, 100, (16, 16))
    wanted = {}
    for i, j in itertools.permutations(range(16), 2):
        near = i // 8 == j // 8
        card = lambda r: (r // 8, r % 8 * node.nics // 8)
        out = ("gpu out", i) if near else ("nic out", *card(i))
        into = ("gpu in", j) if near else ("nic in", *card(j))
        for port in (out, into):
            wanted[port] = wanted.get(port, 0) + matrix[i, j]
    assert moe_traffic.port_bytes(cluster, matrix) == wanted


# --- Seconds ------------------------------------------------------------------------------


@pytest.mark.parametrize("node, nodes", [(DGX_H100, 1), (DGX_H100, 4), (AWS_P4D, 2)])
def test_an_even_exchange_takes_what_the_simulated_world_charges(node, nodes):
    cluster, nbytes = Cluster(node, nodes), 64 * 10**6
    n = cluster.ranks
    matrix = np.full((n, n), nbytes / n)
    wanted = collective_seconds(cluster, range(n), "all_to_all", "ring", nbytes)
    assert moe_time.exchange_seconds(cluster, matrix) == pytest.approx(wanted)


def exchange(splits):
    rank = dist.get_rank()
    out = torch.empty(int(splits[:, rank].sum()))
    sizes = splits[:, rank].tolist(), splits[rank].tolist()
    dist.all_to_all_single(out, torch.zeros(int(splits[rank].sum())), *sizes)


def test_an_uneven_exchange_against_simulated_ranks():
    cluster = uniform(4, latency_s=1e-6, bytes_per_s=1e9)
    splits = torch.tensor([[5, 9, 0, 2], [1, 1, 7, 30], [2, 2, 2, 2], [0, 8, 1, 4]]) * 1000
    run = World(4, cluster=cluster).run(exchange, splits, record=True)
    found = moe_time.exchange_seconds(cluster, splits.numpy() * 4)
    assert run.seconds == pytest.approx(found)
    # rank 1 sends 38 of the 62 thousand, and is the port that all wait for
    assert found == pytest.approx(3e-6 + 38_000 * 4 / 1e9)
    assert moe_time.busiest_port(cluster, splits.numpy() * 4) == ("gpu out", 1)
    assert (
        moe_traffic.port_bytes(cluster, splits.numpy() * 4)["gpu out", 1]
        == (run.bytes_sent[1])
    )


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_the_cut_by_counting_pairs(ranks):
    nbytes, one_way = 1e6, 50e9
    half = range(ranks // 2)
    across = sum(nbytes / ranks for i, j in itertools.product(range(ranks), repeat=2)
                 if i in half and j not in half)  # fmt: skip
    seconds = moe_time.cut_seconds(ranks, nbytes, one_way=one_way)
    assert seconds == pytest.approx(across / one_way)
    assert seconds == pytest.approx(ranks * nbytes / (4 * one_way))
    assert moe_time.cut_seconds(ranks, nbytes, both_ways=2 * one_way) == seconds
    doubled = moe_time.pessimistic_cut_seconds(ranks, nbytes, one_way)
    assert doubled == pytest.approx(2 * seconds)


def test_the_cut_of_a_cluster():
    assert moe_time.bisection_bytes_per_s(Cluster(DGX_H100, 4)) == 2 * 8 * 50 * GB
    assert moe_time.bisection_bytes_per_s(Cluster(DGX_H100, 4), 2) == 8 * 50 * GB
    assert moe_time.bisection_bytes_per_s(Cluster(DGX_H100)) == 4 * 450 * GB


def two_level(matrix, gpus):
    """Bytes a rank sends inside and across, by moving every piece in two hops."""
    n = len(matrix)
    inside, across = np.zeros(n), np.zeros(n)
    for i, j in itertools.permutations(range(n), 2):
        middle = i // gpus * gpus + j % gpus  # of i's node, with j's number
        inside[i] += matrix[i, j] * (middle != i)
        across[middle] += matrix[i, j] * (middle != j)
    return inside, across


@pytest.mark.parametrize("gpus, nodes", [(2, 2), (4, 3), (8, 4)])
def test_two_levels_by_moving_every_piece(gpus, nodes):
    n, nbytes = gpus * nodes, 960.0
    inside, across = two_level(np.full((n, n), nbytes / n), gpus)
    found = moe_time.hierarchical_all_to_all(gpus, nodes, nbytes)
    assert inside == pytest.approx([found.inside.bytes_sent] * n)
    assert across == pytest.approx([found.across.bytes_sent] * n)
    assert (found.inside.steps, found.across.steps) == (gpus - 1, nodes - 1)


@pytest.mark.parametrize("limit", [None, 2])
def test_forwarded_tokens_by_playing_routes(limit):
    gpus, nodes, tokens, top_k, experts = 2, 4, 2000, 4, 16
    rng = np.random.default_rng(4)
    inside = across = 0
    for rank, _ in itertools.product(range(gpus * nodes), range(tokens)):
        allowed = rng.permutation(nodes)[: limit or nodes]
        pool = np.concatenate([np.arange(4 * n, 4 * n + 4) for n in allowed])
        ranks = set(rng.permutation(pool)[:top_k] // (experts // (gpus * nodes)))
        home, number = divmod(rank, gpus)
        across += len({r // gpus for r in ranks} - {home})
        inside += sum(r % gpus != number for r in ranks)
    cost = moe_time.forwarded_dispatch(
        gpus, nodes, tokens, top_k, experts, 1.0, limit=limit
    )
    n = gpus * nodes
    assert cost.across.bytes_sent == pytest.approx(across / n, rel=0.02)
    assert cost.inside.bytes_sent == pytest.approx(inside / n, rel=0.02)


LAYER = moe_time.Layer(tokens=4096, hidden=4096, expert_hidden=1024, experts=64, top_k=4)


def test_a_balanced_step_adds_up():
    cluster = Cluster(DGX_H100, 2)
    parts = moe_time.forward_seconds(LAYER, cluster, 16)
    even = collective_seconds(cluster, range(16), "all_to_all", "ring", 4096 * 4 * 8192)
    assert parts["dispatch"] == parts["combine"] == pytest.approx(even)
    flops = 4096 * 4 * 6 * 4096 * 1024
    assert parts["experts"] == pytest.approx(flops / (989.4e12 * 0.803))
    step = moe_time.step_seconds(LAYER, cluster, 16)
    assert step == pytest.approx(4 * even + 3 * parts["experts"])
    assert LAYER.flops_per_byte == flops / (4096 * 4 * 8192 * 2)


def test_few_tokens_wait_for_the_weights():
    cluster = Cluster(DGX_H100)
    weights = 64 / 8 * 3 * 4096 * 1024 * 2
    assert moe_time.expert_seconds(LAYER, cluster, 8, 1) == weights / 3.35e12


@given(st.floats(0, 1.5), st.sampled_from([2, 4, 8, 16]))
@settings(**SMALL)
def test_everybody_waits_for_the_hottest_rank(skew, ranks):
    cluster = Cluster(DGX_H100, 2)
    visits = moe.visits_of(moe.popularity(64, skew), 4)
    even = moe_time.forward_seconds(LAYER, cluster, ranks)
    skewed = moe_time.forward_seconds(LAYER, cluster, ranks, visits)
    slower = moe.imbalance(moe.rank_loads(visits, ranks))
    assert skewed["experts"] == pytest.approx(even["experts"] * slower)
    assert skewed["dispatch"] >= even["dispatch"] - 1e-12
    assert skewed["combine"] == pytest.approx(skewed["dispatch"])


# --- Size ---------------------------------------------------------------------------------


def test_published_sizes():
    # arXiv 2401.04088: 47B and 13B; 2412.19437: 671B and 37B
    for model, total, active in ((MIXTRAL_8X7B, 47, 13), (DEEPSEEK_V3, 671, 37)):
        split = moe_size.expert_parameters(model) + moe_size.dense_parameters(model)
        assert split == model.parameters and round(split / 1e9) == total
        without_table = model.active_parameters - model.embedding_parameters
        assert round(without_table / 1e9) == active
    # the exact count of Mistral 7B, whose shape is that of one expert
    assert moe_size.dense_twin(MIXTRAL_8X7B, 1).parameters == 7_241_732_096


@pytest.mark.parametrize("model", [MIXTRAL_8X7B, DEEPSEEK_V3], ids=lambda m: m.name)
def test_twins(model):
    routers = model.layers * model.hidden * model.experts.count
    same_flops = moe_size.dense_twin(model)
    assert 0 <= model.active_parameters - same_flops.parameters <= routers
    flops = [moe_size.training_flops_per_token(m) for m in (model, same_flops)]
    assert 0 <= flops[0] - flops[1] <= 6 * routers


def test_flops_of_a_token_by_its_products():
    """Mixtral: four projections, two experts of three matrices, router, scores, head."""
    h, s = 4096, 1000
    attention = 2 * h * h + 2 * h * 1024 + 2 * s * h
    layer = attention + 2 * 3 * h * 14336 + 8 * h
    wanted = 6 * (32 * layer + 32000 * h)
    found = moe_size.training_flops_per_token(MIXTRAL_8X7B, s)
    assert found == pytest.approx(wanted, rel=1e-4)  # norms count as products there


def owners(experts, ep, ranks):
    """{rank: its experts}, and {expert: its ranks}."""
    held = {
        r: [e for e in range(experts) if e * ep // experts == r % ep] for r in range(ranks)
    }
    return held, {e: [r for r in held if e in held[r]] for e in range(experts)}


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("ranks, ep", [(8, 1), (8, 4), (8, 8), (32, 8)])
def test_states_of_a_rank_by_naming_owners(ranks, ep, zero):
    held, replicas = owners(8, ep, ranks)
    one = moe_size.expert_parameters(MIXTRAL_8X7B) // 8
    widths = {"weights": (2, 3), "gradients": (2, 2), "rest": (12, 1)}
    total = 0.0
    for width, cut_from in widths.values():
        cut = zero >= cut_from
        total += width * moe_size.dense_parameters(MIXTRAL_8X7B) / (ranks if cut else 1)
        for expert in held[0]:
            total += width * one / (len(replicas[expert]) if cut else 1)
    found = moe_size.state_bytes_per_rank(MIXTRAL_8X7B, BF16_ADAM, ranks, ep, zero=zero)
    assert found == pytest.approx(total)
    if ep == 1:
        whole = state_bytes_per_rank(BF16_ADAM, MIXTRAL_8X7B.parameters, ranks, zero)
        assert found == pytest.approx(whole)


@pytest.mark.parametrize("ranks, ep", [(8, 8), (16, 4)])
def test_experts_are_averaged_over_their_replicas_only(ranks, ep):
    sent = moe_size.gradient_bytes_sent(MIXTRAL_8X7B, ranks, ep)
    copies = ranks // ep
    own = moe_size.expert_parameters(MIXTRAL_8X7B) / ep
    assert sent["experts"] == pytest.approx(2 * (copies - 1) / copies * 2 * own)
    dense = moe_size.dense_parameters(MIXTRAL_8X7B)
    assert sent["dense"] == pytest.approx(2 * (ranks - 1) / ranks * 2 * dense)


# --- What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, rule",
    [
        (lambda: moe.capacity(8, 1, 0), "experts must be 1 or more"),
        (lambda: moe.capacity(8, 5, 4), "top_k must be from 1 to experts"),
        (lambda: moe.capacity(8, 1, 4, factor=0), "factor must be positive"),
        (lambda: moe.capacity(-1, 1, 4), "tokens must be 0 or more"),
        (lambda: moe.popularity(4, -1), "skew must be 0 or more"),
        (lambda: moe.visits_of([1, 0]), "shares must be positive"),
        (lambda: moe.imbalance([0, 0]), "loads must have a positive sum"),
        (lambda: moe.effective_experts([0]), "loads must have a positive sum"),
        (lambda: moe.balance_loss([1], [0.5, 0.5]), "probabilities must be as many"),
        (lambda: moe.rank_loads([1, 2, 3], 2), "ranks must divide experts"),
        (lambda: moe.replicated([1], -1), "more must be 0 or more"),
        (lambda: moe_traffic.exchange_bytes(1, 0, 1, 1), "top_k must be 1 or more"),
        (lambda: moe_traffic.exchange_bytes(-1, 1, 1, 1), "tokens must be 0 or more"),
        (lambda: moe_traffic.exchange_bytes(1, 1, 1, 0), "ranks must be 1 or more"),
        (lambda: moe_traffic.reached(2, 8, 3), "places must divide experts"),
        (lambda: moe_traffic.reached(2, 8, 4, groups=4, limit=5), "limit must be from 1"),
        (
            lambda: moe_traffic.reached(3, 8, 4, groups=4, limit=1),
            "top_k must be 2 or less",
        ),
        (lambda: moe_traffic.reached(1, 8, 2, groups=4), "groups must divide places"),
        (
            lambda: moe_traffic.port_bytes(Cluster(DGX_H100), np.ones((9, 9))),
            "cluster must",
        ),
        (lambda: moe_time.cut_seconds(4, 1), "one_way or both_ways must be given"),
        (lambda: moe_time.cut_seconds(4, 1, one_way=0), "must be positive"),
        (
            lambda: moe_time.bisection_bytes_per_s(Cluster(DGX_H100), 0.5),
            "oversubscription",
        ),
        (lambda: moe_time.Layer(1, 1, 0, 1, 1), "expert_hidden must be 1 or more"),
        (lambda: moe_size.expert_parameters(LLAMA3_8B), "model must have experts"),
        (lambda: moe_size.dense_twin(MIXTRAL_8X7B, 0), "visits must be 1 or more"),
        (
            lambda: moe_size.gradient_bytes_sent(MIXTRAL_8X7B, 8, 3),
            "ep must divide experts",
        ),
        (lambda: moe_size.gradient_bytes_sent(MIXTRAL_8X7B, 9, 8), "a multiple of ep"),
        (lambda: moe_size.training_flops_per_token(MIXTRAL_8X7B, 0), "sequence must be"),
    ],
)
def test_what_makes_no_sense_is_named(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
