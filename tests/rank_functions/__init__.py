"""Functions that one rank runs, for tests: plain torch.distributed, no pytest.

They stand in modules of their own so that a real rank imports torch and no test.
Each takes no argument and returns tensors, numbers and lists of them.
"""

from __future__ import annotations

import inspect


def functions_of(module) -> list:
    """The functions that a module defines, in its order, but for _helpers and odd_."""
    return [
        f
        for name, f in vars(module).items()
        if inspect.isfunction(f)
        and f.__module__ == module.__name__
        and "_" not in name[0] + name[-1]
    ]
