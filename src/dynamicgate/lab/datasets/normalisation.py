"""Mean and standard deviation of each feature, which a model normalises its input with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

# A standard deviation below this fraction of the mean is float32 rounding (resolution 1.2e-7), not information.
MIN_RELATIVE_STD = 1e-6
MIN_STD = 1e-30


def mean_and_std(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each feature; a constant feature gets 1, so that dividing by it is harmless."""
    values = x.numpy()
    mean = values.mean(axis=0, dtype=np.float64)
    std = values.std(axis=0, dtype=np.float64)
    std = np.where(is_constant(mean, std), 1.0, std)
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def is_constant(mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which features vary by no more than rounding."""
    return std <= np.maximum(MIN_RELATIVE_STD * np.abs(mean), MIN_STD)
