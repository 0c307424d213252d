"""What both estimators share: a network from the data, a budget, training, prediction, and pickles without pickled
tensors."""

from __future__ import annotations

import math
import numbers
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from dynamicgate.accounting import measure
from dynamicgate.data.contract import inputs_of, iterate
from dynamicgate.data.tasks import Task
from dynamicgate.inference import compile as compile_model
from dynamicgate.io import load, save
from dynamicgate.nn import GatedMLP, Normalize
from dynamicgate.presets import sparsify_
from dynamicgate.training import fit

STEPS, MOST_EPOCHS, LEAST_EPOCHS = 1500, 200, 10  # of a run whose epochs are not given
MEASURED = 4096  # rows
BATCH = 1024  # rows of a prediction
Array: TypeAlias = npt.NDArray[Any]


class DynamicGateEstimator(BaseEstimator):
    """A network of fully connected layers that executes a part of its MACs. Made by its subclasses."""

    def _train(self, X: Any, targets: Array, outputs: int, task: Task | None, **options: Any) -> None:
        """Build the network for checked rows, sparsify it to the budget, train it, and measure it."""
        self._check_parameters()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        epochs = self.epochs or self._epochs_for(X.shape[0])
        y = torch.from_numpy(np.ascontiguousarray(targets))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            sizes = (X.shape[1], *_as_tuple(self.hidden), outputs)
            model: nn.Module = GatedMLP(sizes, normalize=_normalization(X), dropout=self.dropout)
            plan: Any = {}
            if self.macs is not None:
                data = (X, y) if self.gates == "auto" else None
                plan = sparsify_(
                    model, self.macs, data=data, gates=self.gates, loss=task, seed=seed, show=bool(self.verbose)
                )
            history = fit(
                model,
                (X, y),
                **plan,
                loss=task,
                epochs=epochs,
                batch=self.batch,
                lr=self.lr,
                weight_decay=self.weight_decay,
                device=self.device,
                seed=seed,
                show=bool(self.verbose),
                label=type(self).__name__,
                **options,
            )
        rows = inputs_of(X, rows=MEASURED)
        found = measure(model, rows)
        self.model_ = model
        self.macs_ = found.relative
        self.executed_macs_ = found.macs["executed"]
        self.dense_macs_ = found.macs["dense"]
        self.n_steps_ = history.steps
        self.loss_curve_ = [row["loss"] for row in history.log if row["loss"] is not None]
        self._compiled = self._compile(rows) if self.compile else None

    def _epochs_for(self, rows: int) -> int:
        return min(MOST_EPOCHS, max(LEAST_EPOCHS, math.ceil(STEPS / math.ceil(rows / self.batch))))

    def _check_parameters(self) -> None:
        hidden = _as_tuple(self.hidden)
        if not all(isinstance(width, numbers.Integral) and int(width) > 0 for width in hidden):
            raise ValueError(f"hidden is the width of each hidden layer, such as (128,), received {self.hidden!r}")
        if self.macs is None and self.gates is not None:
            raise ValueError(f"gates={self.gates!r} are for a budget: pass macs=, a fraction of the dense MACs")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs must be 1 or more, or None, received {self.epochs}")

    def _compile(self, rows: Tensor) -> Any:
        return compile_model(self.model_, example=rows.to(next(self.model_.parameters()).device))

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        """What the network says about checked rows, float64 on the CPU."""
        device = next(self.model_.parameters()).device
        if self.compile and self._compiled is None:  # after unpickling
            self._compiled = self._compile(inputs_of(X, rows=BATCH))
        model: Any = self._compiled if self.compile else self.model_
        batches: Any = (x for x, _ in iterate(X, BATCH))
        return torch.cat([model(x.to(device)).double().cpu() for x in batches])

    def _validated(self, X: Any, y: Any = "no_validation", *, reset: bool, **options: Any) -> Any:
        """Rows as float32, dense or CSR, with the features of the training; and targets where there are any."""
        if not reset:
            check_is_fitted(self)
        if not all(hasattr(X, name) for name in ("X", "obs", "var_names")):
            return validate_data(self, X, y, reset=reset, accept_sparse="csr", dtype=np.float32, **options)
        names, X = np.asarray(X.var_names, dtype=object), X.X  # AnnData
        if reset:
            found = validate_data(self, X, y, reset=True, accept_sparse="csr", dtype=np.float32, **options)
            self.feature_names_in_ = names
            return found
        if not np.array_equal(getattr(self, "feature_names_in_", names), names) or len(names) != self.n_features_in_:
            raise ValueError(
                "the variables of this AnnData are not those of the training in their order: take them with "
                "adata[:, estimator.feature_names_in_]"
            )
        return check_array(X, accept_sparse="csr", dtype=np.float32)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The network as the bytes of a model file: no tensor and no module is pickled."""
        state = dict(super().__getstate__())
        state.pop("_compiled", None)
        model = state.pop("model_", None)
        if model is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.safetensors"
                save(model, path)
                state["model_bytes"] = path.read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read the network back, onto the CPU."""
        state = dict(state)
        content = state.pop("model_bytes", None)
        super().__setstate__(state)
        if content is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.safetensors"
                path.write_bytes(content)
                self.model_ = load(path)
            self._compiled = None


def _as_tuple(hidden: Any) -> tuple[Any, ...]:
    return (hidden,) if isinstance(hidden, numbers.Integral) else tuple(hidden)


def _normalization(X: Any) -> Normalize:
    """Mean and deviation of each feature as a layer of the network; a feature that does not vary keeps its scale."""
    if hasattr(X, "tocsr"):
        values = X.astype(np.float64)
        mean = np.asarray(values.mean(axis=0)).ravel()
        squares = np.asarray(values.multiply(values).mean(axis=0)).ravel()
        std = np.sqrt(np.maximum(squares - mean * mean, 0.0))
    else:
        mean, std = X.mean(axis=0, dtype=np.float64), X.std(axis=0, dtype=np.float64)
    std = np.where(std <= np.maximum(1e-6 * np.abs(mean), 1e-30), 1.0, std)
    return Normalize(torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32)))
