"""Answers to the exercises of chapter 08: right ones, and wrong ones by name.

n ranks, me is one of them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from course.checks.zero_answers import free_after_use, scatter_in_hooks
from course.checks.zero_answers import shard_the_optimizer as sharded
from course.parallel.collectives import (
    naive_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from course.parallel.messages import place
from tests.exercise_answers import NOTES, smuggled, untouched

# --- Shard the optimizer --------------------------------------------------------------


def sharded_with_torchs(parameter, make_optimizer, keep=False):
    """Padded rows, the shard a copy. keep: its gradient stays, too."""
    n, me = place()
    row = lambda t: pad(t, (0, -len(t) % n))
    shard = nn.Parameter(row(parameter.detach()).chunk(n)[me].clone())
    optimizer = make_optimizer([shard])

    def step():
        mine = torch.empty_like(shard)
        dist.reduce_scatter_tensor(mine, row(parameter.grad))
        shard.grad = mine / n
        optimizer.step()
        shard.grad = shard.grad if keep else None
        whole = row(parameter.detach())
        dist.all_gather_into_tensor(whole, shard.detach())
        parameter.data.copy_(whole[: len(parameter)])

    return step


copy_and_gradient = partial(sharded_with_torchs, keep=True)


def whole_optimizer(parameter, make_optimizer):
    optimizer = make_optimizer([parameter])

    def step():
        ring_all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        optimizer.step()

    return step


def all_reduced_then_sharded(parameter, make_optimizer):
    n, me = place()
    shard = nn.Parameter(parameter.detach().tensor_split(n)[me])
    optimizer = make_optimizer([shard])

    def step():
        ring_all_reduce(parameter.grad)
        shard.grad = parameter.grad.tensor_split(n)[me] / n
        optimizer.step()
        ring_all_gather(parameter.detach())

    return step


def steps_of(reduce=ring_reduce_scatter, gather=ring_all_gather, divide=True):
    """`sharded`, with something else in the place of a part."""

    def answer(parameter, make_optimizer):
        n, me = place()
        shard = nn.Parameter(parameter.detach().tensor_split(n)[me])
        optimizer = make_optimizer([shard])

        def step():
            grad = reduce(parameter.grad)
            shard.grad = grad / n if divide else grad.clone()
            optimizer.step()
            gather(parameter.detach())

        return step

    return answer


sum_not_mean = steps_of(divide=False)
never_gathered = steps_of(gather=lambda tensor: None)


def own_gradient(parameter, make_optimizer):
    optimizer = make_optimizer([parameter])
    return optimizer.step


def nothing_updated(parameter, make_optimizer):
    return lambda: None


def stale_shard(parameter, make_optimizer):
    """Gathers what the shards were before the update."""
    n, me = place()
    shard = nn.Parameter(parameter.detach().tensor_split(n)[me].clone())
    optimizer = make_optimizer([shard])

    def step():
        shard.grad = ring_reduce_scatter(parameter.grad) / n
        parameter.detach().tensor_split(n)[me].copy_(shard.detach())
        ring_all_gather(parameter.detach())
        optimizer.step()

    return step


def shard_never_put_back(parameter, make_optimizer):
    """The optimizer for a copy that nobody puts back."""
    n, me = place()
    shard = nn.Parameter(parameter.detach().tensor_split(n)[me].clone())
    optimizer = make_optimizer([shard])

    def step():
        shard.grad = ring_reduce_scatter(parameter.grad) / n
        optimizer.step()
        ring_all_gather(parameter.detach())

    return step


def sizes_that_divide(parameter, make_optimizer):
    n, me = place()
    shard = nn.Parameter(parameter.detach().view(n, -1)[me])
    optimizer = make_optimizer([shard])

    def step():
        mine = torch.empty_like(shard)
        dist.reduce_scatter_tensor(mine, parameter.grad)
        shard.grad = mine / n
        optimizer.step()
        dist.all_gather_into_tensor(parameter.data, shard.detach().clone())

    return step


def no_step(parameter, make_optimizer):
    sharded(parameter, make_optimizer)


def moments_out_of_sight(parameter, make_optimizer):
    """AdamW by hand for all, in NumPy: on the host, where nobody counts."""
    m, v, t = (np.zeros(len(parameter), dtype=np.float32) for _ in range(3))

    def step():
        ring_all_reduce(parameter.grad)
        g = (parameter.grad / dist.get_world_size()).numpy()
        t[:] += 1
        m[:] = 0.9 * m + 0.1 * g
        v[:] = 0.999 * v + 0.001 * g * g
        upper, lower = m / (1 - 0.9**t), np.sqrt(v / (1 - 0.999**t)) + 50.0
        parameter.data.mul_(1 - 0.1 * 0.01).sub_(torch.from_numpy(0.1 * upper / lower))

    return step


def reduced_at_rank_0(gradient):
    n, me = place()
    naive_all_reduce(gradient)
    return gradient.tensor_split(n)[me]


def smuggled_shard(gradient):
    n, me = place()
    return smuggled_sum(gradient).tensor_split(n)[me] * 1


def smuggled_sum(tensor):
    NOTES[dist.get_rank()] = tensor
    total = sum(smuggled())
    dist.barrier()  # nobody's note goes before all have read it
    NOTES.pop(dist.get_rank())
    return total


through_rank_0 = steps_of(reduced_at_rank_0)
smuggled_gradients = steps_of(smuggled_shard)


# --- Reduce-scatter in the hook -------------------------------------------------------


def packed(bucket):
    """Gradients end to end, filled up with zeros; freed."""
    flat = torch.cat([p.grad.flatten() for p in bucket])
    for p in bucket:
        p.grad = None
    return pad(flat, (0, -len(flat) % dist.get_world_size()))


def hooked(buckets, reduce, *, arrived=None):
    """reduce(number, bucket) when all gradients of a bucket are there."""
    for number, bucket in enumerate(buckets):
        waiting = set()

        def arrive(p, number=number, bucket=bucket, waiting=waiting):
            waiting.add(p)
            if len(waiting) == len(bucket):
                waiting.clear()
                reduce(number, bucket)

        for p in bucket:
            p.register_post_accumulate_grad_hook(arrive)


def reduced_in_backward(buckets):
    n, shards = dist.get_world_size(), {}

    def reduce(number, bucket):
        shards[number] = ring_reduce_scatter(packed(bucket)) / n

    def finish():
        done = [shards[number] for number in range(len(buckets))]
        shards.clear()
        return done

    hooked(buckets, reduce)
    return finish


def overlapped(buckets):
    """Each reduce-scatter goes on while backward makes the next bucket."""
    n, moving, shards = dist.get_world_size(), [], []

    def arrived():
        while moving:
            work, _, mine = moving.pop()
            work.wait()
            shards.append(mine / n)

    def reduce(number, bucket):
        arrived()
        whole = packed(bucket)
        mine = whole.new_empty(len(whole) // n)
        work = dist.reduce_scatter_tensor(mine, whole, async_op=True)
        moving.append((work, whole, mine))

    def finish():
        arrived()
        done = list(shards)
        shards.clear()
        return done

    hooked(buckets, reduce)
    return finish


def reduced_at_the_end(buckets):
    """All whole gradients are kept until backward is over."""
    n = dist.get_world_size()
    return lambda: [ring_reduce_scatter(packed(bucket)) / n for bucket in buckets]


def gradients_not_freed(buckets):
    n, shards = dist.get_world_size(), {}

    def reduce(number, bucket):
        flat = torch.cat([p.grad.flatten() for p in bucket])
        row = pad(flat, (0, -len(flat) % n))
        shards[number] = ring_reduce_scatter(row) / n

    def finish():
        for bucket in buckets:
            for p in bucket:
                p.grad = None
        return [shards[number] for number in range(len(buckets))]

    hooked(buckets, reduce)
    return finish


def with_shards(change, reduce_scatter=ring_reduce_scatter, free=True, n=None):
    """`reduced_in_backward` with parts exchanged. change(shards by number, buckets)."""

    def answer(buckets):
        ranks, shards = n or dist.get_world_size(), {}

        def reduce(number, bucket):
            grads = [None if free else p.grad for p in bucket]
            shards[number] = reduce_scatter(packed(bucket)) / ranks
            for p, grad in zip(bucket, grads, strict=True):
                p.grad = grad

        hooked(buckets, reduce)
        return lambda: change(shards, buckets)

    return answer


def in_order(shards, buckets):
    return [shards[number] for number in range(len(buckets))]


def all_reduce_and_cut(row):
    n, me = place()
    ring_all_reduce(row)
    return row.chunk(n)[me].clone()


def own_piece(row):
    n, me = place()
    return row.chunk(n)[me] * n


def smuggled_piece(row):
    return own_piece(smuggled_sum(row)) / dist.get_world_size()


sum_in_hook = with_shards(in_order, n=1)
not_reduced = with_shards(in_order, own_piece)
all_reduced_in_hook = with_shards(in_order, all_reduce_and_cut)
never_set_to_none = with_shards(in_order, free=False)
smuggled_in_hook = with_shards(in_order, smuggled_piece)
whole_row_returned = with_shards(in_order, lambda row: (ring_all_reduce(row), row)[1])
backwards_order = with_shards(lambda s, b: in_order(s, b)[::-1])


def never_cleared(buckets):
    n, shards = dist.get_world_size(), []
    hooked(buckets, lambda _, b: shards.append(ring_reduce_scatter(packed(b)) / n))
    return lambda: list(shards)


def first_pass_only(buckets):
    """Later shards find their place taken."""
    n, shards = dist.get_world_size(), {}

    def reduce(number, bucket):
        shards.setdefault(number, ring_reduce_scatter(packed(bucket)) / n)

    hooked(buckets, reduce)
    return lambda: in_order(shards, buckets)


def last_bucket_forgotten(buckets):
    """A bucket goes when the next one begins: so the last one never goes."""
    n, me = place()
    shards, open_bucket = {}, []

    def arrive(number):
        if open_bucket and open_bucket[0] != number:
            before = open_bucket.pop()
            shards[before] = ring_reduce_scatter(packed(buckets[before])) / n
        open_bucket[:] = [number]

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(lambda _, number=number: arrive(number))

    def finish():
        open_bucket.clear()
        last = len(buckets) - 1
        shards[last] = packed(buckets[last]).chunk(n)[me]
        return in_order(shards, buckets)

    return finish


def last_bucket_zeros(buckets):
    finish = reduced_in_backward(buckets)

    def wrong():
        shards = finish()
        return [*shards[:-1], torch.zeros_like(shards[-1])]

    return wrong


def last_bucket_missing(buckets):
    finish = reduced_in_backward(buckets)
    return lambda: finish()[:-1]


def on_the_first_gradient(buckets):
    """Reduces when any gradient of the bucket is there, not when all are."""
    n, shards = dist.get_world_size(), {}

    def arrive(number):
        shards[number] = ring_reduce_scatter(packed(buckets[number])) / n

    for number, bucket in enumerate(buckets):
        bucket[0].register_post_accumulate_grad_hook(
            lambda _, number=number: arrive(number)
        )
        bucket[1].register_post_accumulate_grad_hook(
            lambda _, number=number: arrive(number)
        )
    return lambda: in_order(shards, buckets)


def no_padding(buckets):
    n, shards = dist.get_world_size(), {}

    def reduce(number, bucket):
        row = torch.cat([p.grad.flatten() for p in bucket])
        for p in bucket:
            p.grad = None
        shards[number] = ring_reduce_scatter(row) / n

    hooked(buckets, reduce)
    return lambda: in_order(shards, buckets)


def no_finish(buckets):
    reduced_in_backward(buckets)


# --- Free after use -------------------------------------------------------------------


def gathered(shard):
    whole = shard.new_empty(dist.get_world_size() * len(shard))
    dist.all_gather_into_tensor(whole, shard)
    return whole


def scattered(grad):
    n = dist.get_world_size()
    mine = grad.new_empty(len(grad) // n)
    dist.reduce_scatter_tensor(mine, grad)
    return mine / n


def freed_after_use(shards, forward, backward, x, reduce=scattered):
    inputs = []
    for shard in shards:
        inputs.append(x)
        x = forward(gathered(shard), x)
    grad, mine = torch.ones_like(x), []
    for shard in reversed(shards):
        grad, grad_whole = backward(gathered(shard), inputs.pop(), grad)
        mine.append(reduce(grad_whole))
    return mine[::-1]


def by_hand_rings(shards, forward, backward, x):
    """Names that live on: the last block's weights are there while the next come."""
    n, me = place()

    def collect(shard):
        whole = shard.new_zeros(n * len(shard))
        whole.chunk(n)[me].copy_(shard)
        ring_all_gather(whole)
        return whole

    inputs = []
    for shard in shards:
        whole = collect(shard)
        inputs.append(x)
        x = forward(whole, x)
    grad, mine = torch.ones_like(x), [None] * len(shards)
    for k in reversed(range(len(shards))):
        whole = collect(shards[k])
        grad, grad_whole = backward(whole, inputs[k], grad)
        mine[k] = ring_reduce_scatter(grad_whole) / n
    return mine


