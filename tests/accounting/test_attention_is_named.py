"""What is no Linear layer has a line of its own, in the account and in the reason why a budget cannot be met."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamicgate as dg


def encoder() -> nn.Module:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 64, batch_first=True), 1)
    dg.gate_(model, dg.GateConfig(block=16, net="linear"), where="mlp")
    return model


def test_the_lines_of_the_account_add_up() -> None:
    found = dg.measure(encoder(), torch.randn(3, 9, 16))
    shown = str(found)
    (rest,) = (line for line in shown.splitlines() if line.startswith("all that is no Linear"))
    each = sum(layer["macs"] for layer in found.layers)
    parts = each + found.macs["gate"] + float(rest.split()[-1].replace(",", ""))
    assert parts == pytest.approx(found.macs["executed"], abs=1.0)
    plain = dg.measure(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4))
    assert "no Linear" not in str(plain)


def test_a_budget_that_attention_holds_back_says_so() -> None:
    model = encoder()
    budget = dg.Budget(target=0.1)
    with pytest.raises(ValueError, match="no gate closes hold it back: 'what is no Linear layer, such as attention'"):
        budget.bind(dg.count_macs(model, torch.randn(1, 9, 16)))
