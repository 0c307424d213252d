"""The dense network asked for, which budgets, measurements and times are relative to. A model file says which it is:
the model itself may be wider (sparse layers) or narrower (`small`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.io.model_file import read_notes
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import Settings, dense_macs, given
from dynamicgate.nn import GatedMLP, Normalize

NOTE = "dense"
MOST_WEIGHTS = 1 << 30  # a file may come from anyone, and must not ask for more memory than a machine has


@dataclass(frozen=True)
class DenseReference:
    """An MLP by its layer sizes, inputs and classes included."""

    sizes: tuple[int, ...]
    activation: str = "relu"

    @property
    def macs(self) -> int:
        """MACs per sample."""
        return dense_macs(self.sizes)

    def build(self, like: nn.Module) -> nn.Module:
        """The network with fresh weights, on which its time does not depend, and with the normalisation of `like`."""
        normalize = next((module for module in like.modules() if isinstance(module, Normalize)), None)
        return GatedMLP(self.sizes, activation=self.activation, normalize=normalize).eval()

    def to_json(self) -> dict[str, Any]:
        """As the notes of a model file hold it."""
        return {"sizes": list(self.sizes), "activation": self.activation}


def asked_for(settings: Settings, splits: Splits) -> DenseReference:
    """The dense network of these settings, whatever the model's own width."""
    return DenseReference((splits.train.features, *given(settings.hidden), splits.classes), settings.activation)


def reference_of(path: Path) -> DenseReference | None:
    """The dense network that a model file names; None if it names none."""
    found = read_notes(path).get(NOTE)
    if found is None:
        return None
    sizes, activation = (found.get("sizes"), found.get("activation")) if isinstance(found, dict) else (None, None)
    if not _are_sizes(sizes) or activation not in ACTIVATIONS:
        raise ValueError(f"{path} is damaged: its notes do not say which dense network the model is compared with")
    assert isinstance(sizes, list)
    return DenseReference(tuple(sizes), str(activation))


def _are_sizes(found: object) -> bool:
    if not isinstance(found, list) or len(found) < 2 or not all(type(size) is int and size > 0 for size in found):
        return False
    return _weights(found) <= MOST_WEIGHTS


def _weights(sizes: Sequence[int]) -> int:
    return dense_macs(sizes) + sum(sizes[1:])
