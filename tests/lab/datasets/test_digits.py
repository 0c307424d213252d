"""The digits dataset of scikit-learn."""

from __future__ import annotations

import sys

import pytest
import torch

from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits

from .small_arrays import rows_of

sklearn_datasets = pytest.importorskip("sklearn.datasets")


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_dataset("digits")


def test_digits_has_the_expected_sizes(digits: Splits) -> None:
    info = digits.info()
    assert (info["train"], info["valid"], info["test"]) == (1222, 216, 359)
    assert (info["features"], info["classes"]) == (64, 10)
    assert max(info["class_counts"]["test"]) - min(info["class_counts"]["test"]) <= 3


def test_pixels_are_multiples_of_one_sixteenth_from_zero_to_one(digits: Splits) -> None:
    assert (digits.train.x.min().item(), digits.train.x.max().item()) == (0, 1)
    assert (digits.train.x * 16 % 1 == 0).all()


def test_mean_and_std_are_those_of_the_training_part(digits: Splits) -> None:
    normalised = (digits.train.x - digits.mean) / digits.std
    assert normalised.mean().item() == pytest.approx(0, abs=1e-5)
    assert normalised.std().item() == pytest.approx(1, abs=1e-5)


def test_the_seed_changes_the_validation_part_but_not_the_test_part(digits: Splits) -> None:
    other = load_dataset("digits", seed=1)
    assert other.test.x.equal(digits.test.x)
    assert other.test.y.equal(digits.test.y)
    assert not other.valid.x.equal(digits.valid.x)
    assert load_dataset("digits", seed=1).valid.x.equal(other.valid.x)


def test_no_row_is_in_two_parts_and_none_is_lost(digits: Splits) -> None:
    train, valid, test = rows_of(digits.train.x), rows_of(digits.valid.x), rows_of(digits.test.x)
    assert not train & valid
    assert not (train | valid) & test
    everything = torch.from_numpy(sklearn_datasets.load_digits().data).float() / 16
    assert train | valid | test == rows_of(everything)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'dynamicgate\[sklearn\]'"):
        load_dataset("digits")