def last_block_kept(shards, forward, backward, x):
    """It is used again at once: one gather less."""
    inputs = []
    for shard in shards:
        whole = gathered(shard)
        inputs.append(x)
        x = forward(whole, x)
    grad, mine = torch.ones_like(x), []
    for k in reversed(range(len(shards))):
        whole = whole if k == len(shards) - 1 else gathered(shards[k])
        grad, grad_whole = backward(whole, inputs.pop(), grad)
        mine.append(scattered(grad_whole))
    return mine[::-1]


def passes(weights, forward, backward, x):
    """Whole gradients of blocks, the last first, from weights that are all there."""
    inputs = []
    for whole in weights:
        inputs.append(x)
        x = forward(whole, x)
    grad, found = torch.ones_like(x), []
    for whole in reversed(weights):
        grad, grad_whole = backward(whole, inputs.pop(), grad)
        found.append(grad_whole)
    return found


def never_released(shards, forward, backward, x):
    kept, inputs = [], []
    for shard in shards:
        kept.append(gathered(shard))
        inputs.append(x)
        x = forward(kept[-1], x)
    grad, mine = torch.ones_like(x), []
    for whole in reversed(kept):
        grad, grad_whole = backward(whole, inputs.pop(), grad)
        mine.append(scattered(grad_whole))
    return mine[::-1]


