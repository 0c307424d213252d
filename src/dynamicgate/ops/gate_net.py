"""A gate network as tensors and numbers, and the rule by which its logits open blocks. Chains and FFNs share it.

Shapes in names: B rows, D features read, G blocks of outputs, R inner width of the gate network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS

NEAREST = "nearest"
NEAREST_CODE = 8  # kNearest of csrc/program.h
HIDDEN = ("identity", "relu", NEAREST)
FEW = 4  # largest logits: found one by one instead of by sorting


@dataclass(frozen=True)
class GateNet:
    """A small network with one logit for each block. A block is open if its logit is above `cut` or in the top k.

    weights, biases: one linear map (w_GD) or two (u_RD, v_GR).
    hidden: the activation between two maps: "identity" makes the gate low-rank, "relu" makes it a two-layer network,
        "nearest" is 1 for the largest value of a row and 0 for all others: with prototypes as the first map and
        -|p|^2 / 2 as its bias, that is the nearest one, and the second map says what it opens. Only chains can.
    cut: tau * logit(theta), one for all blocks or one for each. With an infinite cut only `top_k` opens blocks.
    top_k: how many of the largest logits open a block whatever the cut is. Ties go to the lowest index.
    tau: multiply open units by sigmoid(z / tau); None multiplies them by 1.
    soft_width: multiply open units by min(1, (z - cut) / soft_width), which is 0 at the cut; None multiplies them by 1.
        It cannot be combined with `tau`, nor with `top_k`, which would open blocks below the cut to multiply them by 0.
    unbounded: leave out the 1 of `soft_width`: open units are multiplied by (z - cut) / soft_width, however large.
    competes: multiply open units by the softmax of z / tau over the open blocks instead.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    hidden: str = "identity"
    cut: float | Tensor = 0.0
    top_k: int = 0
    tau: float | None = None
    soft_width: float | None = None
    competes: bool = False
    unbounded: bool = False

    @property
    def blocks(self) -> int:
        """The number of logits, which is the number of blocks."""
        return self.weights[-1].shape[0]


def logits(x_BD: Tensor, gate: GateNet) -> Tensor:
    """z, one for each row and block, in the dtype of `x_BD`."""
    z = x_BD
    for i, (weight, bias) in enumerate(zip(gate.weights, gate.biases, strict=True)):
        z = z if i == 0 else between_maps(z, gate.hidden)
        z = F.linear(z, weight.to(z.dtype), None if bias is None else bias.to(z.dtype))
    return z


def between_maps(z_BR: Tensor, hidden: str) -> Tensor:
    """What the second map of a gate network reads."""
    if hidden != NEAREST:
        return ACTIVATIONS[hidden].function(z_BR)
    return torch.zeros_like(z_BR).scatter(-1, z_BR.argmax(-1, keepdim=True), 1.0)


def code_of(activation: str) -> int:
    """The number of an activation in csrc/program.h, that of gate networks included."""
    return NEAREST_CODE if activation == NEAREST else ACTIVATIONS[activation].code


def largest(z_BG: Tensor, k: int) -> Tensor:
    """Which are the k largest of each row, NaN counting as larger than all others; ties go to the lowest index."""
    if k > FEW:
        if z_BG.device.type == "cpu" and not torch.compiler.is_compiling():
            return _reaching_the_kth(z_BG, k)  # takes less than half as long as a sort
        first_k = z_BG.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        return torch.zeros_like(z_BG, dtype=torch.bool).scatter(-1, first_k, True)
    found_BG = torch.zeros_like(z_BG, dtype=torch.bool)
    z_BG = z_BG.clamp(min=torch.finfo(z_BG.dtype).min)  # -inf is for those that were found
    for _ in range(k):  # a sort takes longer, on a GPU the more so where it is part of a compiled model
        best_B1 = z_BG.masked_fill(found_BG, -torch.inf).argmax(dim=-1, keepdim=True)
        found_BG = found_BG.scatter(-1, best_B1, True)
    return found_BG


