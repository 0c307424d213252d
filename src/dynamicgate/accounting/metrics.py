"""How good are the answers: accuracy and macro-F1 from counts, correlation."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion_counts(scores_BC: Tensor, y_B: Tensor) -> Tensor:
    """True x predicted counts."""
    classes = scores_BC.shape[1]
    pairs = y_B.to(scores_BC.device) * classes + scores_BC.argmax(1)
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).cpu()


def correlation(a_S: Tensor, b_S: Tensor) -> float | None:
    """Pearson's correlation over samples; None where it is undefined because `a_S` or `b_S` does not vary."""
    std_a, std_b = a_S.std(correction=0), b_S.std(correction=0)
    if min(std_a, std_b) < 1e-12:
        return None
    return float(((a_S - a_S.mean()) * (b_S - b_S.mean())).mean() / (std_a * std_b))


def quality_of(confusion_CC: Tensor) -> dict[str, float]:
    """Accuracy and macro-F1 (over the classes that occur or are predicted) from a true x predicted count matrix."""
    counts = confusion_CC.double()
    hits, true, predicted = counts.diag(), counts.sum(1), counts.sum(0)
    f1 = 2 * hits / (true + predicted).clamp(min=1)
    return {"accuracy": float(hits.sum() / counts.sum()), "macro_f1": float(f1[(true + predicted) > 0].mean())}
