"""Gates on attention heads: whole groups that share keys and values, which are always computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from tests.hf.gated import close_, open_all_, run, spread_, weight_of
from tests.hf.models import BATCH, FAMILIES, HEADS, LAYERS, NAMES, TOKENS, inputs, tiny

every_family = pytest.mark.parametrize("name", NAMES)
GROUPED = [name for name in NAMES if FAMILIES[name].kv_heads < HEADS]


@every_family
def test_every_attention_layer_is_found_with_its_groups(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = dg.gate_(tiny(name), where="heads")
    gates = dg.named_gates(model)
    assert len(gates) == FAMILIES[name].attentions
    assert {gate.blocks for gate in gates.values()} == {FAMILIES[name].kv_heads}
    assert f"4 heads of {gates.popitem()[1].site.head_dim} in {FAMILIES[name].kv_heads} KV" in capsys.readouterr().out


@every_family
def test_with_all_heads_open_outputs_and_cost_are_those_of_the_model_and_the_gates(name: str) -> None:
    model, x = tiny(name), inputs(name)
    before, dense = run(model, x), dg.count_macs(model, x).dense
    assert torch.equal(run(open_all_(dg.gate_(model, where="heads")), x), before)
    counter = dg.count_macs(model, x)
    assert counter.dense == dense
    assert counter.all_open == pytest.approx(1.0 + counter.gate / dense, rel=1e-12)


def is_causal(name: str, site: str) -> bool:
    return FAMILIES[name].generates and "encoder" not in site


@every_family
def test_a_closed_head_saves_queries_scores_mixing_and_output_and_never_keys_and_values(name: str) -> None:
    model, x = tiny(name), inputs(name)
    counter = dg.count_macs(dg.gate_(model, where="heads"), x)
    closed = {site: torch.zeros(1, gate.blocks) for site, gate in counter.gates.items()}
    saved = 0.0
    for site in counter.sites.values():
        width, rows = site.width, counter.rows[site.consumer]
        read = weight_of(model.get_submodule(site.producers[0])).shape[1]
        written = weight_of(model.get_submodule(site.consumer)).shape[0]
        others = {"encoder_attn": 10, "EncDecAttention": TOKENS}  # cross-attention looks at the encoder
        seen = range(1, int(rows) + 1) if is_causal(name, site.name) else [rows]
        window = 4 if name == "gemma3" else rows
        mean = sum(min(count, window) for count in seen) / len(seen)
        keys = next((count for part, count in others.items() if part in site.name), mean)
        saved += rows * width * (read + written + 2 * keys)
    assert float(counter.executed(closed)) == counter.dense + counter.gate - saved
    half = {site: value.index_fill(1, torch.tensor([0]), 1.0) for site, value in closed.items()}
    opened = saved / FAMILIES[name].kv_heads
    assert float(counter.executed(half)) == counter.dense + counter.gate - saved + opened


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("gpt_neox", "modernbert")])
def test_what_is_counted_as_saved_does_not_matter_to_the_outputs(name: str) -> None:
    model, x = tiny(name), inputs(name)
    close_(dg.gate_(model, where="heads"), block=1)
    gated = run(model, x)
    for gate in dg.named_gates(model).values():
        closed = slice(gate.block, 2 * gate.block)
        weight_of(model.get_submodule(gate.site.producers[0]))[closed] = 7.0  # queries come first where they are fused
        weight_of(model.get_submodule(gate.site.consumer))[:, closed] = -3.0
    assert torch.equal(run(model, x), gated)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "gpt_neox", "modernbert"])
def test_a_closed_head_is_a_head_whose_values_are_not_mixed(name: str) -> None:
    """The heads of the gate are the heads of the model: closing one for all tokens is what zeroing it does."""
    model, x = tiny(name), inputs(name)
    reference = tiny(name)
    close_(dg.gate_(model, where="heads"), block=1)
    for gate in dg.named_gates(model).values():
        weight_of(reference.get_submodule(gate.site.consumer))[:, gate.block : 2 * gate.block] = 0.0
    torch.testing.assert_close(run(model, x), run(reference, x))


@pytest.mark.parametrize("name", GROUPED)
def test_single_heads_of_a_group_and_several_groups_can_be_blocks(name: str) -> None:
    head_dim = dg.named_gates(dg.gate_(tiny(name), where="heads")).popitem()[1].site.head_dim
    assert head_dim is not None
    single = dg.gate_(tiny(name), GateConfig(block=head_dim), where="heads")
    assert {gate.blocks for gate in dg.named_gates(single).values()} == {HEADS}
    whole = dg.gate_(tiny(name), GateConfig(block=4 * head_dim), where="heads")
    assert {gate.blocks for gate in dg.named_gates(whole).values()} == {1}


def test_a_block_that_cuts_through_a_head_is_refused_before_anything_changes() -> None:
    model = tiny("llama")
    with pytest.raises(ValueError, match=r"blocks of 12 units cut through the heads of '.*self_attn.o_proj'"):
        dg.gate_(model, GateConfig(block=12), where="heads")
    assert dg.named_gates(model) == {}


def test_heads_and_feed_forward_layers_together_cost_their_sum() -> None:
    model, x = tiny("llama"), inputs("llama")
    dg.gate_(dg.gate_(model, where="heads"), GateConfig(block=16), where="mlp")
    counter = dg.count_macs(model, x)
    assert len(counter.gates) == 2 * LAYERS
    assert counter.all_open == pytest.approx(1.0 + counter.gate / counter.dense, rel=1e-12)
    spread_(model)
    with dg.usage(model) as used:
        run(model, x)
    assert used["model.layers.0.self_attn.o_proj"].open.shape == (BATCH, TOKENS, 2)
    assert float(counter.relative({site: used[site].open for site in used})) < 0.9


def test_a_gate_that_reads_the_mixed_values_saves_the_output_projection_alone() -> None:
    model, x = tiny("llama"), inputs("llama")
    counter = dg.count_macs(dg.gate_(model, GateConfig(reads="same"), where="heads"), x)
    closed = {site: torch.zeros(1, gate.blocks) for site, gate in counter.gates.items()}
    outputs = sum(layer.dense * layer.rows for layer in counter.layers if layer.name in counter.gates)
    assert float(counter.executed(closed)) == counter.dense + counter.gate - outputs


def test_heads_are_measured_per_layer_and_saved_with_the_model(tmp_path) -> None:
    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny("phi3")

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids).logits
            return logits

    model = spread_(dg.gate_(Logits(), where="heads")).eval()
    x = inputs("phi3")["input_ids"]
    found = dg.measure(model, x)
    rows = {row["name"]: row for row in found.layers}
    mixing = rows["model.model.layers.0.self_attn scores and mixing"]
    output = rows["model.model.layers.0.self_attn.o_proj"]
    assert mixing["open"] == pytest.approx(output["macs"] / output["present"])
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
    site = next(site for site in used if ".layers.0." in site)
    keys, units = torch.arange(1, TOKENS + 1), used[site].open.double().sum(-1) * dg.named_gates(model)[site].block
    assert mixing["macs"] == pytest.approx(float((2 * keys * units).sum() / BATCH))
    assert sum(row["macs"] for row in found.layers) + found.macs["gate"] == pytest.approx(found.macs["executed"])
    assert found.macs["relative_zero_skip"] <= found.relative + 1e-9
    dg.save(model, tmp_path / "heads.safetensors")
    again = dg.load(tmp_path / "heads.safetensors", into=Logits())
    assert torch.equal(again(x), model(x))
    assert {gate.site for gate in dg.named_gates(again).values()} == {g.site for g in dg.named_gates(model).values()}


def test_explicit_heads_must_fit_their_layers() -> None:
    attention = "model.layers.0.self_attn."
    site = Site(f"{attention}o_proj", (f"{attention}k_proj",), f"{attention}q_proj", 32, head_dim=8, heads_per_group=2)
    with pytest.raises(ValueError, match=r"k_proj' writes 16 values, .* expected 32 for queries alone, or 64 with"):
        dg.gate_(tiny("llama"), where=[site])
    with pytest.raises(ValueError, match="32 units are no whole number of groups of 3 heads of 8"):
        Site("o", ("q",), "q", 32, head_dim=8, heads_per_group=3)
    with pytest.raises(ValueError, match="heads_per_group is for heads"):
        Site("o", ("q",), "q", 32, heads_per_group=2)
