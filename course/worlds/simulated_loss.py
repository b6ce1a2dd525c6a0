"""torch's loss_parallel() is a switch of the whole process: here each rank has its own.

Inside `with loss_parallel()` torch computes a cross-entropy over sharded classes. It
keeps the handlers in one table, which is set to a rank's own whenever it goes on.
"""

from __future__ import annotations

import sys

_MODULE = "torch.distributed.tensor.parallel.loss"


_known: tuple | None = None  # torch's table of handlers, and one operation of loss_parallel


def loss_is_parallel() -> bool:
    """Whether torch is inside loss_parallel(). Asked at every change of ranks."""
    global _known
    if _known is None:
        loss = sys.modules.get(_MODULE)  # importing it takes a second: only if it is there
        ours = getattr(loss, "customized_loss_ops", None)  # None while being imported
        if not ours:
            return False
        _known = loss.DTensor._op_dispatcher._custom_op_handlers, next(iter(ours))
    handlers, operation = _known
    return operation in handlers


def set_loss_parallel(on: bool) -> None:
    """Switch it, unless it is so already."""
    if on == loss_is_parallel():
        return
    loss = sys.modules[_MODULE]
    (loss._enable_custom_loss_ops if on else loss._disable_custom_loss_ops)()
