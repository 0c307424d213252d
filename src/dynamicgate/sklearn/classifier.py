"""`DynamicGateClassifier`: scikit-learn's interface to a classifier with a compute budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from dynamicgate.data.tasks import MultiLabel
from dynamicgate.sklearn.base import Array, DynamicGateEstimator


class DynamicGateClassifier(ClassifierMixin, DynamicGateEstimator):
    """A network that classifies within a budget of multiply-accumulates.

    hidden: the width of each hidden layer.
    macs: executed MACs relative to the dense network, gates and output layer included; None trains the dense network.
    gates: None, sparse layers alone; "units", "two stages", "three stages"; "auto" finds out by short trainings whether
        and which gates pay.
    epochs: None is as many as give 1500 steps, between 10 and 200. batch: rows per step. lr: peak learning rate, None
        is 2e-3. weight_decay: of weight matrices, None is 0.01. dropout: of hidden units.
    class_weight: None, "balanced", or a weight for each class by name.
    compile: predict by the compiled network, which is checked.
    device: "auto", "cpu" or "cuda". random_state, verbose: as in scikit-learn.

    After `fit`: `classes_`, `model_` (a torch module), `macs_` and `executed_macs_` (relative, and per row),
    `dense_macs_`, `n_steps_`, `loss_curve_`, `n_features_in_`, and `feature_names_in_` where columns have names. Rows
    are normalised inside of the network. A matrix of 0 and 1 as y is several labels per row.
    """

    classes_: Array

    def __init__(
        self,
        hidden: int | tuple[int, ...] = (128,),
        *,
        macs: float | None = 0.3,
        gates: str | None = None,
        epochs: int | None = None,
        batch: int = 64,
        lr: float | None = None,
        weight_decay: float | None = None,
        dropout: float = 0.0,
        class_weight: str | Mapping[Any, float] | None = None,
        compile: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        """As scikit-learn wants it: parameters are kept as they are, and checked by `fit`."""
        self.hidden = hidden
        self.macs = macs
        self.gates = gates
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.class_weight = class_weight
        self.compile = compile
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> DynamicGateClassifier:
        """Train on rows, which may be sparse, in a DataFrame or AnnData, and their classes, which may be text."""
        X, y = self._validated(X, y, reset=True, multi_output=True)
        check_classification_targets(y)
        self._several = type_of_target(y).startswith("multilabel")
        if self._several:
            if self.class_weight is not None:
                raise ValueError("class_weight is for one class per row, and y has several labels per row")
            labels = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
            self.classes_ = np.arange(labels.shape[1])
            self._train(X, labels.astype(np.float32), labels.shape[1], MultiLabel())
            return self
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs 2 classes or more, and y has one class, {self.classes_[0]!r}")
        weights = None if self.class_weight is None else self._weights(numbers)
        self._train(X, numbers.astype(np.int64), len(self.classes_), None, class_weights=weights)
        return self

    def _weights(self, numbers: Array) -> torch.Tensor:
        """Of each class, in the order of `classes_`."""
        if isinstance(self.class_weight, str):
            each = compute_class_weight(self.class_weight, classes=np.arange(len(self.classes_)), y=numbers)
            return torch.tensor(each, dtype=torch.float32)
        assert self.class_weight is not None
        unknown = [name for name in self.class_weight if name not in self.classes_]
        if unknown:
            raise ValueError(f"class_weight names {unknown[:5]}, which are not among the classes {self.classes_[:10]}")
        return torch.tensor([float(self.class_weight.get(name, 1.0)) for name in self.classes_.tolist()])

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of `classes_`; with several labels, of each label."""
        X = self._validated(X, reset=False)
        outputs = self._outputs(X)
        found: Array = (outputs.sigmoid() if self._several else outputs.softmax(1)).numpy()
        return found

    def predict(self, X: Any) -> Array:
        """The most likely class of each row; with several labels, 0 or 1 for each."""
        probability = self.predict_proba(X)
        if self._several:
            return (probability > 0.5).astype(np.int64)
        found: Array = self.classes_[probability.argmax(1)]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
