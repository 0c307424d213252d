"""A small dataset, and settings for models on it."""

from __future__ import annotations

import pytest

from dynamicgate.lab.methods import Settings
from tests.lab.runner.clouds import write_clouds


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    data = write_clouds(tmp_path_factory.mktemp("data") / "clouds.npz")
    return Settings(data=str(data), epochs=5, batch=40, hidden=(20,), budget=0.5, block=2)
