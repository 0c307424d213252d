"""What lowering is made of: a layer with its history, and an affine map that a Linear can take up."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dynamicgate.ops import chain


@dataclass(frozen=True)
class Stage:
    """A layer of a chain and what it was made from."""

    name: str
    layer: chain.Layer
    shape: tuple[int, int]
    """Outputs and inputs of the module it was, before slicing."""
    site: str | None = None
    """The site of the dynamic gate on its outputs."""


def changed(stage: Stage, **changes: object) -> Stage:
    """`stage` with other fields in its layer."""
    return replace(stage, layer=replace(stage.layer, **changes))  # type: ignore[arg-type]


class Affine:
    """scale * x + shift on the features a Linear reads; for a folded LayerNorm the mean is one feature more."""

    def __init__(self, scale: Tensor | None = None, shift: Tensor | None = None, norm_features: int = 0) -> None:
        """None is 1 and 0."""
        self.scale, self.shift, self.norm_features = scale, shift, norm_features

    def then(self, scale: Tensor | None, shift: Tensor | None) -> Affine:
        """This one, and behind it another."""
        old_scale, old_shift = self.scale, self.shift
        if scale is not None:
            old_scale = scale if old_scale is None else old_scale * scale
            old_shift = None if old_shift is None else old_shift * scale
        if shift is not None:
            old_shift = shift if old_shift is None else old_shift + shift
        return Affine(old_scale, old_shift, self.norm_features)

    @torch.no_grad()
    def fold(self, weight_ND: Tensor, bias_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a Linear that reads the features as they were before."""
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