def _reaching_the_kth(z_BG: Tensor, k: int) -> Tensor:
    """Those above the k-th largest of each row, and as many of its equals as there is room for."""
    k = min(k, z_BG.shape[-1])
    kth_B1 = z_BG.kthvalue(z_BG.shape[-1] - k + 1, dim=-1, keepdim=True).values
    nan_BG, nan_B1 = z_BG.isnan(), kth_B1.isnan()
    above_BG = (z_BG > kth_B1) | (nan_BG & ~nan_B1)
    equal_BG = (z_BG == kth_B1) | (nan_BG & nan_B1)
    return above_BG | (equal_BG & (equal_BG.cumsum(-1) <= k - above_BG.sum(-1, keepdim=True)))


def decide(z_BG: Tensor, gate: GateNet) -> Tensor:
    """The factor of each block: 0 where it is closed, and NaN where the logit is NaN, as in a trained gate."""
    open_BG = z_BG > torch.as_tensor(gate.cut, dtype=z_BG.dtype)
    if gate.top_k:
        open_BG = open_BG | largest(z_BG, gate.top_k)
    if gate.competes:
        return _shares(z_BG / gate.tau, open_BG | z_BG.isnan())  # type: ignore[operator]
    factor_BG = torch.where(z_BG.isnan(), z_BG, open_BG.to(z_BG.dtype))
    if gate.soft_width is not None:
        above_BG = (z_BG - torch.as_tensor(gate.cut, dtype=z_BG.dtype)) / gate.soft_width
        return factor_BG * above_BG.clamp(0.0, None if gate.unbounded else 1.0)
    return factor_BG if gate.tau is None else factor_BG * torch.sigmoid(z_BG / gate.tau)


def _shares(z_BG: Tensor, open_BG: Tensor) -> Tensor:
    """The softmax of open blocks among themselves, which are all NaN if one is; 0 for closed ones."""
    top_B1 = z_BG.masked_fill(~open_BG, -torch.inf).amax(-1, keepdim=True)
    weight_BG = torch.where(open_BG, (z_BG - top_B1).exp(), 0.0)
    return torch.where(open_BG, weight_BG / weight_BG.sum(-1, keepdim=True), 0.0)


def check_gate_net(where: str, gate: GateNet, inputs: int, blocks: int) -> None:
    """Raise ValueError for a gate that cannot decide about `blocks` blocks from `inputs` features."""
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
    if gate.hidden not in HIDDEN:
        raise ValueError(
            f"{where}: hidden activation of the gate must be one of {', '.join(HIDDEN)}, received {gate.hidden!r}"
        )
    if gate.hidden == NEAREST and len(gate.weights) != 2:
        raise ValueError(f"{where}: hidden='nearest' lies between two maps, received {len(gate.weights)}")
    if not 0 <= gate.top_k <= blocks:
        raise ValueError(f"{where}: expected 0 <= top_k <= {blocks} blocks, received {gate.top_k}")
    if isinstance(gate.cut, Tensor) and gate.cut.ndim and gate.cut.shape != (blocks,):
        raise ValueError(
            f"{where}: expected one cut, or one for each of {blocks} blocks, received {tuple(gate.cut.shape)}"
        )
    if gate.tau is not None and not gate.tau > 0:
        raise ValueError(f"{where}: expected tau > 0, received {gate.tau}")
    if gate.competes and gate.tau is None:
        raise ValueError(f"{where}: blocks that compete need the temperature of their softmax, received tau None")
    if gate.soft_width is not None:
        _check_soft_width(where, gate, gate.soft_width)
    elif gate.unbounded:
        raise ValueError(f"{where}: unbounded leaves out the limit of soft_width, received soft_width None")


def _check_soft_width(where: str, gate: GateNet, soft_width: float) -> None:
    if not 0.0 < soft_width < math.inf:
        raise ValueError(f"{where}: expected a finite soft_width > 0, received {soft_width}")
    if gate.tau is not None or gate.top_k:
        raise ValueError(
            f"{where}: soft_width cannot be combined with tau or top_k, "
            f"received tau {gate.tau} and top_k {gate.top_k} with soft_width {soft_width}: leave one of them out"
        )
    # Cuts in a tensor are not checked: they may be on a GPU, and reading them would make the host wait for it.
    if not isinstance(gate.cut, Tensor) and not math.isfinite(gate.cut):
        raise ValueError(f"{where}: soft_width starts at the cut, expected a finite one, received {gate.cut}")
