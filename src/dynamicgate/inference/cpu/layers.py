"""The layers of a chain as modules of buffers: packed for the kernels, or one by one in torch. No gradients.

Shapes in names: B rows (any leading dimensions), D features, N units, G blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate import ops
from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.gate import scale_units
from dynamicgate.inference.cpu.dense_stages import DenseStages
from dynamicgate.inference.gates import GateInTorch, without_prefix


class PackedLayers(nn.Module):
    """All layers in one op."""

    weights: Tensor
    program: Tensor

    def __init__(self, packed: ops.chain.Packed) -> None:
        """What `ops.chain.pack` returned."""
        super().__init__()
        self.register_buffer("weights", packed.weights)
        self.register_buffer("program", packed.program)
        # The same tensors once more: looking up two buffers of a module takes a third of a call at batch 1.
        self.packed = packed

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLayers:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.packed = ops.chain.Packed(self.weights, self.program, self.packed.outputs)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.packed = ops.chain.Packed(self.weights, self.program, self.packed.outputs)

    def forward(self, x_BD: Tensor, factor_BG: Tensor | None = None) -> Tensor:
        """The outputs; `factor_BG` is for the first layer, if that has blocks and no gate."""
        return ops.chain.run(x_BD, self.packed, factor_BG)

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {"kind": "packed", "outputs": self.packed.outputs}


class DenseLayer(nn.Module):
    """One layer in full, closed units multiplied by zero: by torch or, with a `program`, by our dense panels."""

    weight: Tensor
    bias: Tensor | None
    program: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        program: Tensor | None,
        gate: GateInTorch | None,
        *,
        activation: str,
        block: int,
        outputs: int,
    ) -> None:
        """`weight` and `bias` are those of a Linear, or `weight` and `program` were packed together."""
        super().__init__()
        self.activation, self.block, self.outputs = activation, block, outputs
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("program", program)
        self.gate = gate
        self._decide = None if gate is None else gate.forward

    def forward(self, x_BD: Tensor, factor_BG: Tensor | None = None) -> Tensor:
        """factor * activation(W x + b)."""
        if self._decide is not None:
            factor_BG = self._decide(x_BD)
        if self.program is None:
            h_BN = ACTIVATIONS[self.activation].function(F.linear(x_BD, self.weight, self.bias))
        else:
            h_BN = ops.chain.run(x_BD, ops.chain.Packed(self.weight, self.program, self.outputs))
        return scale_units(h_BN, factor_BG, self.block) if self.block and factor_BG is not None else h_BN

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        gate = None if self.gate is None else self.gate.describe()
        return {"activation": self.activation, "block": self.block, "outputs": self.outputs, "gate": gate}

    @staticmethod
    def from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> DenseLayer:
        """The inverse of `describe`, with the buffers."""
        gate = described["gate"] and GateInTorch.from_description(described["gate"], without_prefix(tensors, "gate"))
        held = (tensors["weight"], tensors.get("bias"), tensors.get("program"))
        return DenseLayer(*held, gate, **{key: described[key] for key in ("activation", "block", "outputs")})


def dense_layer(layer: ops.chain.Layer, *, panels: bool) -> DenseLayer:
    """`layer` for torch or, with `panels`, for our dense panels with the gate in torch."""
    gate = None if layer.gate is None else GateInTorch(layer.gate)
    weight, bias, program = layer.weight, layer.bias, None
    if panels:
        packed = ops.chain.pack([ops.chain.Layer(layer.weight, layer.bias, layer.activation)])
        weight, bias, program = packed.weights, None, packed.program
    outputs = layer.weight.shape[0]
    return DenseLayer(weight, bias, program, gate, activation=layer.activation, block=layer.block, outputs=outputs)


class DenseLayers(nn.Module):
    """Dense layers, one after the other."""

    def __init__(self, layers: Sequence[DenseLayer]) -> None:
        """Run in this order."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._first, *self._rest = (layer.forward for layer in layers)  # without the overhead of module calls

    def forward(self, x_BD: Tensor, factor_BG: Tensor | None = None) -> Tensor:
        """The outputs; `factor_BG` is for the first layer, if that has blocks and no gate."""
        x_BD = self._first(x_BD, factor_BG)
        for run in self._rest:
            x_BD = run(x_BD)
        return x_BD

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {"kind": "dense", "layers": [layer.describe() for layer in self.layers]}  # type: ignore[operator]


def layers_from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The inverse of `describe`, with the buffers."""
    if described["kind"] == "packed":
        return PackedLayers(ops.chain.Packed(tensors["weights"], tensors["program"], described["outputs"]))
    if described["kind"] == "dense stages":
        return DenseStages.from_description(described, tensors)
    parts = enumerate(described["layers"])
    return DenseLayers([DenseLayer.from_description(x, without_prefix(tensors, f"layers.{i}")) for i, x in parts])
