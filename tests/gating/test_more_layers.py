"""Layers that are found since: torch's own transformer, fused gated linear units; and what is said about the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg


class FusedSwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w12, self.w3 = nn.Linear(16, 64), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * up)


def test_a_fused_gated_linear_unit_is_a_site() -> None:
    assert dg.find_sites(FusedSwiGLU()) == [
        dg.Site("w12", (), "w12", 16),
        dg.Site("w3", ("w12",), "w12", 32),
    ]


def test_a_closed_unit_of_a_fused_layer_saves_both_of_its_values() -> None:
    torch.manual_seed(0)
    model, x = FusedSwiGLU().eval(), torch.randn(5, 16)
    with torch.no_grad():
        gate, up = F.linear(x, model.w12.weight, model.w12.bias).chunk(2, dim=-1)
        h = F.silu(gate) * up
        h[:, :8] = 0.0
        h[:, 16:] = 0.0
        want = F.linear(h, model.w3.weight, model.w3.bias)
    dg.gate_(model, dg.GateConfig(block=8, kind="static"))
    with torch.no_grad():
        dg.named_gates(model)["w3"].bias[[0, 2, 3]] = -9.0
    torch.testing.assert_close(model(x), want)
    assert dg.measure(model, x).macs["executed"] == 16 * 16 + 8 * 16


@pytest.mark.parametrize("cut", ["chunk(2)", "chunk(2, dim=0)", "chunk(4, dim=-1)", "chunk(chunks=2, dim=1)"])
def test_other_cuts_are_no_halves_of_units(cut: str) -> None:
    class Indexed(FusedSwiGLU):
        def forward(self, x: Tensor) -> Tensor:
            parts = eval(f"self.w12(x).{cut}")
            return self.w3(F.silu(parts[0]) * parts[1])

    assert [site.name for site in dg.find_sites(Indexed()) if not site.is_input] == []


@pytest.mark.parametrize("where", [dg.where.hidden, "mlp"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_transformer_of_torch_is_gated(where: object, norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 6, 16)
    with torch.no_grad():
        want = model(x)
    dg.gate_(model, dg.GateConfig(block=8, kind="static"), where=where)  # type: ignore[arg-type]
    assert [*dg.named_gates(model)] == ["layers.0.linear2", "layers.1.linear2"]
    with torch.no_grad():
        torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)  # all open; torch's fused way rounds otherwise
        dense = dg.measure(model, x).macs
        dg.named_gates(model)["layers.0.linear2"].bias[1:] = -9.0
        assert not torch.allclose(model(x), want, atol=1e-3)
        closed = dg.measure(model, x).macs
    assert dense["executed"] - closed["executed"] == 6 * (2 * 16 * 24)


def test_a_layer_norm_between_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.raises(ValueError, match=r"Not sites:\n  '3' reads through LayerNorm '1': it mixes the units"):
        dg.gate_(model)


def test_any_other_operation_between_is_named() -> None:
    class Rolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.roll(self.a(x), 1, -1))

    with pytest.raises(ValueError, match=r"'b' reads through `roll`: it is not known to act on each unit by itself"):
        dg.gate_(Rolled())


def test_where_no_gate_fits_layers_are_sparse_without() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    x, y = torch.randn(60, 8), torch.arange(60) % 3
    rows = (x, y)
    plan = dg.sparsify_(model, macs=0.6, data=rows, valid=rows, example=x, show=False, clock=False)
    assert plan.budget is None
    assert "gates do not fit this model" in plan.notes[0]
    assert "LayerNorm '1'" in plan.notes[0]
