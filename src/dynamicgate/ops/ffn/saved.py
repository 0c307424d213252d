"""What the forward pass of a gated layer saves for its backward pass."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Saved(NamedTuple):
    """Tensors for the backward pass; empty where one is not needed."""

    hidden: Tensor
    """factor * act(..) [* value], a row for each slot of the index."""
    pre: Tensor
    """The input of the activation, a row for each slot, or with gate_gradient="dense" for each token."""
    val: Tensor
    """What the activation was multiplied by, in the same rows."""
    index_buffer: Tensor
    """The buffer of the index of assignments, see index.py."""
