"""Input normalisation as a layer of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """(x - mean) / std with fixed constants.

    It is part of the model, not of the data, so that the model reads raw values: a compiled plan folds this layer into
    the weights and bias of the next one, and can then skip the inputs that are exactly zero.
    """

    unit_wise = True
    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor | float = 0.0, std: Tensor | float = 1.0) -> None:
        """One constant for all features, or one for each feature."""
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32).clone())
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32).clone())
        if not self.std.is_meta and not bool((self.std > 0).all()):
            raise ValueError("every std must be positive; give constant features a std of 1")

    def forward(self, x: Tensor) -> Tensor:
        """Standardise `x`."""
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"features={self.mean.numel()}" if self.mean.ndim else f"mean={self.mean:.4g}, std={self.std:.4g}"
