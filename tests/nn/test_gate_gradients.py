"""What closed blocks pass back where a budget decides it: every fourth step, or until it has come down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.nn import ffn as layers
from dynamicgate.nn.ffn import SAMPLED
from dynamicgate.ops.ffn import tune
from dynamicgate.training import CapturedStep
from tests.nn.test_ffn import gated, outputs_and_gradients

HARD = dg.GateConfig(block=32, net="linear", open=0.5)


@pytest.fixture(autouse=True)
def skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU skip closed blocks, through the reference."""
    monkeypatch.setattr(layers, "KERNEL_DEVICES", ("cpu",))
    monkeypatch.setattr(tune, "LEAST_WORK", 0)
    monkeypatch.setattr(tune, "DTYPES", (torch.float64, torch.float32))


def gradients(gate_gradient: Any, steps: int) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    model = nn.Sequential(gated(HARD, gate_gradient=gate_gradient).double())
    x = torch.randn(20, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    budget, found = dg.Budget(target=0.9, steer=0.0), []
    for step in range(steps):
        budget.apply_(model, step / 100)
        with dg.usage(model) as used:
            y, one = outputs_and_gradients(model, x)
        budget.step(used, step / 100)
        found.append(one)
    return y, found


def test_sampled_gradients_of_four_steps_add_up_to_the_dense_ones() -> None:
    y, dense = gradients("dense", 1)
    same, sampled = gradients("sampled", SAMPLED)
    _, sparse = gradients("sparse", 1)
    torch.testing.assert_close(same, y, rtol=0.0, atol=0.0)
    for name, expected in dense[0].items():
        mean = torch.stack([one[name] for one in sampled]).mean(0)
        torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)
        for one in sampled[1:]:
            torch.testing.assert_close(one[name], sparse[0][name], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(sparse[0]["0.down.gate.net.weight"], dense[0]["0.down.gate.net.weight"])


def test_automatic_gradients_become_sparse_when_the_budget_has_come_down_and_stay_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(dg.nn.FFN(8, 128, 4, gate_gradient="auto"))
    dg.gate_(model, dg.GateConfig(block=32, open=0.9), where="0.down")
    budget = dg.Budget(target=0.6, warmup=0.0, anneal=0.3, steer=2.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, seen = torch.randn(256, 8), []
    for step in range(100):
        budget.apply_(model, step / 100)
        seen.append((model[0].closed_gradient, budget.relative))
        with dg.usage(model) as used:
            loss = model(x).square().mean()
        (loss + budget.step(used, step / 100)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 70:
            budget.load_state_dict(budget.state_dict())
    first = next(step for step, (closed, _) in enumerate(seen) if not closed)
    assert first >= 30
    assert seen[first][1] <= 0.61
    assert all(closed == 1.0 for closed, _ in seen[:first])
    assert all(closed == 0.0 for closed, _ in seen[first:])
    said = capsys.readouterr().out
    assert said == f"the budget has come down: sparse gate gradient in 1 layers from {first}% on\n"
    budget.reset()
    budget.apply_(model, 0.0)
    assert model[0].closed_gradient == 1.0


def test_another_training_run_continues_as_this_one(tmp_path: Path) -> None:
    budget = dg.Budget(target=0.6)
    budget._gradients.steps, budget._gradients.sparse_from = 7, 0.4
    other = dg.Budget(target=0.6)
    other.load_state_dict(budget.state_dict())
    assert other._gradients == budget._gradients
    older = {name: value for name, value in budget.state_dict().items() if name != "gradients"}
    other.load_state_dict(older)
    assert other._gradients.sparse_from is None
    model = nn.Sequential(gated(HARD, gate_gradient="auto"))
    dg.save(model, tmp_path / "model.safetensors")
    assert dg.load(tmp_path / "model.safetensors")[0].gate_gradient == "auto"


def test_a_captured_step_refuses_what_it_could_not_change() -> None:
    model = nn.Sequential(gated(HARD, gate_gradient="sampled"))
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match="expected layers with gate_gradient='dense' or 'sparse', received 'sampled'"):
        CapturedStep(model, lambda x: model(x).sum(), (torch.randn(3, 12),), optimizer)


def test_a_gradient_that_is_set_later_counts_from_then_on() -> None:
    layer = gated(HARD)
    assert layer.closed_gradient == 1.0
    layer.gate_gradient = "sparse"
    assert layer.closed_gradient == 0.0
    x = torch.randn(20, 12)
    _, found = outputs_and_gradients(layer, x)
    _, sparse = outputs_and_gradients(gated(HARD, gate_gradient="sparse"), x)
    assert all(torch.equal(found[name], value) for name, value in sparse.items())
