"""Ways to hold and run one chain: packed for the kernels, or layer by layer in torch. Buffers only, no gradients.

Shapes in names: B rows (any leading dimensions), D features, N units, G blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.gate import close_units
from dynamicgate.gating.routing import route, top_k_mask
from dynamicgate.ops import GateNet, chain


class GateInTorch(nn.Module):
    """A gate network: from features to the factor of each block, 0 where it is closed."""

    def __init__(self, net: GateNet) -> None:
        """The same decisions as `ops` makes of `net`."""
        super().__init__()
        self.hidden, self.keep, self.cut = net.hidden, net.top_k, float(net.cut)
        self.tau, self.soft_width = net.tau, net.soft_width
        self.stages = len(net.weights)
        for i, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
            self.register_buffer(f"weight_{i}", weight)
            self.register_buffer(f"bias_{i}", bias)

    def logits(self, x_BD: Tensor) -> Tensor:
        """z, one for each block, in float32: a threshold in less would move gates."""
        z = F.linear(x_BD, self.weight_0, self.bias_0)  # type: ignore[arg-type]
        if self.stages == 2:
            z = F.linear(ACTIVATIONS[self.hidden].function(z), self.weight_1, self.bias_1)  # type: ignore[arg-type]
        return z.float()

    def forward(self, x_BD: Tensor) -> Tensor:
        """Factors."""
        return self.factors(self.logits(x_BD))

    def factors(self, z_BG: Tensor) -> Tensor:
        """What logits decide."""
        factor_BG = (z_BG > self.cut).to(z_BG.dtype)
        if self.keep:
            factor_BG = torch.maximum(factor_BG, top_k_mask(z_BG, self.keep))
        if self.soft_width is not None:
            return factor_BG * ((z_BG - self.cut) / self.soft_width).clamp(0.0, 1.0)
        return factor_BG if self.tau is None else factor_BG * torch.sigmoid(z_BG / self.tau)

    def describe(self) -> dict[str, Any]:
        """What is not a tensor, for JSON; infinities as text."""
        scale = {"tau": self.tau, "soft_width": self.soft_width}
        return {"hidden": self.hidden, "keep": self.keep, "cut": str(self.cut), "stages": self.stages, **scale}

    @staticmethod
    def built(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GateInTorch:
        """From `describe` and the buffers."""
        numbers = range(about["stages"])
        weights, biases = (tuple(tensors.get(f"{word}_{i}") for i in numbers) for word in ("weight", "bias"))
        rule = (about["hidden"], float(about["cut"]), about["keep"], about["tau"])
        net = GateNet(weights, biases, *rule, about.get("soft_width"))  # type: ignore[arg-type]  # older plans have no soft_width
        return GateInTorch(net)


class RouterInTorch(nn.Module):
    """Softmax over experts, the k most probable weighted by p (from two on by p over the sum of the chosen)."""

    def __init__(self, gate: GateInTorch, k: int, tau: float) -> None:
        """Decides for the first layer of a chain, by the logits of `gate`."""
        super().__init__()
        self.gate, self.k, self.tau = gate, k, tau

    def forward(self, x_BD: Tensor) -> Tensor:
        """Factors."""
        return self.factors(self.gate.logits(x_BD))

    def factors(self, z_BG: Tensor) -> Tensor:
        """What logits decide."""
        return route(z_BG / self.tau, self.k)[2]

    def describe(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {"k": self.k, "tau": self.tau, "gate": self.gate.describe()}

    @staticmethod
    def built(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> RouterInTorch:
        """From `describe` and the buffers."""
        return RouterInTorch(GateInTorch.built(about["gate"], below(tensors, "gate")), about["k"], about["tau"])


class PackedForm(nn.Module):
    """The whole chain in one op."""

    weights: Tensor
    program: Tensor

    def __init__(self, packed: chain.Packed) -> None:
        """What `chain.pack` gave."""
        super().__init__()
        self.register_buffer("weights", packed.weights)
        self.register_buffer("program", packed.program)
        # The same tensors once more: looking up two buffers of a module takes a third of a call at batch 1.
        self.packed = packed

    def _apply(self, fn: Any, recurse: bool = True) -> PackedForm:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.packed = chain.Packed(self.weights, self.program, self.packed.outputs)
        return self

    def forward(self, x_BD: Tensor, factor_BG: Tensor | None = None) -> Tensor:
        """Run it."""
        return chain.run(x_BD, self.packed, factor_BG)

    def describe(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {"kind": "packed", "outputs": self.packed.outputs}


class TorchStage(nn.Module):
    """One layer in full, closed units multiplied by zero: dense work, by torch, or with a `program` by our panels."""

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
        """`weight` and `program` are packed together, or `weight` and `bias` are those of a Linear."""
        super().__init__()
        self.activation, self.block, self.outputs = activation, block, outputs
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("program", program)
        self.gate = gate
        self._decide = None if gate is None else gate.forward

    def forward(self, x_BD: Tensor, factor_BG: Tensor | None = None) -> Tensor:
        """h <- factor * activation(W x + b)."""
        if self._decide is not None:
            factor_BG = self._decide(x_BD)
        if self.program is None:
            h_BN = ACTIVATIONS[self.activation].function(F.linear(x_BD, self.weight, self.bias))
        else:
            h_BN = chain.run(x_BD, chain.Packed(self.weight, self.program, self.outputs))
        return close_units(h_BN, factor_BG, self.block) if self.block and factor_BG is not None else h_BN

    def describe(self) -> dict[str, Any]:
        """What is not a tensor."""
        gate = None if self.gate is None else self.gate.describe()
        return {"activation": self.activation, "block": self.block, "outputs": self.outputs, "gate": gate}

    @staticmethod
    def built(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TorchStage:
        """From `describe` and the buffers."""
        gate = GateInTorch.built(about["gate"], below(tensors, "gate")) if about["gate"] else None
        held = (tensors["weight"], tensors.get("bias"), tensors.get("program"))
        return TorchStage(*held, gate, **{key: about[key] for key in ("activation", "block", "outputs")})


def torch_stage(layer: chain.Layer, *, own: bool) -> TorchStage:
    """`layer` for torch, or (`own`) for our dense panels with the gate in torch."""
    gate = None if layer.gate is None else GateInTorch(layer.gate)
    weight, bias, program = layer.weight, layer.bias, None
    if own:
        packed = chain.pack([chain.Layer(layer.weight, layer.bias, layer.activation)])
        weight, bias, program = packed.weights, None, packed.program
    outputs = layer.weight.shape[0]
    return TorchStage(weight, bias, program, gate, activation=layer.activation, block=layer.block, outputs=outputs)


class TorchForm(nn.Module):
    """The chain layer by layer."""

    def __init__(self, stages: Sequence[TorchStage]) -> None:
        """Made of `stages`."""
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._first, *self._rest = (stage.forward for stage in stages)  # without the ceremony of module calls

    def forward(self, x_BD: Tensor, factor_BG: Tensor | None = None) -> Tensor:
        """`factor_BG` is for the first layer, if that has blocks and no gate."""
        x_BD = self._first(x_BD, factor_BG)
        for run in self._rest:
            x_BD = run(x_BD)
        return x_BD

    def describe(self) -> dict[str, Any]:
        """What is not a tensor."""
        return {"kind": "torch", "stages": [stage.describe() for stage in self.stages]}  # type: ignore[operator]


def build_form(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The form that `describe` described."""
    if about["kind"] == "packed":
        return PackedForm(chain.Packed(tensors["weights"], tensors["program"], about["outputs"]))
    described = about["stages"]
    return TorchForm([TorchStage.built(s, below(tensors, f"stages.{i}")) for i, s in enumerate(described)])


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
