"""What expert parallelism sends and takes: the matrix of a dispatch, ranks against time.

GB is 1e9 bytes, as on a GPU's data sheet.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import plotly.graph_objects as go

from course.costs import moe, moe_size, moe_time, moe_traffic
from course.costs.recipes import BF16_ADAM
from course.costs.topology import Cluster
from course.facts import (
    AWS_P4D,
    AWS_P5,
    DGX_A100,
    DGX_B200,
    DGX_H100,
    GB,
    GB200_NVL72,
    Node,
)
from course.facts_models import MIXTRAL_8X7B, Experts, Model
from course.figures import theme
from course.figures.memory import in_gb, named
from course.figures.traffic import traffic
from course.quantities import write_bytes, write_seconds

NODES = {n.name: n for n in (DGX_A100, DGX_H100, DGX_B200, GB200_NVL72, AWS_P4D, AWS_P5)}
MOST_RANKS = 72
# of the matrix: each rank brings so many tokens, of 4096 numbers in bf16, to 64 experts
TOKENS, EXPERTS, TOKEN_BYTES = 256, 64, 4096 * 2


# --- The matrix ---------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _routes(ranks: int, top_k: int, skew: float) -> tuple[np.ndarray, ...]:
    """Top-k of each token of each rank: log popularity and Gumbel noise, seeded."""
    liked = np.log(moe.popularity(EXPERTS, skew))
    noisy = liked + np.random.default_rng(0).gumbel(size=(ranks, TOKENS, EXPERTS))
    return tuple(np.argpartition(-noisy, top_k - 1, axis=-1)[..., :top_k])


def dispatch_matrix(
    nodes: int = 2,
    top_k: int = 2,
    skew: float = 0.0,
    *,
    once: bool = False,
    by: str = "rank",
    way: str = "dispatch",
    box: str = "DGX H100",
) -> tuple[go.Figure, str]:
    """Bytes from rank to rank, or node to node, of one exchange: played, not a mean.

    Each rank routes 256 tokens of 8 KiB to 64 experts, E/n neighbours on a rank.
    skew: Zipf's exponent, expert 0 the hottest: so rank 0 of node 0
    once: a rank gets a token once, however many of its experts the token visits
    way:  "dispatch" or "combine", the same bytes back
    box:  a name of NODES, with a number of GPUs that divides 64
    """
    cluster = Cluster(named("box", NODES, box), nodes)
    if way not in ("dispatch", "combine"):
        raise ValueError(f'way must be "dispatch" or "combine", not {way!r}')
    routes = _routes(cluster.ranks, top_k, skew)
    sent = moe_traffic.routed_matrix(routes, EXPERTS, TOKEN_BYTES, deduplicate=once)
    matrix = sent if way == "dispatch" else sent.T
    title = f"{way.capitalize()} of top-{top_k}: bytes from {by} to {by}"
    figure = traffic(matrix, by=by, cluster=cluster, title=title)
    return figure, _matrix_words(cluster, matrix)


def _matrix_words(cluster: Cluster, matrix: np.ndarray) -> str:
    homes = np.arange(len(matrix)) // cluster.node.gpus
    leaving = matrix[homes[:, None] != homes].sum() / matrix.sum()
    port = moe_time.busiest_port(cluster, matrix)
    through = moe_traffic.port_bytes(cluster, matrix)[port]
    place = f"rank {port[1]}" if port[0].startswith("gpu") else f"node {port[1]}"
    wire = {"gpu": "fabric port", "nic": "network card"}[port[0].split()[0]]
    way = "into" if port[0].endswith("in") else "out of"
    seconds = moe_time.exchange_seconds(cluster, matrix)
    return (
        f"{100 * leaving:.0f} % of all copies leave their node. All wait for a {wire} "
        f"{way} {place}, {write_bytes(through)}: {write_seconds(seconds)}."
    )


# --- Experts and ranks --------------------------------------------------------------------


def mixture(experts: int, top_k: int) -> Model:
    """Mixtral with other experts, narrower where a token visits more: its work is the same.

    k experts whose inner widths add up to those that a token of Mixtral visits.
    """
    met = MIXTRAL_8X7B.experts.active * MIXTRAL_8X7B.experts.hidden
    shape = Experts(experts, top_k, hidden=met // top_k)
    return replace(MIXTRAL_8X7B, name=f"{experts} experts", experts=shape, published=0)


def experts_and_ranks(
    experts: int = 32,
    top_k: int = 4,
    tokens: int = 4096,
    skew: float = 0.0,
    *,
    nodes: int = 4,
    box: str = "DGX H100",
) -> tuple[go.Figure, str]:
    """Time of a layer's step and memory of a rank, against the ranks that share experts.

    A model of Mixtral's layers whose tokens cost the same whatever k is. All ranks of the
    cluster are data-parallel, ZeRO-1; ep of them, neighbours, share the experts.
    tokens: of one rank in a micro-batch     skew: Zipf's exponent, hot experts neighbours
    box:    a name of NODES
    """
    cluster = Cluster(named("box", NODES, box), nodes)
    if cluster.ranks > MOST_RANKS:
        raise ValueError(f"nodes must make {MOST_RANKS} ranks or fewer of {box}")
    model = mixture(experts, top_k)
    sizes = [
        n for n in range(1, cluster.ranks + 1) if not (experts % n or cluster.ranks % n)
    ]
    visits = moe.visits_of(moe.popularity(experts, skew), top_k)
    layer = moe_time.Layer(tokens, model.hidden, model.experts.hidden, experts, top_k)
    times = [moe_time.step_parts(layer, cluster, n, visits) for n in sizes]
    memory = [_states(model, cluster.ranks, n) for n in sizes]
    figure = theme.new_figure(
        f"{experts} experts, top-{top_k}, on {cluster.name}",
        height=520,
        barmode="stack",
        bargap=0.35,
        legend={"traceorder": "normal"},
        **_two_panels(sizes, cluster.node),
    )
    figure.add_traces(_time_bars(sizes, times) + _memory_bars(sizes, memory))
    most = cluster.node.gpu.memory_bytes
    _add_limit(figure, cluster.node, len(sizes))
    return figure, _costs_words(sizes, times, memory, most)


def _states(model: Model, ranks: int, ep: int) -> tuple[float, float]:
    """(dense, experts): bytes of model states on a rank, ZeRO-1."""
    both = moe_size.state_bytes_per_rank(model, BF16_ADAM, ranks, ep, zero=1)
    dense = moe_size.dense_state_bytes(model, BF16_ADAM, ranks, zero=1)
    return dense, both - dense


def _two_panels(sizes: list[int], node: Node) -> dict:
    places = list(range(len(sizes)))
    ticks = {"tickvals": places, "ticktext": [str(n) for n in sizes]}
    ends = {"range": [-0.6, len(sizes) - 0.4]}
    return {
        "xaxis": ticks | ends | {"anchor": "y", "title": {"text": ""}},
        "yaxis": {"domain": [0.56, 1], "title": {"text": "ms, one layer, one step"}},
        "xaxis2": ticks
        | ends
        | {"anchor": "y2", "title": {"text": "ranks that share the experts (EP)"}},
        "yaxis2": {
            "anchor": "x2",
            "domain": [0, 0.42],
            "title": {"text": "model states of a rank (GB)"},
        },
    }


def _time_bars(sizes, times) -> list[dict]:
    work, exchanges = ([1e3 * t[part] for t in times] for part in ("experts", "exchanges"))
    return [
        _bars("experts at work", work, sizes, theme.BLUE, "", "ms"),
        _bars("four exchanges", exchanges, sizes, theme.VERMILLION, "/", "ms"),
    ]


def _memory_bars(sizes, memory) -> list[dict]:
    dense, own = ([part / GB for part in column] for column in zip(*memory, strict=True))
    return [
        _bars("all but experts", dense, sizes, theme.SKY, "", "GB", "2"),
        _bars("a rank's experts", own, sizes, theme.ORANGE, "x", "GB", "2"),
    ]


def _bars(name, values, sizes, color, hatch, unit, mark="") -> dict:
    pattern = {"shape": hatch, "fillmode": "overlay", "fgcolor": theme.CARD}
    return {
        "type": "bar",
        "name": name,
        "x": list(range(len(sizes))),
        "y": values,
        "xaxis": f"x{mark}",
        "yaxis": f"y{mark}",
        "marker": {"color": color, "pattern": pattern | {"solidity": 0.25}},
        "hovertext": [
            f"EP {n}, {name}: {v:.3g} {unit}" for n, v in zip(sizes, values, strict=True)
        ],
        "hoverinfo": "text",
    }


def _add_limit(figure: go.Figure, node: Node, count: int) -> None:
    limit = node.gpu.memory_bytes
    figure.add_scatter(
        x=[-0.6, count - 0.4],
        y=[limit / GB] * 2,
        xaxis="x2",
        yaxis="y2",
        mode="lines",
        name=f"{node.gpu.name}, {in_gb(limit)}",
        line={"color": theme.INK, "dash": "longdash", "width": 1.5},
        hoverinfo="name",
    )


def _costs_words(sizes, times, memory, most: float) -> str:
    step_s = sum(times[-1].values())
    share = times[-1]["exchanges"] / step_s
    fits = [n for n, parts in zip(sizes, memory, strict=True) if sum(parts) <= most]
    first = f"Model states fit from EP {fits[0]} on" if fits else "Model states never fit"
    return (
        f"{first}. At EP {sizes[-1]}: {write_seconds(step_s)} a layer, "
        f"{100 * share:.0f} % of it in exchanges, if nothing overlaps."
    )
