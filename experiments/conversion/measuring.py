"""What a student reaches on a text, and what a token costs it, relative to the dense model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.hf import measure
from dynamicgate.lab.language.resumable import autocast
from experiments.conversion.models import ffn_macs, ffn_sites
from experiments.conversion.students import Student


def measure_student(
    student: Student, dense: nn.Module, batches: Iterable[Mapping[str, Tensor]], text_bytes: int | None = None
) -> dict[str, Any]:
    """Quality as `dynamicgate.hf.measure` has it, and MACs of a token: of the whole model, and of its feed-forward
    layers as a fraction of the dense ones."""
    device = next(student.model.parameters()).device
    with autocast(device), nullcontext() if student.selection is None else student.selection.attached():
        found = measure(student.model, batches, text_bytes=text_bytes)
    whole_ffn = ffn_macs(dense, ffn_sites(dense))
    own_ffn = ffn_macs(student.model, ffn_sites(student.model))
    rest = found.macs["dense"] - own_ffn  # attention, embedding and head are those of the dense model
    executed = found.macs["executed"] if student.selection is None else rest + student.selection.executed()
    macs = {
        "dense": rest + whole_ffn, "executed": executed, "relative": executed / (rest + whole_ffn),
        "ffn": (executed - rest) / whole_ffn,
    }  # fmt: skip
    return {**found.quality, "macs": macs, "tokens": found.tokens, "open": [layer["open"] for layer in found.layers]}


def parameters(model: nn.Module) -> int:
    """All of them, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def on(device: torch.device, batches: Iterable[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """These batches on a device."""
    return [{name: value.to(device) for name, value in batch.items()} for batch in batches]
