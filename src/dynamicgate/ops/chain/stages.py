"""A chain in stages: what it is made of, and its reference implementation in plain torch, in the dtype of `x`.

Stage k adds units to every hidden layer. They read the units of stages 1..k of the layer before, and only these units
add to the outputs. After each stage but the last a row is scored, and it stops where its score is not above the cut.

Shapes in names: B rows, D features read, N units, K stages, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.chain.layers import Layer, check_layers

DECIDE = ("margin", "entropy", "head")  # in the order of enum Decide in csrc/program.h


class Head(NamedTuple):
    """A linear map from the units of the last hidden layer, as far as they are computed, to the score of a row."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Staged:
    """A chain whose rows stop after any of its stages.

    stages: for each stage its part of every layer, without gates: the first reads the input, those after it all units
        of the layer before that are computed by then, and the last, which gives the outputs, those of this stage only.
    cut: one for each stage but the last; the next one opens for scores above it.
    decide: what scores a row: "margin" (the second largest output minus the largest), "entropy" of the outputs, "head".
    heads: with "head", one for each stage but the last.
    """

    stages: tuple[tuple[Layer, ...], ...]
    cut: tuple[float, ...]
    decide: str = "margin"
    heads: tuple[Head, ...] = ()

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return self.stages[0][-1].weight.shape[0]


def check_staged(staged: Staged) -> None:
    """Raise ValueError for a chain in stages that cannot be run."""
    stages, layers = len(staged.stages), len(staged.stages[0]) if staged.stages else 0
    if stages < 2 or layers < 2 or any(len(stage) != layers for stage in staged.stages):
        raise ValueError(
            f"a chain in stages needs two stages or more, each with its part of the same two layers or more, received "
            f"stages of {[len(stage) for stage in staged.stages]} layers"
        )
    if len(staged.cut) != stages - 1:
        raise ValueError(f"{stages} stages need {stages - 1} cuts, received {len(staged.cut)}")
    if staged.decide not in DECIDE:
        raise ValueError(f"decide must be one of {', '.join(DECIDE)}, received {staged.decide!r}")
    inputs = staged.stages[0][0].weight.shape[1]
    read = [0] * (layers - 1)  # the units of each hidden layer up to this stage
    for k, stage in enumerate(staged.stages):
        for i, layer in enumerate(stage):
            _check_part(f"stage {k + 1}, layer {i}", layer, is_output=i + 1 == layers)
            units, reads = layer.weight.shape
            own = stage[i - 1].weight.shape[0]
            wanted = inputs if i == 0 else own if i + 1 == layers else read[i - 1]
            if reads != wanted or (i + 1 == layers and units != staged.outputs):
                outputs = f" and {staged.outputs} outputs" if i + 1 == layers else ""
                raise ValueError(
                    f"stage {k + 1}, layer {i}: expected {wanted} inputs{outputs}, received {tuple(layer.weight.shape)}"
                )
            if i + 1 < layers:
                read[i] += units
    _check_decision(staged, [sum(s[-2].weight.shape[0] for s in staged.stages[: k + 1]) for k in range(stages - 1)])


def _check_part(where: str, layer: Layer, *, is_output: bool) -> None:
    if layer.block or layer.gate is not None or layer.above is not None:
        raise ValueError(f"{where}: a chain in stages has no gates on units, and no thresholds")
    check_layers([layer])
    if is_output and layer.activation != "identity":
        raise ValueError(
            f"{where}: stages add up to the outputs, which have no activation, received {layer.activation!r}"
        )
    if float(ACTIVATIONS[layer.activation].function(torch.zeros(()))) != 0.0:
        raise ValueError(f"{where}: padding must stay zero, but {layer.activation} of 0 is not 0")


def _check_decision(staged: Staged, read: Sequence[int]) -> None:
    if staged.decide != "head":
        if staged.outputs < 2 or staged.heads:
            raise ValueError(
                f"decide={staged.decide!r} compares two outputs or more and has no heads, received {staged.outputs} "
                f"outputs and {len(staged.heads)} heads"
            )
        return
    shapes = [tuple(head.weight.shape) for head in staged.heads]
    if shapes != [(1, units) for units in read]:
        raise ValueError(f"heads read the units computed so far, expected {[(1, n) for n in read]}, received {shapes}")


class Scored(NamedTuple):
    """The outputs if rows stopped after each stage, K tensors [B, C], and the scores [B, K - 1]."""

    outputs: list[Tensor]
    score_BK: Tensor


def score_stages(x: Tensor, staged: Staged) -> Scored:
    """Run all stages for all rows."""
    hidden: list[list[Tensor]] = []  # of each layer, the units of each stage
    for i in range(len(staged.stages[0]) - 1):
        below = hidden[-1] if hidden else None
        hidden.append([_units(x, below, k, stage[i]) for k, stage in enumerate(staged.stages)])
    outputs: list[Tensor] = []
    scores: list[Tensor] = []
    for k, stage in enumerate(staged.stages):
        added = _linear(hidden[-1][k], stage[-1].weight, stage[-1].bias)
        outputs.append(outputs[-1] + added if outputs else added)
        if k + 1 < len(staged.stages):
            h = torch.cat(hidden[-1][: k + 1], dim=-1)
            from_head = _linear(h, *staged.heads[k])[..., 0] if staged.decide == "head" else None
            scores.append(score_of(staged.decide, outputs[-1], from_head))
    return Scored(outputs, torch.stack(scores, dim=-1))


def _units(x: Tensor, below: list[Tensor] | None, k: int, layer: Layer) -> Tensor:
    """The units of stage k in a hidden layer. In the model they read the units of later stages too, with weights of
    zero: that adds nothing, or NaN where one of those is not finite."""
    if below is None:
        z = _linear(x, layer.weight, layer.bias)
    else:
        z = _linear(torch.cat(below[: k + 1], dim=-1), layer.weight, layer.bias)
        for later in below[k + 1 :]:
            z = z + (later * 0.0).sum(-1, keepdim=True)
    return ACTIVATIONS[layer.activation].function(z)


def score_of(decide: str, z_BC: Tensor, from_head_B: Tensor | None) -> Tensor:
    """How much each row needs the next stage."""
    if from_head_B is not None:
        return from_head_B
    if decide == "entropy":
        return torch.special.entr(z_BC.softmax(-1)).sum(-1)
    first_B, second_B = z_BC.topk(2, dim=-1).values.unbind(-1)
    return second_B - first_B


def stop_rows(outputs: Sequence[Tensor], score_BK: Tensor, cut_K: Tensor) -> Tensor:
    """The outputs of the last stage that is open for each row."""
    out_BC, open_B = outputs[0], torch.ones_like(score_BK[..., 0], dtype=torch.bool)
    for k, z_BC in enumerate(outputs[1:]):
        open_B = open_B & (score_BK[..., k] > cut_K[k])
        out_BC = torch.where(open_B[..., None], z_BC, out_BC)
    return out_BC


def reference_staged(x: Tensor, staged: Staged) -> Tensor:
    """Run the chain: compute everything, then choose for each row the outputs of the stage at which it stops."""
    outputs, score_BK = score_stages(x, staged)
    return stop_rows(outputs, score_BK, torch.tensor(staged.cut, dtype=torch.float64).to(x.dtype))


def _linear(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(h, weight.to(h.dtype), None if bias is None else bias.to(h.dtype))
