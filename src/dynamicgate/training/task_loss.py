"""What `fit` minimises: cross entropy with the labels, mixed with the distance to a teacher where there is one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from dynamicgate.gating.recording import Usage
from dynamicgate.training.distillation import Teacher, divergence
from dynamicgate.training.stage_loss import StageLoss


@dataclass(frozen=True, eq=False)
class TaskLoss:
    """The loss of scores, summed over rows; weights are given per class."""

    class_weights: Tensor | None
    label_smoothing: float
    teacher: Teacher | None

    def __call__(self, scores_BC: Tensor, y_B: Tensor, x: Tensor) -> Tensor:
        """Of the outputs of a model."""
        if self.teacher is not None:
            return self.of_rows(scores_BC, y_B, self.teacher.scores(x)).sum()
        return self._labels(scores_BC, y_B, "sum")

    def of_stages(self, stage_loss: StageLoss, used: Usage, y_B: Tensor, x: Tensor) -> Tensor:
        """Of all stages of a model."""
        teacher_BC = None if self.teacher is None else self.teacher.scores(x)  # once for all of them
        return stage_loss.of_rows(used, lambda scores_BC: self.of_rows(scores_BC, y_B, teacher_BC)).sum()

    def of_rows(self, scores_BC: Tensor, y_B: Tensor, teacher_BC: Tensor | None) -> Tensor:
        """Of each row, with what the teacher says about it."""
        labels_B = self._labels(scores_BC, y_B, "none")
        if self.teacher is None or teacher_BC is None:
            return labels_B
        distance_B = divergence(scores_BC.float(), teacher_BC)
        if self.class_weights is not None:
            distance_B = distance_B * self.class_weights[y_B]
        return (1.0 - self.teacher.weight) * labels_B + self.teacher.weight * distance_B

    def _labels(self, scores_BC: Tensor, y_B: Tensor, reduction: str) -> Tensor:
        return F.cross_entropy(
            scores_BC.float(), y_B, self.class_weights, reduction=reduction, label_smoothing=self.label_smoothing
        )
