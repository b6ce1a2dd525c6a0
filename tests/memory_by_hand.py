"""Answers to the drills on memory and ZeRO, counted element by element in plain Python.

Nothing here comes from course.costs. Model states are counted on a few elements whose
places are listed one by one, layers as lists of tensors, steps of FSDP by replaying them.
ANSWERS: drill id -> function of the drawn numbers -> answer in base units.
"""

from functools import cache
from math import prod

from tests.rings_by_hand import ring, ring_all_gather

# What is kept for a parameter, as {part: bytes}. ZeRO's parts: w, g, and all the rest.
WIDTHS = {
    "fp32 Adam": {"w": 4, "g": 4, "m": 4, "v": 4},
    "bf16 Adam, fp32 master": {"w": 2, "g": 2, "copy": 4, "m": 4, "v": 4},
    "bf16 Adam, fp32 master and gradients": {"w": 2, "g": 4, "copy": 4, "m": 4, "v": 4},
    "fp16 Adam, Megatron": {"w": 2, "g": 2, "copy": 4, "wide g": 4, "m": 4, "v": 4},
    "fp32 SGD with momentum": {"w": 4, "g": 4, "m": 4},
    # 256 numbers of one byte and a scale of four
    "bf16, fp32 master, 8-bit Adam": {
        **{"w": 2, "g": 2, "copy": 4},
        **{"m": (256 + 4) / 256, "v": (256 + 4) / 256},
    },
}
SIXTEEN = "bf16 Adam, fp32 master"
EIGHTEEN = "bf16 Adam, fp32 master and gradients"


def is_cut(part, stage):
    """Whether a stage of ZeRO gives each rank only its own elements of a part."""
    return stage >= {"w": 3, "g": 2}.get(part, 1)


@cache
def states(name, ranks=1, stage=0):
    """Bytes a parameter that rank 0 holds, from 3 elements for each rank."""
    elements = [(e, part) for e in range(3 * ranks) for part in WIDTHS[name]]
    mine = [p for e, p in elements if e % ranks == 0 or not is_cut(p, stage)]
    return sum(WIDTHS[name][part] for part in mine) / (3 * ranks)


def count(v):
    return v["billions"] * 1e9


# --- Activations -------------------------------------------------------------------------


def gpt_layer(v, sequence, *, flash):
    """Bytes that a layer keeps: shapes as one writes them on paper, and their widths."""
    model, b = v["model"], v.get("batch", 1)
    s, h, a = sequence, model.hidden, model.heads
    square, row = (b, a, s, s), (b, s, h)
    scores = [(square, 2), (square, 1), (square, 2)]
    tensors = [
        *[(row, 2)] * 2,  # what the two norms got
        (row, 2),  # what the joint projection got
        *[(row, 2)] * 3,  # queries, keys, values
        *([((b, a, s), 4)] if flash else scores),
        (row, 2),  # what the output projection got
        (row, 1),  # its dropout mask
        (row, 2),  # what the first product of the MLP got
        *[((b, s, 4 * h), 2)] * 2,  # before and after GELU
        (row, 1),  # the last mask
    ]
    return sum(prod(shape) * width for shape, width in tensors)


def _scores_gain(v):
    whole, flash = (gpt_layer(v, v["sequence"], flash=f) for f in (False, True))
    return whole / flash


def product_flops(rows, inner, columns):
    return 2 * rows * inner * columns


