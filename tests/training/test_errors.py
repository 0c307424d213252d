"""Wrong data and arguments of `fit`, and their error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynamicgate import Budget, fit
from tests.training.easy import blobs, dense, gated


def replaced(tensor: Tensor, index: Any, value: float) -> Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


X, Y = blobs(30)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (replaced(X, (4, 2), torch.nan), Y, r"x must be finite in float32, found 1 NaN .* at index \(4, 2\)"),
        (replaced(X, (0, 7), torch.inf), Y, r"at index \(0, 7\) \(inf\)"),
        (X, replaced(Y, 5, 3), r"training data: labels must be 0..2 for a model with 3 outputs, found 0..3"),
        (X, replaced(Y, 5, -1), r"labels must be 0.., found -1 at row 5|labels must be 0..\d+, found -1 at row 5"),
        (X, Y + 0.5, r"labels must be integers, found 0.5 at row 0"),
        (X[:0], Y[:0], r"training data is empty: x has shape \(0, 8\)"),
        (X, torch.zeros_like(Y), r"at least 2 classes, found only class 0 in all 30 rows"),
        (X, Y[:-1], r"x has 30 rows but y has 29 labels"),
        (X, torch.eye(3)[Y], r"y must have 1 dimension, .* got shape \(30, 3\)"),
        (X[:, 0], Y, r"x must have rows and features"),
        (X[:, :7], Y, r"the model cannot read rows of shape \[7\]: mat1 and mat2"),
        (X.reshape(30, 2, 4), Y, r"the model cannot read rows of shape \[2, 4\]"),
    ],
)
def test_bad_training_data_is_refused_with_a_readable_message(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(dense(), (x, y), epochs=1, show=False)


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        ((replaced(X, (4, 2), torch.nan), Y), "validation data: x must be finite"),
        ((X, replaced(Y, 5, 3)), "validation data: labels must be 0..2"),
        ((X[:0], Y[:0]), "validation data is empty"),
    ],
)
def test_bad_validation_data_is_refused_with_a_readable_message(valid: tuple[Tensor, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(dense(), (X, Y), valid=valid, epochs=1, show=False)


def test_validation_data_may_lack_classes() -> None:
    history = fit(dense(), (X, Y), valid=(X[Y == 1], Y[Y == 1]), epochs=1, show=False)
    assert history.best is not None


def test_training_from_batches_in_memory_equals_training_from_tensors() -> None:
    models = [dense(), dense()]
    models[1].load_state_dict(models[0].state_dict())
    fit(models[0], zip(X.split(10), Y.split(10), strict=True), epochs=2, show=False)
    fit(models[1], (X, Y), epochs=2, show=False)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))


@pytest.mark.parametrize("data", [X, {"x": X}, "digits", 3, [X, X]])
def test_data_of_another_type_is_refused(data: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"training data"):
        fit(dense(), data, epochs=1, show=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, received 0"),
        ({"batch": 0}, "batch must be 1 or more, received 0"),
        ({"accumulate": 0}, "accumulate must be 1 or more, received 0"),
        ({"lr": 0.0}, "the learning rate must be positive, received 0.0"),
        ({"lr": float("nan")}, "the learning rate must be positive, received nan"),
        ({"clip": -1.0}, "clip is the largest gradient norm and must be positive, received -1.0"),
        ({"patience": 0, "valid": (X, Y)}, "patience is a number of epochs, 1 or more, received 0"),
        ({"patience": 2}, r"early stopping \(patience\) needs validation data: pass valid="),
        ({"device": "gpu"}, "device must be auto, cpu or cuda, received 'gpu'"),
        ({"class_weights": "inverse"}, "with one weight a class or 'balanced', received 'inverse'"),
        ({"class_weights": torch.ones(4)}, "class_weights must be 3 finite numbers"),
        ({"class_weights": torch.tensor([1.0, -1.0, 1.0])}, "none negative"),
        ({"class_weights": torch.tensor([1.0, torch.nan, 1.0])}, "finite"),
        ({"budget": Budget(target=0.5)}, r"a budget steers gates, and this model has none: call dynamicgate.gate_"),
        ({"seed": -1}, r"seed must be a whole number from 0 to 2\*\*63 - 1, received -1"),
    ],
)
def test_invalid_options_are_refused_with_a_readable_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(dense(), (X, Y), show=False, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_an_error() -> None:
    with pytest.raises(ValueError, match="'cuda' was asked for, but this machine has no CUDA GPU; use 'cpu' or 'auto'"):
        fit(dense(), (X, Y), device="cuda", show=False)


def test_a_budget_below_the_cost_of_the_gates_is_refused_with_that_cost() -> None:
    model = gated(block=1)  # a linear gate network: 8 * 32 of 8 * 32 + 32 * 3 MACs
    with pytest.raises(ValueError, match=r"budget of 0.5 cannot be met: the gate networks alone cost 0.727 of dense"):
        fit(model, (X, Y), budget=Budget(target=0.5), epochs=1, show=False)


def test_a_diverging_loss_is_an_error_with_advice() -> None:
    with pytest.raises(ValueError, match=r"the loss became (nan|inf) at step \d+: lower the learning rate or set clip"):
        fit(dense(), (X, Y), epochs=20, lr=1e30, show=False)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (lambda: nn.Unflatten(1, (3, 1)), r"class numbers of shape \[2\] need scores .*returned \[2, 3, 1\]"),
        (lambda: nn.Flatten(0), r"an entry for each of 2 rows, this one returned \[6\]"),
    ],
)
def test_a_model_that_does_not_score_classes_is_refused(head: Callable[[], nn.Module], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        fit(nn.Sequential(*dense(), head()), (X, Y), epochs=1, show=False)
