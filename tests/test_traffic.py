"""The heatmap holds the bytes of each link, sender by row."""

from dataclasses import replace

import numpy as np
import pytest

from course.costs.topology import Cluster
from course.facts import DGX_H100
from course.figures.traffic import by_node, link_matrix, traffic
from course.worlds.run import NotMetered
from tests.runs_by_hand import MIB, data_parallel, pipeline, ring

TWO_NODES = Cluster(replace(DGX_H100, gpus=4, nics=4), 2)


def test_a_ring_fills_the_cells_to_the_right_neighbour():
    run = ring(4, chunk_bytes=MIB)
    expected = 6 * MIB * np.roll(np.eye(4), 1, axis=1)
    assert np.array_equal(link_matrix(run), expected)
    (heat,) = traffic(run).data
    shown = np.array(heat.z)
    assert np.isnan(np.diag(shown)).all()
    assert shown[0, 1] == 6 and shown[3, 0] == 6 and shown[1, 0] == 0
    assert heat.colorbar.title.text == "MiB"


def test_rows_send_and_columns_receive():
    (heat,) = traffic([[0, 1024, 2048], [0, 0, 4096], [0, 0, 0]]).data
    assert heat.hovertext[0][2].split("<br>") == [
        "<b>2 KiB</b> from rank 0 to rank 2",
        "rank 0 sends 3 KiB in all",
        "rank 2 receives 6 KiB in all",
    ]


def test_a_pipeline_talks_to_its_neighbours_only():
    # 6 micro-batches of 8 MiB go down, and as many come up
    up, down = np.eye(4, k=-1), np.eye(4, k=1)
    assert np.array_equal(link_matrix(pipeline(4)), 48 * MIB * (up + down))


def test_rank_0_is_at_the_top():
    low, high = traffic(ring(4)).layout.yaxis.range
    assert low > high
    across = traffic(ring(4)).layout.xaxis.range
    assert across[0] < across[1]


def test_numbers_stand_in_cells_up_to_ten_ranks():
    (heat,) = traffic(ring(10, chunk_bytes=1000)).data
    assert heat.text[0][1] == "17.6" and heat.text[1][0] == "" and heat.text[0][0] == ""
    (heat,) = traffic(ring(11)).data
    assert heat.text is None and heat.texttemplate is None


@pytest.mark.parametrize(
    "most, unit", [(1, "B"), (1023, "B"), (2**10, "KiB"), (2**31, "GiB"), (2**41, "TiB")]
)
def test_units(most, unit):
    (heat,) = traffic([[0, most], [0, 0]]).data
    assert heat.colorbar.title.text == unit


def test_by_node_adds_up_and_keeps_the_total():
    run = ring(8)
    total = by_node(link_matrix(run), TWO_NODES)
    assert np.array_equal(total, 14 * MIB * np.array([[3, 1], [1, 3]]))
    (heat,) = traffic(run, by="node", cluster=TWO_NODES).data
    assert np.array(heat.z).sum() == pytest.approx(8 * 14)


def test_node_borders_lie_between_ranks_3_and_4():
    shapes = traffic(ring(8), cluster=TWO_NODES).layout.shapes
    assert {(s.x0, s.x1) for s in shapes} == {(3.5, 3.5), (-0.5, 7.5)}
    assert not traffic(ring(4), cluster=TWO_NODES).layout.shapes


def test_no_traffic_is_a_pale_field():
    (heat,) = traffic(np.zeros((3, 3))).data
    assert heat.zmax == 1


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"sent": [[1, 2]]}, "square"),
        ({"sent": [[0, -1], [0, 0]]}, "0 or more"),
        ({"sent": [[0]], "by": "rack"}, "by must be"),
        ({"sent": [[0]], "by": "node"}, "cluster"),
        ({"sent": np.zeros((9, 9)), "cluster": TWO_NODES}, "cluster has 8 ranks"),
    ],
)
def test_bad_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        traffic(wrong.pop("sent"), **wrong)


def test_a_run_whose_messages_were_not_seen_is_refused():
    with pytest.raises(NotMetered, match="record=True"):
        traffic(data_parallel(2))
