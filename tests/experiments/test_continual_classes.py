"""Classes and cell types one after the other: orders, features of the first task, rows that choose but never test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.continual import cells, classes
from experiments.continual.laboratories import Laboratories
from experiments.continual.tables import CONTINUAL
from scipy.sparse import csr_matrix

from dynamicgate.data import Arrays
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.streams import class_order, stream_of
from dynamicgate.lab.runner import Job


def test_orders_of_classes_differ_by_seed_and_are_those_of_all_methods(digits: Splits) -> None:
    asked = CONTINUAL.table("e8").models
    for seed in (0, 1):
        streams = [stream_of(digits, dict(asked[model]), seed) for model in ("readout 1000", "er 200", "joint")]
        assert len({tuple(task.name for task in stream) for stream in streams}) == 1
    assert class_order(digits, 0) != class_order(digits, 1)


def test_changes_of_images_end_in_plain_rows() -> None:
    images = [Arrays(torch.full((n, 3, 2, 2), 255, dtype=torch.uint8), torch.arange(n) % 2, lambda b: b.float() / 255)
              for n in (6, 2, 2)]  # fmt: skip
    splits = Splits("images", images[0], images[1], images[2], 2, 0.0, 1.0).flat()
    for change in CONTINUAL.table("e9-cifar10").changes:
        splits = change.apply(splits)
    assert splits.train.values.shape == (8, 12), "training and validation rows"
    assert torch.equal(splits.test.values, torch.full((2, 12), 2.0))


def test_learned_features_are_those_of_the_first_task(digits: Splits) -> None:
    stream = stream_of(digits, {"stream": "split", "shuffled": True}, 0)
    first = replace(stream, tasks=stream.tasks[:1])
    drawn = classes.random_features(64, 30, 0)
    of_all, of_first = (classes.learned_features(one, *drawn, 0) for one in (stream, first))
    assert torch.equal(of_all[0], of_first[0])
    assert not torch.equal(of_all[0], drawn[0])


def test_filters_answer_in_a_grid() -> None:
    features, size, macs = classes.random_filters(64, 100, 0, 3)
    rows = torch.rand(5, 64)
    assert features(rows).shape == (5, size)
    assert size == 96
    assert macs == 6 * 3 * 3 * 6 * 6, "six filters of nine pixels, at 6 x 6 places"


def test_cells_of_later_types_change_nothing_of_the_features_of_the_first() -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(1.0, (400, 3000)).astype(np.float32)
    y = torch.arange(400) % 8
    names = tuple("abcdefgh")
    whole = cells.prepared(csr_matrix(np.log1p(counts)), y, names, seed=0)
    first = class_order(whole, 0)[:2]
    later = ~torch.isin(y, torch.tensor(first)).numpy()
    counts[later] = draw.poisson(5.0, (int(later.sum()), 3000))
    other = cells.prepared(csr_matrix(np.log1p(counts)), y, names, seed=0)
    at = torch.isin(whole.train.y, torch.tensor(first))
    assert torch.equal(whole.train.values[at], other.train.values[at]), "genes, means and deviations are the same"
    assert not torch.equal(whole.train.values, other.train.values)


def test_settings_of_cells_are_chosen_by_validation_cells_of_the_split(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = torch.arange(400) % 8
    counts = draw.poisson(1.0 + 0.5 * (np.arange(3000) % 8 == y.numpy()[:, None]), (400, 3000)).astype(np.float32)
    whole = cells.prepared(csr_matrix(np.log1p(counts)), y, tuple("abcdefgh"), seed=0)
    assert whole.inner is not None
    assert len(whole.inner.train) + len(whole.inner.test) == len(whole.train)
    table = replace(CONTINUAL.table("e10"), models={"readout": {"method": "readout", "stream": "split", "hidden": [8],
                    "candidates": [{"decay": 1e-6}, {"decay": 1.0}, {"method": "nearest mean"}]}})  # fmt: skip
    job = Job(table, "readout", 0, work=tmp_path, device="cpu")
    found = job.table.train(job, whole)
    assert len(found["tried"]) == 3
    assert found["chosen"] == job.settings["candidates"][found["tried"].index(max(found["tried"]))]
    changed = replace(whole, test=replace(whole.test, y=whole.test.y.flip(0)))
    assert job.table.train(job, changed)["tried"] == found["tried"], "test cells have no say"
    with pytest.raises(ValueError, match="validation cells"):
        job.table.train(job, load_dataset("digits").flat())


def test_cells_that_choose_are_not_those_that_test() -> None:
    x, y = csr_matrix(np.random.default_rng(0).random((60, 10), np.float32)), torch.arange(60)  # a label names its cell
    two = Laboratories(("a", "b"), (x, x), (y, y), np.ones(10, bool))
    whole, inner = two.stream(0)[0], replace(two, choosing=True).stream(0)[0]
    parts = [set(part.y.tolist()) for part in (inner.train, inner.test, whole.test)]
    assert [len(part) for part in parts] == [36, 12, 12]
    assert len(set.union(*parts)) == 60


def test_genes_are_those_of_the_first_laboratory() -> None:
    draw = np.random.default_rng(0)
    cells_of = [csr_matrix(draw.poisson(1.0, (60, 2500)).astype(np.float32)) for _ in range(3)]
    y, shared = torch.arange(60) % 6, np.arange(2500) < 400
    firsts = []
    for second in cells_of[1:]:
        two = Laboratories(("a", "b"), (cells_of[0], second), (y, y), shared)
        firsts.append(two.stream(0).tasks[0].train.values)
        assert replace(two, only_shared=True).stream(0).features == 400
    assert torch.equal(*firsts)
