"""The running regression is the regression on all rows, and its reduced rank is the best of that rank."""

from __future__ import annotations

import torch

from dynamicgate.hf.regression import RunningRidge, reduced_rank


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(500, 7, dtype=torch.float64) @ torch.randn(7, 7, dtype=torch.float64) + 3.0
    return x, x @ torch.randn(7, 5, dtype=torch.float64) + 0.5 * torch.randn(500, 5, dtype=torch.float64) - 2.0


def test_batches_give_the_ridge_regression_on_all_rows() -> None:
    x, y = data()
    ridge = RunningRidge(7, 5)
    for start in range(0, 500, 90):
        ridge.add(x[start : start + 90], y[start : start + 90])
    found = ridge.solve()
    centred_x, centred_y = x - x.mean(0), y - y.mean(0)
    strength = centred_x.square().mean() * 7  # the mean variance of a feature, times features / rows, times rows
    exact = torch.linalg.solve(centred_x.T @ centred_x + strength * torch.eye(7).double(), centred_x.T @ centred_y).T
    assert torch.allclose(found.weight, exact)
    residual = (x @ found.weight.T + found.bias - y).square().sum()
    assert abs(found.explained - float(1.0 - residual / centred_y.square().sum())) < 1e-9


def test_a_batch_without_rows_changes_nothing() -> None:
    x, y = data()
    ridge = RunningRidge(7, 5)
    ridge.add(x[:0], y[:0])
    ridge.add(x, y)
    whole = RunningRidge(7, 5)
    whole.add(x, y)
    assert torch.equal(ridge.solve().weight, whole.solve().weight)


def test_more_rows_come_nearer_to_the_truth() -> None:
    truth = torch.randn(7, 1)
    errors = []
    for rows in (50, 5000):
        x, ridge = torch.randn(rows, 7), RunningRidge(7, 1)
        ridge.add(x, x @ truth + torch.randn(rows, 1))
        errors.append(float((ridge.solve().weight - truth.T).norm()))
    assert errors[1] < 0.3 * errors[0]


def test_features_far_from_zero_are_fitted_by_how_they_vary() -> None:
    x, truth = 30.0 + 0.003 * torch.randn(4000, 7), torch.randn(7, 1)
    y = (x.double() @ truth.double()).float()
    ridge = RunningRidge(7, 1)
    for part in range(4):
        ridge.add(x[part::4], y[part::4])
    found = ridge.solve()
    assert (found.weight - truth.T).norm() < 0.05 * truth.norm()
    assert found.explained > 0.99
    assert (x.double() @ found.weight.T + found.bias - y).abs().max() < 1e-2


def test_without_features_the_means_are_left() -> None:
    _, y = data()
    ridge = RunningRidge(0, 5)
    ridge.add(y[:, :0], y)
    found = ridge.solve()
    assert torch.allclose(found.bias, y.mean(0))
    assert found.weight.shape == (5, 0)


def test_constant_features_do_no_harm() -> None:
    ridge = RunningRidge(2, 1)
    ridge.add(torch.ones(10, 2), torch.arange(10.0)[:, None])
    found = ridge.solve()
    assert torch.isfinite(found.weight).all()
    assert abs(float(found.weight.sum() + found.bias) - 4.5) < 1e-6


def test_a_reduced_rank_loses_the_least() -> None:
    x, y = data()
    ridge = RunningRidge(7, 5)
    ridge.add(x, y)
    weight, centred = ridge.solve().weight, x - x.mean(0)
    inner, outer = reduced_rank(weight, ridge.covariance, 2)
    assert inner.shape == (2, 7)
    assert outer.shape == (5, 2)
    lost = (centred @ (weight - outer @ inner).T).square().sum()
    singular = torch.linalg.svdvals(centred @ weight.T)
    assert torch.allclose(lost, singular[2:].square().sum(), rtol=0.02)  # nothing of rank 2 can lose less
    plain_U, plain_S, plain_V = torch.linalg.svd(weight)
    plain = plain_U[:, :2] * plain_S[:2] @ plain_V[:2]
    assert lost < (centred @ (weight - plain).T).square().sum()
    inner, outer = reduced_rank(weight, ridge.covariance, 9)
    assert torch.allclose(outer @ inner, weight)
