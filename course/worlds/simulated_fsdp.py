"""fully_shard on very many ranks: only the pieces that are looked at are cut.

torch cuts every parameter into one piece per rank, and looks at two of them. For 16,384
fake ranks the cutting alone took minutes for a large model.
"""

from __future__ import annotations

import contextlib
from unittest import mock

from course.worlds.simulated_tensors import Pieces


@contextlib.contextmanager
def pieces_on_demand():
    """For the time of a run: fully_shard cuts with `Pieces`."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    if not hasattr(_fsdp_param, "_chunk_with_empty"):  # another torch, which cuts otherwise
        yield
        return
    with mock.patch.object(_fsdp_param, "_chunk_with_empty", Pieces):
        yield
