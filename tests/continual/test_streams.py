"""Streams: what changes from task to task, what stays, and what is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamicgate.continual import (
    Stream,
    Task,
    drifting,
    grouped,
    in_order,
    labels_shuffled,
    permuted,
    rotated,
    some_rows,
    split,
)
from dynamicgate.continual.streams import turn
from dynamicgate.data import Arrays


def data(rows: int = 60, features: int = 16, classes: int = 6) -> Task:
    x = torch.rand(rows, features)
    y = torch.arange(rows) % classes
    return Task("data", Arrays(x, y), Arrays(x[:30] + 1.0, y[:30]), tuple(range(classes)))


def test_a_permutation_moves_the_features_of_training_and_test_rows_alike() -> None:
    base = data()
    stream = permuted(base, 3, seed=4)
    assert (len(stream), stream.scenario, stream.known, stream.classes, stream.features) == (
        3,
        "domain",
        "boundaries",
        6,
        16,
    )
    for task in stream:
        train, test = task.train.values, task.test.values
        assert torch.equal(train.sort(1).values, base.train.values.sort(1).values)
        order = [int((base.train.values == column[:, None]).all(0).nonzero()) for column in train.T]
        assert torch.equal(test, base.test.values[:, order])
        assert torch.equal(task.train.y, base.train.y)
    assert not torch.equal(stream[0].train.values, stream[1].train.values)
    assert torch.equal(permuted(base, 9, seed=4)[2].train.values, stream[2].train.values), "later tasks change nothing"
    assert not torch.equal(permuted(base, 1, seed=5)[0].train.values, stream[0].train.values)


def test_permutations_share_the_rows_of_the_dataset() -> None:
    base = data()
    assert all(task.train.x is base.train.x for task in permuted(base, 5))


def test_a_quarter_turn_is_exact_and_nothing_is_turned_at_first() -> None:
    images = torch.rand(5, 4, 4)
    torch.testing.assert_close(turn(images, 90.0), images.rot90(1, (1, 2)), atol=1e-5, rtol=0)
    torch.testing.assert_close(turn(images.flatten(1), -90.0), images.rot90(-1, (1, 2)).flatten(1), atol=1e-5, rtol=0)
    base = data()
    stream = rotated(base, 2, degrees=180.0)
    assert torch.equal(stream[0].train.values, base.train.values)
    expected = base.train.values.view(-1, 4, 4).rot90(1, (1, 2)).flatten(1)
    torch.testing.assert_close(stream[1].train.values, expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="square images"):
        turn(torch.rand(2, 12), 30.0)


@pytest.mark.parametrize(("scenario", "labels", "known"), [
    ("class", [[0, 1], [2, 3], [4, 5]], "boundaries"),
    ("task", [[0, 1], [2, 3], [4, 5]], "ids"),
    ("domain", [[0, 1], [0, 1], [0, 1]], "boundaries"),
])  # fmt: skip
def test_a_split_takes_classes_in_turn(scenario: Any, labels: list[list[int]], known: str) -> None:
    stream = split(data(), 2, scenario=scenario)
    assert [list(task.classes) for task in stream] == labels
    assert (stream.scenario, stream.known) == (scenario, known)
    assert sum(len(task.train) for task in stream) == 60
    assert [sorted(set(task.test.y.tolist())) for task in stream] == labels


def test_a_split_in_another_order_keeps_rows_and_labels_together() -> None:
    base = data()
    stream = split(base, 3, order=[5, 0, 3, 1, 2, 4], scenario="domain")
    rows = base.train.y == 5
    first = stream[0].train
    assert torch.equal(first.values[first.y == 0], base.train.values[rows])
    with pytest.raises(ValueError, match="every class once"):
        split(base, 2, order=[0, 1, 2])
    with pytest.raises(ValueError, match="cannot be divided"):
        split(base, 4, scenario="domain")


def test_shuffled_labels_rename_classes() -> None:
    base = data()
    for task in labels_shuffled(base, 3, seed=1):
        pairs = set(zip(base.train.y.tolist(), task.train.y.tolist(), strict=True))
        assert len(pairs) == 6
        assert set(zip(base.test.y.tolist(), task.test.y.tolist(), strict=True)) == pairs


def test_a_drift_uses_every_row_once_and_turns_further_and_further() -> None:
    base = data()
    stream = drifting(base, 6, degrees=90.0)
    assert stream.known == "nothing"
    assert sum(len(task.train) for task in stream) == 60
    assert [task.name for task in stream][:2] == ["0 degrees", "18 degrees"]
    last = base.test.values.view(-1, 4, 4).rot90(1, (1, 2)).flatten(1)
    torch.testing.assert_close(stream[5].test.values, last, atol=1e-5, rtol=0)


def test_groups_come_in_the_order_of_their_first_row() -> None:
    base = data()
    groups = ["b" if row % 4 else "a" for row in range(1, 61)]
    stream = grouped(base, groups, groups[:30])
    assert [task.name for task in stream] == ["b", "a"]
    assert [len(task.train) for task in stream] == [45, 15]
    with pytest.raises(ValueError, match="no row to test on in a"):
        grouped(base, groups, ["b"] * 30)


def test_some_rows_of_every_task() -> None:
    stream = some_rows(permuted(data(), 2), 10)
    assert [len(task.train) for task in stream] == [10, 10]
    assert [len(task.test) for task in stream] == [30, 30]
    with pytest.raises(ValueError, match="fewer than the 61"):
        some_rows(permuted(data(), 2), 61)


def test_a_stream_says_what_is_asked_and_what_is_known() -> None:
    words = repr(permuted(data(), 2, known="nothing"))
    assert "2 tasks, 120 rows" in words
    assert "never known when a new task begins" in words
    info = split(data(), 2).info()
    assert (info["scenario"], info["tasks"], info["rows"]) == ("class", 3, [20, 20, 20])


def test_what_makes_no_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="same number in every task"):
        in_order([data(), data(features=9)], scenario="domain")
    with pytest.raises(ValueError, match="known='ids'"):
        split(data(), 2, scenario="task", known="nothing")
    with pytest.raises(ValueError, match="one task or more"):
        in_order([], scenario="domain")
    with pytest.raises(ValueError, match="unknown scenario"):
        Stream("x", (data(),), "other", "ids", 6)  # type: ignore[arg-type]
