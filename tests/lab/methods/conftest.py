"""A small data file, and what is asked of models on it."""

from __future__ import annotations

import numpy as np
import pytest

from dynamicgate.lab.methods import Settings


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three clouds in ten dimensions."""
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    path = tmp_path_factory.mktemp("data") / "clouds.npz"
    np.savez(path, x=random.normal(size=(3, 10))[y] + 0.4 * random.normal(size=(240, 10)), y=y)
    return str(path)


@pytest.fixture(scope="module")
def settings(npz: str) -> Settings:
    return Settings(data=npz, epochs=5, batch=40, hidden=(20,), budget=0.5, block=2)
