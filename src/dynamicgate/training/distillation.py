"""Learning from another network's answers: they say more of a row than its label does."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEMPERATURE = 2.0


class Teacher:
    """A trained model whose scores are imitated, and how much that counts beside the labels."""

    def __init__(self, model: nn.Module, share: float, device: torch.device) -> None:
        """`share` of the loss is for the teacher, the rest for the labels."""
        if not 0.0 < share <= 1.0:
            raise ValueError(
                f"distill_weight is the teacher's share of the loss: expected 0 < distill_weight <= 1, received {share}"
            )
        self.model, self.share = model.to(device).eval(), share

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """What the teacher says of these rows."""
        return self.model(x).float()

    def distance(self, scores_BC: Tensor, x: Tensor) -> Tensor:
        """How far the student is from the teacher on each row: the divergence of the softened answers, with the weight
        that keeps its gradient as large as the labels' (Hinton et al.)."""
        theirs_BC = F.log_softmax(self.scores(x) / TEMPERATURE, dim=-1)
        mine_BC = F.log_softmax(scores_BC / TEMPERATURE, dim=-1)
        return TEMPERATURE**2 * F.kl_div(mine_BC, theirs_BC, log_target=True, reduction="none").sum(-1)

    def identity(self) -> list[object]:
        """What a run that continues this one must share."""
        digest = hashlib.blake2b(digest_size=8)
        for name, value in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return [self.share, digest.hexdigest()]
