"""The layers of a chain while it is lowered, and affine maps that are folded into the weights that read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dynamicgate import ops


@dataclass(frozen=True)
class Stage:
    """A layer of a chain and what it was made from."""

    name: str
    layer: ops.Layer
    shape: tuple[int, int]
    """Outputs and inputs of the module it was, before slicing."""
    site: str | None = None
    """The site of the dynamic gate on its outputs."""


def with_layer(stage: Stage, **changes: object) -> Stage:
    """`stage` with other values for some fields of its layer."""
    return replace(stage, layer=replace(stage.layer, **changes))  # type: ignore[arg-type]


class Affine:
    """scale * x + shift on the features that a Linear reads; a folded LayerNorm adds the mean as one more feature."""

    def __init__(self, scale: Tensor | None = None, shift: Tensor | None = None, norm_features: int = 0) -> None:
        """None stands for a scale of 1 and a shift of 0."""
        self.scale, self.shift, self.norm_features = scale, shift, norm_features

    def then(self, scale: Tensor | None, shift: Tensor | None) -> Affine:
        """This map followed by another."""
        old_scale, old_shift = self.scale, self.shift
        if scale is not None:
            old_scale = scale if old_scale is None else old_scale * scale
            old_shift = None if old_shift is None else old_shift * scale
        if shift is not None:
            old_shift = shift if old_shift is None else old_shift + shift
        return Affine(old_scale, old_shift, self.norm_features)

    @torch.no_grad()
    def fold(self, weight_ND: Tensor, bias_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a Linear that reads the features as they are before this map."""
        weight_ND = weight_ND.detach()
        bias_N = None if bias_N is None else bias_N.detach()
        if self.shift is not None and bool((self.shift != 0).any()):
            shift_D = self.shift.double().expand(weight_ND.shape[1])
            extra_N = weight_ND.double() @ shift_D
            bias_N = (extra_N if bias_N is None else bias_N.double() + extra_N).float()
        if self.scale is not None and bool((self.scale != 1).any()):
            weight_ND = (weight_ND.double() * self.scale.double()).float()
        if self.norm_features:
            weight_ND = torch.cat((weight_ND, -weight_ND.double().sum(1, keepdim=True).float()), dim=1)
        return weight_ND, bias_N

    def fold_gate(self, net: ops.GateNet) -> ops.GateNet:
        """A gate network that reads the features as they are before this map."""
        weight, bias = self.fold(net.weights[0], net.biases[0])
        return replace(net, weights=(weight, *net.weights[1:]), biases=(bias, *net.biases[1:]))
