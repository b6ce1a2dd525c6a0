"""A block recomputed, a loss in chunks: torch's gradients, and less memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from course import World
from course.parallel.memory import chunked_cross_entropy, recomputed


def block(width=8):
    torch.manual_seed(3)
    wide = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    return nn.Sequential(*wide, nn.Dropout(0.3)).double()


def gradients(apply):
    layer, x = block(), torch.randn(5, 8, dtype=torch.double, requires_grad=True)
    torch.manual_seed(4)
    y = apply(layer, x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


def test_the_same_gradients_as_plain_and_as_torchs():
    torch.manual_seed(5)
    own = gradients(recomputed)
    for other in (lambda f, x: f(x), lambda f, x: checkpoint(f, x, use_reentrant=False)):
        torch.manual_seed(5)
        assert all(map(torch.equal, own, gradients(other)))


def test_random_numbers_go_on_as_without():
    drawn = []
    for apply in (recomputed, lambda f, x: f(x)):
        torch.manual_seed(5)
        gradients(apply)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def peak(function, *args):
    return World(1, memory=True).run(function, *args).peak_bytes[0]


def stacked(apply, depth):
    torch.manual_seed(1)
    layer, x = block(64), torch.ones(256, 64, dtype=torch.double, requires_grad=True)
    for _ in range(depth):
        x = apply(layer, x)
    x.sum().backward()


@pytest.mark.parametrize("depth", [4, 8])
def test_a_block_more_costs_its_output(depth):
    """The next one's input, and nothing else."""
    more = [peak(stacked, recomputed, d) for d in (depth, depth + 1)]
    assert more[1] - more[0] == 256 * 64 * 8


def test_it_peaks_hardly_higher_than_torchs():
    """torch's stops before the block's last operation: one output and its gradient."""
    torchs = peak(stacked, lambda f, x: checkpoint(f, x, use_reentrant=False), 6)
    output = 256 * 64 * 8
    assert torchs < peak(stacked, recomputed, 6) <= torchs + 2 * output + 1024


def test_without_a_gradient_it_says_why():
    with pytest.raises(ValueError, match="x must require a gradient"):
        recomputed(block(), torch.ones(1, 8, dtype=torch.double))


def loss_and_gradients(loss, tokens, chunks):
    torch.manual_seed(2)
    hidden, weight = (torch.randn(n, 6, dtype=torch.double) for n in (tokens, 50))
    hidden.requires_grad_(), weight.requires_grad_()
    value = loss(hidden, weight, torch.arange(tokens) % 50, chunks)
    value.backward()
    return value.detach(), hidden.grad, weight.grad


def whole(hidden, weight, targets, chunks):
    return F.cross_entropy(hidden @ weight.T, targets)


@pytest.mark.parametrize("tokens, chunks", [(12, 1), (12, 4), (13, 5), (3, 8)])
def test_the_loss_is_cross_entropys(tokens, chunks):
    pairs = [loss_and_gradients(f, tokens, chunks) for f in (chunked_cross_entropy, whole)]
    assert all(map(torch.allclose, *pairs))


def test_a_chunk_holds_its_own_logits_thrice():
    peaks = [peak(loss_and_gradients, chunked_cross_entropy, 800, c) for c in (4, 8)]
    one = 800 // 8 * 50 * 8
    # chunks of half as many tokens: 3 logits of a chunk less, but 6 numbers a token
    assert 2.7 * one < peaks[0] - peaks[1] < 3.3 * one


def test_chunks_are_one_or_more():
    with pytest.raises(ValueError, match="chunks must be 1 or more, not 0"):
        chunked_cross_entropy(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), 0)
