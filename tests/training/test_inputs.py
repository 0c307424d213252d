"""Every kind of data in `fit` and `measure`: tables, sparse matrices, AnnData, mappings, DataLoaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import dynamicgate as dg
from dynamicgate.data.sparse_rows import SparseRows
from dynamicgate.training import Callback
from tests.training.easy import blobs, dense, differences, gated

X, Y = blobs(120)
NAMES = [f"gene {k}" for k in range(8)]
FRAME = pd.DataFrame(X.numpy(), columns=NAMES)
CSR = sparse.csr_matrix(X.numpy())


def annotated(matrix: Any) -> anndata.AnnData:
    index = [str(k) for k in range(len(Y))]
    return anndata.AnnData(
        matrix, obs=pd.DataFrame({"type": Y.numpy()}, index=index), var=pd.DataFrame(index=NAMES)
    )  # fmt: skip


SAME: dict[str, Any] = {
    "numpy": (X.numpy(), Y.numpy()),
    "frame and series": (FRAME, pd.Series(Y.numpy())),
    "frame and tensor": (FRAME, Y),
    "tensor and series": (X, pd.Series(Y.numpy())),
    "frame and the name of a column": (FRAME.assign(type=Y.numpy()), "type"),
    "csr": (CSR, Y.numpy()),
    "csc": (CSR.tocsc(), Y),
    "sparse array": (sparse.csr_array(X.numpy()), Y),
    "AnnData": (annotated(X.numpy()), Y.numpy()),
    "sparse AnnData and the name of a column": (annotated(CSR), "type"),
}


@pytest.mark.parametrize("data", SAME.values(), ids=SAME)
def test_the_same_rows_in_another_form_give_the_same_model_and_the_same_numbers(data: Any) -> None:
    expected, found = gated(), gated()
    for model, rows in ((expected, (X, Y)), (found, data)):
        dg.fit(model, rows, valid=rows, epochs=2, batch=30, budget=dg.Budget(target=0.6), show=False)
    assert not differences(expected.state_dict(), found.state_dict())
    assert dg.measure(found, data, batch=50).to_dict() == dg.measure(expected, (X, Y), batch=50).to_dict()


WITHOUT_TARGETS = {"numpy": X.numpy(), "frame": FRAME, "csr": CSR, "AnnData": annotated(CSR)}


@pytest.mark.parametrize("data", WITHOUT_TARGETS.values(), ids=WITHOUT_TARGETS)
def test_calibration_and_measurement_need_no_targets(data: Any) -> None:
    model = gated()
    dg.calibrate_(model, data, macs=0.6)
    assert dg.measure(model, data).relative == pytest.approx(0.6, abs=0.02)
    assert not dg.measure(model, data).quality


def test_only_batches_of_a_sparse_matrix_become_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = SparseRows.__getitem__

    def counted(self: SparseRows, index: Tensor) -> Tensor:
        rows = read(self, index)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(SparseRows, "__getitem__", counted)
    model = dense()
    dg.fit(model, (CSR, Y), epochs=1, batch=30, show=False)
    dg.measure(model, (CSR, Y), batch=40)
    assert max(sizes) == 40


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(4, 8)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, values: Tensor, kind: Tensor) -> Tensor:
        return self.net(torch.cat([values, self.embed(kind)], dim=1))


KIND = torch.arange(120) % 4
SEVERAL: dict[str, Any] = {"mapping": {"kind": KIND, "values": X.double()}, "tuple": (X, KIND)}


@pytest.mark.parametrize("inputs", SEVERAL.values(), ids=SEVERAL)
def test_several_inputs_reach_the_model_by_name_or_in_order(inputs: Any, tmp_path: Path) -> None:
    model = dg.gate_(TwoInputs(), dg.GateConfig(block=4), where="net.2")
    options: dict[str, Any] = {"epochs": 20, "batch": 30, "budget": dg.Budget(target=0.8), "show": False}
    history = dg.fit(model, (inputs, Y), valid=(inputs, Y), out=tmp_path, **options)
    assert history.final is not None
    assert history.final["accuracy"] > 0.9
    again = dg.fit(dg.gate_(TwoInputs(), dg.GateConfig(block=4), where="net.2"), (inputs, Y), valid=(inputs, Y),
                   out=tmp_path, **options)  # fmt: skip
    assert again.final == history.final
    float32 = (
        {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
        if isinstance(inputs, dict)
        else inputs
    )
    assert dg.measure(model, (float32, Y)).accuracy == history.final["accuracy"]


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 30, **options})


def test_a_data_loader_keeps_its_batches_and_its_order() -> None:
    seen: list[Tensor] = []

    class Watched(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(x)
            return super().forward(x)

    dg.fit(Watched(*dense()), loader(batch_size=50), epochs=2, show=False)
    assert [len(x) for x in seen] == [50, 50, 20] * 2
    assert torch.equal(torch.cat(seen[:3]), X)


def test_a_shuffled_loader_has_another_order_in_every_epoch_and_the_same_in_every_run() -> None:
    orders: list[list[Tensor]] = []
    for _ in range(2):
        seen: list[Tensor] = []

        class Keep(Dataset[Any]):
            def __len__(self) -> int:
                return len(Y)

            def __getitem__(self, index: int, seen: list[Tensor] = seen) -> Any:
                seen.append(torch.tensor(index))
                return X[index], Y[index]

        dg.fit(dense(), DataLoader(Keep(), batch_size=30, shuffle=True), epochs=2, show=False)
        orders.append(seen)
    first, second = (torch.stack(seen)[-240:] for seen in orders)
    assert torch.equal(first, second)
    assert not torch.equal(first[:120], first[120:])
    assert torch.equal(first[:120].sort().values, torch.arange(120))


def test_a_loader_for_validation_and_for_training_is_trained_and_calibrated() -> None:
    model = gated()
    history = dg.fit(
        model, loader(shuffle=True), valid=loader(), epochs=20, lr=1e-2, budget=dg.Budget(target=0.6), show=False
    )
    assert history.final is not None
    assert history.final["accuracy"] > 0.9
    assert dg.measure(model, loader()).relative == pytest.approx(0.6, abs=0.02)


class Noisy(Dataset[Any]):
    """Rows with noise from torch's random numbers, as augmentation makes it."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> Any:
        return X[index] + 0.1 * torch.randn(8), Y[index]


