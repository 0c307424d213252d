"""What a chain is made of, in the words of `nn.Linear`: nothing here knows how it will be laid out or run.

Shapes in names: B rows, D features read, N outputs, G blocks of outputs, R inner width of a gate network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from dynamicgate.activations import ACTIVATIONS

LAYOUTS = ("panels", "rows", "vectors", "csr", "columns")


@dataclass(frozen=True)
class GateNet:
    """A small network whose logits open blocks: those above `cut`, and the `keep` largest in any case.

    weights, biases: one linear map (w_GD) or two (u_RD, v_GR).
    hidden: the activation between two maps: "identity" is low rank, "relu" two layers.
    cut: tau * logit(theta), for all blocks or one for each; infinity leaves the choice to `keep` (top-k).
    keep: how many of the largest logits open whatever `cut` says; among equals the lowest index.
    tau: multiply the open units by sigmoid(z / tau); None multiplies by 1.
    soft_width: multiply the open units by min(1, (z - cut) / soft_width), which is 0 at the cut; None multiplies by 1. Not together
        with `tau`, nor with `keep`, which would open blocks below the cut to multiply them by 0.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    hidden: str = "identity"
    cut: float | Tensor = 0.0
    keep: int = 0
    tau: float | None = None
    soft_width: float | None = None

    @property
    def blocks(self) -> int:
        """Logits, which is blocks."""
        return self.weights[-1].shape[0]


@dataclass(frozen=True)
class Layer:
    """h <- factor * activation(weight h + bias), for the blocks of outputs that are open.

    block: outputs that open and close together, the last block may be ragged; 0: not gated.
    gate: decides from the input of this layer; without one, `block` > 0 means that the caller gives `factor_BG`.
    layout: "panels" for dense weights, "rows" for unit gates, "vectors" for weights in which 16 adjacent outputs share
        their inputs, "columns" for such weights behind a gate that is mostly open (closed inputs are read, as zeros),
        "csr" for weights that are zero anywhere. All give the same result for the same weights.
    skip_zeros: leave out inputs that are exactly zero; "panels" or "vectors", and the layer before must not be gated.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: str = "identity"
    block: int = 0
    gate: GateNet | None = None
    layout: str = "panels"
    skip_zeros: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of outputs; 0 where there is no gate."""
        return -(-self.weight.shape[0] // self.block) if self.block else 0


def check(layers: list[Layer]) -> None:
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
        if layer.skip_zeros and (layer.layout not in ("panels", "vectors") or (i and layers[i - 1].block)):
            raise ValueError(
                f"{where}: skip_zeros needs panels or vectors and an input that is not gated, received {layer.layout}"
            )
        if layer.gate is not None:
            _check_gate(where, layer.gate, inputs, layer.blocks)
        given += bool(layer.block) and layer.gate is None
    if given > 1:
        raise ValueError(f"at most one layer may have a block without a gate, received {given}: give the others a gate")


def _check_gate(where: str, gate: GateNet, inputs: int, blocks: int) -> None:
    if len(gate.weights) not in (1, 2) or len(gate.biases) != len(gate.weights):
        raise ValueError(
            f"{where}: a gate has one or two weights and as many biases, "
            f"received {len(gate.weights)} and {len(gate.biases)}"
        )
    shapes = [tuple(w.shape) for w in gate.weights]
    rank = shapes[0][0]
    if shapes != ([(blocks, inputs)] if len(shapes) == 1 else [(rank, inputs), (blocks, rank)]):
        raise ValueError(
            f"{where}: expected a gate from {inputs} features to {blocks} blocks, received weights {shapes}"
        )
    if any(b is not None and b.shape != (w.shape[0],) for w, b in zip(gate.weights, gate.biases, strict=True)):
        raise ValueError(f"{where}: expected gate biases as long as the outputs of their weights {shapes}")
    _one_of(f"{where}: hidden activation of the gate", gate.hidden, ("identity", "relu"))
    if not 0 <= gate.keep <= blocks:
        raise ValueError(f"{where}: expected 0 <= keep <= {blocks} blocks, received {gate.keep}")
    if isinstance(gate.cut, Tensor) and gate.cut.ndim and gate.cut.shape != (blocks,):
        raise ValueError(
            f"{where}: expected one cut, or one for each of {blocks} blocks, received {tuple(gate.cut.shape)}"
        )
    if gate.tau is not None and not gate.tau > 0:
        raise ValueError(f"{where}: expected tau > 0, received {gate.tau}")
    if gate.soft_width is not None:
        _check_ramp(where, gate)


def _check_ramp(where: str, gate: GateNet) -> None:
    if not (gate.soft_width is not None and 0.0 < gate.soft_width < math.inf):
        raise ValueError(f"{where}: expected a finite soft_width > 0, received {gate.soft_width}")
    if gate.tau is not None or gate.keep:
        raise ValueError(
            f"{where}: a ramp goes without tau and keep, received tau {gate.tau} and keep {gate.keep} with {gate.soft_width}"
        )
    # The cuts of a tensor are not looked at: they may lie on a GPU, which would have to be waited for.
    if not isinstance(gate.cut, Tensor) and not math.isfinite(gate.cut):
        raise ValueError(f"{where}: a ramp begins at the cut, expected a finite one, received {gate.cut}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, received {value!r}")
