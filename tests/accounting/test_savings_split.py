"""What structure and what gates save: counted per sample, split in two, and noted where means mislead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig, measure
from dynamicgate.nn import GatedMLP


def taking_turns() -> GatedMLP:
    """Inputs of one sign open the first hidden layer, of the other sign the second."""
    model = GatedMLP((1, 8, 8, 2), GateConfig())
    with torch.no_grad():
        first, second = (dg.named_gates(model)[f"layers.{i}"].net for i in (1, 2))
        first.weight.fill_(5.0)
        first.bias.zero_()
        second.weight.fill_(-5.0)
        second.bias.fill_(1.0)  # h1 > 0 closes it, h1 = 0 (first gate closed) opens it
        model.layers[0].weight.fill_(1.0)
        model.layers[0].bias.zero_()
    return model


def test_counting_is_a_sum_of_products_when_gates_are_correlated_across_layers() -> None:
    """Inputs of one sign open the first hidden layer, of the other sign the second: the layer between never runs."""
    model = taking_turns()
    x = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
    result = measure(model, x)
    assert [gate["open"] for gate in result.gates] == [0.5, 0.5]
    assert result.layers[1]["macs"] == 0.0  # 0.25 * 64 by a product of means
    assert result.proxies["relmac_g"] == pytest.approx(0.5)
    assert result.macs["executed"] == 0.5 * 8 + 0.0 + 0.5 * 16 + result.macs["gate"]


# --- which part is saved by structure, which by gates, and where a product of means would mislead


def half_dense(*closed: int) -> GatedMLP:
    """Four hidden units: the first two read all four inputs, the last two one each; those `closed` never open."""
    model = GatedMLP((4, 4, 2), GateConfig(kind="static"))
    model.layers[0].register_buffer("mask", torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]]) == 1)
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].net.bias[list(closed)] = -3.0
    return model


def split_adds_up(macs: dict[str, float]) -> bool:
    saved = macs["structure_saved"] + macs["gate_saved"]
    return macs["relative"] == pytest.approx(1.0 - saved + macs["gate"] / macs["dense"], rel=1e-12)


def test_open_units_that_keep_more_connections_than_average_cost_more_than_a_product_of_means_says() -> None:
    result = measure(half_dense(2, 3), torch.randn(5, 4))
    assert (result.macs["dense"], result.macs["executed"]) == (16 + 8, 8 + 4)
    assert result.macs["structure_saved"] == pytest.approx(6 / 24, rel=1e-12)
    assert result.macs["gate_saved"] == pytest.approx((10 + 8 - 8 - 4) / 24, rel=1e-12)
    assert [(x["present"], x["product"], x["macs"]) for x in result.layers] == [(10, 10 * 0.5, 8), (8, 8 * 0.5, 4)]
    assert result.notes == [
        "layers.0: density x open rates would claim 5 MACs, the masked and gated layer executes 8: "
        "open units keep more connections than average",
        "model: density x open rates would claim 9 MACs, gate networks included, it executes 12",
    ]
    assert all(note in str(result) for note in result.notes)
    assert "  saved by structure  0.2500\n  saved by gates      0.2500\n" in str(result)


def test_open_units_that_keep_fewer_connections_than_average_cost_less_than_a_product_of_means_says() -> None:
    result = measure(half_dense(0, 1), torch.randn(5, 4))
    assert [(x["product"], x["macs"]) for x in result.layers] == [(5, 2), (4, 4)]
    assert result.macs["gate_saved"] == pytest.approx((18 - 6) / 24, rel=1e-12)
    assert result.notes[0].endswith("executes 2: open units keep fewer connections than average")


def test_a_product_of_means_that_is_off_by_less_than_a_twentieth_is_not_worth_a_note() -> None:
    model = GatedMLP((21, 2, 1), GateConfig(kind="static"))
    model.layers[0].register_buffer("mask", torch.arange(42).view(2, 21) < 41)
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].net.bias[1] = -3.0
    result = measure(model, torch.randn(3, 21))
    assert (result.layers[0]["product"], result.layers[0]["macs"]) == (20.5, 21.0)
    assert result.notes == []


def test_two_gates_that_take_turns_are_noted_without_any_mask() -> None:
    model = taking_turns()
    first, second = (dg.named_gates(model)[f"layers.{i}"].net for i in (1, 2))
    result = measure(model, torch.tensor([[1.0], [-1.0]]))
    assert result.layers[1]["product"] == 64 * 0.5 * 0.5
    assert result.macs["structure_saved"] == 0.0
    assert result.notes == [
        "layers.1: open rates would claim 16 MACs, the gated layer executes 0: "
        "open inputs and open outputs meet less often than by chance",
        f"model: open rates would claim {28 + first.weight.numel() + second.weight.numel()} MACs, gate networks "
        f"included, it executes {12 + first.weight.numel() + second.weight.numel()}",
    ]
    model.layers[1].register_buffer("mask", torch.eye(8) == 1)
    assert measure(model, torch.tensor([[1.0], [-1.0]])).notes == [
        "layers.1: density x open rates would claim 2 MACs, the masked and gated layer executes 0: "
        "open inputs and open outputs have fewer connections in common than by chance"
    ]


class Looped(nn.Module):
    """A convolution (other costs), then one pair of layers over every token, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(5, 5, 3, padding=1)
        self.up, self.down, self.out = nn.Linear(6, 10), nn.Linear(10, 6), nn.Linear(6, 3)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h = self.mix(x_BTD)
        for _ in range(2):
            h = h + self.down(torch.relu(self.up(h)))
        return self.out(h.mean(1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_structure_part_and_gate_part_add_up_to_what_is_saved(masked: bool, gated: bool) -> None:
    torch.manual_seed(3)
    looped, plain = Looped(), GatedMLP((6, 11, 7, 3), GateConfig(rank=2, net="low-rank", open=0.55) if gated else None)
    if gated:
        dg.gate_(looped, GateConfig(rank=2, net="low-rank", open=0.5), [dg.Site("down", ("up",), "up", 10)])
    for gate in [*dg.named_gates(looped).values(), *dg.named_gates(plain).values()]:
        for layer in gate.net:
            nn.init.normal_(layer.weight)
    if masked:
        for layer in (looped.up, looped.down, plain.layers[0], plain.layers[2]):
            layer.register_buffer("mask", torch.rand_like(layer.weight) < 0.3)
    results = [measure(looped, torch.randn(7, 5, 6)), measure(plain, torch.randn(9, 6), batch=4)]
    assert results[0].macs["dense"] > 5 * 2 * 120 + 18  # something else costs MACs
    assert results[0].layers[0]["present"] == 10 * (int(looped.up.mask.sum()) if masked else 60)
    for result in results:
        assert split_adds_up(result.macs)
        assert (result.macs["structure_saved"] > 0) == masked
        assert (result.macs["gate_saved"] > 0) == gated
        if not masked:
            assert result.macs["structure_saved"] == 0.0
        if not gated:
            assert result.macs["gate_saved"] == 0.0
            assert [x["macs"] for x in result.layers] == [x["product"] for x in result.layers]
            assert result.notes == []
