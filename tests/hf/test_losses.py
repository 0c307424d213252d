"""Which predictions are part of the loss that `hf.measure` gives, and what it gives beside it."""

from __future__ import annotations

import pytest
import torch

from dynamicgate import hf
from tests.hf.tiny import gated, tiny_llama, tokens


@pytest.mark.parametrize("length", [1, 5])
def test_a_batch_without_labels_is_no_part_of_the_loss(length: int) -> None:
    model, ids = gated(tiny_llama()), tokens(2, 9)
    nothing = tokens(3, length)
    found = hf.measure(model, [{"input_ids": ids}, {"input_ids": nothing, "labels": torch.full_like(nothing, -100)}])
    assert found.quality == hf.measure(model, ids).quality
    assert found.tokens == 18 + 3 * length
    assert hf.measure(model, [{"input_ids": ids}, {"input_ids": tokens(3, 1)}]).quality == found.quality
    assert hf.measure(model, tokens(3, 1)).quality == {}
