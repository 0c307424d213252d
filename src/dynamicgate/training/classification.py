"""What `fit` needs to know about classes: their weights, the outputs of the model, and whether labels fit them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynamicgate.data import Arrays
from dynamicgate.modules import evaluating


def weights_per_class(class_weights: Tensor | str | None, train: Arrays, classes: int) -> Tensor | None:
    """ "balanced" is inverse class frequency with mean 1 over the rows."""
    if class_weights is None:
        return None
    if isinstance(class_weights, Tensor):
        if class_weights.shape != (classes,) or not bool((class_weights >= 0).all() & class_weights.isfinite().all()):
            raise ValueError(
                f"class_weights must be {classes} finite numbers, none negative, one for each output of the model; "
                f"received {class_weights.tolist()}"
            )
        return class_weights.float()
    if class_weights != "balanced":
        raise ValueError(f"class_weights is a tensor with one weight a class or 'balanced', received {class_weights!r}")
    counts = torch.bincount(train.y, minlength=classes).float()
    return len(train.y) / (counts.count_nonzero() * counts.clamp(min=1))


@torch.no_grad()
def scored_classes(model: nn.Module, example: Tensor) -> int:
    """How many classes the model scores; a readable error if it does not accept the data."""
    try:
        with evaluating(model):
            scores = model(example)
    except RuntimeError as error:
        raise ValueError(f"the model cannot read rows of shape {list(example.shape[1:])}: {error}") from error
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != len(example):
        found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"fit trains classifiers: expected scores of shape [{len(example)}, classes] for {len(example)} rows, the "
            f"model returned {found}"
        )
    return scores.shape[1]


def check_labels(data: Arrays, classes: int, what: str) -> None:
    """The model must have an output for every label."""
    least, most = int(data.y.min()), int(data.y.max())
    if least < 0 or most >= classes:
        raise ValueError(
            f"{what}: labels must be 0..{classes - 1} for a model with {classes} outputs, found {least}..{most}"
        )
