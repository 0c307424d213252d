"""Distillation from a language model: the KL divergence of large vocabularies, computed in chunks of them.

Written plainly it needs several float32 copies of all logits at once, which for 8,000 tokens and a vocabulary of
256,000 are 8 GB each. Here one chunk of them exists at a time, going forward and going back.

Shapes in names: N positions, V entries of the vocabulary, C entries of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 8192


def kl_divergence(student: Tensor, teacher: Tensor, *, temperature: float = 1.0, chunk: int = CHUNK) -> Tensor:
    """KL(teacher || student) at every position, of logits over the last dimension.

    Logits are divided by `temperature`, and the result is multiplied by its square, so that gradients keep their size.
    The gradient is that of the student alone. chunk: entries of the vocabulary that are computed at once.
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"student and teacher must score the same tokens: the logits have the shapes {list(student.shape)} and "
            f"{list(teacher.shape)}"
        )
    if not temperature > 0.0:
        raise ValueError(f"temperature must be positive, received {temperature}")
    if chunk < 1:
        raise ValueError(f"chunk is a number of entries, 1 or more, received {chunk}")
    flat = (logits.reshape(-1, logits.shape[-1]) for logits in (student, teacher.detach()))
    found_N: Tensor = _ChunkedDivergence.apply(*flat, temperature, chunk)  # type: ignore[no-untyped-call]
    return found_N.reshape(student.shape[:-1])


class _ChunkedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student_NV: Tensor, teacher_NV: Tensor, temperature: float, chunk: int) -> Tensor:
        dtype = torch.promote_types(student_NV.dtype, torch.float32)
        scale = dtype, 1.0 / temperature
        student_N, teacher_N = (_logsumexp(logits, chunk, *scale) for logits in (student_NV, teacher_NV))
        found_N = torch.zeros_like(student_N)
        for part in _parts(student_NV.shape[-1], chunk):
            student_NC = _log_softmax(student_NV, student_N, part, *scale)
            teacher_NC = _log_softmax(teacher_NV, teacher_N, part, *scale)
            p_NC = teacher_NC.exp()
            # a token that the teacher excludes (-inf) adds nothing
            found_N += torch.where(p_NC > 0.0, p_NC * (teacher_NC - student_NC), 0.0).sum(-1)
        ctx.save_for_backward(student_NV, teacher_NV, student_N, teacher_N)
        ctx.temperature, ctx.chunk = temperature, chunk
        return found_N * temperature**2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_N,) = gradients
        student_NV, teacher_NV, student_N, teacher_N = ctx.saved_tensors
        scale = student_N.dtype, 1.0 / ctx.temperature
        result_NV = torch.empty_like(student_NV)
        for part in _parts(student_NV.shape[-1], ctx.chunk):
            student_NC = _log_softmax(student_NV, student_N, part, *scale).exp()
            teacher_NC = _log_softmax(teacher_NV, teacher_N, part, *scale).exp()
            result_NV[:, part] = (gradient_N * ctx.temperature)[:, None] * (student_NC - teacher_NC)
        return result_NV, None, None, None


def _parts(size: int, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, size, chunk))


def _log_softmax(logits_NV: Tensor, total_N: Tensor, part: slice, dtype: torch.dtype, scale: float) -> Tensor:
    return logits_NV[:, part].to(dtype) * scale - total_N[:, None]


def _logsumexp(logits_NV: Tensor, chunk: int, dtype: torch.dtype, scale: float) -> Tensor:
    total_N = torch.full(logits_NV.shape[:1], -torch.inf, dtype=dtype, device=logits_NV.device)
    for part in _parts(logits_NV.shape[-1], chunk):
        total_N = torch.logaddexp(total_N, (logits_NV[:, part].to(dtype) * scale).logsumexp(-1))
    return total_N
