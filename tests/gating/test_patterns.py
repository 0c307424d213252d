"""Sites by a word, in models that no package but torch knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from dynamicgate.gating import Roles, patterns, register_pattern


@pytest.fixture(autouse=True)
def _registry_is_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(patterns, "_PATTERNS", {word: dict(found) for word, found in patterns._PATTERNS.items()})
    return


class Unnamed(nn.Module):
    """A feed-forward layer by structure: no pattern has these names."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.contract, self.expand = nn.Linear(width, 4), nn.Linear(4, width)
        self.between, self.drop = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.contract(self.drop(self.between(self.expand(x))))


class Normalized(Unnamed):
    """A norm over the hidden units: what a unit contributes depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.contract(self.norm(self.between(self.expand(x))))


class Llama(nn.Module):
    """gate, up and down, perhaps with a norm before down."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(4, 12), nn.Linear(4, 12), nn.Linear(12, 4)
        self.norm = nn.LayerNorm(12) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return self.down_proj(self.norm(F.silu(self.gate_proj(x)) * self.up_proj(x)))


def found(model: nn.Module, config: GateConfig | None = None, where: Any = "mlp") -> list[tuple[str, tuple[str, ...]]]:
    gates = dg.named_gates(dg.gate_(model, config, where=where))
    return [(gate.site.consumer, gate.site.producers) for gate in gates.values()]


def test_layers_are_found_by_name_and_by_structure(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(Llama(), Unnamed(), Unnamed(), Unnamed(20))
    assert found(model, GateConfig(block=5)) == [
        ("0.down_proj", ("0.gate_proj", "0.up_proj")),
        ("1.contract", ("1.expand",)),
        ("2.contract", ("2.expand",)),
        ("3.contract", ("3.expand",)),
    ]
    assert capsys.readouterr().out == (
        "1 x Llama, 4 -> 12 (gated), 3 blocks each, the last of 2 units; "
        "2 x Unnamed, 4 -> 12 (gelu), 3 blocks each, the last of 2 units; "
        "1 x Unnamed, 4 -> 20 (gelu), 4 blocks each\n"
    )


def test_only_words_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    dg.gate_(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)))
    assert capsys.readouterr().out == ""


def test_hidden_units_that_are_normalised_together_are_no_site() -> None:
    with pytest.raises(ValueError, match=r"no feed-forward layers of this Normalized are known\. Candidates:"):
        found(Normalized())
    with pytest.raises(ValueError, match=r"Candidates:"):
        found(Llama(norm=True))


def test_an_error_lists_what_could_be_meant() -> None:
    class Bare(nn.Module):
        """No activation is a module here, and the names are new."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 12), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.relu(self.first(x)))

    message = (
        "`where` (mlp) matches nothing: no feed-forward layers of this Sequential are known. Candidates:\n"
        "  1: first -> second\n"
        "  '1.first': 4 units from 0, read by 1.first\n"
        "  '1.second': 12 units from 1.first, read by 1.second\n"
        "Describe those you mean: where=[Site(consumer=..."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        found(nn.Sequential(nn.Linear(3, 4), Bare()))


@pytest.mark.parametrize(("word", "named"), [("mlp", "feed-forward layers"), ("heads", "attention heads")])
def test_a_model_without_them_is_told_so(word: str, named: str) -> None:
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU())
    with pytest.raises(ValueError, match=rf"no {named} of this Sequential are known\. If there are some, describe"):
        dg.gate_(model, where=word)


def test_a_pattern_of_your_own_comes_first_and_may_have_a_word_of_its_own() -> None:
    def of_mine(module: nn.Module) -> Roles | None:
        return Roles(("expand",), "contract") if isinstance(module, Unnamed) else None

    register_pattern("mine", of_mine, where="adapters")
    model = nn.Sequential(Llama(), Normalized())
    assert found(model, where="adapters") == [("1.contract", ("1.expand",))]
    register_pattern("mine", of_mine)
    dg.ungate_(model)
    assert [consumer for consumer, _ in found(model)] == ["0.down_proj", "1.contract"]


def test_a_pattern_that_names_layers_that_are_not_there_is_refused() -> None:
    register_pattern("wrong", lambda module: Roles(("up",), "down") if isinstance(module, Unnamed) else None)
    with pytest.raises(ValueError, match="a pattern says that Unnamed has layers"):
        found(Unnamed())


def test_a_quantised_layer_is_refused_in_one_sentence() -> None:
    model = Llama()
    model.down_proj.weight = nn.Parameter(torch.zeros(4, 12, dtype=torch.int8), requires_grad=False)
    message = "'down_proj' is a quantised Linear, and gates need layers in floating point"
    with pytest.raises(ValueError, match=message):
        found(model)


def test_a_layer_with_packed_weights_is_refused_too() -> None:
    class PackedLinear(nn.Module):
        """As GPTQ and AWQ keep their weights: not an nn.Linear, and no `weight`."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.in_features, self.out_features = inputs, outputs
            self.register_buffer("qweight", torch.zeros(inputs // 4, outputs, dtype=torch.int32))

    model = Llama()
    model.gate_proj = PackedLinear(4, 12)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="'gate_proj' is a quantised PackedLinear, and gates need layers in floating"):
        found(model)


@pytest.mark.parametrize("written", [6, 18, 36])
def test_a_producer_must_write_one_or_two_values_for_each_unit(written: int) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, written), nn.Linear(12, 4)

    site = Site("down", ("up",), "up", 12)
    with pytest.raises(ValueError, match=f"'up' writes {written} values, and 'down' reads 12 units: expected one or"):
        dg.gate_(Odd(), where=[site])


