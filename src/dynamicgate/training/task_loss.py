"""What `fit` minimises: the loss of the task, mixed with the distance to a teacher where there is one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dynamicgate.data.contract import Inputs
from dynamicgate.data.tasks import IGNORED, Classification, Task
from dynamicgate.gating.recording import Usage
from dynamicgate.training.distillation import Teacher
from dynamicgate.training.stage_loss import StageLoss


@dataclass(frozen=True, eq=False)
class TaskLoss:
    """The loss of outputs, summed over rows."""

    task: Task
    teacher: Teacher | None

    def __call__(self, outputs: Tensor, y: Tensor, x: Inputs) -> Tensor:
        """Of the outputs of a model."""
        if self.teacher is not None:
            return self.of_rows(outputs, y, self.teacher.scores(x)).sum()
        return self.task.summed(outputs, y)

    def of_stages(self, stage_loss: StageLoss, used: Usage, y: Tensor, x: Inputs) -> Tensor:
        """Of all stages of a model."""
        teacher = None if self.teacher is None else self.teacher.scores(x)  # once for all of them
        return stage_loss.of_rows(used, lambda outputs: self.of_rows(outputs, y, teacher)).sum()

    def of_rows(self, outputs: Tensor, y: Tensor, scores: Tensor | None) -> Tensor:
        """Of each row, with what the teacher says about it."""
        found = self.task.of_rows(outputs, y)
        if self.teacher is None or scores is None:
            return found
        distance = self.task.distance(outputs, scores)
        if isinstance(self.task, Classification):
            labels = y.flatten()
            if self.task.class_weights is not None:
                distance = distance * self.task.class_weights[labels.clamp(min=0)]
            if y.ndim > 1:
                distance = distance * (labels != IGNORED)
        return (1.0 - self.teacher.weight) * found + self.teacher.weight * distance