class Interrupt(Callback):
    def on_log(self, row: dict[str, float], step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt


def test_a_run_on_a_shuffled_and_augmented_loader_resumes_to_the_bit(tmp_path: Path) -> None:
    def run(out: Path, *callbacks: Callback) -> dict[str, Tensor]:
        model = gated(dropout=0.2)
        data = DataLoader(Noisy(), batch_size=30, shuffle=True)
        dg.fit(model, data, epochs=3, out=out, callbacks=callbacks, checkpoint_seconds=0, show=False)
        return model.state_dict()

    straight = run(tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "two", Interrupt())
    assert not differences(straight, run(tmp_path / "two"))


def test_micro_batches_of_a_loader_change_nothing() -> None:
    models = [dense(), dense()]
    for model, accumulate in zip(models, (1, 3), strict=True):
        dg.fit(model, loader(), epochs=2, accumulate=accumulate, show=False)
    first, second = (model.state_dict() for model in models)
    assert max(float((first[name] - second[name]).abs().max()) for name in first) < 1e-6


def test_a_loader_of_mappings_trains_a_model_with_several_inputs() -> None:
    rows = [({"values": x, "kind": k}, y) for x, k, y in zip(X, KIND, Y, strict=True)]
    model = TwoInputs()
    dg.fit(model, DataLoader(rows, batch_size=30), epochs=20, lr=1e-2, show=False)  # type: ignore[arg-type]
    assert dg.measure(model, ({"values": X, "kind": KIND}, Y)).accuracy > 0.9


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "batch of a loader": (loader(), {"batch": 30}, "batch=30 means nothing with a DataLoader"),
    "balanced loader": (loader(), {"class_weights": "balanced"}, "balanced class weights need all labels"),
    "endless loader": (DataLoader(Endless(), batch_size=3), {}, "must know how many batches an epoch has"),
    "loader without targets": (DataLoader(X, batch_size=3), {}, r"every batch must be a pair \(inputs, targets\)"),
    "loader of other labels": (DataLoader(TensorDataset(X, Y + 3), batch_size=3), {}, r"labels must be 0\.\.2"),
    "text in a frame": (
        (FRAME.assign(site="Lima", when="now"), Y),
        {},
        "columns site, when do not hold numbers; encode them first",
    ),
    "missing in a frame": ((FRAME.mask(FRAME > 2), Y), {}, r"values are missing in columns gene 0 \(\d+\), gene"),
    "no such column": ((FRAME, "outcome"), {}, "there is no column 'outcome'; there are gene 0, gene 1"),
    "a name without names": ((X.numpy(), "outcome"), {}, "names a column, and ndarray has no names"),
    "text as classes": ((FRAME, pd.Series(["a", "b", "c"] * 40)), {}, "number the classes once for all parts"),
    "categories": (
        (FRAME, pd.Series(["a", "b", "c"] * 40, dtype="category")),
        {},
        "y is categorical, and parts of a table may number categories differently",
    ),
    "rows and labels": ((CSR, Y[:50]), {}, "x has 120 rows but y has 50 labels"),
    "infinite csr": ((CSR * np.float32(np.inf), Y), {}, "must be finite in float32"),
    "frame alone": (FRAME, {}, r"training data must be a pair \(x, y\)"),
}


@pytest.mark.parametrize(("data", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_on_is_refused_with_a_sentence(data: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        dg.fit(dense(), data, epochs=1, show=False, **options)


def test_labels_that_leave_classes_empty_are_said() -> None:
    with pytest.warns(UserWarning, match="has 4 outputs, and no training row has class 0: classes are numbered from 0"):
        dg.fit(nn.Linear(8, 4), (X, Y + 1), epochs=1, show=False)
