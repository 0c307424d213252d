"""The data that models are trained, measured and compiled on: what is accepted, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dynamicgate.data import Arrays
from dynamicgate.data.contract import as_arrays, call, count_samples, iterate, move, take_samples

X = torch.arange(30.0).reshape(10, 3)
Y = torch.arange(10) % 3


WITH_TARGETS: dict[str, Any] = {
    "a pair": (X, Y),
    "arrays": Arrays(X, Y),
    "an object with x and y": SimpleNamespace(x=X, y=Y),
    "a list pair": [X, Y],
    "a list of pairs": list(zip(X.split(4), Y.split(4), strict=True)),
    "a data loader": DataLoader(TensorDataset(X, Y), batch_size=4),  # its batches are lists
    "a generator": None,
}


@pytest.mark.parametrize("kind", WITH_TARGETS)
def test_data_with_targets_comes_in_batches_of_inputs_and_targets(kind: str) -> None:
    data = WITH_TARGETS[kind] or ((x, y) for x, y in zip(X.split(4), Y.split(4), strict=True))
    found = list(iterate(data, 4))
    assert [len(x) for x, _ in found] == [4, 4, 2]
    assert torch.equal(torch.cat([x for x, _ in found]), X)
    assert torch.equal(torch.cat([y for _, y in found]), Y)


WITHOUT_TARGETS: dict[str, Any] = {
    "a tensor": X,
    "a pair with None": (X, None),
    "a list of tensors": list(X.split(4)),
    "a list of two tensors": [X[:5], X[5:]],
    "a list of pairs with None": [(x, None) for x in X.split(4)],
    "a data loader of tensors": DataLoader(X, batch_size=4),
}


@pytest.mark.parametrize("kind", WITHOUT_TARGETS)
def test_data_without_targets_has_none_as_targets(kind: str) -> None:
    found = list(iterate(WITHOUT_TARGETS[kind], 4))
    assert torch.equal(torch.cat([x for x, _ in found]), X)
    assert [y for _, y in found] == [None] * len(found)


@pytest.mark.parametrize("data", [{"a": X, "b": Y}, ({"a": X, "b": Y}, None)], ids=["mapping", "pair"])
def test_a_mapping_is_split_into_mappings(data: Any) -> None:
    found = [inputs for inputs, _ in iterate(data, 4)]
    assert [list(inputs) for inputs in found] == [["a", "b"]] * 3
    assert torch.equal(torch.cat([inputs["a"] for inputs in found]), X)
    assert torch.equal(torch.cat([inputs["b"] for inputs in found]), Y)


def test_a_data_loader_of_mappings_gives_its_mappings() -> None:
    rows = [{"a": x, "b": y} for x, y in zip(X, Y, strict=True)]
    found = [inputs for inputs, _ in iterate(DataLoader(rows, batch_size=4), 99)]
    assert [count_samples(inputs) for inputs in found] == [4, 4, 2]
    assert torch.equal(torch.cat([inputs["b"] for inputs in found]), Y)


def test_several_positional_inputs_are_split_together() -> None:
    found = list(iterate(((X, Y, 7), Y), 6))
    (x, y, number), targets = found[1]
    assert torch.equal(x, X[6:])
    assert torch.equal(y, Y[6:])
    assert number == 7
    assert torch.equal(targets, Y[6:])


def test_batches_of_an_iterable_keep_their_size() -> None:
    assert [len(x) for x, _ in iterate(list(X.split(7)), 2)] == [7, 3]


@pytest.mark.parametrize("data", [3, None, "digits", b"digits", nn.Identity()])
def test_data_of_another_type_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match=f"expected data as a tensor of rows, .*received {type(data).__name__}"):
        list(iterate(data, 4))


@pytest.mark.parametrize("batch", ["digits", 3, [1, 2], (X, Y, Y), (X, "label")])
def test_a_batch_of_another_type_is_refused(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"a batch is a tensor, a mapping of tensors or a pair"):
        list(iterate([batch], 4))


def test_inputs_without_a_tensor_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="a first dimension of samples"):
        count_samples({"scale": torch.tensor(3.0), "name": "a"})


class TwoInputs(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b


@pytest.mark.parametrize("inputs", [(X, X + 1), {"b": X + 1, "a": X}], ids=["positional", "keyword"])
def test_tuples_are_positional_and_mappings_are_keyword_arguments(inputs: Any) -> None:
    assert torch.equal(call(TwoInputs(), inputs), X * 10 + X + 1)


def test_a_tensor_is_the_only_argument() -> None:
    assert call(nn.Identity(), X) is X


def test_taking_samples_leaves_shared_values_alone() -> None:
    table, scale = torch.ones(7, 2), torch.tensor(2.0)
    taken = take_samples({"x": X, "table": table, "scale": scale, "training": True}, slice(2, 5))
    assert isinstance(taken, dict)
    assert torch.equal(taken["x"], X[2:5])
    assert taken["table"] is table
    assert taken["scale"] is scale
    assert taken["training"] is True


@pytest.mark.parametrize("inputs", [X, (X, 3), {"x": X, "n": 3}], ids=["tensor", "tuple", "mapping"])
def test_moving_inputs_keeps_their_form(inputs: Any) -> None:
    moved = move(inputs, torch.device("meta"))
    assert type(moved) is type(inputs)
    first = moved["x"] if isinstance(moved, dict) else moved[0] if isinstance(moved, tuple) else moved
    assert isinstance(first, Tensor)
    assert first.is_meta


@pytest.mark.parametrize("kind", ["a pair", "arrays", "a list pair", "a list of pairs", "a data loader"])
def test_training_reads_pairs_and_iterables_of_pairs_into_memory(kind: str) -> None:
    found = as_arrays(WITH_TARGETS[kind], "training data", least_classes=2)
    assert torch.equal(found.values, X)
    assert torch.equal(found.y, Y)


def test_training_takes_numpy_arrays_and_leaves_arrays_as_they_are() -> None:
    assert torch.equal(as_arrays((X.numpy(), Y.numpy()), "training data", least_classes=2).values, X)
    arrays = Arrays(X, Y)
    assert as_arrays(arrays, "training data", least_classes=2) is arrays


@pytest.mark.parametrize("data", [X, {"x": X}, X.numpy(), "digits", 3])
def test_training_data_without_labels_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match=r"my data must be a pair \(x, y\) of tensors .*received"):
        as_arrays(data, "my data", least_classes=2)


@pytest.mark.parametrize("data", [[], [(X, None)], list(X.split(4)), [({"x": X}, Y)]])
def test_training_batches_must_be_pairs_of_tensors(data: Any) -> None:
    with pytest.raises(TypeError, match=r"my data: every batch must be a pair \(x, y\) of tensors"):
        as_arrays(data, "my data", least_classes=2)


def test_training_data_is_checked() -> None:
    with pytest.raises(ValueError, match="my data: labels must name at least 2 classes"):
        as_arrays((X, torch.zeros(10)), "my data", least_classes=2)
