"""What a learner is told when ranks do not fit together. Nothing hangs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course import World
from course.worlds import Deadlock, Mismatch, RankError
from tests.rank_functions import mistakes

SAME_CALLS = "Rule: every rank of a group makes the same calls, in the same order."
SEND_RECV = "Rule: each send needs one recv with the same peer, group and tag"
NEW_GROUP = "Rule: every rank of the world calls new_group for every group"
ONES = "torch.ones(2)"

# {mistake: (error, the rank that is named, what the message says)}
REPORTS = {
    "only_rank_0_reduces": (
        Deadlock,
        None,
        "nobody can go on",
        "rank 0 waits in all_reduce of float32 [4], sum",
        "in only_rank_0_reduces: dist.all_reduce(torch.ones(4))",
        "rank 1 has returned",
        "all_reduce of ranks 0 and 1 is not called by rank 1. "
        "A collective needs every rank of its group.",
    ),
    "only_rank_0_reduces_then_all_meet": (
        Mismatch,
        1,
        "different calls where ranks 0 and 1 must make the same one "
        "(their collective number 1)",
        "rank 0 calls all_reduce of float32 [4], sum",
        "dist.all_reduce(torch.ones(4))",
        "rank 1 calls barrier",
        "dist.barrier()",
        SAME_CALLS,
    ),
    "both_send_first": (
        Deadlock,
        None,
        "rank 0 waits in send to rank 1 of float32 [2]",
        "rank 1 waits in send to rank 0 of float32 [2]",
        "dist.send(torch.ones(2), 1 - me())",
        "Let one side receive first, or use isend and wait later.",
    ),
    "both_recv_first": (
        Deadlock,
        None,
        "rank 0 waits in recv from rank 1 of float32 [2]",
        "rank 1 waits in recv from rank 0 of float32 [2]",
        "Each of them waits to receive, and nobody sends. Let one side send first.",
    ),
    "wrong_tag": (
        Deadlock,
        None,
        "rank 0 waits in send to rank 1 of float32 [2], tag 1",
        f"dist.send({ONES}, 1, tag=1)",
        f"dist.recv({ONES}, 0, tag=2)",
        "rank 0 sends with tag 1, rank 1 receives tag 2: they never meet.",
    ),
    "other_shape": (
        Mismatch,
        1,
        "rank 0 calls all_reduce of float32 [4], sum",
        "rank 1 calls all_reduce of float32 [5], sum",
        "dist.all_reduce(torch.ones(4 + me()))",
        "Rule: all ranks bring tensors of the same shape.",
    ),
    "other_dtype": (
        Mismatch,
        1,
        "rank 0 calls all_reduce of float32 [4], sum",
        "rank 1 calls all_reduce of float64 [4], sum",
        "Rule: all ranks bring tensors of the same dtype.",
    ),
    "other_root": (
        Mismatch,
        1,
        "rank 0 calls broadcast of float32 [4], root 0",
        "rank 1 calls broadcast of float32 [4], root 1",
        "Rule: all ranks name the same root",
    ),
    "other_op": (
        Mismatch,
        1,
        "rank 0 calls all_reduce of float32 [4], sum",
        "rank 1 calls all_reduce of float32 [4], max",
        "Rule: all ranks give the same op.",
    ),
    "other_order": (
        Mismatch,
        1,
        "rank 0 calls broadcast of float32 [2], root 0",
        "dist.broadcast(y, 0)",
        "rank 1 calls all_reduce of float32 [2], sum",
        "dist.all_reduce(x)",
        SAME_CALLS,
    ),
    "groups_in_another_order": (
        Deadlock,
        None,
        "rank 0 waits in all_reduce of float32 [2], sum, in group 2 (ranks 0 and 1)",
        "rank 1 waits in all_reduce of float32 [2], sum, in group 1 (ranks 0 and 1)",
        "They use their groups in different orders:",
        "rank 0 is in group 2 (ranks 0 and 1), made here",
        "second = dist.new_group()",
        "first = dist.new_group()",
        "Rule: ranks that share groups use them in the same order.",
    ),
    "send_in_another_group": (
        Deadlock,
        None,
        "dist.send(torch.ones(2), 1, group=pair)",
        "dist.recv(torch.ones(2), 0)",
        "rank 0 sends in group 1 (ranks 0 and 1), rank 1 receives in the world: "
        "they never meet.",
    ),
    "other_ranks_in_new_group": (
        Mismatch,
        1,
        "different calls of new_group where all ranks must make the same one",
        "rank 0 calls it for rank 0",
        "rank 1 calls it for ranks 0 and 1",
        "dist.new_group([0, 1] if me() else [0])",
        NEW_GROUP,
    ),
    "new_group_of_rank_0_only": (
        Mismatch,
        1,
        "rank 1 never called new_group for group 1 (ranks 0 and 1), which rank 0 did",
        "dist.new_group([0, 1])",
        NEW_GROUP,
    ),
    "new_group_of_rank_0_only_in_use": (
        Deadlock,
        None,
        "rank 1 never called new_group for group 1 (ranks 0 and 1), which rank 0 did",
        "group = dist.new_group([0, 1]) if me() == 0 else None",
    ),
    "isend_that_nobody_receives": (
        Mismatch,
        0,
        "the run is over, but a message was never received",
        "rank 0 calls send to rank 1 of float32 [2]",
        "dist.isend(torch.ones(2), 1)",
        SEND_RECV,
    ),
    "send_that_nobody_receives": (
        Deadlock,
        None,
        "rank 0 waits in send to rank 1 of float32 [2]",
        "rank 1 has returned without receiving from rank 0.",
    ),
    "irecv_that_nobody_answers": (
        Mismatch,
        0,
        "the run is over, but a recv got nothing",
        "dist.irecv(torch.ones(2), 1)",
        SEND_RECV,
    ),
    "recv_from_any_rank_that_nobody_answers": (
        Deadlock,
        None,
        "rank 0 waits in recv from any rank of float32 [2]",
        "rank 0 waits for a message from any rank, and nobody sends one.",
    ),
    "asynchronous_and_never_joined": (
        Mismatch,
        0,
        "the run is over, but rank 1 never joined a collective",
        "dist.all_reduce(torch.ones(2), async_op=True)",
        SAME_CALLS,
    ),
    "rank_1_returns_early": (
        Deadlock,
        None,
        "rank 1 has returned",
        "all_reduce of ranks 0 and 1 is not called by rank 1.",
    ),
    "recv_with_the_wrong_size": (
        Mismatch,
        1,
        "the message from rank 0 to rank 1 does not fit",
        "rank 0 calls send to rank 1 of float32 [3]",
        "dist.send(torch.ones(3), 1)",
        "rank 1 calls recv from rank 0 of float32 [2]",
        "dist.recv(torch.ones(2), 0)",
        "Rule: both must have the same dtype and as many elements.",
    ),
    "recv_with_the_wrong_dtype": (
        Mismatch,
        1,
        "rank 0 calls send to rank 1 of float32 [3]",
        "rank 1 calls recv from rank 0 of int32 [3]",
    ),
    "splits_that_do_not_agree": (
        Mismatch,
        1,
        "the pieces of an all_to_all do not fit",
        "rank 0 calls all_to_all of float32, sends [1, 3] elements, receives [1, 2]",
        "rank 1 calls all_to_all of float32, sends [2, 2] elements, receives [2, 2]",
        "rank 0 sends 3 to rank 1, which expects 2",
    ),
    "list_too_short": (
        RankError,
        0,
        "all_gather: tensor_list must hold a tensor for each of the 2 ranks, not 1",
        "dist.all_gather([torch.ones(2)], torch.ones(2))",
    ),
    "list_with_a_wrong_shape": (
        RankError,
        0,
        "scatter: scatter_list[1] must have the shape [2] of this rank's tensor, not [3]",
    ),
    "peer_that_is_not_there": (
        RankError,
        0,
        "send: there is no rank 5 among the 2 of the group",
        "dist.send(torch.ones(2), 5)",
    ),
    "transposed_send": (
        RankError,
        0,
        "send: the tensor must be contiguous; this one of shape [3, 2] has strides [1, 3]",
        "Use x.contiguous()",
    ),
}


def report(function, ranks: int = 2, **options) -> RankError:
    with pytest.raises(RankError) as caught:
        World(ranks, **options).run(function)
    return caught.value


@pytest.mark.parametrize("name", REPORTS)
def test_report(name):
    kind, rank, *texts = REPORTS[name]
    error = report(getattr(mistakes, name))
    assert type(error) is kind
    assert error.rank == rank
    for text in texts:
        assert text in str(error), str(error)
    if kind is not RankError:  # the line itself, and not one of torch's
        assert "rank_functions/mistakes.py line " in str(error)
        assert "site-packages" not in str(error)


def test_ring_in_which_all_send_first():
    text = str(report(mistakes.ring_of_sends, 3))
    for rank in range(3):
        assert f"rank {rank} waits in send to rank {(rank + 1) % 3} of float32 [2]" in text
    assert "Let one side receive first, or use isend and wait later." in text


def test_wrong_peer():
    text = str(report(mistakes.wrong_peer, 3))
    assert "rank 0 sends to rank 1, which waits for rank 2: they never meet." in text
    assert "rank 2 has returned without sending to rank 1." in text


def test_one_of_four_takes_another_way():
    text = str(report(mistakes.one_of_four_takes_another_way, 4))
    assert "rank 2 waits in send to rank 0 of float32 [1]" in text
    assert "all_reduce of ranks 0-3 is not called by rank 2." in text


def test_every_mistake_leaves_the_next_run_alone():
    def total():
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    with World(2) as world:
        for name in REPORTS:
            with pytest.raises(RankError):
                world.run(getattr(mistakes, name))
            assert world.run(total).results == [2.0, 2.0]
