"""Knowledge distillation: train on the softened outputs of a trained model besides the labels."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEMPERATURE = 2.0
DEFAULT_WEIGHT = 0.5


def divergence(student_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """The KL divergence of the student from the teacher on each row, of scores softened by the temperature and scaled
    so that its gradient is as large as that of the labels (Hinton et al.)."""
    student_BC, teacher_BC = (F.log_softmax(scores / TEMPERATURE, dim=-1) for scores in (student_BC, teacher_BC))
    return TEMPERATURE**2 * F.kl_div(student_BC, teacher_BC, log_target=True, reduction="none").sum(-1)


class Teacher:
    """A trained model to distill from, and the weight of its outputs in the loss."""

    def __init__(self, model: nn.Module, weight: float | None, device: torch.device) -> None:
        """`weight` is the teacher's fraction of the loss, None is 0.5; the rest is for the labels."""
        self.weight = DEFAULT_WEIGHT if weight is None else weight
        if not 0.0 < self.weight <= 1.0:
            raise ValueError(
                "distill_weight is the teacher's fraction of the loss: expected 0 < distill_weight <= 1, received "
                f"{self.weight}"
            )
        self.model = model.to(device).eval()

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """The teacher's scores for these rows."""
        return self.model(x).float()

    def fingerprint(self) -> list[object]:
        """What a run that continues this one must share."""
        digest = hashlib.blake2b(digest_size=8)
        for name, value in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return [self.weight, digest.hexdigest()]
