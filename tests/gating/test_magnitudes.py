"""Gates that open units by how large they are: decisions and gradients against closed forms, what is counted, files."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.gating import Gate
from dynamicgate.gating.networks import SMALLEST
from tests.gating.gates import mlp

MAGNITUDE = GateConfig(net="magnitude", reads="same")


def gate_of(width: int, block: int | None = None) -> Gate:
    site = Site("down", (), "down", width)
    return Gate(site, GateConfig(net="magnitude", reads="same", block=block), width)


def test_units_above_their_threshold_are_open_and_kept_as_they_are() -> None:
    gate = gate_of(257)
    threshold = torch.rand(257) + 0.1
    gate.bias.data = -threshold.log()
    x = torch.randn(64, 257)
    found = gate(x).scale
    far = ((x.abs() / threshold).log()).abs() > 1e-5
    assert torch.equal(found[far], (x.abs() > threshold).float()[far])
    assert bool((gate(torch.zeros(1, 257)).open == 0.0).all())
    assert gate.macs == 0


@pytest.mark.parametrize(("width", "block"), [(12, 4), (13, 4), (3, 8)])
def test_a_block_is_as_large_as_the_root_mean_square_of_its_units(width: int, block: int) -> None:
    gate = gate_of(width, block)
    x = torch.randn(9, width)
    expected = torch.stack([part.square().mean(-1).sqrt().log() for part in x.split(block, dim=-1)], dim=-1)
    torch.testing.assert_close(gate.net(x), expected + gate.bias)


def test_gradients_are_those_of_the_open_units_and_near_a_threshold_of_the_closed_ones_too() -> None:
    gate = gate_of(31).double()
    x = torch.randn(16, 31, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(16, 31, dtype=torch.float64)
    (weight * x * gate(x).scale).sum().backward()
    z = 0.5 * (x.detach().square() + SMALLEST).log() + gate.bias.detach()
    p = torch.sigmoid(z)
    slope = p * (1 - p) * x.detach().square() / (x.detach().square() + SMALLEST)
    torch.testing.assert_close(x.grad, weight * ((z > 0) + slope))
    expected = (weight * x.detach() * p * (1 - p)).sum(0)
    torch.testing.assert_close(gate.bias.grad, expected, rtol=1e-5, atol=1e-6)  # a gate decides in float32


def test_a_unit_of_zero_or_of_no_number_does_no_harm() -> None:
    gate = gate_of(4)
    x = torch.tensor([[0.0, torch.nan, torch.inf, -1e-30]], requires_grad=True)
    found = gate(x)
    assert found.open[0].tolist() == [0.0, 0.0, 1.0, 0.0]
    torch.where(torch.tensor([True, False, False, True]), x * found.scale, 0.0).sum().backward()
    assert bool(x.grad[0, [0, 3]].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_units_are_compared_in_float32(dtype: torch.dtype) -> None:
    gate = gate_of(64)
    x = (torch.randn(32, 64) * 1e-3).to(dtype)
    assert gate.net(x).dtype == torch.float32
    assert torch.equal(gate.net(x), gate.net(x.float()))


def test_what_is_skipped_is_the_columns_of_the_layer_that_reads() -> None:
    model = dg.gate_(mlp(16, 32, 8), MAGNITUDE, where=dg.where.everywhere)
    x = torch.randn(256, 16)
    with dg.usage(model) as used:
        model(x)
    found = dg.measure(model, x)
    by_hand = float(used["0"].open.sum(-1).mean()) * 32 + float(used["2"].open.sum(-1).mean()) * 8
    assert found.macs["executed"] == pytest.approx(by_hand)
    assert found.macs["gate"] == 0.0
    dg.calibrate_(model, x, macs=0.4)
    assert dg.measure(model, x).macs["relative"] == pytest.approx(0.4, abs=0.005)


def test_a_budget_holds_thresholds_in_training_and_the_file_keeps_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dg.gate_(mlp(16, 64, 4), MAGNITUDE)
    x = torch.randn(1024, 16)
    y = F.one_hot(x[:, :4].argmax(-1), 4).argmax(-1)
    dg.fit(model, (x, y), epochs=12, show=False, budget=dg.Budget(target=0.85))
    found = dg.measure(model, (x, y))
    assert found.macs["relative"] == pytest.approx(0.85, abs=0.01)
    assert found.accuracy > 0.6  # chance is a quarter
    dg.save(model, tmp_path / "model.safetensors")
    loaded = dg.load(tmp_path / "model.safetensors")
    assert torch.equal(loaded(x), model(x))
    fast = dg.compile(model, x[:64])
    assert "reads='same'" in str(fast.plan)
    torch.testing.assert_close(fast(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))


class GatedLinearUnit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 24), nn.Linear(8, 24)
        self.down_proj, self.act_fn = nn.Linear(24, 8), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def test_the_word_for_what_layers_read_names_their_input_and_the_hidden_units(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = nn.ModuleList([GatedLinearUnit()])
    dg.gate_(model, MAGNITUDE, where="mlp-inputs")
    assert capsys.readouterr().out == (
        "1 x GatedLinearUnit, 8 inputs of gate_proj, 8 blocks each; 1 x GatedLinearUnit, 8 inputs of up_proj, 8 blocks "
        "each; 1 x GatedLinearUnit, 8 -> 24 (silu, gated), 24 blocks each\n"
    )
    gates = dg.named_gates(model)
    assert list(gates) == ["0.gate_proj", "0.up_proj", "0.down_proj"]
    assert [gate.site.is_input for gate in gates.values()] == [True, True, False]
    with torch.no_grad():
        for gate in gates.values():
            gate.bias.fill_(0.0)
        x = torch.randn(5, 8)
        layer = model[0]
        cut = x * (x.abs() > 1.0)
        h = F.silu(F.linear(cut, layer.gate_proj.weight, layer.gate_proj.bias))
        h = h * F.linear(cut, layer.up_proj.weight, layer.up_proj.bias)
        expected = F.linear(h * (h.abs() > 1.0), layer.down_proj.weight, layer.down_proj.bias)
        torch.testing.assert_close(layer(x), expected)
    dg.ungate_(model, "mlp-inputs")
    assert not dg.named_gates(model)
    with pytest.raises(ValueError, match="no feed-forward layers of this Sequential are known"):
        dg.gate_(nn.Sequential(nn.Linear(4, 4)), MAGNITUDE, where="mlp-inputs")
    with pytest.raises(ValueError, match="register the pattern for 'mlp'"):
        dg.gating.register_pattern("mine", lambda _module: None, where="mlp-inputs")


def test_a_small_factor_saves_the_rows_of_what_it_multiplies(capsys: pytest.CaptureFixture[str]) -> None:
    model = dg.gate_(nn.ModuleList([GatedLinearUnit()]), MAGNITUDE, where="mlp-all")
    assert "1 x GatedLinearUnit, 24 factors from gate_proj, 24 blocks each; " in capsys.readouterr().out
    gates = dg.named_gates(model)
    assert {*gates} == {"0.gate_proj", "0.up_proj", "0.down_proj", "0.act_fn"}
    assert "24 factors from 0.gate_proj, of what 0.up_proj writes" in str(gates["0.act_fn"].site)
    x, layer = torch.randn(64, 8), model[0]
    with torch.no_grad():
        for gate in gates.values():
            gate.bias.fill_(1.0)
        gates["0.act_fn"].bias.copy_(torch.linspace(0.0, 3.0, 24))
        threshold = torch.exp(-gates["0.act_fn"].bias)
        cut = x * (x.abs() > math.exp(-1.0))
        f = F.silu(layer.gate_proj.forward(cut))
        open_f = f.abs() > threshold
        h = f * open_f * layer.up_proj.forward(cut)
        open_h = h.abs() > math.exp(-1.0)
        expected = layer.down_proj.forward(h * open_h)
        torch.testing.assert_close(layer(x), expected)
        with dg.usage(model) as used:
            layer(x)
        assert torch.equal(used["0.act_fn"].open, open_f.float())
        counter = MacCounter(model, rows=dict.fromkeys(("0.gate_proj", "0.up_proj", "0.down_proj"), 1.0))
        inputs, units = (cut != 0).sum(-1).double(), open_f.sum(-1).double()
        by_hand = (inputs * 24 + inputs * units + open_h.sum(-1) * 8).mean()
        assert float(counter.executed({name: used[name].open for name in used})) == pytest.approx(float(by_hand))
    dg.ungate_(model, "mlp-all")
    assert not dg.named_gates(model)
    assert not layer.act_fn._forward_hooks


def test_other_gates_on_factors_are_refused() -> None:
    model = nn.ModuleList([GatedLinearUnit()])
    with pytest.raises(ValueError, match="factors are closed by how large they are"):
        dg.gate_(model, GateConfig(net="linear"), where="mlp-all")
    assert not dg.named_gates(model)
    narrow = Site("0.act_fn", ("0.up_proj",), "0.gate_proj", 7, factors=True)
    with pytest.raises(ValueError, match="writes 24 values for 7 factors"):
        dg.gate_(model, MAGNITUDE, where=[narrow])
    with pytest.raises(ValueError, match="factors multiply what producers write"):
        Site("0.act_fn", (), "0.gate_proj", 24, factors=True)
