"""The folder with the real data files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.places import real_folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with MNIST/raw: DYNAMICGATE_DATA, else shared/data beside the repository."""
    return real_folder("MNIST/raw")
