"""The divergence in chunks is the plain formula, and so is its gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dynamicgate.hf import kl_divergence


def plain(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    student, teacher = (F.log_softmax(scores / temperature, -1) for scores in (student, teacher))
    return temperature**2 * F.kl_div(student, teacher, log_target=True, reduction="none").sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 1000])
def test_values_and_gradients_are_those_of_the_plain_formula(temperature: float, chunk: int) -> None:
    torch.manual_seed(0)
    student = torch.randn(3, 5, 65, dtype=torch.float64) * 4
    teacher = torch.randn(3, 5, 65, dtype=torch.float64) * 4
    weights = torch.rand(3, 5, dtype=torch.float64)
    found, expected = (student.clone().requires_grad_() for _ in range(2))
    value = kl_divergence(found, teacher, temperature=temperature, chunk=chunk)
    wanted = plain(expected, teacher, temperature)
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
    (value * weights).sum().backward()
    (wanted * weights).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=1e-12)


def test_it_passes_gradcheck() -> None:
    student = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(4, 9, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: kl_divergence(s, teacher, temperature=1.5, chunk=4), student)


def test_half_precision_is_computed_in_float32() -> None:
    torch.manual_seed(1)
    student, teacher = (torch.randn(6, 300).bfloat16() for _ in range(2))
    student.requires_grad_()
    value = kl_divergence(student, teacher, chunk=32)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, plain(student.float(), teacher.float(), 1.0), rtol=1e-5, atol=1e-5)
    value.sum().backward()
    assert student.grad is not None
    assert student.grad.dtype == torch.bfloat16


def test_tokens_that_the_teacher_excludes_add_nothing() -> None:
    student, teacher = torch.randn(2, 10), torch.randn(2, 10)
    teacher[:, 3:5] = -torch.inf
    student.requires_grad_()
    value = kl_divergence(student, teacher, chunk=4)
    kept = [0, 1, 2, *range(5, 10)]
    known = F.log_softmax(teacher[:, kept], -1)
    expected = (known.exp() * (known - F.log_softmax(student, -1)[:, kept])).sum(-1)
    torch.testing.assert_close(value, expected)
    value.sum().backward()
    assert bool(torch.isfinite(student.grad).all())


def test_bad_arguments_are_named() -> None:
    scores = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="same tokens"):
        kl_divergence(scores, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="temperature must be positive"):
        kl_divergence(scores, scores, temperature=0.0)
    with pytest.raises(ValueError, match="chunk"):
        kl_divergence(scores, scores, chunk=0)
