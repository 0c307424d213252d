"""docs/stages.md: the results between its markers."""

from __future__ import annotations

from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import Pages


def pages(experiment: Experiment) -> Pages:
    """The page and its tables."""
    return {}
