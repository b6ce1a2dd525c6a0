"""What to write down about a machine beside anything that was measured on it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def describe_box(world: str, ranks: int) -> dict[str, str]:
    """{what: its value in words}, of the machine that this process runs on.

    world: "gloo" or "nccl", where the ranks were
    No date: add the day yourself where you keep it.
    """
    box = {
        "world": f"{ranks} ranks on {world}",
        "cores": f"{_usable_cores()} usable, {torch.get_num_threads()} torch threads here",
        "torch": torch.__version__,
    }
    if hasattr(os, "getloadavg"):
        box["load"] = f"{os.getloadavg()[0]:.1f} programs wanted a core in the last minute"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        box["GPUs"] = ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names))
        if dist.is_nccl_available():
            box["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return box


def _usable_cores() -> int:
    """Cores that this process may run on, which may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
