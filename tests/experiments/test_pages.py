"""Every table and page of the documentation is made from the committed results, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks import pages as benchmarks
from experiments.frontier import page as frontier
from experiments.frontier.experiment import FRONTIER
from experiments.paper import page as paper
from experiments.paper.experiment import PAPER
from experiments.stages import page as stages
from experiments.stages.experiment import STAGES
from experiments.transfer import page as transfer
from experiments.transfer.experiment import TRANSFER

from dynamicgate.lab.runner.docs_pages import Pages, rendered
from experiments import sparse_mnist
from tests.places import ROOT

MAKERS: dict[str, tuple[Callable[[], Any], int]] = {
    "paper": (lambda: paper.pages(PAPER), 1),
    "frontier": (lambda: frontier.pages(FRONTIER), 1 + 7 + 2 * 7 + 1),  # page, figures of cost and latency, README
    "stages": (lambda: stages.pages(STAGES), 1),
    "transfer": (lambda: transfer.pages(TRANSFER), 1),
    "sparse-mnist": (lambda: sparse_mnist.pages(sparse_mnist.SPARSE_MNIST), 1),
    "benchmarks": (benchmarks.pages, 5),
}


@pytest.mark.parametrize("name", MAKERS)
def test_pages_are_made_from_the_committed_results(name: str) -> None:
    make, count = MAKERS[name]
    pages: Pages = make()
    texts = rendered(ROOT, pages)
    assert len(texts) == count
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, path.relative_to(ROOT)
