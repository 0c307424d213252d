"""What the other parts of the library make of a gated Transformer: files, sparsifiers, the search for kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate import GateConfig
from dynamicgate.inference.gpu.find import find_ffns
from tests.hf.gated import run, spread_
from tests.hf.models import NAMES, inputs, tiny


@pytest.mark.parametrize("name", NAMES)
def test_gates_on_both_are_saved_and_loaded_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = spread_(dg.gate_(dg.gate_(tiny(name), GateConfig(block=16), where="mlp"), where="heads"))
    dg.save(model, tmp_path / "model.safetensors")
    again = dg.load(tmp_path / "model.safetensors", into=tiny(name, seed=7))
    assert list(dg.named_gates(again)) == list(dg.named_gates(model))
    assert torch.equal(run(again, inputs(name)), run(model, inputs(name)))


@pytest.mark.parametrize(("name", "activation"), [("llama", "silu"), ("gemma3", "gelu_tanh"), ("gpt_neox", "gelu")])
def test_the_search_for_gpu_kernels_finds_its_feed_forward_layers(name: str, activation: str) -> None:
    model = dg.gate_(tiny(name), GateConfig(block=32), where="mlp")
    modules, in_torch = find_ffns(model, dg.named_gates(model))
    assert [ffn.activation for module in modules for ffn in module.ffns] == [activation] * 2
    assert in_torch == {}


@pytest.mark.parametrize("name", ["phi3", "gpt2", "opt", "bert"])
def test_what_no_kernel_computes_stays_in_torch_with_a_reason(name: str) -> None:
    model = dg.gate_(dg.gate_(tiny(name), GateConfig(block=32), where="mlp"), where="heads")
    modules, in_torch = find_ffns(model, dg.named_gates(model))
    assert modules == []
    assert in_torch.keys() == dg.named_gates(model).keys()


def test_a_sparsifier_leaves_conv1d_alone_and_says_so() -> None:
    with pytest.raises(ValueError, match=r"no layer is left to make sparse; .* 8 layers are Conv1D, which cannot be"):
        dg.RigL(tiny("gpt2"), 0.5)


def test_masks_gates_and_heads_together_are_counted_connection_by_connection() -> None:
    model = dg.gate_(dg.gate_(tiny("phi3"), GateConfig(block=16), where="mlp"), where="heads")
    dg.sparsity.Static(model, 0.4)
    x = inputs("phi3")
    counter = dg.count_macs(model, x)
    masks = {layer.name: getattr(layer.linear, "mask", None) for layer in counter.layers}
    assert sum(mask is not None for mask in masks.values()) == len(masks) - 1  # all but the output layer
    present = sum(int(mask.sum()) for mask in masks.values() if mask is not None) + counter.layers[-1].dense
    rows = {layer.rows for layer in counter.layers}
    assert rows == {6.0}
    attention = sum(counter.attention_macs.values())
    assert counter.all_open * counter.dense == pytest.approx(present * 6 + attention + counter.other + counter.gate)
    closed = {name: torch.zeros(1, gate.blocks) for name, gate in counter.gates.items()}
    always = [layer for layer in counter.layers if "qkv_proj" in layer.name or layer.name == "lm_head"]
    kept = sum(layer.present for layer in always)  # in a masked qkv nobody knows where the queries lie
    assert float(counter.executed(closed)) == kept * 6 + counter.other + counter.gate
