"""LoRA before and after `gate_`: the adapter sees gated units in both orders, and gates can be trained beside it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import IA3Config, LoHaConfig, LoraConfig, get_peft_model
from torch import nn

import dynamicgate as dg
import dynamicgate.hf
from dynamicgate import GateConfig
from tests.hf.gated import open_all_, run, spread_
from tests.hf.models import inputs, tiny

TARGETS = {
    "llama": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_fc", "c_proj"],
}
both = pytest.mark.parametrize("name", TARGETS)
places = pytest.mark.parametrize("where", ["mlp", "heads"])


def with_lora(model: nn.Module, name: str) -> nn.Module:
    config = LoraConfig(
        r=3, lora_alpha=30, target_modules=TARGETS[name], init_lora_weights=False, fan_in_fan_out=name == "gpt2"
    )
    held: Any = model
    return get_peft_model(held, config).eval()


def gated(model: nn.Module, where: str) -> nn.Module:
    return dg.gate_(model, GateConfig(block=16) if where == "mlp" else None, where=where)


def first_gated(name: str, where: str) -> nn.Module:
    return spread_(with_lora(gated(tiny(name), where), name))


@both
@places
def test_both_orders_give_the_same_model(name: str, where: str) -> None:
    after = first_gated(name, where)
    before = gated(with_lora(tiny(name), name), where)
    assert list(dg.named_gates(after)) == list(dg.named_gates(before))
    assert after.state_dict().keys() == before.state_dict().keys()
    before.load_state_dict(after.state_dict())
    x = inputs(name)
    assert torch.equal(run(after, x), run(before, x))
    assert dg.count_macs(after, x).relative_at(0.5) == dg.count_macs(before, x).relative_at(0.5)


@both
@places
def test_the_branch_of_the_adapter_sees_gated_units(name: str, where: str) -> None:
    model, x = first_gated(name, where), inputs(name)
    seen: dict[str, torch.Tensor] = {}
    for site in dg.named_gates(model):
        branch = model.get_submodule(f"{site}.lora_A.default")
        branch.register_forward_pre_hook(lambda _m, args, site=site: seen.update({site: args[0]}))
    with dg.usage(model) as used:
        run(model, x)
    for site, gate in dg.named_gates(model).items():
        closed = gate.per_unit(used[site].open) == 0
        assert 0.1 < closed.float().mean() < 0.9
        assert seen[site][closed].count_nonzero() == 0
        assert seen[site][~closed].count_nonzero() > 0


@both
@places
def test_merging_changes_nothing_and_gives_the_gates_back_to_the_layers(name: str, where: str) -> None:
    model, x = first_gated(name, where), inputs(name)
    before = run(model, x)
    held: Any = copy.deepcopy(model)
    merged = held.merge_and_unload()
    torch.testing.assert_close(run(merged, x), before, rtol=1e-4, atol=1e-5)
    assert len(dg.named_gates(merged)) == len(dg.named_gates(model))
    torch.testing.assert_close(run(model, x), before, rtol=0.0, atol=0.0)  # the copy was merged, not this one
    dg.ungate_(merged)
    assert all(not m._forward_pre_hooks for m in merged.modules())
    assert not torch.allclose(run(merged, x), before, atol=1e-3)


@both
def test_adapters_on_and_off(name: str) -> None:
    model, x = first_gated(name, "mlp"), inputs(name)
    plain = spread_(gated(tiny(name), "mlp"))
    held: Any = model
    with held.disable_adapter():
        assert torch.equal(run(model, x), run(plain, x))
    dg.ungate_(model)
    assert dg.named_gates(model) == {}
    assert torch.equal(run(model, x), run(with_same_adapter(name, model), x))


def with_same_adapter(name: str, model: nn.Module) -> nn.Module:
    other = with_lora(tiny(name), name)
    other.load_state_dict(model.state_dict())
    return other


@both
@places
def test_with_all_gates_open_the_adapter_is_part_of_the_dense_model(name: str, where: str) -> None:
    x = inputs(name)
    adapted = with_lora(tiny(name), name)
    before, dense = run(adapted, x), dg.count_macs(adapted, x).dense
    assert torch.equal(run(open_all_(gated(adapted, where)), x), before)
    counter = dg.count_macs(adapted, x)
    assert counter.dense == dense > dg.count_macs(tiny(name), x).dense
    assert counter.all_open == pytest.approx(1.0 + counter.gate / dense, rel=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(target_modules="all-linear", exclude_modules=r".*\.gate\..*", init_lora_weights=False),
        LoraConfig(target_modules=["down_proj", "up_proj"], use_dora=True, init_lora_weights=False),
        IA3Config(target_modules=["down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False),
        LoHaConfig(target_modules=["down_proj"], init_weights=False),
    ],
    ids=["all layers", "DoRA", "IA3", "LoHa"],
)
def test_other_adapters_see_gated_units_too(config: Any) -> None:
    held: Any = spread_(gated(tiny("llama"), "mlp"))
    model, x = get_peft_model(held, copy.deepcopy(config)).eval(), inputs("llama")
    before = run(model, x)
    assert dg.count_macs(model, x).all_open == pytest.approx(1.0 + dg.count_macs(model, x).gate / dense_of(model, x))
    torch.testing.assert_close(run(model.merge_and_unload(), x), before, rtol=1e-4, atol=1e-5)


def dense_of(model: nn.Module, x: dict[str, torch.Tensor]) -> float:
    return dg.count_macs(dg.ungate_(copy.deepcopy(model)), x).dense


def test_a_closed_block_saves_its_part_of_the_adapter() -> None:
    model = first_gated("llama", "mlp")
    counter = dg.count_macs(model, inputs("llama"))
    by_name = {layer.name.removeprefix("base_model.model.model."): layer for layer in counter.layers}
    half = {site: torch.tensor([[1.0, 0.0, 1.0, 0.0]]) for site in counter.gates}
    mlp = "layers.0.mlp."
    for layer in ("down_proj", "gate_proj", "up_proj", "down_proj.lora_A.default", "up_proj.lora_B.default"):
        assert float(by_name[mlp + layer].executed(half)) == by_name[mlp + layer].dense / 2, layer
    for layer in ("down_proj.lora_B.default", "up_proj.lora_A.default"):
        assert float(by_name[mlp + layer].executed(half)) == by_name[mlp + layer].dense, layer


@both
def test_gates_are_frozen_with_the_base_model_until_they_are_told_to_train(name: str) -> None:
    model = first_gated(name, "mlp").train()
    gates = {path: p for path, p in model.named_parameters() if ".gate." in path}
    assert gates
    assert not any(p.requires_grad for p in gates.values())
    assert dynamicgate.hf.train_gates_(model) is model
    held: Any = model
    held(**inputs(name)).logits.square().mean().backward()
    trained = {path for path, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert gates.keys() <= trained
    assert all(".gate." in path or ".lora_" in path for path in trained)
    assert any(".lora_A." in path for path in trained)
