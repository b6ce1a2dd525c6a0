"""LoRA: a narrow, trained detour beside a frozen matrix.

Hu et al. 2021 (arXiv 2106.09685), section 4.1, without its constant factor alpha / r.
Costs: `course.costs.recipes.adapter_parameters`.
"""

from __future__ import annotations

import torch
from torch import nn


class Adapted(nn.Module):
    """base(x) + B(A x): `base` is frozen, A [r, inputs] and B [outputs, r] are trained."""

    def __init__(self, base: nn.Linear, r: int):
        super().__init__()
        self.base, dtype = base.requires_grad_(False), base.weight.dtype
        self.a = nn.Linear(base.in_features, r, bias=False, dtype=dtype)
        self.b = nn.Linear(r, base.out_features, bias=False, dtype=dtype)
        nn.init.zeros_(self.b.weight)  # at first it changes nothing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))
