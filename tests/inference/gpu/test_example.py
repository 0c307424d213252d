"""Which examples stand for a call on a GPU: those that are one tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynamicgate.inference.compile_model import _first_argument
from dynamicgate.inference.language.calls import inputs_of_call

IDS = torch.zeros(2, 3, dtype=torch.long)
MASK = torch.ones(2, 3)


class Model(nn.Module):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return input_ids


@pytest.mark.parametrize("example", [IDS, {"input_ids": IDS}, ((IDS,), {}), ((), {"input_ids": IDS})], ids=str)
def test_one_tensor_may_be_given_like_a_call(example: Any) -> None:
    call = inputs_of_call(example)
    assert call is not None
    assert _first_argument(Model(), call).shape == IDS.shape


@pytest.mark.parametrize(
    ("example", "received"),
    [
        ({"input_ids": IDS, "attention_mask": MASK}, "'input_ids', 'attention_mask'"),
        (((IDS,), {"attention_mask": MASK}), "argument 1, 'attention_mask'"),
        (((), {"attention_mask": IDS}), "'attention_mask'"),
    ],
    ids=str,
)
def test_more_than_one_tensor_is_refused(example: Any, received: str) -> None:
    call = inputs_of_call(example)
    assert call is not None
    with pytest.raises(ValueError, match=rf"reads first \('input_ids'\), received {received}: give that tensor"):
        _first_argument(Model(), call)
