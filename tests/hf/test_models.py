"""Gates on the feed-forward layers of sixteen families of models, with one call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import dynamicgate as dg
from dynamicgate import GateConfig
from tests.hf.gated import close_, open_all_, open_rates, run, spread_, weight_of
from tests.hf.models import DECODERS, FAMILIES, FFN_WIDTH, GENERATING, NAMES, inputs, prompt, tiny

CONFIG = GateConfig(block=16)
every_family = pytest.mark.parametrize("name", NAMES)


@every_family
def test_every_feed_forward_layer_is_found_and_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = dg.gate_(tiny(name), CONFIG, where="mlp")
    gates = dg.named_gates(model)
    assert len(gates) == FAMILIES[name].ffns
    assert {(gate.site.width, gate.blocks) for gate in gates.values()} == {(FFN_WIDTH, 4)}
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert f" x {FAMILIES[name].ffn}, 32 -> 64 (" in printed
    assert "4 blocks each" in printed


@every_family
def test_with_all_gates_open_outputs_are_equal_to_the_bit(name: str) -> None:
    model, x = tiny(name), inputs(name)
    before = run(model, x)
    assert torch.equal(run(open_all_(dg.gate_(model, CONFIG, where="mlp")), x), before)
    assert torch.equal(run(dg.ungate_(model, where="mlp"), x), before)
    assert dg.named_gates(model) == {}


@every_family
@pytest.mark.parametrize("block", [16, 24], ids=["even", "ragged"])
def test_with_all_gates_open_the_cost_is_that_of_the_model_and_of_the_gates(name: str, block: int) -> None:
    model, x = tiny(name), inputs(name)
    dense = dg.count_macs(model, x).dense
    counter = dg.count_macs(dg.gate_(model, GateConfig(block=block), where="mlp"), x)
    assert counter.dense == dense
    assert counter.gate > 0
    assert counter.all_open == pytest.approx(1.0 + counter.gate / dense, rel=1e-12)
    ones = {site: torch.ones(1, gate.blocks) for site, gate in counter.gates.items()}
    assert float(counter.executed(ones)) == dense + counter.gate


@every_family
def test_closed_blocks_save_their_part_of_producers_and_consumer(name: str) -> None:
    model, x = tiny(name), inputs(name)
    counter = dg.count_macs(dg.gate_(model, CONFIG, where="mlp"), x)
    closed = {site: torch.tensor([[1.0, 0.0, 1.0, 1.0]]) for site in counter.gates}
    ffns = {n for site in counter.sites.values() for n in (*site.producers, site.consumer)}
    in_ffns = sum(layer.dense * layer.rows for layer in counter.layers if layer.name in ffns)
    assert float(counter.executed(closed)) == counter.dense + counter.gate - in_ffns / 4


@every_family
def test_what_is_counted_as_saved_does_not_matter_to_the_outputs(name: str) -> None:
    model, x = tiny(name), inputs(name)
    before = run(model, x)
    close_(dg.gate_(model, CONFIG, where="mlp"), block=1)
    gated = run(model, x)
    assert not torch.equal(gated, before)
    for site in (gate.site for gate in dg.named_gates(model).values()):
        for producer in site.producers:
            weight = weight_of(model.get_submodule(producer))
            for half in range(weight.shape[0] // site.width):
                weight[half * site.width + 16 : half * site.width + 32] = 7.0
        weight_of(model.get_submodule(site.consumer))[:, 16:32] = -3.0
    assert torch.equal(run(model, x), gated)


@every_family
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16
def test_bfloat16(name: str) -> None:
    model = tiny(name).to(torch.bfloat16)
    x = {key: t.to(torch.bfloat16) if t.is_floating_point() else t for key, t in inputs(name).items()}
    before = run(model, x)
    gated = run(open_all_(dg.gate_(model, CONFIG, where="mlp")), x)
    assert gated.dtype == torch.bfloat16
    assert torch.equal(gated, before)
    assert {gate.theta.dtype for gate in dg.named_gates(model).values()} == {torch.float32}


@every_family
def test_measure_counts_what_the_gates_closed(name: str) -> None:
    class Logits(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, **x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(**x).logits
            return logits

    model = Logits(spread_(dg.gate_(tiny(name), CONFIG, where="mlp")))
    x = inputs(name)
    found = dg.measure(model, x)
    with dg.usage(model) as used, torch.no_grad():
        model(**x)
    expected = dg.count_macs(model, x).relative({site: used[site].open for site in used})
    assert found.relative == pytest.approx(float(expected), rel=1e-6)
    assert found.macs["relative_zero_skip"] <= found.relative
    assert found.macs["gate_saved"] > 0.0


def generated(model: torch.nn.Module, name: str, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    held: Any = model
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, **options}
    with torch.no_grad():
        return held.generate(**prompt(name), **options)


@pytest.mark.parametrize("name", GENERATING)
def test_generate_gives_the_tokens_of_the_model_and_with_closed_gates_does_not_depend_on_the_cache(name: str) -> None:
    model = tiny(name)
    before = generated(model, name)
    open_all_(dg.gate_(model, CONFIG, where="mlp"))
    assert torch.equal(generated(model, name), before)
    spread_(model)
    if name in DECODERS:
        assert torch.equal(generated(model, name), generated(model, name, use_cache=False))
    assert 0.1 < min(open_rates(model, inputs(name)).values()) <= max(open_rates(model, inputs(name)).values()) < 0.9


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "phi3"])
def test_generate_with_a_static_cache(name: str) -> None:
    model = spread_(dg.gate_(tiny(name), CONFIG, where="mlp"))
    dynamic = generated(model, name)
    static = generated(model, name, cache_implementation="static", disable_compile=True)
    assert torch.equal(static, dynamic)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_generate_with_beams(name: str) -> None:
    model = tiny(name)
    before = generated(model, name, num_beams=3)
    open_all_(dg.gate_(model, CONFIG, where="mlp"))
    assert torch.equal(generated(model, name, num_beams=3), before)


def test_assisted_decoding() -> None:
    model, name = spread_(dg.gate_(tiny("llama"), CONFIG, where="mlp")), "llama"
    alone = {key: value[:1] for key, value in prompt(name).items()}
    held: Any = model
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        plain = held.generate(**alone, **options)
        assisted = held.generate(**alone, **options, assistant_model=tiny(name, seed=3))
    assert torch.equal(plain, assisted)


@pytest.mark.parametrize(("name", "layers"), [("llama", "num_hidden_layers"), ("gpt2", "n_layer")])
def test_torch_compile_makes_one_graph(name: str, layers: str) -> None:
    model, x = tiny(name, **{layers: 1}), inputs(name)
    spread_(dg.gate_(dg.gate_(model, CONFIG, where="mlp"), where="heads"))
    torch._dynamo.reset()
    compiled: Any = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled, x), run(model, x))


def test_a_gated_t5_and_other_widths() -> None:
    model = dg.gate_(tiny("t5", feed_forward_proj="gated-gelu"), CONFIG, where="mlp")
    sites = [gate.site for gate in dg.named_gates(model).values()]
    assert len(sites) == 4
    assert [part.rpartition(".")[2] for part in sites[0].producers] == ["wi_0", "wi_1"]


def test_a_model_without_memory_is_gated_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    with torch.device("meta"):
        smollm2 = tiny("llama", **sizes, num_key_value_heads=3)
    dg.gate_(smollm2, GateConfig(block=32), where="mlp")
    dg.gate_(smollm2, where="heads")
    assert capsys.readouterr().out == (
        "30 x LlamaMLP, 576 -> 1536 (silu, gated), 48 blocks each\n"
        "30 x LlamaAttention, 9 heads of 64 in 3 KV groups, 3 blocks each\n"
    )
    assert {p.device.type for p in smollm2.parameters()} == {"meta"}


def test_words_are_beside_globs_and_predicates() -> None:
    model = tiny("llama")
    assert len(dg.named_gates(dg.gate_(model, CONFIG))) == 2  # tracing sees through the activations of Transformers
    dg.ungate_(model, where="*.0.mlp.down_proj")
    dg.gate_(model, where="heads")
    dg.ungate_(model, where="mlp")
    assert [gate.site.is_heads for gate in dg.named_gates(model).values()] == [True, True]
    with pytest.raises(ValueError, match=r"`where` \(mlp\) matches none of the sites"):
        dg.ungate_(model, where="mlp")
    dg.ungate_(model)
    dg.gate_(model, where=["mlp", "heads", "*.0.mlp.down_proj"])
    assert len(dg.named_gates(model)) == 4
    dg.ungate_(model, where=["heads", "*.1.mlp.down_proj"])
    assert list(dg.named_gates(model)) == ["model.layers.0.mlp.down_proj"]
    dg.gate_(model, CONFIG, where=["heads", "*.1.mlp.down_proj"])
    assert len(dg.named_gates(model)) == 4
