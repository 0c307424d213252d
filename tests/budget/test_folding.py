"""Gates that move less than their network costs become constant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.gating.folding import can_fold, fold_
from dynamicgate.training import Callback

FEATURES, WIDTH, CLASSES = 16, 48, 4


def rows_with_regimes(count: int = 512) -> tuple[Tensor, Tensor]:
    """Inputs of two regimes, told apart by their first feature, in which other features decide on the class."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, FEATURES, generator=generator)
    x[:, 0] = torch.where(x[:, 0] > 0, 4.0, -4.0)
    own = torch.where((x[:, :1] > 0).expand(-1, CLASSES), x[:, 1 : 1 + CLASSES], x[:, 8 : 8 + CLASSES])
    return x, own.argmax(1)


def gated(seed: int = 0, **config: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    dg.gate_(model, dg.GateConfig(**{"net": "low-rank", "rank": 2, "always_open": 0.1, **config}))
    return model


def constant_start_(model: nn.Module) -> None:
    """Gates that look at nothing, and whose weights can learn nothing either."""
    for gate in dg.named_gates(model).values():
        for linear in gate.net.modules():
            if isinstance(linear, nn.Linear):
                nn.init.zeros_(linear.weight)


def train(model: nn.Module, folder: Path | None = None, epochs: int = 12, **options: Any) -> dg.Budget:
    budget = dg.Budget(target=0.4, fold=True)
    fit: dict[str, Any] = {"epochs": epochs, "batch": 32, "budget": budget, "show": False, "seed": 1, **options}
    dg.fit(model, rows_with_regimes(), out=folder, **fit)
    return budget


def test_a_gate_that_looks_at_nothing_becomes_constant_and_its_units_get_the_macs() -> None:
    model = gated()
    constant_start_(model)
    budget = train(model)
    (gate,) = dg.named_gates(model).values()
    assert [one.site for one in budget.folded] == ["2"]
    assert budget.folded[0].moved < budget.folded[0].cost == 2 * (FEATURES + WIDTH)
    assert 0.55 <= budget.folded[0].progress <= 0.65
    assert "became constant at" in str(budget.folded[0])
    assert (gate.config.kind, gate.macs) == ("static", 0)
    found = dg.measure(model, rows_with_regimes())
    assert found.macs["gate"] == 0
    assert found.macs["relative"] == pytest.approx(0.4, abs=0.02), "one unit is 0.02 of the dense MACs"


def test_a_gate_that_tells_inputs_apart_stays() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    dg.gate_(model, dg.GateConfig(net="low-rank", rank=1, block=16))
    (gate,) = dg.named_gates(model).values()
    with torch.no_grad():  # half of the blocks for one regime, half for the other
        gate.net[0].weight.zero_()[0, 0] = 1.0  # type: ignore[index, operator, union-attr]
        gate.last.weight.copy_(torch.tensor([1.0, -1.0]).repeat(8)[:, None])  # type: ignore[operator]
    budget = train(model, epochs=6)
    assert budget.folded == []
    assert gate.config.kind == "dynamic"


def test_without_being_asked_nothing_is_folded() -> None:
    model = gated()
    constant_start_(model)
    budget = dg.Budget(target=0.4)
    dg.fit(model, rows_with_regimes(), epochs=3, batch=32, budget=budget, show=False)
    assert budget.folded == []
    assert all(gate.config.kind == "dynamic" for gate in dg.named_gates(model).values())


@pytest.mark.parametrize("stop", [0.3, 0.58, 0.8])
def test_training_resumes_to_the_bit_before_while_and_after_gates_are_folded(tmp_path: Path, stop: float) -> None:
    whole = gated()
    constant_start_(whole)
    train(whole, tmp_path / "whole", patience=50, valid=rows_with_regimes(128))
    parts: nn.Module = gated()
    constant_start_(parts)
    folder = tmp_path / "parts"

    class Interrupt(Callback):
        def on_log(self, row: dict[str, float], step: int) -> bool | None:
            if step >= stop * 12 * 16:
                raise RuntimeError("pulled the plug")
            return None

    with pytest.raises(RuntimeError, match="plug"):
        train(parts, folder, patience=50, valid=rows_with_regimes(128), callbacks=[Interrupt()], checkpoint_seconds=0.0)
    again = gated()
    constant_start_(again)
    budget = train(again, folder, patience=50, valid=rows_with_regimes(128))
    assert len(budget.folded) == 1
    assert whole.state_dict().keys() == again.state_dict().keys()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_folded_model_is_saved_loaded_and_compiled_without_its_closed_units(tmp_path: Path) -> None:
    model = gated()
    constant_start_(model)
    train(model)
    dg.save(model, tmp_path / "model.safetensors")
    loaded = dg.load(tmp_path / "model.safetensors")
    x, _ = rows_with_regimes(64)
    assert torch.equal(model(x), loaded(x))
    fast = dg.compile(loaded, example=x)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_folding_keeps_the_mean_decision_and_the_parameter_of_the_optimizer() -> None:
    model = gated(train="gumbel")
    (gate,) = dg.named_gates(model).values()
    bias = gate.bias
    logits = torch.linspace(-2.0, 2.0, WIDTH)
    gate.net(torch.randn(3, FEATURES)).sum().backward()
    fold_(gate, logits)
    assert gate.bias is bias
    assert torch.equal(gate.bias, logits)
    assert gate.bias.grad is None
    decision = gate(torch.randn(5, FEATURES))
    assert torch.equal(decision.open[0], (logits > 0).float())
    assert gate.config.train == "hard"


@pytest.mark.parametrize(
    "config",
    [{"kind": "static"}, {"kind": "router"}, {"top_k": 0.5}, {"scale": True}, {"soft_width": 1.0, "always_open": 0},
     {"reads": "same"}],
)  # fmt: skip
def test_only_gates_with_a_network_of_their_own_that_decide_in_time_can_be_folded(config: dict[str, Any]) -> None:
    plain = {"net": "auto", "rank": None, "always_open": 0}
    assert not any(can_fold(gate) for gate in dg.named_gates(gated(**{**plain, **config})).values())
    assert all(can_fold(gate) for gate in dg.named_gates(gated()).values())
