"""Kernels run on poisoned memory: every workspace and every result is NaN at first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamicgate.ops import native


@pytest.fixture(autouse=True)
def _poisoned_kernels() -> Iterator[None]:
    library = native.library()
    if library is not None:
        library.dynamicgate_poison(1)
    yield
    if library is not None:
        library.dynamicgate_poison(0)
