"""Small datasets and models that train in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dynamicgate import GateConfig
from dynamicgate.nn import GatedMLP


def blobs(rows: int = 240, *, seed: int = 0, spread: float = 0.5, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Gaussian clusters, one per class, around the same corners of a cube for every seed."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.randn(classes, 8, generator=torch.Generator().manual_seed(99)).sign()
    y = torch.arange(rows) % classes
    return corners[y] + spread * torch.randn(rows, 8, generator=generator), y


def dense(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def gated(seed: int = 0, *, dropout: float = 0.0, **config: Any) -> GatedMLP:
    torch.manual_seed(seed)
    return GatedMLP((8, 32, 3), GateConfig(**{"block": 4, **config}), dropout=dropout)


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names of the tensors that are not equal to the bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest absolute difference between two sets of tensors."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def weights_in(path: Path) -> dict[str, Tensor]:
    """The tensors of a model file, or those of the model in a checkpoint."""
    tensors = load_file(path)
    inner = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    return inner or tensors
