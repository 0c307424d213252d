"""The loss of a model with stages: every stage learns to answer, and later ones may care most for rows that reach them.

In your own loop::

    stage_loss = StageLoss()
    with dg.usage(model) as used:
        model(x)
    loss = stage_loss(used, lambda outputs: F.cross_entropy(outputs, y, reduction="none"))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.data.tasks import divergence
from dynamicgate.distributed import RowMeans
from dynamicgate.gating.recording import Usage
from dynamicgate.gating.stages import StageDecision

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

    @property
    def settings(self) -> dict[str, Any]:
        """What a run that continues this one must share, as JSON gives it back."""
        return {**asdict(self), "weights": None if self.weights is None else list(self.weights)}

    def __call__(self, used: Usage, row_loss: RowLoss) -> Tensor:
        """The loss over the rows of a batch; `row_loss` gives that of each row from outputs."""
        each_B = self.of_rows(used, row_loss)
        return each_B.mean() if each_B.numel() else each_B.sum()

    def of_rows(self, used: Usage, row_loss: RowLoss) -> Tensor:
        """The loss of each row, [B], in the order of the rows of the outputs."""
        decision = used.stages
        if decision is None:
            raise ValueError(
                "no forward pass of a model with stages was recorded: call gate_(model, GateConfig(kind='stages')) "
                "first, and run the model inside `with dynamicgate.usage(model)`"
            )
        rows = decision.open.shape[:-1].numel()
        losses = [_of_rows(row_loss(outputs), rows) for outputs in decision.outputs]
        last = losses[-1].detach()
        total = torch.zeros_like(losses[-1])
        weights = self._weights(len(losses))
        for k, (loss_B, weight) in enumerate(zip(losses, weights, strict=True)):
            if self.distill and k + 1 < len(losses):
                loss_B = (1.0 - self.distill) * loss_B + self.distill * self._distance(decision, k)
            total = total + weight * loss_B * self._attention(decision, k)
        if decision.score.requires_grad:  # heads learn what the last stage gains over theirs
            gains_BK = torch.stack([loss_B.detach() - last for loss_B in losses[:-1]], dim=-1)
            score_BK = decision.score.flatten(0, -2).float()
            total = total + F.smooth_l1_loss(score_BK, gains_BK.float(), reduction="none").mean(-1)
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
        open_B = decision.open[..., k].detach().flatten()
        mean = RowMeans(open_B).mean(open_B).clamp(min=1e-3)  # a stage that no row opened is trained on none
        return (1.0 - self.focus) + self.focus * open_B / mean

    def _distance(self, decision: StageDecision, k: int) -> Tensor:
        last_BC, now_BC = (z.flatten(0, -2).float() for z in (decision.outputs[-1].detach(), decision.outputs[k]))
        return (now_BC - last_BC).square().mean(1) if self.outputs == "values" else divergence(now_BC, last_BC)


def _of_rows(loss: Tensor, rows: int) -> Tensor:
    """One value a row: several outputs of a row are averaged."""
    if loss.ndim == 0 or loss.numel() % max(1, rows):
        raise ValueError(
            f"row_loss must give the loss of each of the {rows} rows, received a tensor of shape {list(loss.shape)}: "
            "pass reduction='none' to it"
        )
    return loss if loss.shape == (rows,) else loss.reshape(rows, loss.numel() // max(1, rows)).mean(1)