def all_gathered_first(shards, forward, backward, x):
    weights = [gathered(shard) for shard in shards]
    return [scattered(grad) for grad in passes(weights, forward, backward, x)][::-1]


def whole_gradients_kept(shards, forward, backward, x):
    inputs = []
    for shard in shards:
        inputs.append(x)
        x = forward(gathered(shard), x)
    grad, found = torch.ones_like(x), []
    for shard in reversed(shards):
        grad, grad_whole = backward(gathered(shard), inputs.pop(), grad)
        found.append(grad_whole)
    return [scattered(grad) for grad in reversed(found)]


CACHE: dict = {}


def stale_weights(shards, forward, backward, x):
    """Gathered once, for the first call."""
    rank = dist.get_rank()
    if rank not in CACHE or CACHE[rank][0] is not shards:
        CACHE[rank] = shards, [gathered(shard) for shard in shards]
    weights = CACHE[rank][1]
    return [scattered(grad) for grad in passes(weights, forward, backward, x)][::-1]


def sum_of_blocks(shards, forward, backward, x):
    n = dist.get_world_size()
    return [mine * n for mine in freed_after_use(shards, forward, backward, x)]


def own_block_gradient(shards, forward, backward, x):
    """What is scattered has not been reduced."""
    n, me = place()
    return freed_after_use(shards, forward, backward, x, lambda g: g.chunk(n)[me].clone())


