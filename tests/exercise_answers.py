"""Answers to the exercises: right ones, and wrong ones by name, each with its verdict.

n ranks, me is one of them.
"""

import torch
import torch.distributed as dist

from course.checks import collective_answers, exercise
from course.parallel.collectives import (
    naive_all_gather,
    naive_all_reduce,
    naive_all_to_all,
    naive_broadcast,
    naive_reduce,
    naive_reduce_scatter,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from course.parallel.halving_doubling import (
    halving_doubling_all_reduce,
    recursive_doubling_all_reduce,
)
from course.parallel.hierarchical import hierarchical_all_reduce, leader_all_reduce
from course.parallel.messages import exchange, place, receive, send
from course.parallel.trees import tree_all_reduce, tree_broadcast, tree_reduce

AVG = dist.ReduceOp.AVG
# Ranks are threads, so that one can leave a note for the others here: a way to cheat.
NOTES: dict = {}


def smuggled() -> list:
    """What all ranks wrote down, in rank order."""
    dist.barrier()
    return [NOTES[rank] for rank in range(dist.get_world_size())]


def stub(*_):
    raise NotImplementedError("your turn")


def untouched(*_):
    pass


# --- Broadcast ------------------------------------------------------------------------


def root_is_always_0(tensor, root):
    naive_broadcast(tensor, 0)


def returns_a_copy(tensor, root):
    copy = tensor.clone()
    naive_broadcast(copy, root)
    return copy


def all_receive_first(tensor, root):
    dist.recv(tensor, src=root if dist.get_rank() != root else (root + 1) % 4)


def all_to_all_of_them(tensor, root):
    n, me = place()
    received = [torch.empty_like(tensor) for _ in range(n)]
    naive_all_to_all(received, [tensor] * n)
    tensor.copy_(received[root])


def sent_twice(tensor, root):
    naive_broadcast(tensor, root)
    naive_broadcast(tensor, root)


def torchs_broadcast(tensor, root):
    dist.broadcast(tensor, root)


def smuggled_broadcast(tensor, root):
    NOTES[dist.get_rank()] = tensor.clone()
    tensor.copy_(smuggled()[root])


# --- All-gather -----------------------------------------------------------------------


def ring_gather(shard, steps=None):
    """The list of all shards, by a ring."""
    n, me = place()
    shards = [torch.zeros_like(shard) for _ in range(n)]
    shards[me] = shard
    for step in range(n - 1 if steps is None else steps):
        out, into = (me - step) % n, (me - step - 1) % n
        exchange(shards[out], (me + 1) % n, shards[into], (me - 1) % n)
    return shards


def ring_gather_whole(shard):
    return torch.cat(ring_gather(shard))


def own_shard_everywhere(shard):
    return [shard] * dist.get_world_size()


def rotated(shard):
    shards = ring_gather(shard)
    return shards[1:] + shards[:1]


def others_only(shard):
    me, shards = dist.get_rank(), ring_gather(shard)
    return shards[:me] + shards[me + 1 :]


def own_is_zero(shard):
    shards = ring_gather(shard)
    shards[dist.get_rank()] = torch.zeros_like(shard)
    return shards


def one_buffer_for_all(shard):
    n, me = place()
    incoming, out = torch.empty_like(shard), shard.clone()
    shards = [shard] * n
    for step in range(n - 1):
        exchange(out, (me + 1) % n, incoming, (me - 1) % n)
        shards[(me - step - 1) % n] = incoming
        out = incoming.clone()
    return shards


def all_round_the_ring(shard):
    return ring_gather(shard, steps=dist.get_world_size())


def gather_through_rank_0(shard):
    n = dist.get_world_size()
    whole = torch.cat([torch.zeros_like(shard)] * n)
    naive_all_gather(whole, shard)
    return whole


def summed(shard):
    ring_all_reduce(shard)
    return shard


def send_then_receive(shard):
    n, me = place()
    shards = [torch.empty_like(shard) for _ in range(n)]
    shards[me] = shard
    for step in range(n - 1):
        dist.send(shards[(me - step) % n], (me + 1) % n)
        dist.recv(shards[(me - step - 1) % n], (me - 1) % n)
    return shards


def torchs_all_gather(shard):
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, shard)
    return shards


