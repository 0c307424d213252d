"""The loss of a model with stages: every stage learns to answer, and later ones may care most for rows that reach them.

In your own loop::

    stage_loss = StageLoss()
    with dg.usage(model) as used:
        model(x)
    loss = stage_loss(used, lambda outputs: F.cross_entropy(outputs, y, reduction="none"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.distributed import RowMeans
from dynamicgate.gating.recording import Usage
from dynamicgate.gating.stages import StageDecision

TEMPERATURE = 2.0  # of distillation, as in `distillation.Teacher`
RowLoss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class StageLoss:
    """The weighted mean of the losses of all stages.

    weights: of each stage; None weights all alike.
    focus: how much a stage attends to the rows that open it at the present cut, from 0, all rows alike, to 1, no
        others. It helps where a network can learn all its training rows, and hurts where it cannot.
    distill: the fraction of the loss of earlier stages that is the distance to the outputs of the last one.
    outputs: what the outputs are, for `distill`: scores of "classes" (distance: KL divergence) or "values" (squared).
    """

    weights: tuple[float, ...] | None = None
    focus: float = 0.0
    distill: float = 0.0
    outputs: Literal["classes", "values"] = "classes"

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))
            if not self.weights or min(self.weights) < 0 or not sum(self.weights) > 0:
                raise ValueError(f"weights of stages are numbers >= 0, not all 0, received {self.weights}")
        for name in ("focus", "distill"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a fraction: expected 0 to 1, received {getattr(self, name)}")
        if self.outputs not in ("classes", "values"):
            raise ValueError(f"outputs must be classes or values, received {self.outputs!r}")

    def __call__(self, used: Usage, row_loss: RowLoss) -> Tensor:
        """The loss over the rows of a batch; `row_loss` gives that of each row from outputs."""
        each_B = self.of_rows(used, row_loss)
        return each_B.mean() if each_B.numel() else each_B.sum()

    def of_rows(self, used: Usage, row_loss: RowLoss) -> Tensor:
        """The loss of each row, [B]."""
        decision = used.stages
        if decision is None:
            raise ValueError(
                "no forward pass of a model with stages was recorded: call gate_(model, GateConfig(kind='stages')) "
                "first, and run the model inside `with dynamicgate.usage(model)`"
            )
        losses = [_of_rows(row_loss(outputs)) for outputs in decision.outputs]
        last = losses[-1].detach()
        total = torch.zeros_like(losses[-1])
        weights = self._weights(len(losses))
        for k, (loss_B, weight) in enumerate(zip(losses, weights, strict=True)):
            if self.distill and k + 1 < len(losses):
                loss_B = (1.0 - self.distill) * loss_B + self.distill * self._distance(decision, k)
            total = total + weight * loss_B * self._attention(decision, k)
        if decision.score.requires_grad:  # heads learn what the last stage gains over theirs
            gains_BK = torch.stack([loss_B.detach() - last for loss_B in losses[:-1]], dim=-1)
            total = total + F.smooth_l1_loss(decision.score.float(), gains_BK.float(), reduction="none").mean(-1)
        return total

    def _weights(self, count: int) -> list[float]:
        weights = self.weights or (1.0,) * count
        if len(weights) != count:
            raise ValueError(
                f"the model has {count} stages, and StageLoss has {len(weights)} weights: expected one each"
            )
        return [weight / sum(weights) for weight in weights]

    def _attention(self, decision: StageDecision, k: int) -> Tensor | float:
        """How much each row counts in the loss of stage k; 1 on average."""
        if not self.focus or not k:
            return 1.0
        open_B = decision.open[..., k].detach()
        mean = RowMeans(open_B).mean(open_B).clamp(min=1e-3)  # a stage that no row opened is trained on none
        return (1.0 - self.focus) + self.focus * open_B / mean

    def _distance(self, decision: StageDecision, k: int) -> Tensor:
        last_BC, now_BC = decision.outputs[-1].detach().float(), decision.outputs[k].float()
        if self.outputs == "values":
            return _of_rows((now_BC - last_BC).square())
        target_BC, student_BC = (F.log_softmax(z / TEMPERATURE, dim=-1) for z in (last_BC, now_BC))
        return TEMPERATURE**2 * F.kl_div(student_BC, target_BC, log_target=True, reduction="none").sum(-1)


def _of_rows(loss: Tensor) -> Tensor:
    """One value a row: several outputs of a row are averaged."""
    if loss.ndim == 0:
        raise ValueError("row_loss must give the loss of each row: pass reduction='none' to it")
    return loss if loss.ndim == 1 else loss.flatten(1).mean(1)