class Fused(nn.Module):
    """gate and up in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj, self.act = nn.Linear(6, 20), nn.Linear(10, 6), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.act(gate) * up)


@pytest.mark.parametrize("block", [1, 4, 5])
def test_a_fused_layer_is_counted_as_two_values_for_each_unit(block: int) -> None:
    model = dg.gate_(Fused(), GateConfig(block=block), where="mlp")
    counter = dg.count_macs(model, torch.randn(3, 6))
    gate = counter.gates["down_proj"]
    opened = torch.zeros(1, gate.blocks)
    opened[0, 0] = 1.0
    assert float(counter.executed({"down_proj": opened})) == block * 3 * 6 + counter.gate
    assert counter.all_open == pytest.approx(1.0 + counter.gate / 180, rel=1e-12)


def test_a_masked_fused_layer_is_counted_connection_by_connection() -> None:
    model = dg.gate_(Fused(), GateConfig(block=4), where="mlp")
    dg.sparsity.Static(model, 0.5, include=["gate_up_proj", "down_proj"])
    counter = dg.count_macs(model, torch.randn(3, 6))
    opened = torch.tensor([[0.0, 1.0, 1.0]])
    mask = model.gate_up_proj.mask
    expected = mask[4:10].sum() + mask[14:20].sum() + model.down_proj.mask[:, 4:].sum()
    assert float(counter.executed({"down_proj": opened})) == float(expected) + counter.gate


def test_growth_is_corrected_on_both_halves_of_a_fused_layer() -> None:
    model = dg.gate_(Fused(), GateConfig(block=5), where="mlp")
    sparsifier = dg.RigL(model, 0.5, include=["gate_up_proj", "down_proj"])
    rates = {"down_proj": torch.tensor([0.2, 0.8])}
    layer = sparsifier.layers[0]
    scaled = dg.sparsity.activity.coactivation_rate(layer.endpoints, rates, layer.mask.shape)
    assert scaled is not None
    assert scaled[:, 0].tolist() == pytest.approx([0.2] * 5 + [0.8] * 5 + [0.2] * 5 + [0.8] * 5)


def test_structure_alone_takes_the_wider_units_for_the_hidden_ones() -> None:
    class Untraceable(Unnamed):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() < 1e9 else x

    class Narrow(Unnamed):
        """The same layers the other way round: traced, so that the order is known."""

        def forward(self, x: Tensor) -> Tensor:
            return self.expand(self.between(self.contract(x)))

    assert found(Untraceable()) == [("contract", ("expand",))]
    assert found(Narrow()) == [("expand", ("contract",))]
