"""Roofline, memory, fake tensors, mirrored ranks, streams, against their arithmetic."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from course import World
from course.costs.topology import cluster_for, uniform
from course.facts import H100
from course.parallel.collectives import ring_all_reduce
from course.worlds import RankError
from course.worlds.overlap import busy
from course.worlds.spend import spend

FLOAT = 4


def mlp(width: int, depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(depth)])


def compute_events(run) -> list:
    return [e for e in run.events if e.lane == "compute"]


# --- Roofline -------------------------------------------------------------------------


def multiply(m, k, n, dtype):
    a, b = torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype)
    spend(0.0, "mark")
    return (a @ b).shape


@pytest.mark.parametrize("size", [64, 4096])
def test_a_product_takes_the_longer_of_its_flops_and_its_bytes(size):
    run = World(1, compute="roofline", tensors="fake").run(
        multiply, size, size, size, torch.bfloat16
    )
    flops_s = 2 * size**3 / (H100.bf16_flops_per_s * H100.matmul_efficiency)
    bytes_s = 3 * size**2 * 2 / H100.memory_bytes_per_s
    assert run.seconds == pytest.approx(max(flops_s, bytes_s), rel=1e-12)
    assert (flops_s > bytes_s) == (size == 4096)  # both sides of the ridge are tried


def views_and_sum(x):
    y = x.view(8, -1).t()[1:].unsqueeze(0).detach()
    torch.empty(1000)
    before = y.shape
    return before, x + x


def test_views_and_allocations_are_free_and_a_sum_moves_three_buffers():
    run = World(1, compute="roofline").run(views_and_sum, torch.ones(64))
    assert [e.name for e in compute_events(run)] == ["add"]
    assert run.seconds == pytest.approx(3 * 64 * FLOAT / H100.memory_bytes_per_s, rel=1e-12)


def train(width=64, depth=3, steps=2, shard=False, batch=8):
    model = mlp(width, depth)
    if shard:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.ones(batch, width)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_operations_are_named_by_their_phase():
    run = World(1, compute="roofline").run(train)
    words = {e.name.split()[-1] for e in compute_events(run) if " " in e.name}
    assert words == {"backward", "optimizer"}
    first_backward = min(e.start_s for e in run.events if "backward" in e.name)
    first_step = min(e.start_s for e in run.events if "optimizer" in e.name)
    assert first_backward < first_step


def test_a_slow_rank_takes_so_many_times_as_long():
    cluster = cluster_for(2).with_slow_rank(1, 3.0)
    run = World(2, compute="roofline", cluster=cluster).run(views_and_sum, torch.ones(64))
    assert run.seconds_per_rank[1] == pytest.approx(3 * run.seconds_per_rank[0], rel=1e-12)


# --- Memory ---------------------------------------------------------------------------


def test_adam_in_fp32_holds_16_bytes_for_each_parameter():
    width, depth = 64, 3
    run = World(1, memory=True).run(train, width, depth, 2, False, 1)
    parameters = width * width * depth
    kinds = run.peak_kinds[0]
    assert kinds["parameters"] == 4 * parameters
    assert kinds["gradients"] == 4 * parameters
    # two moments, and one float per tensor that counts the steps
    assert kinds["optimizer state"] == 8 * parameters + 4 * depth
    assert sum(kinds.values()) == run.peak_bytes[0]


def hold_and_drop():
    a = torch.zeros(1000)
    b = a.view(10, 100)[2:]  # the same memory
    del a
    c = torch.zeros(500)
    del b
    d = torch.zeros(250)
    return c.numel() + d.numel()


def test_memory_counts_storages_once_and_forgets_what_is_dropped():
    run = World(2, memory=True).run(hold_and_drop)
    assert run.peak_bytes == (1500 * FLOAT,) * 2
    assert [size for _, size in run.memory_curve[0]][-1] == 0


def tied():
    a, b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    b.weight = a.weight
    return sum(p.numel() for p in nn.Sequential(a, b).parameters())


def replaced():
    x = torch.zeros(1_000_000)
    x = x + 1  # both are there while it runs
    return x.sum()


def test_the_curve_reaches_the_peak_while_the_operation_runs():
    run = World(1, memory=True, compute="roofline").run(replaced)
    curve = run.memory_curve[0]
    assert max(nbytes for _, nbytes in curve) == run.peak_bytes[0] == 8_000_000


def test_a_tied_parameter_is_held_once():
    run = World(1, memory=True, compute="roofline").run(tied)
    live = [size for _, size in run.memory_curve[0]]
    assert run.results == [32 * 32]
    assert 32 * 32 * FLOAT in live  # after the second weight is dropped


def test_memory_equals_that_of_torchs_own_tracker():
    from torch.distributed._tools.mem_tracker import MemTracker

    def tracked():
        model, x = mlp(64, 3), torch.ones(8, 64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, x)
        with tracker:
            model(x).pow(2).mean().backward()
            optimizer.step()
        return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]

    run = World(1, memory=True).run(train, 64, 3, 1)
    # the tracker rounds each storage up to a page of its own, 512 bytes
    assert run.peak_bytes[0] == pytest.approx(tracked(), rel=0.02)


def test_fully_shard_divides_parameters_gradients_and_state_by_the_ranks():
    whole = World(1, memory=True).run(train, 64, 4).peak_kinds[0]
    parts = World(4, memory=True).run(train, 64, 4, 2, True)
    for kinds in parts.peak_kinds:
        assert kinds["parameters"] == whole["parameters"] // 4
    assert len(set(parts.peak_bytes)) == 1


def test_without_memory_the_run_says_how_to_get_it():
    run = World(2).run(train)
    with pytest.raises(ValueError, match="memory=True"):
        _ = run.peak_bytes


# --- Fake tensors ---------------------------------------------------------------------

OPTIONS = {"memory": True, "compute": "roofline"}


def test_fake_tensors_cost_what_real_ones_cost():
    real = World(4, **OPTIONS).run(train, 64, 4, 2, True)
    fake = World(4, tensors="fake", **OPTIONS).run(train, 64, 4, 2, True)
    assert fake.bytes_sent == real.bytes_sent
    assert fake.peak_bytes == real.peak_bytes
    assert fake.seconds == pytest.approx(real.seconds, rel=1e-3)


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (4,))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(mlp(64, 2), mesh, plan)
    model(torch.ones(8, 64)).sum().backward()


def test_functional_collectives_of_fake_tensors_are_charged_too():
    real = World(4).run(tensor_parallel)
    fake = World(4, tensors="fake").run(tensor_parallel)
    assert fake.bytes_sent == real.bytes_sent
    assert fake.bytes_sent[0] > 0
    assert fake.seconds == pytest.approx(real.seconds, rel=1e-12)


def huge():
    x = torch.empty(2**40, dtype=torch.uint8)  # a terabyte
    dist.all_reduce(x)
    return x.numel()


def test_a_terabyte_fits_when_it_is_fake():
    run = World(2, tensors="fake", memory=True).run(huge)
    assert run.peak_bytes == (2**40,) * 2
    assert run.bytes_sent == (2**40,) * 2


def cast_and_train():
    model = nn.Sequential(nn.Linear(13, 7), nn.Linear(7, 13))  # sizes of no other test
    dtypes = [model.bfloat16()[0].weight.dtype, model.half()[1].bias.dtype]
    optimizer = torch.optim.AdamW(model.to(torch.float64).parameters())
    model(torch.ones(2, 13, dtype=torch.float64)).sum().backward()
    optimizer.step()
    held = sum(p.numel() for p in model.parameters())
    return [*dtypes, model[0].weight.grad.dtype, held]


@pytest.mark.parametrize("tensors", ["fake", "real"])
def test_a_model_can_be_cast_and_its_bytes_are_those_of_the_new_type(tensors):
    run = World(1, tensors=tensors, memory=True).run(cast_and_train)
    *dtypes, held = run.results[0]
    assert dtypes == [torch.bfloat16, torch.float16, torch.float64]
    assert run.peak_kinds[0]["parameters"] == 8 * held


@pytest.mark.parametrize(
    "look",
    [
        lambda: torch.ones(3).sum().item(),
        lambda: bool(torch.ones(1) > 0),
        lambda: torch.ones(3).nonzero(),
        lambda: float(torch.ones(1)),
    ],
    ids=["item", "branch", "nonzero", "float"],
)
def test_reading_a_fake_value_names_the_rule_and_the_line(look):
    with pytest.raises(RankError, match="fake tensor") as caught:
        World(2, tensors="fake").run(look)
    assert 'tensors="real"' in str(caught.value)
    assert "test_simulated_meters.py" in str(caught.value)


def data_parallel():
    model = nn.parallel.DistributedDataParallel(mlp(8, 1))
    model(torch.ones(2, 8)).sum().backward()


def test_ddp_with_fake_tensors_says_what_to_use_instead():
    with pytest.raises(RankError, match="fully_shard"):
        World(2, tensors="fake").run(data_parallel)


# --- Mirrored ranks -------------------------------------------------------------------


def ring(numel):
    x = torch.ones(numel)
    ring_all_reduce(x)
    return x.sum().item()


@pytest.mark.parametrize(
    ("function", "args"),
    [(train, (64, 4, 2, True)), (data_parallel, ()), (ring, (64,)), (tensor_parallel, ())],
    ids=["fully_shard", "ddp", "ring", "tensor parallel"],
)
def test_one_mirrored_rank_tells_what_all_ranks_tell(function, args):
    every = World(4, **OPTIONS).run(function, *args)
    mirror = World(4, mirror=True, **OPTIONS).run(function, *args)
    assert mirror.seconds == pytest.approx(every.seconds, rel=1e-12)
    assert mirror.bytes_sent[0] == every.bytes_sent[0]
    assert mirror.peak_bytes[0] == every.peak_bytes[0]
    assert mirror.results == every.results
    assert len(mirror.events) * 4 == len(every.events)


def test_in_a_symmetric_program_every_rank_sends_what_the_mirrored_one_sends():
    every = World(4).run(train, 64, 4, 2, True)
    mirror = World(4, mirror=True).run(train, 64, 4, 2, True)
    assert mirror.bytes_sent == mirror.bytes_received == every.bytes_sent


def test_sixteen_thousand_mirrored_ranks_reduce_what_one_holds():
    def total():
        x = torch.ones(4)
        dist.all_reduce(x)
        return x.tolist(), dist.get_world_size()

    run = World(16_384, mirror=True).run(total)
    assert run.results[-1] == ([16_384.0] * 4, 16_384)


def to_rank_0():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), 1)
    else:
        dist.send(torch.ones(1), 0)


def another_root():
    dist.scatter(
        torch.ones(1), [torch.ones(1)] * 4 if dist.get_rank() == 1 else None, src=1
    )


def uneven():
    dist.all_to_all_single(torch.ones(7), torch.ones(4), [1, 2, 2, 2], [1, 1, 1, 1])


@pytest.mark.parametrize("function", [to_rank_0, another_root, uneven])
def test_a_program_that_is_not_symmetric_is_told_so(function):
    with pytest.raises(RankError, match="mirror image") as caught:
        World(4, mirror=True).run(function)
    assert "test_simulated_meters.py" in str(caught.value)


# --- Overlap and streams --------------------------------------------------------------


def backward_by_hand(layers, compute_s, numel, overlap):
    """A backward of so many layers, each with a gradient to reduce."""
    works = []
    for _ in range(layers):
        spend(compute_s, "backward")
        work = dist.all_reduce(torch.ones(numel), async_op=True)
        if overlap:
            works.append(work)
        else:
            work.wait()
    for work in works:
        work.wait()


def test_overlap_hides_all_communication_but_the_last_piece():
    cluster = uniform(4, latency_s=1e-6, bytes_per_s=1e9)
    numel, layers = 1000, 5
    reduce_s = 6 * (1e-6 + numel * FLOAT / 4 / 1e9)
    compute_s = 2 * reduce_s
    world = World(4, cluster=cluster)
    hidden = world.run(backward_by_hand, layers, compute_s, numel, True)
    plain = world.run(backward_by_hand, layers, compute_s, numel, False)
    assert hidden.seconds == pytest.approx(layers * compute_s + reduce_s, rel=1e-12)
    assert plain.seconds == pytest.approx(layers * (compute_s + reduce_s), rel=1e-12)
    assert busy(hidden)[0]["exposed_s"] == pytest.approx(reduce_s, rel=1e-9)


def ddp_steps(overlap):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(mlp(256, 6), bucket_cap_mb=0.25)
    for _ in range(2):  # buckets are made anew after the first
        if overlap:
            model(torch.ones(64, 256)).sum().backward()
            continue
        with model.no_sync():
            model(torch.ones(64, 256)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)


def test_torchs_ddp_overlaps_in_its_second_step():
    cluster = uniform(4, latency_s=1e-6, bytes_per_s=100e9)
    run = World(4, cluster=cluster, compute="roofline").run(ddp_steps, True)
    assert busy(run)[0]["overlapped_s"] > 0
    late = [e for e in run.events if e.rank == 0 and e.name == "all_reduce"]
    last_backward = max(e.end_s for e in compute_events(run) if "backward" in e.name)
    assert sum(e.start_s < last_backward for e in late) >= 3
    apart = World(4, cluster=cluster, compute="roofline").run(ddp_steps, False)
    assert busy(apart)[0]["overlapped_s"] == 0


def gather_beside_compute(compute_s):
    side = torch.cpu.Stream()
    out = torch.empty(4000)
    with torch.cpu.stream(side):
        dist.all_gather_into_tensor(out, torch.ones(1000))
    ready = side.record_event()
    spend(compute_s, "forward")
    torch.cpu.current_stream().wait_event(ready)
    return out.sum().item()


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_a_side_stream_runs_beside_the_main_one(times):
    cluster = uniform(4, latency_s=1e-6, bytes_per_s=1e9)
    gather_s = 3 * (1e-6 + 4000 / 1e9)
    run = World(4, cluster=cluster).run(gather_beside_compute, times * gather_s)
    assert run.results == [4000.0] * 4
    assert run.seconds == pytest.approx(max(1, times) * gather_s, rel=1e-9)


def test_fully_shard_overlaps_by_its_own_streams():
    world = World(4, compute="roofline", mirror=True, tensors="fake")
    run = world.run(train, 2048, 6, 2, True, 8192)
    times = busy(run)[0]
    assert times["overlapped_s"] > 0.3 * times["communication_s"]
