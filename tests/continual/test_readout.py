"""A readout that equals joint ridge regression in any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate.continual import Readout


def blobs(rows: int = 300, features: int = 7, classes: int = 5) -> tuple[Tensor, Tensor]:
    y = torch.arange(rows) % classes
    return torch.randn(rows, features) + 2.0 * torch.randn(classes, features)[y], y


def ridge(h: Tensor, y: Tensor, decay: float, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weighted least squares with a free bias, by centring: another way to the same numbers."""
    h, target = h.double(), torch.nn.functional.one_hot(y).double()
    w = torch.ones(len(h), dtype=torch.float64) if weight is None else weight[y].double()
    mean_h, mean_y = ((w[:, None] * each).sum(0) / w.sum() for each in (h, target))
    strength = decay * float((w[:, None] * h * h).sum(0).mean())
    a, b = h - mean_h, target - mean_y
    found = torch.linalg.solve(
        (w[:, None] * a).T @ a + strength * torch.eye(h.shape[1]).double(), (w[:, None] * a).T @ b
    )
    return found.T.float(), (mean_y - mean_h @ found).float()


@pytest.mark.parametrize("balanced", [False, True])
def test_it_is_ridge_regression_on_all_rows_whatever_the_order(balanced: bool) -> None:
    h, y = blobs()
    keep = (y < 3) | (torch.arange(300) < 60)  # uneven classes
    h, y = h[keep], y[keep]
    in_tasks, at_once = Readout(7, balanced=balanced), Readout(7, balanced=balanced)
    at_once.add(h, y)
    for number in (3, 0, 4, 2, 1):
        in_tasks.add(h[y == number], y[y == number])
    counts = torch.bincount(y).double()
    weight = counts.sum() / (5 * counts) if balanced else None
    expected = ridge(h, y, 1e-3, weight)
    for found in (in_tasks.solve(), at_once.solve()):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_classes_not_seen_are_never_answered_and_may_come_later() -> None:
    h, y = blobs()
    readout = Readout(7)
    readout.add(h[y == 4], y[y == 4])
    readout.add(h[y == 1], y[y == 1])
    assert set(readout.predict(h).tolist()) <= {1, 4}
    readout.add(h, y)
    assert readout.classes == 5
    assert float((readout.predict(h) == y).float().mean()) > 0.8


def test_bytes_do_not_grow_with_rows() -> None:
    h, y = blobs()
    readout = Readout(7)
    readout.add(h, y)
    before = readout.bytes
    readout.add(h, y)
    assert readout.bytes == before == 8 * (8 * 8 + 5 * 8 + 5)


def test_sums_are_saved_and_continued() -> None:
    h, y = blobs()
    first, whole = Readout(7), Readout(7)
    first.add(h[:100], y[:100])
    second = Readout(7)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    second.add(h[100:], y[100:])
    whole.add(h[:100], y[:100])
    whole.add(h[100:], y[100:])
    assert torch.equal(second.solve()[0], whole.solve()[0])
    with pytest.raises(ValueError, match="not those of a readout of 5"):
        Readout(5).load_state_dict(first.state_dict())


def test_wrong_rows_are_refused_and_change_nothing() -> None:
    readout = Readout(7)
    for wrong, words in (
        ((torch.randn(3, 6), torch.zeros(3).long()), "7 features"),
        ((torch.full((3, 7), float("nan")), torch.zeros(3).long()), "NaN"),
        ((torch.randn(3, 7), torch.tensor([0, -1, 2])), "from 0 on"),
    ):
        with pytest.raises(ValueError, match=words):
            readout.add(*wrong)
    assert readout.bytes == 0
    with pytest.raises(ValueError, match="nothing was learned"):
        readout.solve()


def test_the_scale_of_features_changes_nothing() -> None:
    h, y = blobs()
    weight, bias = ridge(h, y, 1e-2)
    for scale in (1e-9, 1e-6, 1.0, 1e6, 1e12):
        readout = Readout(7, decay=1e-2)
        readout.add(scale * h.double(), y)
        found_weight, found_bias = readout.solve()
        torch.testing.assert_close(scale * found_weight.double(), weight.double(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found_bias, bias, rtol=1e-5, atol=1e-6)


def test_features_whose_squares_overflow_are_named() -> None:
    readout = Readout(7)
    readout.add(1e160 * torch.randn(20, 7, dtype=torch.float64), torch.arange(20) % 2)
    with pytest.raises(ValueError, match="too large to be summed"):
        readout.solve()


@pytest.mark.parametrize("y", [torch.zeros(4), torch.zeros(4, 1, dtype=torch.long)])
def test_labels_that_are_no_class_numbers_are_refused(y: Tensor) -> None:
    with pytest.raises(ValueError, match="one whole number"):
        Readout(3).add(torch.randn(4, 3), y)