def _full_over_selective(v):
    """Every product of a layer's forward, over those of attention's core."""
    s, h, a = v["sequence"], v["model"].hidden, v["model"].heads
    core = sum(product_flops(s, h // a, s) + product_flops(s, s, h // a) for _ in range(a))
    projections = 4 * product_flops(s, h, h)
    mlp = product_flops(s, h, 4 * h) + product_flops(s, 4 * h, h)
    return (core + projections + mlp) / core


def _inputs_kept(v):
    shape = (v["batch"], v["model"].sequence, v["model"].hidden)
    return sum(2 * prod(shape) for _ in range(v["model"].layers))


# --- Adapters, 4 bits, offload -----------------------------------------------------------


def _adapters(v):
    model, trained = v["model"], 0
    narrow = model.hidden // model.heads * model.kv_heads
    for _layer in range(model.layers):
        for outputs in (model.hidden, narrow):  # query, value
            trained += prod((v["rank"], model.hidden)) + prod((outputs, v["rank"]))
    return trained


def _four_bits(v):
    """One fp32 number looks after 256 scales, each of them after a block of weights."""
    weights = 256 * v["block"]
    bits = 4 * weights + 8 * 256 + 32
    return bits / 8 / weights * count(v)


def _offloaded(v):
    """Each rank's gradients down, then its new weights up, over its own link."""
    shard = count(v) / v["ranks"]
    trips = [shard * 2, shard * 2]
    return sum(nbytes / v["link"].bytes_per_s for nbytes in trips)


def _ceiling(v):
    """The most parameters that fit, by halving an interval."""
    low, high = 0.0, 1e14
    for _ in range(100):
        middle = (low + high) / 2
        fits = middle * states(SIXTEEN, v["ranks"], v["stage"]) <= v["gpu"].memory_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low


# --- ZeRO --------------------------------------------------------------------------------


@cache
def ring_reduce_scatter(n):
    """Buffers that a rank sends until each owns one finished chunk, sets moved by hand."""
    held = [[{rank} for _ in range(n)] for rank in range(n)]
    for step in range(n - 1):
        data = [set(held[r][(r - step) % n]) for r in range(n)]
        for r in range(n):
            held[(r + 1) % n][(r - step) % n] |= data[r]
    assert all(held[r][(r + 1) % n] == set(range(n)) for r in range(n))
    return (n - 1) / n


def gathered(ranks, nbytes):
    return ring_all_gather(ranks, nbytes)


def scattered(ranks, nbytes):
    return ring_reduce_scatter(ranks) * nbytes


def _stage3_sent(v):
    nbytes = 2 * count(v)
    passes = [gathered(v["ranks"], nbytes) for _ in ("forward", "backward")]
    return sum(passes) + scattered(v["ranks"], nbytes)


def _stage1_sent(v):
    return scattered(v["ranks"], 4 * count(v)) + gathered(v["ranks"], 2 * count(v))


def _accumulated(v):
    """All micro-batches one by one, over a single all-reduce."""
    sent = 0.0
    for micro in range(v["micro"]):
        sent += gathered(v["ranks"], 1.0) + gathered(v["ranks"], 1.0)
        if micro == v["micro"] - 1:
            sent += scattered(v["ranks"], 1.0)
    return sent / ring(v["ranks"], 1.0)[0]


def replay(groups):
    """(most blocks gathered at once, gathers) of a forward and a backward."""
    gathers, peak, live = 0, 0, set()
    for order in (range(len(groups)), reversed(range(len(groups)))):
        order = list(order)
        for here, group in enumerate(order):
            for wanted in order[here : here + 2]:  # this one, and one ahead
                gathers += wanted not in live
                live.add(wanted)
            peak = max(peak, sum(groups[g] for g in live))
            live.remove(group)  # resharded
        assert not live
    return peak, gathers


def groups_of(v):
    layers, per_unit = list(range(v["layers"])), v["per_unit"]
    return [len(layers[i : i + per_unit]) for i in range(0, len(layers), per_unit)]


def _gathered_peak(v):
    return replay(groups_of(v))[0] * count(v) / v["layers"] * 2


def _gradients_too_long(v):
    """Every gradient until the end of backward, against one's own."""
    elements = range(3 * v["ranks"])
    own = [e for e in elements if e % v["ranks"] == 0]
    return 2 * (len(elements) - len(own)) / len(elements) * count(v)


def _second_copy(v):
    """Element e of the copy lies on GPU e mod gpus, in each of the nodes."""
    elements = range(5 * v["gpus"])
    places = [(node, e % v["gpus"]) for node in range(v["nodes"]) for e in elements]
    return 2 * places.count((0, 0)) / len(elements) * count(v)


def _optimizer_share(v):
    widths = WIDTHS[v["recipe"].name]
    own = sum(width for part, width in widths.items() if part not in "wg")
    return own / widths["w"]


ANSWERS = {
    "M01c": lambda v: 4 * prod((v["batch"], v["model"].sequence, v["model"].vocab)),
    "M02a": lambda v: states(v["recipe"].name) * count(v),
    "M03a": _optimizer_share,
    "M06b": lambda v: (states(v["recipe"].name) - states("fp32 Adam")) * count(v),
    "M07a": lambda v: gpt_layer(v, v["model"].sequence, flash=False),
    "M07b": _inputs_kept,
    "M07c": _scores_gain,
    "M08b": _full_over_selective,
    "M09b": _ceiling,
    "M13a": _adapters,
    "M13b": _four_bits,
    "M14a": _offloaded,
    "M16b": lambda v: states(SIXTEEN, v["ranks"], v["stage"]),
    "M17b": _stage3_sent,
    "M17d": _stage1_sent,
    "M18a": lambda v: states(EIGHTEEN, v["ranks"], v["stage"]) * count(v),
    "M21a": _gathered_peak,
    "M21b": lambda v: replay(groups_of(v))[1],
    "M23b": _accumulated,
    "M27b": _gradients_too_long,
    "M29b": _second_copy,
}
