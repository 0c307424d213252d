"""Where the repository is, and where the real data files are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path:
    """The folder in DYNAMICGATE_DATA, else shared/data beside the repository; it may not exist."""
    return Path(os.environ.get("DYNAMICGATE_DATA", ROOT.parent / "shared" / "data"))


def real_folder(name: str) -> Path:
    """The data folder; the test is skipped where it does not hold `name`."""
    folder = data_folder()
    if not (folder / name).exists():
        pytest.skip(f"no {name} under {folder}; set DYNAMICGATE_DATA to test on the real files")
    return folder
