"""`DynamicGateRegressor`: scikit-learn's interface to a regression with a compute budget."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from dynamicgate.data.tasks import Task, as_task
from dynamicgate.sklearn.base import Array, DynamicGateEstimator


class DynamicGateRegressor(RegressorMixin, DynamicGateEstimator):
    """A network that predicts measurements within a budget of multiply-accumulates.

    loss: "mse", "huber", "quantile" (the median), or a task of `dynamicgate.data.tasks` with one output for each
        measurement. Measurements are scaled to mean 0 and deviation 1 in training, and `delta` of Huber with them.
    gates: None, sparse layers alone; "units", gates on hidden units; "auto" finds out whether they pay.

    All other parameters and attributes are those of `DynamicGateClassifier`. y may have several columns.
    """

    def __init__(
        self,
        hidden: int | tuple[int, ...] = (128,),
        *,
        macs: float | None = 0.3,
        gates: str | None = None,
        loss: str | Task = "mse",
        epochs: int | None = None,
        batch: int = 64,
        lr: float | None = None,
        weight_decay: float | None = None,
        dropout: float = 0.0,
        compile: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        """As scikit-learn wants it: parameters are kept as they are, and checked by `fit`."""
        self.hidden = hidden
        self.macs = macs
        self.gates = gates
        self.loss = loss
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.compile = compile
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> DynamicGateRegressor:
        """Train on rows and their measurements: arrays, a DataFrame, a sparse matrix or AnnData."""
        X, y = self._validated(X, y, reset=True, multi_output=True, y_numeric=True, ensure_min_samples=2)
        task = as_task(self.loss)
        if task.name != "regression":
            raise ValueError(f"loss of a regressor is mse, huber or quantile, received {self.loss!r}")
        values = np.asarray(y, dtype=np.float64)
        self._columns = values.ndim == 2
        values = values.reshape(len(values), -1)
        self._mean, std = values.mean(0), values.std(0)
        self._scale = np.where(std > 0, std, 1.0)
        scaled = ((values - self._mean) / self._scale).astype(np.float32)
        self._train(X, scaled, values.shape[1], task)
        return self

    def predict(self, X: Any) -> Array:
        """The measurements of each row."""
        X = self._validated(X, reset=False)
        found: Array = self._outputs(X).numpy() * self._scale + self._mean
        return found if self._columns else found[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
