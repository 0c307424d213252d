"""Distillation from a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate import fit, measure
from dynamicgate.data.tasks import divergence
from dynamicgate.training.distillation import Teacher
from tests.training.easy import blobs, dense


def trained_teacher() -> torch.nn.Module:
    model = dense()
    fit(model, blobs(), epochs=8, batch=24, lr=1e-2, show=False)
    return model


def test_a_student_learns_from_its_teacher_despite_random_labels() -> None:
    x, y = blobs()
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    student, alone = dense(), dense()
    fit(student, (x, shuffled), teacher=trained_teacher(), distill_weight=1.0, epochs=12, batch=24, lr=1e-2, show=False)
    fit(alone, (x, shuffled), epochs=12, batch=24, lr=1e-2, show=False)
    assert measure(student, blobs(seed=1)).quality["accuracy"] > 0.95
    assert measure(alone, blobs(seed=1)).quality["accuracy"] < 0.7


def test_the_loss_is_the_divergence_of_softened_outputs() -> None:
    torch.manual_seed(0)
    teacher = torch.nn.Linear(5, 4).double()
    found = Teacher(teacher, 0.5, torch.device("cpu"))
    x, scores = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    distance = divergence(scores, found.scores(x))
    p, q = (teacher(x).float() / 2).softmax(-1), (scores / 2).softmax(-1)
    torch.testing.assert_close(distance, 4 * (p * (p.log() - q.log())).sum(-1), rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(distance.sum(), scores)
    torch.testing.assert_close(gradient, 2 * (q - p), rtol=1e-5, atol=1e-6)
    assert bool((divergence(teacher(x), found.scores(x)).abs() < 1e-5).all())


def test_a_teacher_stays_in_evaluation_mode_and_keeps_its_weights() -> None:
    teacher = trained_teacher()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    fit(dense(), blobs(), teacher=teacher.train(), epochs=1, show=False)
    assert not teacher.training
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_an_unsuitable_teacher_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the teacher's outputs have shape \[2, 5\], those of the model \[2, 3\]"):
        fit(dense(), blobs(), teacher=dg.nn.GatedMLP((blobs()[0].shape[1], 5)), epochs=1, show=False)
    with pytest.raises(ValueError, match=r"expected 0 < distill_weight <= 1, received 0\.0"):
        fit(dense(), blobs(), teacher=dense(), distill_weight=0.0, epochs=1, show=False)


def test_a_run_is_not_continued_with_another_teacher(tmp_path: Path) -> None:
    teacher = trained_teacher()
    fit(dense(), blobs(), teacher=teacher, epochs=2, out=tmp_path, show=False)
    fit(dense(), blobs(), teacher=teacher, epochs=2, out=tmp_path, show=False)
    with pytest.raises(ValueError, match="teacher"):
        fit(dense(), blobs(), teacher=dense(), epochs=2, out=tmp_path, show=False)
