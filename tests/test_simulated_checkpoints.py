"""torch's distributed checkpoints and state dicts on simulated ranks, unmodified."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from course import World
from tests.sameness import difference
from tests.training import TOLERANCE, adamw, alone, build, state, train


def _model(kind: str, seed: int = 0):
    model = build(seed)
    if kind == "ddp":
        return DDP(model)
    for layer in model[::2]:
        fully_shard(layer)
    return fully_shard(model)


def _train_and_save(kind: str, folder: str) -> dict:
    model = _model(kind)
    optimizer = adamw(model)
    train(model, dist.get_rank(), dist.get_world_size(), optimizer)
    held, steps = get_state_dict(model, optimizer)
    dcp.save({"model": held, "optimizer": steps}, checkpoint_id=folder)
    train(model, dist.get_rank(), dist.get_world_size(), optimizer)
    return state(getattr(model, "module", model))


def _load_and_train(kind: str, folder: str) -> dict:
    model = _model(kind, seed=99)
    optimizer = adamw(model)
    held, steps = get_state_dict(model, optimizer)
    dcp.load({"model": held, "optimizer": steps}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=held, optim_state_dict=steps)
    train(model, dist.get_rank(), dist.get_world_size(), optimizer)
    return state(getattr(model, "module", model))


@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_save_load_and_go_on(kind, tmp_path):
    saved = World(2).run(_train_and_save, kind, str(tmp_path)).results
    loaded = World(2).run(_load_and_train, kind, str(tmp_path)).results
    assert not difference(saved, loaded, tolerance=TOLERANCE)


def test_load_on_another_number_of_ranks(tmp_path):
    saved = World(2).run(_train_and_save, "sharded", str(tmp_path)).results
    loaded = World(3).run(_load_and_train, "sharded", str(tmp_path)).results
    assert not difference(saved[0], loaded[2], tolerance=TOLERANCE)


def full_state_dict() -> dict:
    model = _model("sharded")
    train(model, dist.get_rank(), dist.get_world_size())
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)


def test_full_state_dict_is_on_rank_0():
    first, second = World(2).run(full_state_dict).results
    want = {name: held[0] for name, held in alone().items()}
    assert not difference(first, want, tolerance=TOLERANCE)
    assert second == {}


def broadcast_from_rank_0() -> dict:
    model = _model("sharded", seed=50 + dist.get_rank())
    whole = build().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)
    return state(model)


def test_state_dict_broadcast_from_rank_0():
    for got in World(2).run(broadcast_from_rank_0).results:
        assert not difference(got, state(build()))


def sharded_files(folder: str) -> None:
    model = _model("sharded")
    dcp.save(model.state_dict(), checkpoint_id=folder)


def test_each_rank_writes_a_file_of_its_own(tmp_path):
    World(4).run(sharded_files, str(tmp_path))
    written = {path.name.split("_")[2] for path in tmp_path.glob("__*_0.distcp")}
    assert written == {"0", "1", "2", "3"}
    whole: dict = build(1).state_dict()
    dcp.load(whole, checkpoint_id=str(tmp_path), no_dist=True)
    assert all(torch.equal(whole[n], p) for n, p in build().state_dict().items())
