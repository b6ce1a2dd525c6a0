"""Figures of collectives: what they draw is what the real collectives do and cost."""

import colorsys
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course import World
from course.costs.collectives import algorithms, cost, fastest
from course.facts import DGX_H100, GIB, KIB, NVLINK4
from course.figures import collectives as figures
from course.figures import theme
from course.figures.collective_costs import LOOK, algorithms_for
from course.figures.collectives import COLLECTIVES, digits, ring_frames, ring_steps
from course.figures.rank_grid import COMPLETE, NOTHING, held, rank_grid
from course.parallel.collectives import ring_all_reduce, ring_reduce_scatter

# --- Before and after -----------------------------------------------------------------


def own(n: int, rank: int) -> torch.Tensor:
    return torch.tensor([digits(rank, j) for j in range(n)])


def after_on_real_ranks(n: int, root: int, collective: str):
    """What one rank holds after torch's own collective, None where it holds nothing."""
    me = dist.get_rank()
    mine, piece = own(n, me), own(n, me)[me : me + 1].clone()
    pieces = [torch.zeros(1, dtype=torch.long) for _ in range(n)]
    at = lambda value: [int(value) if j == me else None for j in range(n)]
    if collective == "broadcast":
        dist.broadcast(mine, root)
    elif collective == "reduce":
        dist.reduce(kept := mine.clone(), root)
        mine = kept if me == root else mine
    elif collective == "all_reduce":
        dist.all_reduce(mine)
    elif collective == "scatter":
        dist.scatter(piece, list(mine.split(1)) if me == root else None, root)
        return at(piece)
    elif collective == "gather":
        dist.gather(piece, pieces if me == root else None, root)
        return [int(p) for p in pieces] if me == root else [None] * n
    elif collective == "all_gather":
        dist.all_gather(pieces, piece)
        mine = torch.cat(pieces)
    elif collective == "reduce_scatter":
        dist.reduce_scatter(piece, list(mine.split(1)))
        return at(piece)
    elif collective == "all_to_all":
        dist.all_to_all(pieces, list(mine.split(1)))
        mine = torch.cat(pieces)
    return mine.tolist()


def numbers(grid) -> list[list[int | None]]:
    return [[int(text) if text else None for text in row] for row in grid.text]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_after_is_what_torch_leaves_on_each_rank(collective):
    n, root = 4, 2
    run = World(n).run(after_on_real_ranks, n, root, collective)
    figure = figures.collective_grid(collective, n, root)
    assert numbers(figure.data[1]) == run.results


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_every_grid_has_a_row_per_rank_from_the_top(collective, ranks):
    figure = figures.collective_grid(collective, ranks, ranks - 1)
    assert np.shape(figure.data[0].text) == (ranks, ranks)
    top, bottom = figure.layout.yaxis.range[1], figure.layout.yaxis.range[0]
    assert top < bottom
    assert figure.layout.yaxis.ticktext[0] == "rank 0"


def test_a_grid_colours_data_by_its_rank_and_full_sums_alike():
    n = 3
    before, after = figures.collective_grid("all_to_all", n).data
    assert np.array_equal(np.transpose(before.z), after.z)
    _, sums = figures.collective_grid("all_reduce", n).data
    assert {color for _, color in sums.colorscale} == {COMPLETE}


def test_a_grid_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="collective must be one of"):
        figures.collective_grid("barrier")
    with pytest.raises(ValueError, match="ranks must be from 2 to 16, not 1"):
        figures.collective_grid("reduce", 1)
    with pytest.raises(ValueError, match="root must be from 0 to 3, not 4"):
        figures.collective_grid("reduce", 4, 4)
    with pytest.raises(ValueError, match="one shape"):
        rank_grid({"a": [[NOTHING]], "b": [[NOTHING, NOTHING]]}, title="")
    with pytest.raises(ValueError, match="one shape"):
        rank_grid({}, title="")
    with pytest.raises(ValueError, match='by must be "source" or "share"'):
        rank_grid({"a": [[held(1, 0)]]}, title="", by="size")


# --- The ring -------------------------------------------------------------------------


def ring_state(n: int, half: bool) -> list[int]:
    tensor = own(n, dist.get_rank())
    (ring_reduce_scatter if half else ring_all_reduce)(tensor)
    return tensor.tolist()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("half", [True, False])
def test_frames_hold_what_the_real_ring_holds(n, half):
    frames = ring_frames(n)
    figure, _ = frames[n - 1 if half else 2 * (n - 1)]
    assert numbers(figure.data[0]) == World(n).run(ring_state, n, half).results


@pytest.mark.parametrize("n", range(2, 17))
def test_ring_steps_fill_every_piece_with_every_rank(n):
    steps = ring_steps(n)
    assert len(steps) == 2 * (n - 1)
    halfway, end = steps[n - 2].held, steps[-1].held
    everyone = tuple(range(n))
    assert all(halfway[r][r] == everyone for r in range(n))
    assert all(piece == everyone for rank in end for piece in rank)
    for step in steps:
        assert sorted(m.source for m in step.moves) == list(range(n))
        assert all(m.destination == (m.source + 1) % n for m in step.moves)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_every_frame_draws_each_move_with_an_arrow_and_a_frame(n):
    frames = ring_frames(n)
    assert len(frames) == 2 * n - 1
    for figure, caption in frames[1:]:
        arrows = figure.data[1]
        assert list(arrows.marker.symbol).count("triangle-down") == n + 1
        assert len(figure.layout.shapes) == n
        assert "rank 0 sends piece" in caption
    assert f"sent {2 * n - 2}/{n} of its buffer" in frames[-1][1]


