"""Tasks: what targets are, what a model's outputs say about them, and the loss of each row.

`fit`, `measure` and `sparsify_` take one as `loss=`: a name, one of these classes with other settings, or a function of
your own. Losses are given for each row, so that micro-batches, processes and stages add up exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

TaskName: TypeAlias = Literal["classification", "regression", "multilabel", "own"]
OwnLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Metric: TypeAlias = Callable[[Tensor, Tensor], Any]
"""A number from all outputs and all targets."""
IGNORED = -100  # a class number that counts nowhere, as in torch: padding


class Task:
    """What a loss knows about a task."""

    name: ClassVar[TaskName]
    best: ClassVar[tuple[str, bool]] = ("loss", False)
    """The number of a validation that says which epoch is best, and whether more of it is better."""

    @property
    def settings(self) -> Any:
        """What a run that continues another must share, as a JSON value."""
        raise NotImplementedError

    def check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise ValueError if outputs of this shape cannot answer targets of that shape."""

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row; of a sequence, of each of its tokens, in a row."""
        raise NotImplementedError

    def summed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of `of_rows`."""
        return self.of_rows(outputs, targets).sum()

    def weight(self, targets: Tensor) -> float:
        """What the sum over rows is divided by to be a mean."""
        return float(len(targets))

    def distance(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """How far each row is from the outputs of a teacher."""
        raise ValueError(f"a teacher needs a loss that knows how far two outputs are apart, received {self!r:.60}")

    def predict(self, outputs: Tensor) -> Tensor:
        """Outputs as answers of the kind that the targets are."""
        return outputs


@dataclass(frozen=True, eq=False)
class Classification(Task):
    """Cross entropy of one class per row, or per token, with class number -100 for tokens that do not count."""

    class_weights: Tensor | None = None
    label_smoothing: float = 0.0
    name: ClassVar[TaskName] = "classification"
    best: ClassVar[tuple[str, bool]] = ("accuracy", True)

    @property
    def settings(self) -> Any:
        """None: the class weights and the smoothing are arguments of `fit`."""
        return None

    def check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """One score for each class, for every class number."""
        if outputs.shape[:-1] != targets.shape or outputs.ndim < 2:
            raise ValueError(
                f"class numbers of shape {_shown(targets)} need scores of shape {_shown(targets, 'classes')}, the "
                f"model returned {_shown(outputs)}; other targets need loss=, such as 'mse' or 'multilabel'"
            )

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy."""
        return self._loss(outputs, targets, "none")

    def summed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of `of_rows`, in one operation."""
        return self._loss(outputs, targets, "sum")

    def weight(self, targets: Tensor) -> float:
        """The sum of the weights of the classes, without what is ignored."""
        if targets.ndim > 1:
            targets = targets[targets != IGNORED]
        return float(len(targets)) if self.class_weights is None else float(self.class_weights[targets].sum())

    def distance(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """The KL divergence of scores softened by a temperature of 2, scaled so that its gradient is as large as that
        of the labels (Hinton et al.)."""
        return divergence(outputs.flatten(0, -2).float(), teacher.flatten(0, -2))

    def predict(self, outputs: Tensor) -> Tensor:
        """The class with the highest score."""
        return outputs.argmax(-1)

    def _loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        scores, labels = outputs.flatten(0, -2).float(), targets.flatten()
        return F.cross_entropy(
            scores, labels, self.class_weights, reduction=reduction, label_smoothing=self.label_smoothing
        )


@dataclass(frozen=True)
class _Regression(Task):
    """One or more measurements per row."""

    name: ClassVar[TaskName] = "regression"

    @property
    def settings(self) -> Any:
        """The name and the fields."""
        return [type(self).__name__, asdict(self)]

    def check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """One output for each measurement."""
        if outputs.numel() != targets.numel() or outputs.shape[0] != targets.shape[0]:
            raise ValueError(
                f"measurements of shape {_shown(targets)} need a model with as many outputs, the model returned "
                f"{_shown(outputs)}"
            )

    def distance(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """The mean squared difference."""
        return (outputs.float() - teacher).square().flatten(1).mean(1)

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the measurements of a row."""
        return self._each(outputs.reshape(targets.shape).float(), targets).reshape(len(targets), -1).mean(1)

    def _each(self, values: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def predict(self, outputs: Tensor) -> Tensor:
        """The outputs, one number per row where there is one."""
        return outputs.squeeze(1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs


@dataclass(frozen=True)
class MSE(_Regression):
    """Squared error: the outputs are means."""

    def _each(self, values: Tensor, targets: Tensor) -> Tensor:
        return (values - targets).square()


@dataclass(frozen=True)
class Huber(_Regression):
    """Squared error up to `delta` and absolute error beyond, so that outliers weigh less."""

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise ValueError(f"delta is where the error becomes linear and must be positive, received {self.delta}")

    def _each(self, values: Tensor, targets: Tensor) -> Tensor:
        return F.huber_loss(values, targets, reduction="none", delta=self.delta)


@dataclass(frozen=True)
class Quantile(_Regression):
    """Pinball loss: output k is the value that a fraction `levels[k]` of the measurements lies below."""

    levels: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels or not all(0.0 < level < 1.0 for level in self.levels):
            raise ValueError(f"levels are fractions between 0 and 1, one for each output, received {self.levels}")

    @property
    def settings(self) -> Any:
        """The levels."""
        return ["Quantile", {"levels": list(self.levels)}]

    def check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """One output for each level, of one measurement."""
        wanted = (len(targets), len(self.levels))
        if targets.numel() != len(targets) or (outputs.shape != wanted and outputs.shape != targets.shape):
            raise ValueError(
                f"quantiles {self.levels} of one measurement per row need outputs of shape {list(wanted)}, received "
                f"outputs {_shown(outputs)} and targets {_shown(targets)}"
            )

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the levels."""
        levels_Q = torch.tensor(self.levels, device=outputs.device)
        below_BQ = targets.reshape(-1, 1) - outputs.reshape(len(targets), -1).float()
        return torch.maximum(levels_Q * below_BQ, (levels_Q - 1.0) * below_BQ).mean(1)

    def predict(self, outputs: Tensor) -> Tensor:
        """The value of the level that is nearest to the median."""
        nearest = min(range(len(self.levels)), key=lambda k: abs(self.levels[k] - 0.5))
        return outputs if outputs.ndim == 1 else outputs[:, nearest]


@dataclass(frozen=True)
class MultiLabel(Task):
    """Binary cross entropy of several labels, each of which a row has or has not."""

    name: ClassVar[TaskName] = "multilabel"

    @property
    def settings(self) -> Any:
        """The name."""
        return ["MultiLabel", {}]

    def check_outputs(self, outputs: Tensor, targets: Tensor) -> None:
        """One score for each label."""
        if outputs.shape != targets.shape:
            raise ValueError(f"labels of shape {_shown(targets)} need as many scores, received {_shown(outputs)}")

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the labels of a row."""
        return F.binary_cross_entropy_with_logits(outputs.float(), targets, reduction="none").mean(1)

    def distance(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """Binary cross entropy with the probabilities of the teacher."""
        return self.of_rows(outputs, teacher.sigmoid())

    def predict(self, outputs: Tensor) -> Tensor:
        """1 for the labels that are more likely than not."""
        return (outputs > 0).to(torch.int64)


@dataclass(frozen=True)
class Own(Task):
    """A loss of the user's: `(outputs, targets)` to the loss of each row, or to their mean."""

    loss: OwnLoss
    name: ClassVar[TaskName] = "own"

    @property
    def settings(self) -> Any:
        """The function, which a fingerprint describes."""
        return self.loss

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the function says; a mean is the loss of every row."""
        found = self.loss(outputs, targets)
        if not isinstance(found, Tensor) or (found.ndim and len(found) != len(targets)):
            shown = _shown(found) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"loss must return a tensor with the loss of each of the {len(targets)} rows, or their mean; received "
                f"{shown}"
            )
        return found.expand(len(targets)) if found.ndim == 0 else found.flatten(1).mean(1) if found.ndim > 1 else found


NAMES: dict[str, Callable[[], Task]] = {
    "cross_entropy": Classification,
    "mse": MSE,
    "huber": Huber,
    "quantile": Quantile,
    "multilabel": MultiLabel,
}


def as_task(loss: str | Task | OwnLoss | None) -> Task:
    """The task of a `loss=` argument; None is classification."""
    if loss is None:
        return Classification()
    if isinstance(loss, Task):
        return loss
    if isinstance(loss, str) and loss in NAMES:
        return NAMES[loss]()
    if callable(loss) and not isinstance(loss, type):
        return Own(loss)
    raise ValueError(
        f"loss must be one of {', '.join(NAMES)}, a task of dynamicgate.data.tasks, or a function (outputs, targets) "
        f"to the loss of each row; received {loss!r:.60}"
    )


def divergence(student_BC: Tensor, teacher_BC: Tensor, temperature: float = 2.0) -> Tensor:
    """The KL divergence of the student from the teacher on each row."""
    student_BC, teacher_BC = (F.log_softmax(scores / temperature, dim=-1) for scores in (student_BC, teacher_BC))
    return temperature**2 * F.kl_div(student_BC, teacher_BC, log_target=True, reduction="none").sum(-1)


def _shown(tensor: Tensor, *more: str) -> str:
    return f"[{', '.join([*map(str, tensor.shape), *more])}]"
