"""The scikit-learn estimators: their contract, pipelines, searches over budgets, pickles, names."""

from __future__ import annotations

import copy
import pickle
import pickletools
from pathlib import Path
from typing import Any

import anndata
import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

import dynamicgate as dg
from dynamicgate.data.tasks import MSE, MultiLabel
from dynamicgate.sklearn import DynamicGateClassifier, DynamicGateRegressor

SHORT: dict[str, Any] = {"hidden": (32,), "epochs": 30, "batch": 32}
CHECKED = {**SHORT, "epochs": 8, "lr": 1e-2}  # the checks of scikit-learn fit them hundreds of times
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6)).astype(np.float32)
VALUE = 1e3 * X[:, 0] - 500 * X[:, 1] + 1e5
NAMES = np.array(["low", "mid", "top"])[np.digitize(X[:, 0], [-0.5, 0.5])]


@pytest.mark.slow
@parametrize_with_checks([DynamicGateClassifier(**CHECKED), DynamicGateRegressor(**CHECKED)])  # type: ignore[misc, unused-ignore]
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


def classifier(**options: Any) -> DynamicGateClassifier:
    return DynamicGateClassifier(**{**SHORT, "lr": 1e-2, "random_state": 0, **options})


def regressor(**options: Any) -> DynamicGateRegressor:
    return DynamicGateRegressor(**{**SHORT, "lr": 1e-2, "random_state": 0, **options})


def test_classes_keep_their_names_and_the_budget_is_met() -> None:
    found = classifier(macs=0.4).fit(X, NAMES)
    assert found.classes_.tolist() == ["low", "mid", "top"]
    assert found.score(X, NAMES) > 0.9
    assert found.macs_ == pytest.approx(0.4, abs=0.02)
    assert found.executed_macs_ == pytest.approx(found.macs_ * found.dense_macs_)
    assert found.dense_macs_ == 6 * 32 + 32 * 3
    measured = dg.measure(found.model_, X)
    assert measured.relative == found.macs_
    probability = found.predict_proba(X)
    assert probability.sum(1) == pytest.approx(1.0)
    assert (found.classes_[probability.argmax(1)] == found.predict(X)).all()


@pytest.mark.parametrize("gates", ["units", "two stages"])
def test_gates_meet_the_budget_too(gates: str) -> None:
    found = classifier(hidden=(128, 128), macs=0.5, gates=gates, epochs=20).fit(X, NAMES)
    assert found.macs_ == pytest.approx(0.5, abs=0.03)
    assert found.score(X, NAMES) > 0.85


@pytest.mark.slow
def test_gates_are_chosen_on_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = regressor(hidden=(64, 64), macs=0.6, gates="auto", epochs=20, verbose=True).fit(X, VALUE)
    said = capsys.readouterr().err
    assert "tried no gates" in said
    assert "tried units" in said, "gates fit this network and budget"
    assert "is the mean loss of" in said
    assert found.score(X, VALUE) > 0.9


def test_without_a_budget_the_network_is_dense() -> None:
    assert classifier(macs=None).fit(X, NAMES).macs_ == 1.0


@pytest.mark.parametrize("loss", ["mse", "huber", "quantile", MSE()], ids=str)
def test_measurements_of_any_scale_are_predicted(loss: Any) -> None:
    found = regressor(loss=loss, macs=0.5, epochs=60).fit(X, VALUE)
    assert found.score(X, VALUE) > 0.9
    assert found.predict(X).shape == VALUE.shape


def test_several_columns_of_measurements() -> None:
    y = np.stack([VALUE, X[:, 2]], 1)
    found = regressor(macs=0.6, epochs=60).fit(X, y)
    assert found.predict(X).shape == y.shape
    assert found.score(X, y) > 0.9


def test_several_labels_per_row() -> None:
    y = (X[:, :3] > 0).astype(int)
    found = classifier(macs=0.6, epochs=60).fit(X, y)
    assert (found.predict(X) == y).mean() > 0.9
    assert found.predict_proba(X).shape == y.shape


def test_weights_of_classes_by_name_move_the_predictions() -> None:
    y = np.where(RNG.random(300) < 0.5, "a", "b")  # nothing can be learned
    share = [(classifier(class_weight=w).fit(X, y).predict(X) == "a").mean() for w in ({"a": 9.0}, {"b": 9.0})]
    assert share[0] > 0.8
    assert share[1] < 0.2
    with pytest.raises(ValueError, match="class_weight names"):
        classifier(class_weight={"c": 1.0}).fit(X, y)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array])
def test_sparse_rows_give_the_same_network_as_dense_ones(form: Any) -> None:
    rows = np.where(np.abs(X) > 0.5, X, 0.0).astype(np.float32)
    dense, found = classifier().fit(rows, NAMES), classifier().fit(form(rows), NAMES)
    assert np.allclose(dense.predict_proba(rows), found.predict_proba(form(rows)), atol=1e-4)


