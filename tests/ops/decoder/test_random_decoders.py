"""Random decoders against float64, and with changed words, on poisoned memory.

`python -m tests.fuzz.decoders` runs more of them, with sanitizers if asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import decoder, native
from tests.fuzz.decoders import check
from tests.fuzz.running import failures

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
MAGNIFIES_ROUNDING = (215, 725)
"""Decoders of one feature, in which torch in float32 misses the tolerance too, at one position each."""


def test_random_decoders_match_float64_and_changed_ones_are_refused_or_run() -> None:
    assert failures(check, range(60)) == []


@pytest.mark.parametrize("factor", [1 + 1e-3, torch.nan])
@pytest.mark.parametrize("seed", MAGNIFIES_ROUNDING)
def test_what_torch_misses_too_is_no_error_but_others_are(
    seed: int, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(seed) is None
    run = decoder.run_decoder

    def wrong(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        x, scores = run(*args, **options)
        return x, None if scores is None else scores * factor

    monkeypatch.setattr(decoder, "run_decoder", wrong)
    assert "positions are wrong" in str(check(seed))
