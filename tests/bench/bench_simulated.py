"""The simulated world's speed: messages, a large ring, full-size models, the import.

Prints what was reached beside what is aimed at. Run by `make bench`.
"""

import resource
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from course import World
from course.parallel.collectives import ring_all_reduce


def ring(numel):
    x = torch.ones(numel)
    ring_all_reduce(x)


class Block(nn.Module):
    """A GPT block. x: [batch, sequence, hidden]."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, s, 3, self.heads, h // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def gpt_step(layers, hidden, heads, vocabulary, sequence):
    """One training step of a GPT under fully_shard; its number of parameters."""
    embed = nn.Embedding(vocabulary, hidden)
    blocks = [Block(hidden, heads) for _ in range(layers)]
    model = nn.Sequential(embed, *blocks, nn.Linear(hidden, vocabulary, bias=False))
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, vocabulary, (1, sequence))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    return sum(p.numel() for p in model.parameters())


def timed(function):
    """(seconds of this process's processor time, result).

    One thread runs at a time, so on a quiet machine this is the time on the clock.
    """
    start = time.process_time()
    out = function()
    return time.process_time() - start, out


def report(what: str, value: str, aim: str) -> None:
    print(f"{what:<52}{value:>22}   aim {aim}", flush=True)


def messages() -> None:
    World(32).run(ring, 32 * 64)
    best = max(
        len(run.messages) / seconds
        for seconds, run in (timed(lambda: World(32).run(ring, 32 * 64)) for _ in range(5))
    )
    report("messages per second, ring of 32", f"{best:,.0f}", "12,000, better 20,000")
    seconds, run = timed(lambda: World(256).run(ring, 256 * 64))
    report("ring all-reduce on 256 ranks", f"{seconds:.1f} s", "under 12 s")
    report("  its messages per second", f"{len(run.messages) / seconds:,.0f}", "12,000")


def models() -> None:
    size_6_7b = (32, 4096, 32, 50_304, 2048)
    size_405b = (126, 16_384, 128, 128_256, 8192)
    options = {"tensors": "fake", "compute": "roofline", "memory": True}
    for what, ranks, shape, mirror, aim in (
        ("6.7B, 8 ranks, mirrored", 8, size_6_7b, True, "under 8 s"),
        ("6.7B, 8 ranks, all run", 8, size_6_7b, False, "under 40 s"),
        ("405B, 16,384 ranks, mirrored", 16_384, size_405b, True, "under 60 s"),
    ):
        world = World(ranks, mirror=mirror, timeout_s=300, **options)
        seconds, run = timed(lambda world=world, shape=shape: world.run(gpt_step, *shape))
        report(f"step of {what}", f"{seconds:.1f} s", aim)
        print(f"    {run.results[0] / 1e9:.1f}B parameters, {run.seconds:.2f} virtual s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    report("memory of all of this", f"{peak:.2f} GB", "under 1 GB")


def imports() -> None:
    code = "from time import perf_counter as t; a = t(); import course; print(t() - a)"
    seconds = float(subprocess.check_output([sys.executable, "-c", code]))
    report("import course", f"{seconds * 1e3:.0f} ms", "under 500 ms")


if __name__ == "__main__":
    imports()
    messages()
    models()
