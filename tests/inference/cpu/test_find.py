"""Which layers become a chain, and what the plan says about those that stay in torch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import dynamicgate as dg
from tests.inference.models import (
    Block,
    Branching,
    Residual,
    assert_same_outputs,
    compile_quickly,
    gated_mlp,
    rows_near_threshold,
    spread_logits_,
)


def layers_of(compiled: dg.inference.CompiledModel) -> list[list[str]]:
    return [[row.name for row in chain[0].layers] for chain in compiled.plan.chains]


def test_experts_left_in_torch_keep_their_capacity() -> None:
    model = dg.nn.SwitchMLP(20, 24, 4, 16, 5, top_k=1, capacity=0.5).eval()
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert any("have a capacity" in note and "'switch.up', 'switch.down'" in note for note in compiled.plan.notes)
    assert len(compiled.plan.chains) == 2  # the layers before and after them
    assert not bool(rows_near_threshold(model, x).any())
    assert_same_outputs(compiled, model, x)


def test_a_gate_that_reads_its_own_units_stays_in_torch_and_the_plan_says_so() -> None:
    model = gated_mlp(dg.GateConfig(block=16, reads="same"), (20, 48, 5))
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert any("'layers.0', 'layers.1' in torch as before" in n or "reads='same'" in n for n in compiled.plan.notes)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


def test_gates_on_input_features_stay_in_torch_and_the_plan_says_so() -> None:
    model = gated_mlp(dg.GateConfig(net="linear", block=4), where=dg.where.everywhere)
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert any("decides about input features" in note for note in compiled.plan.notes)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


def test_a_residual_model_is_compiled_in_parts() -> None:
    model = Residual()
    spread_logits_(dg.gate_(model, dg.GateConfig(block=16)))
    x = torch.randn(64, 20)
    compiled = compile_quickly(model.eval(), x)
    assert layers_of(compiled) == [["up", "down"], ["head"]]
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


def test_the_gated_mlp_of_a_transformer_block_is_compiled() -> None:
    model = Block()
    spread_logits_(dg.gate_(model, dg.GateConfig(block=16), where="mlp.*"))
    x = torch.randn(12, 5, 16)
    compiled = compile_quickly(model.eval(), x)
    assert layers_of(compiled) == [["mlp.0", "mlp.2"]]
    with torch.inference_mode():
        assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


def test_a_model_that_cannot_be_traced_is_kept_and_the_plan_says_so(tmp_path: Path) -> None:
    model, x = Branching().eval(), torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert compiled.plan.chains == []
    assert "runs in torch as it is: its forward pass cannot be traced" in str(compiled.plan)
    assert_same_outputs(compiled, model, x)
    compiled.save(tmp_path / "compiled.safetensors")
    loaded = dg.inference.CompiledModel.load(tmp_path / "compiled.safetensors", into=Branching())
    assert torch.equal(loaded(x), compiled(x))


def test_what_a_chain_does_not_support_stays_in_torch() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    shared, hooked = nn.Linear(16, 16), nn.Linear(16, 16)
    hooked.register_forward_hook(lambda _m, _a, out: out + 1)
    model = nn.Sequential(
        nn.Linear(20, 16), nn.ELU(), shared, nn.ReLU(), shared, nn.LayerNorm(16), Doubled(16, 16), nn.ReLU(), nn.ReLU(),
        hooked, nn.Sigmoid(), nn.Linear(16, 5),
    ).eval()  # fmt: skip
    x = torch.randn(32, 20)
    compiled = compile_quickly(model, x)
    assert layers_of(compiled) == [["0"], ["11"]]
    assert_same_outputs(compiled, model, x)


def test_images_are_flattened_before_the_chain() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU("tanh"), nn.Linear(32, 5)).eval()
    x = torch.randn(32, 1, 8, 8)
    assert_same_outputs(compile_quickly(model, x), model, x)