def all_reduced_blocks(shards, forward, backward, x):
    n, me = place()

    def reduce(grad):
        dist.all_reduce(grad)
        return grad.chunk(n)[me] / n

    return freed_after_use(shards, forward, backward, x, reduce)


def gathered_twice(shards, forward, backward, x):
    return freed_after_use([shard for shard in shards if len(gathered(shard))],
                           forward, backward, x)  # fmt: skip


def whole_gradients_returned(shards, forward, backward, x):
    def reduce(grad):
        dist.all_reduce(grad)
        return grad / dist.get_world_size()

    return freed_after_use(shards, forward, backward, x, reduce)


def last_block_first(shards, forward, backward, x):
    return freed_after_use(shards, forward, backward, x)[::-1]


def smuggled_blocks(shards, forward, backward, x):
    def reduce(grad):
        return smuggled_piece(grad) / dist.get_world_size()

    return freed_after_use(shards, forward, backward, x, reduce)


def own_shard_as_block(shards, forward, backward, x):
    """Uses the shard where the whole is meant."""
    for shard in shards:
        x = forward(shard, x)
    return shards


def forward_only(shards, forward, backward, x):
    for shard in shards:
        x = forward(gathered(shard), x)


# --- All ------------------------------------------------------------------------------

RIGHT = {
    "shard the optimizer": [sharded, sharded_with_torchs],
    "reduce-scatter in the hook": [reduced_in_backward, overlapped, scatter_in_hooks],
    "free after use": [freed_after_use, by_hand_rings, last_block_kept, free_after_use],
}

