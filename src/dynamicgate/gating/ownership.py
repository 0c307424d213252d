"""Which context owns each unit of a gate: a buffer beside the gate, so that it is saved with the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FREE = -1
OWNER = "owner"


def put_owner_(gate: nn.Module, width: int, device: torch.device) -> None:
    """Give a gate of `width` units the buffer, with every unit free, if it has none yet."""
    if not hasattr(gate, OWNER):
        gate.register_buffer(OWNER, torch.full((width,), FREE, dtype=torch.int16, device=device))


def owner_of(gate: Any) -> Tensor:
    """The number of the context that owns each unit, or FREE."""
    owner: Tensor = gate.owner
    return owner
