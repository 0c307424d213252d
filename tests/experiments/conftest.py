"""Rows that the tests of experiments share."""

from __future__ import annotations

import pytest

from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.datasets.splits import Splits


@pytest.fixture(scope="session")
def digits() -> Splits:
    return load_dataset("digits").flat()
