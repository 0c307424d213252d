"""`Arrays` and `Splits`: rows, labels and parts of a dataset."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.splits import Splits


def arrays(rows: int, *shape: int) -> Arrays:
    return Arrays(
        torch.arange(rows).float().reshape(-1, *[1] * len(shape)).expand(rows, *shape), torch.arange(rows) % 3
    )


def test_features_is_the_number_of_values_of_one_row() -> None:
    assert arrays(5, 3, 8, 8).features == 192
    assert len(arrays(5, 3, 8, 8)) == 5


def test_take_keeps_rows_and_labels_together() -> None:
    taken = arrays(9, 2).take(torch.tensor([7, 0, 4]))
    assert taken.x[:, 0].tolist() == [7, 0, 4]
    assert taken.y.tolist() == [1, 0, 1]


def test_take_accepts_a_mask_and_returns_a_copy() -> None:
    whole = Arrays(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    odd = whole.take(whole.y == 1)
    odd.x.fill_(5)
    assert len(odd) == 2
    assert whole.x.sum() == 0


def test_arrays_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        arrays(3, 2).x = torch.zeros(3, 2)  # type: ignore[misc]


def test_info_is_plain_json_with_counts_for_each_part() -> None:
    test = Arrays(torch.zeros(4, 2, 3), torch.tensor([0, 0, 0, 2]))
    info = Splits("toy", arrays(6, 2, 3), arrays(3, 2, 3), test, classes=4, mean=0.0, std=1.0).info()
    assert json.loads(json.dumps(info)) == {
        "name": "toy",
        "train": 6,
        "valid": 3,
        "test": 4,
        "features": 6,
        "classes": 4,
        "majority": 0.75,
        "class_counts": {"train": [2, 2, 2, 0], "valid": [1, 1, 1, 0], "test": [3, 0, 1, 0]},
    }


def test_parts_with_different_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"toy: a row of the test data has shape \(5,\).*training data \(4,\)"):
        Splits("toy", arrays(6, 4), arrays(3, 4), arrays(3, 5), classes=3, mean=0.0, std=1.0)


def test_flat_flattens_rows_and_normalization_constants() -> None:
    x = torch.arange(48.0).reshape(4, 3, 2, 2)
    arrays = Arrays(x, torch.tensor([0, 1, 0, 1]))
    splits = Splits("mine", arrays, arrays, arrays, classes=2, mean=x[0], std=1.0).flat()
    assert torch.equal(splits.train.values, x.flatten(1))
    assert torch.equal(splits.mean, x[0].flatten())
    stored = Arrays(x.to(torch.uint8), arrays.y, prepare=lambda batch: batch / 255)
    assert torch.equal(stored.flat().rows(torch.tensor([2])), (x[2:3] / 255).flatten(1))
    assert splits.flat() is splits


def test_augmentation_applies_in_training_only() -> None:
    arrays = Arrays(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]), augment=lambda batch: batch * 2)
    index = torch.arange(2)
    assert torch.equal(arrays.rows(index), torch.ones(2, 2))
    assert torch.equal(arrays.rows(index, training=True), torch.full((2, 2), 2.0))
    assert torch.equal(torch.cat([x for x, _ in arrays.batches(3)]), torch.ones(4, 2))
