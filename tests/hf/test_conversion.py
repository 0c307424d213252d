"""From a dense model to a gated one in one call, and on to training."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.rates import open_rate_at
from dynamicgate.hf import convert_
from tests.hf.small_models import llama_sites, regimes, small_llama, token_batches, trained_network


def converted(**options: Any) -> tuple[nn.Sequential, dg.hf.ConversionPlan]:
    model = trained_network()
    options = {"block": 8, "where": dg.where.hidden, "show": False, **options}
    return model, convert_(model, options.pop("budget", 0.5), regimes(4096, seed=6)[0], **options)


def test_a_converted_network_executes_the_budget_and_computes_nearly_the_same() -> None:
    model, plan = converted(always_open=2)
    x, y = regimes(2048, seed=8)
    found = dg.measure(model, x)
    assert abs(found.relative - 0.5) < 0.02
    unfitted = dg.gate_(trained_network(), dg.GateConfig(block=8, net="linear"))
    dg.calibrate_(unfitted, x, macs=0.5)
    with torch.no_grad():
        dense, error, chance = (float(F.mse_loss(one(x), y)) for one in (trained_network(), model, unfitted))
    assert dense < error < dense + 0.35 * (chance - dense)
    assert plan.open_rate < 0.5  # gate networks are paid for
    assert "2" in plan.explained
    text = str(plan)
    assert "gates held to 0.5 of the dense MACs" in text
    assert "always open at each: 2 blocks" in text
    assert "before training" in text


def test_an_open_start_computes_what_the_dense_model_did_and_lowering_it_closes() -> None:
    model, plan = converted(start="open")
    x, _ = regimes(4096, seed=6)
    assert torch.allclose(model(x[:2048]), trained_network()(x[:2048]), atol=1e-5)
    assert "after opening all gates" in str(plan)
    other, _ = converted()
    dg.calibrate_(model, x, macs=0.5)
    dg.calibrate_(other, x, macs=0.5)
    with dg.usage(model) as one, dg.usage(other) as two, torch.no_grad():
        model(x)
        other(x)
    assert float((one["2"].open == two["2"].open).float().mean()) > 0.99


def test_the_plan_is_what_fit_needs() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    x, _ = regimes(1024, seed=2)
    y = x[:, 12:].argmax(1)
    dg.fit(model, (x, y), epochs=10, show=False)
    plan = convert_(model, 0.6, x, block=8, where=dg.where.hidden, show=False)
    assert dict(plan) == {"budget": plan.budget}
    with pytest.raises(KeyError):
        plan["sparsifier"]
    dg.fit(model, (x, y), valid=(x[:256], y[:256]), epochs=5, show=False, **plan)
    found = dg.measure(model, (x, y))
    assert abs(found.relative - 0.6) < 0.01
    assert found.accuracy > 0.95


def test_a_llama_is_converted_and_trained_in_a_loop() -> None:
    model, batches = small_llama(), token_batches(8)
    plan = convert_(model, 0.8, batches, block=8, where=llama_sites(model), show=False)
    assert all(gate.config.always_open == 0.125 for gate in dg.named_gates(model).values())
    with dg.usage(model) as used, torch.no_grad():
        for batch in batches:
            model(**batch)
    assert all(bool((used[site].open.mean(0) == 1.0).sum() >= 1) for site in used)  # an eighth of 8 blocks
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    losses = []
    for step in range(60):
        ids = batches[step % 8]["input_ids"]
        plan.budget.apply_(model, step / 60)
        with dg.usage(model) as used:
            loss = model(input_ids=ids, labels=ids).loss
        (loss + plan.budget.step(used, step / 60)).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert abs(plan.budget.relative - 0.8) < 0.03


def test_the_open_rate_is_what_the_budget_pays_for() -> None:
    model = dg.gate_(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)), dg.GateConfig(block=8, net="linear")
    )
    counter = MacCounter.for_mlp(model)
    rate = open_rate_at(counter, 0.5)
    assert abs(counter.relative_at(rate) - 0.5) < 1e-6
    assert open_rate_at(counter, counter.all_open + 0.01) == 1.0


def test_what_cannot_be_converted_is_refused_and_left_as_it_was() -> None:
    with pytest.raises(ValueError, match="cannot be met"):
        converted(budget=0.01)
    model = trained_network()
    x, _ = regimes(256, seed=6)
    with pytest.raises(ValueError, match="leaves none to choose"):
        convert_(model, 0.5, x, block=8, always_open=12, where=dg.where.hidden, show=False)
    assert not dg.named_gates(model)
    with pytest.raises(ValueError, match="start must be"):
        convert_(model, 0.5, x, where=dg.where.hidden, start="closed")  # type: ignore[arg-type]
    dg.gate_(model)
    with pytest.raises(ValueError, match="gates already"):
        convert_(model, 0.5, x, where=dg.where.hidden)


@pytest.mark.parametrize(
    ("block", "budget"), [(24, 0.8), (7, 0.8), (32, 0.7), (48, 0.7), (63, 0.8), (64, 0.8), (100, 0.8)]
)
def test_blocks_that_do_not_divide_a_layer_or_are_few_start_at_the_budget(block: int, budget: float) -> None:
    """64 units: the last block is smaller, or there are only one or two."""
    torch.manual_seed(0)
    model, batches = small_llama(), token_batches(4)
    plan = convert_(model, budget, batches, block=block, where=llama_sites(model), show=False)
    assert dg.hf.measure(model, batches).relative == pytest.approx(budget, abs=0.01), str(plan)


def test_a_budget_alone_puts_the_recipe_on_a_model_that_is_to_be_trained() -> None:
    model = small_llama()
    (ids, *_) = token_batches(1)
    plan = dg.sparsify_(model, macs=0.8, example=ids)
    assert len(dg.named_gates(model)) == len(llama_sites(model))
    assert dg.hf.GateCallback(**plan).budget is plan.budget


def test_thresholds_cost_no_network_and_lose_less_than_blocks() -> None:
    dense, batches = small_llama(), token_batches(8)
    model = small_llama()
    plan = convert_(model, 0.7, batches, net="magnitude", show=False)
    found = dg.hf.measure(model, batches)
    assert found.macs["relative"] == pytest.approx(0.7, abs=0.005)
    assert "8 thresholds on what feed-forward layers read" in str(plan)
    assert plan.open_rate > 0.4
    gates = dg.named_gates(model)
    assert all(gate.blocks == gate.site.width for gate in gates.values())
    blocks = small_llama()
    convert_(blocks, 0.7, batches, block=8, where=llama_sites(blocks), show=False)
    with torch.no_grad():
        wanted = dense(**batches[0]).logits
        far, farther = (float(F.mse_loss(one(**batches[0]).logits, wanted)) for one in (model, blocks))
    assert far < farther
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        plan.budget.apply_(model, step / 20)
        with dg.usage(model) as used:
            loss = model(**batches[step % 8], labels=batches[step % 8]["input_ids"]).loss
        (loss + plan.budget.step(used, step / 20)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert plan.budget.relative == pytest.approx(0.7, abs=0.02)


def test_factors_are_saved_copied_and_compiled_with_the_model(tmp_path: Path) -> None:
    model, batches = small_llama(), token_batches(4)
    convert_(model, 0.7, batches, net="magnitude", show=False)
    wanted = model(**batches[0]).logits
    model.save_pretrained(tmp_path)
    loaded = dg.hf.load(tmp_path)
    assert {*dg.named_gates(loaded)} == {*dg.named_gates(model)}
    assert any(gate.site.factors for gate in dg.named_gates(loaded).values())
    torch.testing.assert_close(loaded(**batches[0]).logits, wanted)
    torch.testing.assert_close(copy.deepcopy(model)(**batches[0]).logits, wanted)
    torch.testing.assert_close(torch.compile(model, backend="eager")(**batches[0]).logits, wanted)
    fast = dg.compile(model, batches[0])
    torch.testing.assert_close(fast(**batches[0]).logits, wanted)


@pytest.mark.parametrize("option", [{"always_open": 1}, {"rank": 4}, {"start": "open"}])
def test_options_of_networks_are_refused_with_thresholds(option: dict[str, Any]) -> None:
    model = small_llama()
    with pytest.raises(ValueError, match=f"{next(iter(option))}=.*means nothing with net='magnitude'"):
        convert_(model, 0.7, token_batches(2), net="magnitude", show=False, **option)
    assert not dg.named_gates(model)
    with pytest.raises(ValueError, match="cannot be met"):
        convert_(model, 0.01, token_batches(2), net="magnitude", show=False)
    assert not dg.named_gates(model)
