"""What a chain is made of, in the terms of `nn.Linear`: nothing here knows how it will be laid out or run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.chain.rounding import fits_bytes, fits_half
from dynamicgate.ops.gate_net import GateNet, check_gate_net

# in the order of enum Layout in csrc/program.h
LAYOUTS = ("panels", "rows", "vectors", "csr", "columns", "half panels", "byte panels")
BY_INPUT = {"panels": 7, "half panels": 8, "byte panels": 9}  # the codes of layouts whose inputs have thresholds
BY_UNIT = {"panels": 10, "half panels": 11, "byte panels": 12}  # of a value projection whose factors have some too
FITS = {  # by layout, whether it holds a weight, and what that is in words
    "half panels": (fits_half, "bfloat16 holds"),
    "byte panels": (fits_bytes, "int8 and a scale for each output (the largest weight over 127) hold"),
}


@dataclass(frozen=True)
class Layer:
    """h <- factor * activation(weight h + bias) [* (value_weight h + value_bias)], for the blocks of outputs that are
    open.

    block: outputs that open and close together; the last block may be shorter. 0 means not gated.
    gate: decides from the input of this layer. Without one, `block` > 0 means that the caller passes `factor_BG`.
    layout: "panels" for dense weights, "half panels" for dense ones that bfloat16 holds exactly, "byte panels" for
        dense ones that int8 and a scale for each output hold exactly, "rows" for unit gates, "vectors" for weights in
        which 16 adjacent outputs share their inputs, "columns" for the same behind a gate that is mostly open (closed
        inputs are read as zeros), "csr" for weights that are zero anywhere. All layouts give the same result for the
        same weights.
    value_weight, value_bias: a second projection of the same input, in the same layout, as in SwiGLU. It needs an input
        that is not gated.
    skip_zeros: skip inputs that are exactly zero. It needs "panels" or "vectors" and an input that is not gated.
    above, value_above: thresholds, one for each input, that the two projections of the layer have either both or not at
        all: an input that is not larger, whatever its sign, counts as zero. Of a single row its weights are not read.
        They need panels of any kind, and neither inputs nor outputs that are gated.
    factors_above: thresholds, one for each unit, of the activated units that the value projection multiplies: one that
        is not larger counts as zero. Of few rows the weights of units that none of them needs are not read. They need
        thresholds of the inputs of both projections.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: str = "identity"
    block: int = 0
    gate: GateNet | None = None
    layout: str = "panels"
    skip_zeros: bool = False
    value_weight: Tensor | None = None
    value_bias: Tensor | None = None
    above: Tensor | None = None
    value_above: Tensor | None = None
    factors_above: Tensor | None = None

    @property
    def blocks(self) -> int:
        """Blocks of outputs; 0 where there is no gate."""
        return -(-self.weight.shape[0] // self.block) if self.block else 0


def check_layers(layers: list[Layer]) -> None:
    """Raise ValueError for a chain that cannot be run."""
    if not layers:
        raise ValueError("a chain needs at least one layer, received none")
    given = 0
    for i, layer in enumerate(layers):
        where = f"layer {i} of the chain"
        outputs, inputs = layer.weight.shape
        if outputs < 1 or inputs < 1:
            raise ValueError(
                f"{where}: expected a weight with outputs and inputs, received {tuple(layer.weight.shape)}"
            )
        if i and inputs != layers[i - 1].weight.shape[0]:
            raise ValueError(
                f"{where} reads {inputs} features, but the layer before gives {layers[i - 1].weight.shape[0]}"
            )
        if layer.bias is not None and layer.bias.shape != (outputs,):
            raise ValueError(f"{where}: expected a bias of {outputs}, received {tuple(layer.bias.shape)}")
        _one_of(f"{where}: activation", layer.activation, tuple(ACTIVATIONS))
        _one_of(f"{where}: layout", layer.layout, LAYOUTS)
        if layer.block < 0 or (layer.gate is not None and not layer.block):
            raise ValueError(f"{where}: a gate needs block >= 1, received {layer.block}")
        _check_narrow(where, layer)
        if layer.skip_zeros and (layer.layout not in ("panels", "vectors") or (i and layers[i - 1].block)):
            raise ValueError(
                f"{where}: skip_zeros needs panels or vectors and an input that is not gated, received {layer.layout}"
            )
        _check_value(where, layer, gated=bool(i and layers[i - 1].block))
        _check_thresholds(where, layer, gated=bool(i and layers[i - 1].block))
        if layer.gate is not None:
            check_gate_net(where, layer.gate, inputs, layer.blocks)
        given += bool(layer.block) and layer.gate is None
    if given > 1:
        raise ValueError(f"at most one layer may have a block without a gate, received {given}: give the others a gate")


def _check_narrow(where: str, layer: Layer) -> None:
    if layer.layout not in FITS:
        return
    fits, holder = FITS[layer.layout]
    held = [weight for weight in (layer.weight, layer.value_weight) if weight is not None]
    if not all(map(fits, held)):
        raise ValueError(f"{where}: {layer.layout} need weights that {holder} exactly: use panels, or round them")


def _check_value(where: str, layer: Layer, *, gated: bool) -> None:
    weight, bias = layer.value_weight, layer.value_bias
    if weight is None:
        if bias is not None:
            raise ValueError(f"{where}: received a value_bias without a value_weight")
        return
    if weight.shape != layer.weight.shape or (bias is not None and bias.shape != layer.weight.shape[:1]):
        raise ValueError(f"{where}: expected a value of {tuple(layer.weight.shape)}, received {tuple(weight.shape)}")
    if gated or layer.skip_zeros:
        raise ValueError(f"{where}: a value needs an input that is not gated, and cannot skip zeros")


def _check_thresholds(where: str, layer: Layer, *, gated: bool) -> None:
    above, value, factors = layer.above, layer.value_above, layer.factors_above
    if factors is not None and (above is None or value is None):
        raise ValueError(
            f"{where}: thresholds of factors need some of the inputs of both projections: 0 leaves out none"
        )
    if above is None and value is None:
        return
    if (above is None) or (value is None) != (layer.value_weight is None):
        raise ValueError(f"{where}: expected thresholds of all of its projections, received some: 0 leaves out nothing")
    if layer.layout not in BY_INPUT or gated or layer.block or layer.skip_zeros:
        raise ValueError(
            f"{where}: thresholds need panels, inputs and outputs that are not gated, and cannot skip zeros as well, "
            f"received {layer.layout}"
        )
    units, inputs = layer.weight.shape
    for given, count in ((above, inputs), (value, inputs), (factors, units)):
        if given is not None and (given.shape != (count,) or not _are_sizes(given)):
            raise ValueError(f"{where}: expected {count} finite thresholds from 0 on, received {tuple(given.shape)}")


def _are_sizes(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all()) and bool((values >= 0.0).all())


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, received {value!r}")
