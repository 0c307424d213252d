"""Knowledge distillation: train on the softened outputs of a trained model besides the labels."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from dynamicgate.data.contract import Inputs, call

DEFAULT_WEIGHT = 0.5


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
    def scores(self, x: Inputs) -> Tensor:
        """The teacher's outputs for these rows."""
        scores: Tensor = call(self.model, x)
        return scores.float()

    def fingerprint(self) -> list[object]:
        """What a run that continues this one must share."""
        digest = hashlib.blake2b(digest_size=8)
        for name, value in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return [self.weight, digest.hexdigest()]
