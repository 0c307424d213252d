"""Linear regression that sees its rows once, batch by batch, and its best approximation of a lower rank.

Shapes in names: B rows, D features, G outputs, R rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RIDGE = 1.0  # of the mean variance of a feature, times features / rows: the fewer rows, the more


class Linear(NamedTuple):
    """y = x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor
    explained: float
    """The fraction of the variance of y around its means, over the rows that were added."""


class RunningRidge:
    """Sums that are enough to solve a ridge regression: memory for D x D numbers, however many rows are added.

    They are of distances from the mean of the first rows. Some features of large models lie far from zero, and their
    squares, rounded to float32 and the more so to tf32, would hide how little they vary.
    """

    def __init__(self, features: int, outputs: int) -> None:
        """For rows of `features` values and `outputs` values to predict."""
        self.rows = 0
        size = features + outputs
        self._centre: Tensor | None = None
        self._sums = torch.zeros(size, dtype=torch.float64)
        self._products = torch.zeros(features, size, dtype=torch.float64)
        self._squares = torch.zeros(outputs, dtype=torch.float64)

    def add(self, x_BD: Tensor, y_BG: Tensor) -> None:
        """Take in more rows."""
        if not len(x_BD):
            return
        both = torch.cat([x_BD, y_BG], dim=1)
        if self._centre is None:
            self._centre = both.mean(0)
        both = both - self._centre
        x_BD, y_BG = both.tensor_split([x_BD.shape[1]], dim=1)
        self.rows += len(both)
        self._sums += both.sum(0).cpu()  # summed in float64, over batches: thousands of large terms
        self._products += (x_BD.T @ both).cpu()
        self._squares += y_BG.square().sum(0).cpu()

    @property
    def mean(self) -> Tensor:
        """Of the features."""
        return self._means[: len(self._products)]

    @property
    def _means(self) -> Tensor:
        """Of features and outputs."""
        found = self._sums / self.rows
        return found if self._centre is None else found + self._centre.cpu().double()

    @property
    def covariance(self) -> Tensor:
        """Of the features, with the ridge on its diagonal."""
        return self._covariance + self._ridge * torch.eye(len(self._products), dtype=torch.float64)

    @property
    def _covariance(self) -> Tensor:
        apart_D = self._sums[: len(self._products)] / self.rows
        found = self._products[:, : len(self._products)] / self.rows - apart_D[:, None] * apart_D[None, :]
        return (found + found.T) / 2.0

    @property
    def _ridge(self) -> float:
        return max(RIDGE * len(self._products) / self.rows * float(self._covariance.diagonal().mean()), 1e-12)

    def solve(self) -> Linear:
        """The regression on all rows so far; without features, the means."""
        features = len(self._products)
        mean_G = self._means[features:]
        if not features:
            return Linear(mean_G[:, None][:, :0], mean_G, 0.0)
        apart_D, apart_G = self._sums[:features] / self.rows, self._sums[features:] / self.rows
        cross_DG = self._products[:, features:] / self.rows - apart_D[:, None] * apart_G[None, :]
        weight_GD = torch.cholesky_solve(cross_DG, torch.linalg.cholesky(self.covariance)).T
        variance = float((self._squares / self.rows - apart_G.square()).sum())
        explained = float((weight_GD * cross_DG.T).sum() + self._ridge * weight_GD.square().sum())
        return Linear(weight_GD, mean_G - weight_GD @ self.mean, explained / variance if variance > 0.0 else 0.0)


def reduced_rank(weight_GD: Tensor, covariance_DD: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The two factors, R x D and G x R, of the map of this rank whose outputs differ least from those of `weight_GD` on
    features with this covariance. Both are scaled alike: the standard deviation of an inner value is the norm of the
    column that reads it."""
    root_DD = torch.linalg.cholesky(covariance_DD)
    left_GK, size_K, right_KD = torch.linalg.svd(weight_GD @ root_DD, full_matrices=False)
    rank = min(rank, len(size_K))
    root_R = size_K[:rank].sqrt()
    inner_RD = torch.linalg.solve_triangular(root_DD.T, right_KD[:rank].T, upper=True).T
    return root_R[:, None] * inner_RD, left_GK[:, :rank] * root_R