def test_rows_of_anndata_are_matched_by_the_names_of_their_variables() -> None:
    names = [f"gene {k}" for k in range(6)]
    cells = anndata.AnnData(sparse.csr_matrix(X), var=pd.DataFrame(index=names))
    found = classifier().fit(cells, NAMES)
    assert found.feature_names_in_.tolist() == names
    assert (found.predict(cells) == classifier().fit(sparse.csr_matrix(X), NAMES).predict(X)).all()
    with pytest.raises(ValueError, match="not those of the training in their order"):
        found.predict(cells[:, names[::-1]])
    assert (found.predict(cells[:, names[::-1]][:, found.feature_names_in_]) == found.predict(cells)).all()


def test_the_same_random_state_gives_the_same_network_and_leaves_the_others_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (classifier(dropout=0.2).fit(X, NAMES).predict_proba(X) for _ in range(2))
    assert (first == second).all()
    assert not (first == classifier(dropout=0.2, random_state=1).fit(X, NAMES).predict_proba(X)).all()
    assert torch.equal(before, torch.get_rng_state())


def test_a_compiled_network_predicts_the_same() -> None:
    plain, found = classifier(macs=0.5).fit(X, NAMES), classifier(macs=0.5, compile=True).fit(X, NAMES)
    assert np.allclose(plain.predict_proba(X), found.predict_proba(X), atol=1e-4)
    again = copy.deepcopy(found)
    assert np.allclose(found.predict_proba(X), again.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("make", [classifier, regressor], ids=["classifier", "regressor"])
def test_joblib_writes_no_pickled_tensors_or_modules(make: Any, tmp_path: Path) -> None:
    found = make(macs=0.5).fit(X, NAMES if make is classifier else VALUE)
    joblib.dump(found, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    assert (again.predict(X) == found.predict(X)).all()
    assert again.macs_ == found.macs_
    names = {str(arg) for _, arg, _ in pickletools.genops(pickle.dumps(found)) if isinstance(arg, str)}
    assert not any(name.startswith(("torch", "dynamicgate.nn", "dynamicgate.gating")) for name in names)
    assert "dynamicgate.sklearn" in " ".join(names)


def test_a_search_over_budgets_in_a_pipeline_reads_a_csv_with_missing_values(tmp_path: Path) -> None:
    table = pd.DataFrame(X, columns=list("abcdef"))
    table = table.mask(RNG.random(table.shape) < 0.1).assign(site=RNG.choice(["Kyoto", "Lima", None], 300))
    table.assign(outcome=NAMES).to_csv(tmp_path / "table.csv", index=False)
    read = pd.read_csv(tmp_path / "table.csv")
    assert read.isna().any().any()
    columns = make_column_transformer(
        (SimpleImputer(add_indicator=True), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), ["site"]),
    )
    pipeline = make_pipeline(columns, classifier(epochs=15))
    search = GridSearchCV(pipeline, {"dynamicgateclassifier__macs": [0.2, 0.5, 1.0]}, cv=3)
    search.fit(read.drop(columns="outcome"), read["outcome"])
    assert search.best_score_ > 0.6
    found = search.best_estimator_[-1]
    assert found.macs_ == pytest.approx(search.best_params_["dynamicgateclassifier__macs"], abs=0.02)
    assert set(search.predict(read.drop(columns="outcome"))) <= {"low", "mid", "top"}
    joblib.dump(search, tmp_path / "search.joblib")
    again = joblib.load(tmp_path / "search.joblib")
    assert (again.predict(read) == search.predict(read)).all()


def test_a_clone_has_the_parameters_and_nothing_learned() -> None:
    found = classifier(macs=0.4).fit(X, NAMES)
    fresh = clone(found)
    assert fresh.get_params() == found.get_params()
    assert not hasattr(fresh, "model_")
    assert cross_val_score(fresh, X, NAMES, cv=2).mean() > 0.7


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "width": (classifier(hidden=(0,)), NAMES, "hidden is the width of each hidden layer"),
    "budget": (classifier(macs=1.5), NAMES, "macs is a fraction of the dense MACs"),
    "gates without a budget": (classifier(macs=None, gates="units"), NAMES, "are for a budget: pass macs="),
    "epochs": (classifier(epochs=0), NAMES, "epochs must be 1 or more"),
    "loss": (regressor(loss=MultiLabel()), VALUE, "loss of a regressor is mse, huber or quantile"),
    "stages": (regressor(gates="two stages"), VALUE, "stop where class scores are sure"),
    "one class": (classifier(), np.zeros(300, dtype=int), "needs 2 classes or more"),
}


@pytest.mark.parametrize(("estimator", "y", "words"), REFUSED.values(), ids=REFUSED)
def test_parameters_that_cannot_be_meant_are_refused_by_fit(estimator: Any, y: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        estimator.fit(X, y)
