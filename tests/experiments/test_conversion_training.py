"""Converted models in training: steps that resume to the bit, batches in parts, budgets, rates, the loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from experiments.conversion import language
from experiments.conversion.students import Arm, Samples
from experiments.conversion.texts import Texts, Windows
from experiments.conversion.training import Training, in_parts
from torch import nn
from torch.nn import functional as F

from tests.experiments.conversion_runs import (
    ASKED,
    CONTEXT,
    CPU,
    dense_model,
    drawn_texts,
    ids,
    inputs_to_look_at,
    run_of,
)


@pytest.fixture(scope="module")
def dense() -> nn.Module:
    return dense_model()


@pytest.fixture(scope="module")
def samples() -> Samples:
    return inputs_to_look_at()


@pytest.fixture(scope="module")
def texts() -> Texts:
    return drawn_texts()


@pytest.mark.parametrize("method", ["gate", "magnitude", "static width", "experts"])
def test_training_resumes_to_the_same_student(
    method: Any, dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path
) -> None:
    arm = Arm(method=method, ffn=0.5)
    whole = run_of(arm, dense, samples, texts, tmp_path / "whole")
    whole.train()
    broken = run_of(arm, dense, samples, texts, tmp_path / "broken")
    broken.student.train()
    for _ in range(5):
        broken._recent.append(broken.optimize())
        broken._note()
    broken.save()
    resumed = run_of(arm, dense, samples, texts, tmp_path / "broken")
    resumed.train()
    assert resumed.step == 8
    assert resumed.tokens == whole.tokens == 8 * 4 * CONTEXT
    assert resumed.curve == whole.curve
    expected = whole.student.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.student.state_dict().items())
    rates = [group["base_lr"] for group in whole.optimizer.param_groups]
    assert rates == ([1e-3] if method == "static width" else [1e-3, 1e-3])


@pytest.mark.parametrize("method", ["magnitude", "static width"])
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(
    method: Any, dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path
) -> None:
    curves = []
    for at_once in (None, 2):
        run = run_of(Arm(method=method, ffn=0.5), dense, samples, texts, tmp_path / str(at_once))
        run.training = replace(run.training, at_once=at_once)
        run.budget = None  # it reads the first part alone
        curves.append([float(run.optimize()) for _ in range(4)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    with pytest.raises(ValueError, match="no equal parts of 3"):
        in_parts({"input_ids": ids(4, 0)}, 3)


def test_a_short_training_is_enough_for_the_budget(
    dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path
) -> None:
    run = run_of(Arm(method="gate", ffn=0.5, block=8), dense, samples, texts, tmp_path)
    run.training = replace(run.training, steps=61)  # as many as 2 M tokens are
    executed = []
    for _ in range(61):
        run.optimize()
        assert run.budget is not None
        executed.append(run.budget.relative)
    assert executed[0] == pytest.approx(1.0, abs=0.03)
    assert fmean(executed[45:]) == pytest.approx(run.budget.target, abs=0.015)  # before any calibration


def test_gates_learn_at_their_own_rate(dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path) -> None:
    run = run_of(Arm(method="experts", ffn=0.5), dense, samples, texts, tmp_path)
    run.training = replace(run.training, lr=1e-4)
    names = {id(p): name for name, p in run.student.named_parameters()}
    weights, gates = run.optimizer.param_groups
    assert all(".gate." in names[id(p)] for p in gates["params"])
    assert not any(".gate." in names[id(p)] for p in weights["params"])
    assert len(weights["params"]) + len(gates["params"]) == len(names)
    assert (Training(steps=1).lr, Training(steps=1).gate_lr) == (1e-4, 1e-3)


def test_the_loss_is_the_divergence_and_a_tenth_of_the_text(dense: nn.Module, texts: Texts) -> None:
    student = copy.deepcopy(dense)
    for parameter in student.parameters():
        parameter.mul_(0.9)
    task = language.NextTokens(dense, texts, ASKED, CPU)
    inputs = task.draw(torch.Generator().manual_seed(0))
    found, wanted = (model(**inputs).logits[:, :-1].log_softmax(-1) for model in (student, dense))
    divergence = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1).mean()
    text = F.nll_loss(found.flatten(0, 1), inputs["input_ids"][:, 1:].flatten())
    torch.testing.assert_close(task.loss(student, inputs), divergence + 0.1 * text)


def test_batches_are_half_of_each_text(texts: Texts) -> None:
    marked = {}
    for value, name in ((3, "books"), (4, "python")):
        text = texts.texts[name]
        marked[name] = replace(text, tokens={"train": text.tokens["train"] * 0 + value})
    windows = Windows(Texts(marked, None), "train", CONTEXT, CPU)
    drawn = windows.draw(6, torch.Generator().manual_seed(0))
    assert sorted(drawn[:, 0].tolist()) == [3, 3, 3, 4, 4, 4]
    (fixed,) = windows.fixed(5, 8)
    assert fixed[:, 0].tolist() == [3, 4, 3, 4, 3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("method", ["dense", "magnitude", "static width"])
def test_steps_that_a_gpu_is_given_whole_are_the_same_steps(method: Any, texts: Texts, tmp_path: Path) -> None:
    cuda = torch.device("cuda")
    dense, samples = dense_model().to(cuda), inputs_to_look_at(cuda)
    curves = {}
    for capture in (False, True):
        run = run_of(Arm(method=method, ffn=0.5), dense, samples, texts, tmp_path / str(capture), cuda)
        run.training = replace(run.training, capture=capture)
        curves[capture] = [float(run.optimize()) for _ in range(8)]
        assert (run._captured is not None) == capture
    assert curves[True] == pytest.approx(curves[False], rel=1e-2)  # in bfloat16
