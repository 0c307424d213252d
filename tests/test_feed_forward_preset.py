"""Transformers from a budget alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from experiments.language.tables import RECIPE
from torch import nn

import dynamicgate as dg
from dynamicgate.accounting.rates import open_rate_at
from dynamicgate.lab.language.ffn_methods import FFNSettings
from dynamicgate.lab.language.gpt import GPT, GPTConfig
from dynamicgate.presets.feed_forward import BALANCE, BLOCK, RAMP, WARMUP, always_open, is_transformer, start_of

SIZES = GPTConfig(vocabulary=48, features=32, layers=2, heads=2, context=16, width=512)


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(SIZES)


def tokens(rows: int = 256) -> torch.Tensor:
    """Counting up or down by one: the next token follows from the last two."""
    draw = torch.Generator().manual_seed(1)
    start = torch.randint(0, 48, (rows, 1), generator=draw)
    way = torch.randint(0, 2, (rows, 1), generator=draw) * 2 - 1
    return (start + way * torch.arange(17)) % 48


def test_a_gpt_gets_the_recipe_of_the_experiments() -> None:
    model = gpt()
    plan = dg.sparsify_(model, macs=0.4, example=tokens(2)[:, :-1])
    gates, asked = dg.named_gates(model), FFNSettings(**RECIPE)
    assert list(gates) == ["blocks.0.ffn.down", "blocks.1.ffn.down"]
    for gate in gates.values():
        config = gate.config
        assert (config.net, config.scale) == (asked.net, asked.scale)
        assert config.block == 512 // 16, "blocks of 128 would leave too few to choose from"
    assert (asked.warmup, asked.ramp, asked.gate_balance) == (WARMUP, RAMP, BALANCE)
    assert start_of(0.05) == asked.open
    pays_for = 3.75 / 64  # blocks of 128 in a layer of 16 d, at the cost of one of 1 d and less the gate
    assert always_open(pays_for, 64) == asked.always_open * 64
    assert asked.block == BLOCK
    assert (plan.budget.target, plan.budget.balance) == (0.4, BALANCE)
    assert plan.sparsifier is None
    assert plan.notes == ["gates on blocks of feed-forward units: this is a Transformer"]
    assert "gates held to 0.4 of the dense MACs" in str(plan)


@pytest.mark.parametrize(("pays_for", "floor"), [(0.4, 1), (1.0, 1), (1.9, 1), (2.0, 2), (3.0, 2), (8.0, 6)])
def test_the_budget_pays_for_what_is_always_open(pays_for: float, floor: int) -> None:
    assert always_open(pays_for / 16, 16) == floor


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_training_starts_near_what_the_budget_pays_for(rate: float) -> None:
    torch.manual_seed(0)
    model = GPT(replace(SIZES, features=128, width=2048))
    config = dg.GateConfig(block=64, net="linear", scale="softmax", open=start_of(rate))
    dg.gate_(model, config, where="mlp")
    with dg.usage(model) as seen:
        model.eval()(tokens(64)[:, :-1])
        found = sum(float(seen[name].open.double().mean()) for name in seen) / len(seen)
    assert rate / 3 < found < 3 * rate


@pytest.mark.slow
def test_a_short_training_meets_the_budget_and_learns() -> None:
    model, data = gpt(), tokens()
    plan = dg.sparsify_(model, macs=0.45, example=data[:2, :-1])
    dg.fit(model, (data[:, :-1], data[:, 1:]), epochs=12, batch=16, lr=3e-3, show=False, **plan)
    held = tokens(300)[256:]
    found = dg.measure(model, (held[:, :-1], held[:, 1:]))
    assert abs(found.macs["relative"] - 0.45) < 0.02
    assert found.accuracy > 0.5


def table_network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 128, batch_first=True), 2)


def test_an_encoder_of_torch_is_a_transformer_and_a_network_for_tables_is_not() -> None:
    assert is_transformer(encoder())
    assert not is_transformer(table_network())
    with_categories = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    assert not is_transformer(with_categories)
    plan = dg.sparsify_(encoder(), macs=0.7, example=torch.randn(2, 9, 32))
    assert plan.budget is not None


def test_what_cannot_be_done_is_refused_and_leaves_the_model_alone() -> None:
    model: Any = gpt()
    with pytest.raises(ValueError, match="pass example="):
        dg.sparsify_(model, macs=0.4)
    with pytest.raises(ValueError, match=r"cannot be met|cannot reach|least"):
        dg.sparsify_(model, macs=0.01, example=tokens(2)[:, :-1])
    assert not dg.named_gates(model)
    with pytest.raises(ValueError, match="this model has none that are known"):
        dg.sparsify_(table_network(), 0.5, gates="blocks", example=torch.ones(1, 8))
    plain = dg.sparsify_(model, macs=0.4, gates=None, example=tokens(2)[:, :-1])
    assert plain.sparsifier is not None


def test_the_rate_pays_for_the_gates_too() -> None:
    model = gpt()
    dg.sparsify_(model, macs=0.4, example=tokens(2)[:, :-1])
    counter = dg.count_macs(model, tokens(2)[:, :-1])
    rate = open_rate_at(counter, 0.4)
    assert 0.0 < rate < 1.0
    assert counter.relative_at(rate) == pytest.approx(0.4, abs=1e-6)
