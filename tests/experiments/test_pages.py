"""Every table and page of the documentation is made from the committed results, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks import pages as benchmarks
from experiments.conversion import page as conversion
from experiments.conversion.tables import CONVERSION
from experiments.frontier import page as frontier
from experiments.frontier.datasets import DATASETS
from experiments.frontier.experiment import FRONTIER
from experiments.language import page as language
from experiments.language.tables import LANGUAGE
from experiments.paper import page as paper
from experiments.paper.experiment import PAPER
from experiments.stages import page as stages
from experiments.stages.experiment import STAGES
from experiments.transfer import page as transfer
from experiments.transfer.experiment import TRANSFER

from dynamicgate.lab.runner.docs_pages import Pages, rendered
from dynamicgate.lab.runner.results import table_path
from experiments import sparse_mnist
from tests.places import ROOT


def datasets_run() -> int:
    """The datasets of the frontier that have results."""
    return sum(table_path(FRONTIER.results, name).exists() for name in DATASETS)


def texts_run() -> int:
    """The tables of language models with figures that have results."""
    names = [table.name for table in LANGUAGE.tables if not table.name.endswith(("-rates", "-variants"))]
    return sum(table_path(LANGUAGE.results, name).exists() for name in names)


MAKERS: dict[str, tuple[Callable[[], Any], int]] = {
    "paper": (lambda: paper.pages(PAPER), 1),
    "frontier": (lambda: frontier.pages(FRONTIER), 2 + datasets_run()),  # page, README, and a figure for each dataset
    "stages": (lambda: stages.pages(STAGES), 1),
    "language": (lambda: language.pages(LANGUAGE), 1 + 4 * texts_run()),  # page, and four figures for each
    "conversion": (lambda: conversion.pages(CONVERSION), 1),
    "transfer": (lambda: transfer.pages(TRANSFER), 1),
    "sparse-mnist": (lambda: sparse_mnist.pages(sparse_mnist.SPARSE_MNIST), 1),
    "benchmarks": (benchmarks.pages, 6),
}


@pytest.mark.parametrize("name", MAKERS)
def test_pages_are_made_from_the_committed_results(name: str) -> None:
    make, count = MAKERS[name]
    pages: Pages = make()
    texts = rendered(ROOT, pages)
    assert len(texts) == count
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, path.relative_to(ROOT)