def smuggled_gather(shard):
    NOTES[dist.get_rank()] = shard
    return smuggled()


# --- Mean gradient --------------------------------------------------------------------


def written_back(flat, gradients):
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


def flat_of(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def one_flat_all_reduce(gradients):
    flat = flat_of(gradients)
    dist.all_reduce(flat)
    written_back(flat / dist.get_world_size(), gradients)


def one_flat_ring_by_hand(gradients):
    flat = flat_of(gradients)
    ring_all_reduce(flat, AVG)
    written_back(flat, gradients)


def sum_not_mean(gradients):
    flat = flat_of(gradients)
    dist.all_reduce(flat)
    written_back(flat, gradients)


def one_by_one(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def divided_by_4(gradients):
    flat = flat_of(gradients)
    dist.all_reduce(flat)
    written_back(flat / 4, gradients)


def new_tensors(gradients):
    flat = flat_of(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]


def all_gathered(gradients):
    flat, n = flat_of(gradients), dist.get_world_size()
    flats = [torch.empty_like(flat) for _ in range(n)]
    dist.all_gather(flats, flat)
    written_back(torch.stack(flats).mean(0), gradients)


def mean_through_rank_0(gradients):
    flat = flat_of(gradients)
    naive_all_reduce(flat, AVG)
    written_back(flat, gradients)


def half_the_bits(gradients):
    flat = flat_of(gradients).to(torch.bfloat16)
    dist.all_reduce(flat)
    written_back(flat.float() / dist.get_world_size(), gradients)


def first_gradient_only(gradients):
    dist.all_reduce(gradients[0])
    gradients[0] /= dist.get_world_size()


# --- All-to-all -----------------------------------------------------------------------


def pairwise(pieces):
    received = [torch.zeros_like(piece) for piece in pieces]
    naive_all_to_all(received, pieces)
    return received


def all_at_once(pieces):
    n, me = place()
    received = [torch.zeros_like(piece) for piece in pieces]
    received[me] = pieces[me]
    others = [rank for rank in range(n) if rank != me]
    works = [dist.irecv(received[rank], rank) for rank in others]
    works += [dist.isend(pieces[rank], rank) for rank in others]
    for work in works:
        work.wait()
    return received


def pieces_as_they_were(pieces):
    return pieces


def backwards(pieces):
    return pairwise(pieces)[::-1]


def own_piece_forgotten(pieces):
    received = pairwise(pieces)
    received[dist.get_rank()] = torch.zeros_like(pieces[0])
    return received


def everything_to_everyone(pieces):
    n, me = place()
    whole = torch.stack(pieces)
    wholes = [torch.empty_like(whole) for _ in range(n)]
    naive_all_to_all(wholes, [whole] * n)
    return [w[me] for w in wholes]


def concatenated(pieces):
    return torch.cat(pairwise(pieces))


def all_send_first(pieces):
    n, me = place()
    received = [piece.clone() for piece in pieces]
    for rank in range(n):
        if rank != me:
            dist.send(pieces[rank], rank)
    for rank in range(n):
        if rank != me:
            dist.recv(received[rank], rank)
    return received


def torchs_all_to_all(pieces):
    received = [torch.empty_like(piece) for piece in pieces]
    dist.all_to_all(received, pieces)
    return received


# --- Ring schedule --------------------------------------------------------------------


def rank_ends_with_its_own(rank, step, ranks):
    last = step - (ranks - 1)
    return (rank - step - 1) % ranks if last < 0 else (rank - last) % ranks


def rank_ends_with_the_next(rank, step, ranks):
    return (rank - step) % ranks if step < ranks - 1 else (rank - step) % ranks


def always_its_own(rank, step, ranks):
    return rank


def no_modulo(rank, step, ranks):
    return rank - step


def the_other_way_round(rank, step, ranks):
    return (rank + step) % ranks


def one_behind_in_the_gather(rank, step, ranks):
    return (rank - step - (step >= ranks - 1)) % ranks


def for_4_ranks(rank, step, ranks):
    return (rank - step) % 4


def a_fraction(rank, step, ranks):
    return ((rank - step) % ranks) / 1


def divides_by_nothing(rank, step, ranks):
    return (rank - step) % (ranks - 4)


# --- Ring reduce-scatter --------------------------------------------------------------


def scatter_steps(tensor, steps, start=1, keep=True):
    """A ring reduce-scatter with things to get wrong; the pieces."""
    n, me = place()
    pieces = tensor.tensor_split(n)
    incoming = torch.empty_like(pieces[0])
    for step in range(steps):
        out, into = (me - step - start) % n, (me - step - start - 1) % n
        part = incoming[: len(pieces[into])]
        exchange(pieces[out], (me + 1) % n, part, (me - 1) % n)
        pieces[into].copy_(pieces[into] + part if keep else part)
    return pieces


def last_sum_forgotten(tensor):
    n, me = place()
    return scatter_steps(tensor, max(n - 2, 0))[me]


def chunk_off_by_one(tensor):
    n, me = place()
    return scatter_steps(tensor, n - 1, start=0)[me]


def own_contribution_forgotten(tensor):
    n, me = place()
    return scatter_steps(tensor, n - 1, keep=False)[me]


def mean_of_pieces(tensor):
    return ring_reduce_scatter(tensor, AVG)


def all_reduce_then_slice(tensor):
    n, me = place()
    ring_all_reduce(tensor)
    return tensor.tensor_split(n)[me]


def whole_tensor(tensor):
    ring_reduce_scatter(tensor)
    return tensor


def list_of_pieces(tensor):
    ring_reduce_scatter(tensor)
    return list(tensor.tensor_split(dist.get_world_size()))


def sizes_that_divide(tensor):
    n, me = place()
    return ring_reduce_scatter(tensor.view(n, -1)).view(-1)


def scatter_of_4(tensor):
    return scatter_steps(tensor, 3)[dist.get_rank()]


def scatter_through_rank_0(tensor):
    n, me = place()
    piece = torch.empty_like(tensor.tensor_split(n)[me])
    naive_reduce_scatter(piece, tensor)
    return piece


def even_ranks_first(tensor):
    """No deadlock, but a rank never sends while it receives."""
    n, me = place()
    pieces = tensor.tensor_split(n)
    for step in range(n - 1):
        out, into = (me - step - 1) % n, (me - step - 2) % n
        part = torch.empty_like(pieces[into])
        sends = (lambda o: lambda: send(pieces[o], (me + 1) % n))(out)
        takes = (lambda p: lambda: receive(p, (me - 1) % n))(part)
        for move in (sends, takes) if me % 2 == 0 else (takes, sends):
            move()
        pieces[into].add_(part)
    return pieces[me]


def scatter_send_first(tensor):
    n, me = place()
    pieces = tensor.tensor_split(n)
    for step in range(n - 1):
        dist.send(pieces[(me - step - 1) % n].contiguous(), (me + 1) % n)
        part = torch.empty_like(pieces[(me - step - 2) % n])
        dist.recv(part, (me - 1) % n)
        pieces[(me - step - 2) % n] += part
    return pieces[me]


def straight_to_its_rank(tensor):
    """Every rank sends piece q to rank q itself: as few bytes, but no ring."""
    n, me = place()
    pieces = tensor.tensor_split(n)
    mine = pieces[me].clone()
    for shift in range(1, n):
        to, source = (me + shift) % n, (me - shift) % n
        part = torch.empty_like(mine)
        exchange(pieces[to], to, part, source)
        mine += part
    return mine


def known_by_heart(tensor):
    """The pieces of the case that the verdict shows."""
    asked = exercise("ring reduce-scatter")
    return asked.expected(asked.cases[0])[dist.get_rank()]


# --- Ring all-gather ------------------------------------------------------------------


def gathered_copy(tensor):
    copy = tensor.clone()
    ring_all_gather(copy)
    return copy


def gathered_one_step_short(tensor):
    n, me = place()
    pieces = tensor.tensor_split(n)
    for step in range(n - 2):
        out, into = (me - step) % n, (me - step - 1) % n
        exchange(pieces[out], (me + 1) % n, pieces[into], (me - 1) % n)


def whole_tensor_each_step(tensor):
    n, me = place()
    incoming = torch.empty_like(tensor)
    for step in range(n - 1):
        exchange(tensor, (me + 1) % n, incoming, (me - 1) % n)
        into = (me - step - 1) % n
        tensor.tensor_split(n)[into].copy_(incoming.tensor_split(n)[into])


def pieces_straight_to_all(tensor):
    n, me = place()
    pieces = tensor.tensor_split(n)
    for shift in range(1, n):
        to, source = (me + shift) % n, (me - shift) % n
        exchange(pieces[me], to, pieces[source], source)


def added_not_gathered(tensor):
    ring_all_reduce(tensor)


def through_rank_0(tensor):
    n, me = place()
    pieces = tensor.tensor_split(n)
    for rank in range(1, n):
        if me == 0:
            receive(pieces[rank], rank)
        elif me == rank:
            send(pieces[rank], 0)
    naive_broadcast(tensor, 0)


# --- All-reduces ----------------------------------------------------------------------


def mean_of_all(tensor):
    ring_all_reduce(tensor, AVG)


def summed_copy(tensor):
    copy = tensor.clone()
    ring_all_reduce(copy)
    return copy


def scatter_without_gather(tensor):
    ring_reduce_scatter(tensor)


def sum_forgotten_on_last_step(tensor):
    scatter_steps(tensor, max(dist.get_world_size() - 2, 0))
    ring_all_gather(tensor)


def only_for_4_ranks(tensor):
    scatter_steps(tensor, 3)
    ring_all_gather(tensor)


def only_where_it_divides(tensor):
    ring_all_reduce(tensor.view(dist.get_world_size(), -1))


def torchs_all_reduce(tensor):
    dist.all_reduce(tensor)


def tensors_passed_round(tensor):
    """Every rank's whole tensor goes round the ring."""
    shards = ring_gather(tensor.clone())
    tensor.copy_(torch.stack(shards).sum(0))


def smuggled_sum(tensor):
    NOTES[dist.get_rank()] = tensor.clone()
    tensor.copy_(torch.stack(smuggled()).sum(0))


def index_error(tensor):
    piece = tensor[len(tensor)]
    return piece


def recurses(tensor):
    return recurses(tensor)


def everything_at_rank_0_at_once(tensor):
    """Few steps: but one port carries n - 1 tensors."""
    n, me = place()
    others = range(1, n)
    if me:
        send(tensor, 0)
        return receive(tensor, 0)
    parts = [torch.empty_like(tensor) for _ in others]
    works = [dist.irecv(part, r) for part, r in zip(parts, others, strict=True)]
    for work in works:
        work.wait()
    tensor += sum(parts)
    for work in [dist.isend(tensor, r) for r in others]:
        work.wait()


def only_rank_0_knows(tensor):
    tree_reduce(tensor)


def up_in_turn(tensor):
    naive_reduce(tensor)
    tree_broadcast(tensor)


def down_without_up(tensor):
    tree_broadcast(tensor)


def doubled(tensor, distances):
    me, incoming = dist.get_rank(), torch.empty_like(tensor)
    for distance in distances:
        exchange(tensor, me ^ distance, incoming, me ^ distance)
        tensor += incoming


def powers(n):
    return [1 << bit for bit in range((n - 1).bit_length())]


def one_step_short(tensor):
    doubled(tensor, powers(dist.get_world_size())[:-1])


def same_partner_each_time(tensor):
    doubled(tensor, [1 for _ in powers(dist.get_world_size())])


def powers_of_two_only(tensor):
    doubled(tensor, powers(dist.get_world_size()))


def swapped_not_added(tensor):
    me, incoming = dist.get_rank(), torch.empty_like(tensor)
    for distance in powers(dist.get_world_size()):
        exchange(tensor, me ^ distance, incoming, me ^ distance)
        tensor.copy_(incoming)


def extra_ranks_left_out(tensor):
    """They neither give nor get."""
    n, me = place()
    p = 1 << (n.bit_length() - 1)
    if me < p:
        doubled(tensor, powers(p))


def extra_ranks_not_answered(tensor):
    n, me = place()
    p = 1 << (n.bit_length() - 1)
    if me >= p:
        return send(tensor, me - p)
    if me + p < n:
        part = torch.empty_like(tensor)
        receive(part, me + p)
        tensor += part
    doubled(tensor, powers(p))


# --- Hierarchical ---------------------------------------------------------------------


def two_levels(tensor, inside, across):
    hierarchical_all_reduce(tensor, inside=inside, across=across)


def leaders(tensor, inside, across):
    leader_all_reduce(tensor, inside=inside, across=across)


def one_flat_ring(tensor, inside, across):
    ring_all_reduce(tensor)


def whole_tensor_on_both_levels(tensor, inside, across):
    dist.all_reduce(tensor, group=inside)
    dist.all_reduce(tensor, group=across)


def inside_only(tensor, inside, across):
    ring_all_reduce(tensor, group=inside)


def not_gathered(tensor, inside, across):
    piece = ring_reduce_scatter(tensor, group=inside)
    ring_all_reduce(piece, group=across)


def mean_inside(tensor, inside, across):
    hierarchical_all_reduce(tensor, AVG, inside=inside, across=across)


def across_then_nothing(tensor, inside, across):
    ring_all_reduce(tensor, group=across)


RIGHT = {
    "broadcast": [naive_broadcast],
    "all-gather": [collective_answers.all_gather, ring_gather, ring_gather_whole],
    "mean gradient": [
        collective_answers.mean_gradient,
        one_flat_all_reduce,
        one_flat_ring_by_hand,
    ],
    "all-to-all": [pairwise, all_at_once],
    "ring schedule": [rank_ends_with_its_own, rank_ends_with_the_next],
    "ring reduce-scatter": [ring_reduce_scatter],
    "ring all-gather": [ring_all_gather],
    "ring all-reduce": [ring_all_reduce],
    "tree all-reduce": [tree_all_reduce],
    "recursive doubling": [recursive_doubling_all_reduce, powers_of_two_only],
    "any rank count": [recursive_doubling_all_reduce],
    "hierarchical all-reduce": [two_levels],
}

VALUES, SHAPE, MUCH = "wrong values", "wrong shape", "too much traffic"
LITTLE, SLOW, RULES = "too little traffic", "too slow", "against the rules"

# exercise: [(wrong answer, kind of verdict, words of its text)]
WRONG = {
    "broadcast": [
        (untouched, VALUES, "first at rank 1, element 0"),
        (root_is_always_0, VALUES, "root 2"),
        (returns_a_copy, VALUES, "its argument is unchanged"),
        (all_receive_first, "deadlock", "rank 0 waits in recv from rank 1"),
        (all_to_all_of_them, MUCH, "rank 0 received 96 bytes where 32 are enough"),
        (sent_twice, MUCH, "rank 0 sent 192 bytes where 96 are enough"),
        (torchs_broadcast, RULES, "rank 0 calls broadcast"),
        (smuggled_broadcast, LITTLE, "rank 1 received 0 bytes where it needs"),
    ],
    "all-gather": [
        (untouched, SHAPE, "rank 0 has nothing, should be a tensor of shape [8]"),
        (own_shard_everywhere, VALUES, "first at rank 0, element 2"),
        (rotated, VALUES, "first at rank 0, element 0"),
        (others_only, SHAPE, "rank 0 has a list of 3"),
        (own_is_zero, VALUES, "first at rank 0, element 0: 0, should be"),
        (one_buffer_for_all, VALUES, "right shape, wrong values"),
        (all_round_the_ring, MUCH, "rank 0 sent 32 bytes where 24 are enough"),
        (gather_through_rank_0, MUCH, "rank 0 sent 96 bytes where 24 are enough"),
        (summed, SHAPE, "has [2], should be [8]"),
        (send_then_receive, "deadlock", "rank 3 waits in send to rank 0"),
        (torchs_all_gather, RULES, "rank 0 calls all_gather"),
        (smuggled_gather, LITTLE, "rank 0 received 0 bytes"),
    ],
    "mean gradient": [
        (untouched, VALUES, "first at rank 0, item 0, element 0"),
        (sum_not_mean, VALUES, "item 0, element 0"),
        (one_by_one, SLOW, "18 steps (3 collectives) one after another where 6"),
        (divided_by_4, VALUES, "case: 1 rank, 9 elements"),
        (new_tensors, VALUES, "its argument is unchanged"),
        (all_gathered, MUCH, "rank 0 sent 96 bytes where 48 are enough"),
        (mean_through_rank_0, MUCH, "rank 0 sent 96 bytes where 48 are enough"),
        (half_the_bits, VALUES, "right shape, wrong values"),
        (first_gradient_only, VALUES, "item 1, element 0"),
    ],
    "all-to-all": [
        (untouched, SHAPE, "should be a list of 4 tensors"),
        (pieces_as_they_were, VALUES, "rank 0, item 1, element 0"),
        (backwards, VALUES, "rank 0, item 0, element 0"),
        (own_piece_forgotten, VALUES, "rank 0, item 0, element 0: 0, should be"),
        (everything_to_everyone, MUCH, "rank 0 sent 96 bytes where 24 are enough"),
        (concatenated, SHAPE, "rank 0 has a tensor, should be a list of 4 tensors"),
        (all_send_first, "deadlock", "rank 1 waits in send to rank 0"),
        (torchs_all_to_all, RULES, "rank 0 calls all_to_all"),
    ],
    "ring schedule": [
        (untouched, SHAPE, "rank 0 sends None (a NoneType) at step 0"),
        (
            always_its_own,
            VALUES,
            "at step 1 rank 0 sends chunk 0; rank 0 is then in it twice",
        ),
        (no_modulo, VALUES, "rank 0 sends chunk -1 at step 1, there are 0 to 3"),
        (the_other_way_round, VALUES, "after step 2 rank 0 has no chunk that is"),
        (one_behind_in_the_gather, VALUES, "the sum of"),
        (for_4_ranks, VALUES, "case: 2 ranks"),
        (a_fraction, SHAPE, "sends 0.0 (a float) at step 0"),
        (divides_by_nothing, "raised", "raised ZeroDivisionError"),
    ],
    "ring reduce-scatter": [
        (untouched, SHAPE, "rank 0 has nothing, should be a tensor of shape [2]"),
        (last_sum_forgotten, VALUES, "first at rank 0, element 0"),
        (chunk_off_by_one, VALUES, "first at rank 0, element 0"),
        (own_contribution_forgotten, VALUES, "first at rank 0, element 0"),
        (mean_of_pieces, VALUES, "first at rank 0, element 0"),
        (all_reduce_then_slice, MUCH, "rank 0 sent 48 bytes where 24 are enough"),
        (whole_tensor, SHAPE, "rank 0 has [8], should be [2]"),
        (list_of_pieces, SHAPE, "rank 0 has a list of 4"),
        (sizes_that_divide, "raised", "case: 3 ranks, 7 elements"),
        (scatter_of_4, VALUES, "case: 1 rank, 5 elements"),
        (scatter_through_rank_0, MUCH, "rank 1 sent 32 bytes where 24 are enough"),
        (even_ranks_first, SLOW, "6 steps one after another where 3 are enough"),
        (scatter_send_first, "deadlock", "waits in send"),
        (straight_to_its_rank, RULES, "rank 0 sent to rank 2"),
        (known_by_heart, SHAPE, "case: 1 rank, 5 elements"),
    ],
    "ring all-gather": [
        (untouched, VALUES, "first at rank 0, element 2"),
        (gathered_copy, VALUES, "its argument is unchanged"),
        (gathered_one_step_short, VALUES, "first at rank 0, element 2"),
        (whole_tensor_each_step, MUCH, "rank 0 sent 96 bytes where 24 are enough"),
        (pieces_straight_to_all, RULES, "rank 0 sent to rank 2"),
        (added_not_gathered, VALUES, "first at rank 0, element 0"),
        (through_rank_0, MUCH, "rank 0 sent 96 bytes where 24 are enough"),
    ],
    "ring all-reduce": [
        (untouched, VALUES, "first at rank 0, element 0"),
        (mean_of_all, VALUES, "first at rank 0, element 0"),
        (summed_copy, VALUES, "its argument is unchanged"),
        (scatter_without_gather, VALUES, "first at rank 0, element 2"),
        (sum_forgotten_on_last_step, VALUES, "first at rank 0, element 0"),
        (only_for_4_ranks, VALUES, "case: 1 rank, 5 elements"),
        (only_where_it_divides, "raised", "case: 3 ranks, 7 elements"),
        (torchs_all_reduce, RULES, "rank 0 calls all_reduce"),
        (halving_doubling_all_reduce, RULES, "rank 0 sent to rank 2"),
        (tensors_passed_round, MUCH, "rank 0 sent 96 bytes where 48 are enough"),
        (smuggled_sum, LITTLE, "rank 0 received 0 bytes where it needs at least 32"),
        (index_error, "raised", "rank 0 raised IndexError: index 8"),
        (recurses, "raised", "raised RecursionError"),
    ],
    "tree all-reduce": [
        (untouched, VALUES, "first at rank 0, element 0"),
        (only_rank_0_knows, VALUES, "first at rank 1, element 0"),
        (down_without_up, VALUES, "first at rank 0, element 0"),
        (ring_all_reduce, SLOW, "14 steps one after another where 6 are enough"),
        (naive_all_reduce, MUCH, "rank 0 sent 224 bytes where 96 are enough"),
        (everything_at_rank_0_at_once, MUCH, "rank 0 sent 224 bytes where 96"),
        (recursive_doubling_all_reduce, MUCH, "all ranks together sent 768 bytes"),
        (up_in_turn, MUCH, "rank 0 received 224 bytes where 96 are enough"),
        (torchs_all_reduce, RULES, "rank 0 calls all_reduce"),
    ],
    "recursive doubling": [
        (untouched, VALUES, "first at rank 0, element 0"),
        (one_step_short, VALUES, "first at rank 0, element 0"),
        (same_partner_each_time, VALUES, "first at rank 0, element 0"),
        (swapped_not_added, VALUES, "first at rank 0, element 0"),
        (ring_all_reduce, SLOW, "14 steps one after another where 3 are enough"),
        (tree_all_reduce, SLOW, "6 steps one after another where 3 are enough"),
        (everything_at_rank_0_at_once, MUCH, "rank 0 sent 224 bytes where 96"),
        (smuggled_sum, LITTLE, "rank 0 received 0 bytes where it needs at least 32"),
    ],
    "any rank count": [
        (untouched, VALUES, "first at rank 0, element 0"),
        (powers_of_two_only, "raised", "case: 6 ranks, 8 elements"),
        (extra_ranks_left_out, VALUES, "first at rank 0, element 0"),
        (extra_ranks_not_answered, VALUES, "first at rank 4, element 0"),
        (ring_all_reduce, SLOW, "10 steps one after another where 4 are enough"),
        (tree_all_reduce, SLOW, "6 steps one after another where 4 are enough"),
        (everything_at_rank_0_at_once, MUCH, "rank 0 sent 160 bytes where 96"),
        (torchs_all_reduce, RULES, "rank 0 calls all_reduce"),
    ],
    "hierarchical all-reduce": [
        (untouched, VALUES, "first at rank 0, element 0"),
        (leaders, MUCH, "network card of rank 0 carried 32 bytes where 16"),
        (one_flat_ring, MUCH, "48 bytes left node 0 where 32 are enough"),
        (whole_tensor_on_both_levels, MUCH, "64 bytes left node 0 where 32"),
        (inside_only, VALUES, "first at rank 0, element 0"),
        (across_then_nothing, VALUES, "first at rank 0, element 0"),
        (not_gathered, VALUES, "first at rank 0, element 4"),
        (mean_inside, VALUES, "first at rank 0, element 0"),
    ],
}
