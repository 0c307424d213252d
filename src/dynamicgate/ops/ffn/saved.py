"""What the forward pass of a gated layer saves for its backward pass."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Kept(NamedTuple):
    """What a forward pass leaves for its backward; empty tensors where something is not needed."""

    hidden: Tensor  # factor * act(..) [* value], a row for each pair
    pre: Tensor  # what went into the activation, a row for each pair, or with exact gradients for each token
    val: Tensor  # what the activation was multiplied with, likewise
    pairs: Tensor  # the index of the open pairs, see index.py
