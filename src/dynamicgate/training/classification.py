"""How much each class weighs in the loss."""

from __future__ import annotations

import torch
from torch import Tensor


def weights_per_class(class_weights: Tensor | str | None, labels: Tensor | None, classes: int) -> Tensor | None:
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
    if labels is None:
        raise ValueError("balanced class weights need all labels: pass class_weights as a tensor")
    labels = labels.flatten()
    counts = torch.bincount(labels[labels >= 0], minlength=classes).float()
    return int(counts.sum()) / (counts.count_nonzero() * counts.clamp(min=1))
