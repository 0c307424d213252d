"""Every way to pass data gives the same inputs, and everything else gets a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from dynamicgate.data import Arrays, inputs_of

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10) % 3
FORMS = {
    "a tensor": X,
    "a tuple": (X, Y),
    "arrays": Arrays(X, Y),
    "arrays that prepare": Arrays(X.to(torch.uint8), Y, prepare=lambda batch: batch.float()),
    "a data loader": DataLoader(TensorDataset(X, Y), batch_size=4),
    "batches of inputs alone": [X[:4], X[4:8], X[8:]],
    "a generator": (pair for pair in [(X[:3], Y[:3]), (X[3:], Y[3:])]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_pass_data_gives_the_first_rows_of_the_inputs(form: str) -> None:
    assert torch.equal(inputs_of(FORMS[form], rows=7), X[:7])


def test_fewer_rows_are_returned_where_there_are_fewer() -> None:
    for data in (X, (X, Y), Arrays(X, Y), [X[:6], X[6:]]):
        assert torch.equal(inputs_of(data, rows=100), X)


def test_only_as_many_batches_are_read_as_needed() -> None:
    read: list[int] = []

    def endless() -> Iterator[Tensor]:
        while True:
            read.append(len(read))
            yield X[:3]

    assert inputs_of(endless(), rows=7).shape == (7, 2)
    assert len(read) == 3


def test_augmentation_is_not_applied() -> None:
    assert torch.equal(inputs_of(Arrays(X, Y, augment=lambda batch: batch * 0), rows=4), X[:4])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "another iterable of such batches, received NoneType"),
        ("mnist", "received str"),
        ({"x": X}, "expected inputs that are one tensor, received dict"),
        ((X, Y, Y), "first dimension of samples|received a tuple of 3|one shape"),
        ([1.0], "received float"),
        ([(X, Y), [np.zeros(3)]], "received a list of 1: ndarray"),
        ([X, torch.zeros(3, 5)], r"rows of one shape, received \(2,\) and \(5,\)"),
        ([], "at least one row, received none"),
        (X[:0], "at least one row, received none"),
        ([X[:0]], "at least one row, received none"),
        (torch.tensor(1.0), "a first dimension of samples"),
    ],
)
def test_anything_else_gets_a_sentence(data: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        inputs_of(data, rows=100)


def test_no_rows_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="rows must be 1 or more, received 0"):
        inputs_of(X, rows=0)