VALUES, SHAPE, LARGE = "wrong values", "wrong shape", "too much memory"
MUCH, LITTLE = "too much traffic", "too little traffic"

# exercise: [(wrong answer, kind of verdict, words of its text)]
WRONG = {
    "shard the optimizer": [
        (untouched, SHAPE, "rank 0 has nothing, should be a tensor of shape [8]"),
        (no_step, SHAPE, "rank 0 has nothing"),
        (sum_not_mean, VALUES, "the sum of gradients gives: divide by n"),
        (never_gathered, VALUES, "only this rank's shard is right: gather the others"),
        (own_gradient, VALUES, "what this rank's own gradients give"),
        (nothing_updated, VALUES, "the parameters are as they were"),
        (stale_shard, VALUES, "one step before: gather after the update"),
        (shard_never_put_back, VALUES, "the parameters are as they were"),
        (sizes_that_divide, "raised", "case: 3 ranks, 7 elements"),
        (whole_optimizer, LARGE, "rank 0 holds 68 bytes between steps where 28"),
        (copy_and_gradient, LARGE, "does a copy of the shard live beside its .grad"),
        (moments_out_of_sight, "too little memory", "hold 0 bytes between steps where 64"),
        (all_reduced_then_sharded, MUCH, "rank 0 sent 216 bytes where 144 are enough"),
        (through_rank_0, MUCH, "rank 0 sent 360 bytes where 144 are enough"),
        (smuggled_gradients, LITTLE, "rank 0 received 72 bytes where it needs"),
    ],
    "reduce-scatter in the hook": [
        (untouched, SHAPE, "rank 0 has nothing, should be a list of 8 tensors"),
        (no_finish, SHAPE, "rank 0 has nothing, should be a list of 8 tensors"),
        (sum_in_hook, VALUES, "that is the sum of gradients: divide by n"),
        (not_reduced, VALUES, "that is this rank's own gradient"),
        (never_set_to_none, VALUES, "both backwards are added up: set .grad to None"),
        (whole_row_returned, SHAPE, "rank 0, item 0 has [56], should be [14]"),
        (backwards_order, VALUES, "the right shards, the last bucket first"),
        (never_cleared, SHAPE, "rank 0 has a list of 16, should be a list of 8"),
        (first_pass_only, VALUES, "the shards of the first backward"),
        (last_bucket_forgotten, VALUES, "but item 7: is the last bucket reduced?"),
        (last_bucket_zeros, VALUES, "but item 7, all zeros: is the last bucket reduced?"),
        (last_bucket_missing, SHAPE, "rank 0 has a list of 7"),
        (on_the_first_gradient, "raised", "'NoneType' object has no attribute 'flatten'"),
        (no_padding, SHAPE, "rank 2, item 0 has [6], should be [7]"),
        (reduced_at_the_end, LARGE, "Is each .grad set to None when its bucket goes?"),
        (gradients_not_freed, LARGE, "Is each .grad set to None when its bucket goes?"),
        (all_reduced_in_hook, MUCH, "rank 0 sent 5376 bytes where 2688 are enough"),
        (smuggled_in_hook, LITTLE, "rank 0 received 0 bytes where it needs"),
    ],
    "free after use": [
        (untouched, SHAPE, "rank 0 has nothing, should be a list of 8 tensors"),
        (forward_only, SHAPE, "rank 0 has nothing, should be a list of 8 tensors"),
        (sum_of_blocks, VALUES, "that is the sum of gradients: divide by n"),
        (own_block_gradient, VALUES, "that is this rank's own gradient"),
        (stale_weights, VALUES, "at the weights of the first call: gather again"),
        (whole_gradients_returned, SHAPE, "rank 0, item 0 has [56], should be [14]"),
        (last_block_first, VALUES, "the right shards, the last block first"),
        (own_shard_as_block, "raised", "the block's weights are a row of 56, not of 14"),
        (never_released, LARGE, "during forward where 840 are enough"),
        (all_gathered_first, LARGE, "during forward where 840 are enough"),
        (whole_gradients_kept, LARGE, "during backward where 1960 are enough"),
        (all_reduced_blocks, MUCH, "rank 0 sent 10752 bytes where 8064 are enough"),
        (gathered_twice, MUCH, "rank 0 sent 10752 bytes where 8064 are enough"),
        (smuggled_blocks, LITTLE, "all ranks together sent"),
    ],
}

__all__ = ["RIGHT", "WRONG"]
