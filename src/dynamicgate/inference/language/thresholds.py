"""Gates that open what is large, as thresholds of the linear maps that read it: which of them the kernels take, and how
to run a model with nothing left out.

Shapes in names: N units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.networks import SMALLEST, Magnitudes
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.language.native import NativeDecoder

LARGEST = math.sqrt(torch.finfo(torch.float32).max)  # the square of anything above is infinite, and above any threshold


def opens_by_size(gate: nn.Module | None) -> bool:
    """Whether it is a gate that opens units that are large."""
    return isinstance(gate, Gate) and isinstance(gate.net, Magnitudes)


@torch.no_grad()
def thresholds_of(gate: Gate) -> Tensor:
    """What the size of each unit has to be above; ValueError with the reason if the gate does not open units so."""
    config, bias_N = gate.config, gate.bias.detach().double()
    if gate.block > 1:
        raise ValueError(f"it opens blocks of {gate.block} units by their size, and the kernels look at single ones")
    if config.evaluate == "soft":
        raise ValueError("it is evaluated softly and closes nothing")
    if config.top_k is not None or config.always_open:
        raise ValueError("it opens a number of units by their size, and the kernels those above a threshold")
    if config.scale or config.soft_width:
        raise ValueError("it scales units by how far they are above their threshold")
    if bool(bias_N.isnan().any()):
        raise ValueError("its thresholds are not numbers")
    square_N = (2.0 * (gate.logit_threshold - bias_N)).exp() - SMALLEST
    return square_N.clamp(min=0.0).sqrt().clamp(max=LARGEST).float()


@contextmanager
def all_above(model: nn.Module) -> Iterator[None]:
    """The model with all gates open that open by size."""
    biases = [gate.bias for gate in named_gates(model).values() if opens_by_size(gate)]
    before = [bias.detach().clone() for bias in biases]
    with _filled(biases, before, torch.inf):
        yield


@contextmanager
def without_thresholds(decoders: Iterable[NativeDecoder]) -> Iterator[None]:
    """Native decoders that leave out nothing but zeros."""
    found = [values for decoder in decoders for values in decoder.packed.thresholds()]
    with _filled(found, [values.clone() for values in found], 0.0):
        yield


@contextmanager
def _filled(tensors: Iterable[Tensor], before: Iterable[Tensor], number: float) -> Iterator[None]:
    tensors = list(tensors)
    with torch.no_grad():
        for tensor in tensors:
            tensor.fill_(number)
        try:
            yield
        finally:
            for tensor, values in zip(tensors, before, strict=True):
                tensor.copy_(values)
