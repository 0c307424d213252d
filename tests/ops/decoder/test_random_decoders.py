"""Random decoders against float64, and with changed words, on poisoned memory.

`python -m tests.fuzz.decoders` runs more of them, with sanitizers if asked."""

from __future__ import annotations

import pytest

from dynamicgate.ops import native
from tests.fuzz.decoders import check
from tests.fuzz.running import failures


@pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
def test_random_decoders_match_float64_and_changed_ones_are_refused_or_run() -> None:
    assert failures(check, range(60)) == []
