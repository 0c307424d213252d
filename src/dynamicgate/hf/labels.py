"""Which predictions of a Hugging Face model have a label, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

IGNORED = -100


def predicts_next_token(model: nn.Module) -> bool:
    """Whether the logits at one position are for the label of the next: causal language models."""
    encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    loss_type = getattr(model, "loss_type", None)
    return LOSS_MAPPING.get(loss_type or "") is ForCausalLMLoss and not encoder_decoder


def predicted_labels(model: nn.Module, given: Mapping[str, Any]) -> Tensor | None:
    """The labels of a batch, in line with the predictions: without the first one, which nothing predicts, for causal
    language models. None for a batch without labels."""
    if isinstance(given.get("shift_labels"), Tensor):
        return given["shift_labels"]
    labels = given.get("labels")
    if not isinstance(labels, Tensor):
        return None
    return labels[..., 1:] if predicts_next_token(model) else labels


def predictions(model: nn.Module, logits: Tensor, given: Mapping[str, Any]) -> Tensor:
    """The logits that `predicted_labels` are for."""
    shifted = predicts_next_token(model) and not isinstance(given.get("shift_labels"), Tensor)
    return logits[..., :-1, :] if shifted else logits
