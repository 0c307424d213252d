"""Quality numbers against hand counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.accounting.metrics import confusion_counts, correlation, quality_of
from dynamicgate.accounting.validation import evaluate
from dynamicgate.data import Arrays


def test_the_confusion_matrix_has_true_classes_in_rows() -> None:
    scores = torch.eye(3)[torch.tensor([0, 1, 1, 2, 0])]
    counts = confusion_counts(scores, torch.tensor([0, 0, 1, 1, 0]))
    assert counts.tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_correlation_is_pearsons_and_none_where_one_side_does_not_vary() -> None:
    a = torch.randn(50, dtype=torch.float64)
    b = a + torch.randn(50, dtype=torch.float64)
    assert correlation(a, b) == pytest.approx(float(torch.corrcoef(torch.stack([a, b]))[0, 1]), abs=1e-12)
    assert correlation(a, -a) == pytest.approx(-1.0, abs=1e-12)
    assert correlation(a, torch.ones(50, dtype=torch.float64)) is None
    assert correlation(torch.ones(50, dtype=torch.float64), a) is None


def test_quality_by_hand() -> None:
    found = quality_of(torch.tensor([[8, 2, 0], [1, 3, 0], [0, 1, 5]]))
    assert found["accuracy"] == pytest.approx(16 / 20)
    f1 = [2 * 8 / (10 + 9), 2 * 3 / (4 + 6), 2 * 5 / (6 + 5)]
    assert found["macro_f1"] == pytest.approx(sum(f1) / 3)


def test_a_class_that_neither_occurs_nor_is_predicted_does_not_count() -> None:
    assert quality_of(torch.tensor([[4, 0, 0], [0, 4, 0], [0, 0, 0]])) == {"accuracy": 1.0, "macro_f1": 1.0}


def test_a_class_that_is_only_predicted_counts_with_zero() -> None:
    found = quality_of(torch.tensor([[4, 0, 1], [0, 4, 0], [0, 0, 0]]))
    assert found["macro_f1"] == pytest.approx((2 * 4 / 9 + 1.0 + 0.0) / 3)


def test_guessing_the_majority_is_not_good_quality() -> None:
    found = quality_of(torch.tensor([[90, 0], [10, 0]]))
    assert found["accuracy"] == 0.9
    assert found["macro_f1"] < 0.5


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_batches_do_not_change_the_result(batch: int) -> None:
    model = dg.nn.GatedMLP((6, 20, 4), dg.GateConfig(open=0.6), dropout=0.5)
    data = Arrays(torch.randn(50, 6), torch.randint(0, 4, (50,)))
    found = evaluate(model, data, dg.accounting.MacCounter.for_mlp(model), batch=batch)
    model.eval()
    with torch.no_grad():
        scores = model(data.x)
    measured = dg.measure(model, data)
    assert found["accuracy"] == measured.quality["accuracy"] == (scores.argmax(1) == data.y).double().mean()
    assert found["macro_f1"] == measured.quality["macro_f1"]
    assert found["loss"] == pytest.approx(float(F.cross_entropy(scores, data.y)), rel=1e-5)
    assert found["relative"] == pytest.approx(measured.macs["relative"], rel=1e-6)
    assert found["relative"] < 1.5, "some gates are closed: with all open it is 1.6"


def test_evaluation_uses_evaluation_mode_and_puts_every_mode_back() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.9), nn.Linear(8, 4))
    model.train()
    model[0].eval()
    data = Arrays(torch.randn(50, 6), torch.randint(0, 4, (50,)))
    assert evaluate(model, data, dg.accounting.MacCounter.for_mlp(model)) == evaluate(
        model, data, dg.accounting.MacCounter.for_mlp(model)
    )
    assert [m.training for m in model] == [False, True, True]
    assert all(p.grad is None for p in model.parameters())
