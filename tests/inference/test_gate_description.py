"""What a plan file says of a gate is checked before a gate is made of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamicgate import ops
from dynamicgate.inference.gates import GateInTorch

NET = ops.GateNet((torch.randn(5, 3),), (torch.randn(5),), soft_width=0.5, unbounded=True)


def tensors() -> dict[str, torch.Tensor]:
    return {"weight_0": NET.weights[0], "bias_0": NET.biases[0]}  # type: ignore[dict-item]


def test_a_gate_comes_back_from_its_description() -> None:
    gate, x = GateInTorch(NET), torch.randn(7, 3)
    again = GateInTorch.from_description(gate.describe(), tensors())
    assert torch.equal(again(x), gate(x))
    assert float(gate(x).max()) > 1.0, "it has no limit"


def test_a_file_from_before_there_were_gates_without_a_limit_has_one() -> None:
    described = GateInTorch(NET).describe()
    del described["unbounded"]
    assert float(GateInTorch.from_description(described, tensors())(torch.randn(7, 3)).max()) <= 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"unbounded": value} for value in ("yes", 5, None, [1])] + [{"unbounded": True, "soft_width": None}],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unbounded says whether"):
        GateInTorch.from_description({**GateInTorch(NET).describe(), **wrong}, tensors())