def test_ring_frames_take_the_readers_own_numbers():
    figure, _ = ring_frames(2, [[1.5, 2], [3, 4]])[-1]
    assert [list(row) for row in figure.data[0].text] == [["4.5", "6"], ["4.5", "6"]]
    with pytest.raises(ValueError, match="values must be 3 rows of 3 numbers"):
        ring_frames(3, [[1, 2], [3, 4]])


# --- Costs ----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 6, 8])
def test_curves_are_the_costs(ranks):
    figure = figures.time_against_size(ranks, NVLINK4)
    assert {t.name for t in figure.data} == {LOOK[a][0] for a in algorithms("all_reduce")}
    for trace, algorithm in zip(figure.data, algorithms("all_reduce"), strict=True):
        predicted = [
            cost("all_reduce", algorithm, ranks, m).seconds(NVLINK4) for m in trace.x
        ]
        assert np.allclose(trace.y, predicted, rtol=1e-9)
        assert re.search(r"KiB in [\d.]+ µs", trace.hovertext[10])


def test_the_map_names_the_fastest_at_every_place():
    figure = figures.map_of_fastest(NVLINK4, most_ranks=64, low_bytes=KIB, high_bytes=GIB)
    grid = figure.data[0]
    names = [t.name for t in figure.data[1:]]
    for row, ranks in enumerate([2, 4, 8, 16, 32, 64]):
        for column in range(21):
            best = fastest("all_reduce", ranks, KIB * 2**column, NVLINK4)
            drawn = cost_of(names[grid.z[row][column]], ranks, KIB * 2**column)
            assert drawn == pytest.approx(cost_of(LOOK[best][0], ranks, KIB * 2**column))


def cost_of(name: str, ranks: int, nbytes: float) -> float:
    algorithm = next(a for a, look in LOOK.items() if look[0] == name)
    return cost("all_reduce", algorithm, ranks, nbytes).seconds(NVLINK4)


def test_two_level_algorithms_appear_beyond_one_node():
    assert "hierarchical" not in algorithms_for("all_reduce", 8, DGX_H100)
    assert "hierarchical" in algorithms_for("all_reduce", 16, DGX_H100)
    assert "hierarchical" not in algorithms_for("all_gather", 16, DGX_H100)
    figure = figures.time_against_size(16)
    assert "2 x DGX H100" in figure.layout.title.text


def test_cost_figures_name_a_bad_argument():
    with pytest.raises(ValueError, match="ranks must be 2 or more, not 1"):
        figures.time_against_size(1)
    with pytest.raises(ValueError, match="low_bytes must be"):
        figures.map_of_fastest(low_bytes=10, high_bytes=1)
    with pytest.raises(ValueError, match="algorithms must be among"):
        figures.time_against_size(8, algorithms=["rings"])
    with pytest.raises(ValueError, match="none of .* applies to 8 ranks"):
        figures.time_against_size(8, algorithms=["hierarchical"])


# --- The theme ------------------------------------------------------------------------


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_every_cell():
    cells = [theme.CARD, theme.EMPTY, COMPLETE]
    cells += [theme.tint(theme.rank_color(r), 0.35) for r in range(8)]
    cells += [theme.tint(theme.BLUE, 0.08 + 0.5 * k / 16) for k in range(1, 16)]
    assert min(contrast(theme.INK, cell) for cell in cells) >= 4.5
    assert contrast(theme.MUTED, theme.CARD) >= 4.5


def test_ranks_have_colours_that_differ_in_hue_or_lightness():
    colors = [theme.rank_color(r) for r in range(8)]
    assert len(set(colors)) == 8
    rgb = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors]
    hls = [colorsys.rgb_to_hls(*c) for c in rgb]
    for i, a in enumerate(hls):
        for b in hls[:i]:
            assert abs(a[0] - b[0]) > 0.02 or abs(a[1] - b[1]) > 0.15


def test_axes_name_their_ticks():
    sizes = theme.bytes_axis(KIB, GIB)
    assert sizes["ticktext"][0] == "1 KiB" and "4 MiB" in sizes["ticktext"]
    assert sizes["type"] == "log" and len(sizes["ticktext"]) <= 8
    times = theme.seconds_axis(2e-6, 0.5)
    assert {"10 µs", "1 ms", "1 s"} <= set(times["ticktext"])
    assert theme.rank_axis(64)["ticktext"][:2] == ["rank 0", "rank 4"]
    with pytest.raises(ValueError, match="low and high"):
        theme.bytes_axis(0, 8)
    with pytest.raises(ValueError, match="ranks must be 1 or more"):
        theme.rank_axis(0)
    with pytest.raises(ValueError, match="share must be from 0 to 1"):
        theme.tint(theme.BLUE, 2)


def test_a_title_becomes_one_line_of_text():
    figure = theme.new_figure("<b>Ring</b> on<br>4 ranks<sup>1</sup>")
    assert theme.title_of(figure) == "Ring on 4 ranks1"
