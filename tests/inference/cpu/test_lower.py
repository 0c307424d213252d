"""Every kind of gate, block size, mask and normalisation can be lowered, and computes what the model computes."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.activations import ACTIVATIONS
from tests.inference.models import assert_same_outputs, compile_quickly, gated_mlp, rows_near_threshold

GATES = {
    "static": dg.GateConfig(kind="static", block=4),
    "static, scaled": dg.GateConfig(kind="static", scale=True),
    "static, top-k": dg.GateConfig(kind="static", block=4, top_k=3),
    "linear": dg.GateConfig(net="linear", block=16),
    "low-rank": dg.GateConfig(net="low-rank", rank=3, block=1),
    "two-layer": dg.GateConfig(net="two-layer", rank=5, block=8),
    "top-k": dg.GateConfig(block=4, top_k=2),
    "top fraction": dg.GateConfig(block=3, top_k=0.5),
    "always open": dg.GateConfig(block=4, always_open=2, theta=0.7),
    "scaled": dg.GateConfig(block=4, scale=True, tau=0.6),
    "scaled top-k": dg.GateConfig(block=4, scale=True, top_k=2, tau=2.0),
    "soft": dg.GateConfig(block=4, evaluate="soft"),
    "threshold": dg.GateConfig(block=4, theta=0.8, tau=0.5),
    "soft_width": dg.GateConfig(block=4, theta=0.6, tau=0.5, soft_width=1.5),
    "static, soft_width": dg.GateConfig(kind="static", tau=0.7, soft_width=2.0),
}


@pytest.mark.parametrize("name", GATES)
def test_every_kind_of_gate_gives_the_models_outputs(name: str) -> None:
    model, x = gated_mlp(GATES[name]), torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))
    assert not any("in torch" in note for note in compiled.plan.notes)
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.rows > 0


@pytest.mark.parametrize("net", ["linear", "two-layer"])
@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("sizes", [(20, 37, 5), (20, 37, 51, 3)])
def test_gates_with_a_soft_width_give_the_models_outputs_on_odd_sizes(
    sizes: tuple[int, ...], block: int, net: str
) -> None:
    rank = None if net == "linear" else 3
    config = dg.GateConfig(net=net, rank=rank, block=block, theta=0.6, tau=0.8, soft_width=1.3)  # type: ignore[arg-type]
    model, x = gated_mlp(config, sizes), torch.randn(257, 20)
    with dg.usage(model) as used:
        model(x)
        factor_BG = used["layers.1"].scale
    assert bool(((factor_BG > 0.1) & (factor_BG < 0.9)).any())
    compiled = compile_quickly(model, x, batches=(1, 256))
    for rows in (1, 257):
        # No row is left out: what rounding may close is multiplied by next to nothing.
        assert_same_outputs(compiled, model, x[:rows])
    with torch.no_grad():
        assert (compiled(x) - with_other_gates(model, soft_width=0.0)(x)).abs().max() > 1e-2


def with_other_gates(model: nn.Module, **changes: object) -> nn.Module:
    """A copy whose gates have other settings."""
    changed = copy.deepcopy(model)
    for gate in dg.named_gates(changed).values():
        gate.config = replace(gate.config, **changes)
    return changed


@pytest.mark.parametrize("block", [1, 2, 7, 8, 16, 17, 48, 64])
def test_every_block_size_gives_the_models_outputs(block: int) -> None:
    model, x = gated_mlp(dg.GateConfig(net="linear", block=block)), torch.randn(64, 20)
    assert_same_outputs(compile_quickly(model, x), model, x, rows_near_threshold(model, x))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_every_activation_gives_the_models_outputs(activation: str) -> None:
    model, x = gated_mlp(dg.GateConfig(block=16), activation=activation, dropout=0.3), torch.randn(40, 20)
    assert_same_outputs(compile_quickly(model, x), model, x, rows_near_threshold(model, x))


@pytest.mark.parametrize("activation", ["gelu_tanh", "quick_gelu", "relu2"])
def test_activations_that_only_other_peoples_models_have_give_the_models_outputs(activation: str) -> None:
    between = ACTIVATIONS[activation].build()
    model = dg.gate_(nn.Sequential(nn.Linear(20, 48), between, nn.Linear(48, 5)), dg.GateConfig(block=16)).eval()
    x = torch.randn(40, 20)
    assert_same_outputs(compile_quickly(model, x), model, x, rows_near_threshold(model, x))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 256, 300])
def test_every_batch_size_gives_the_models_outputs(rows: int) -> None:
    model, x = gated_mlp(dg.GateConfig(block=16)), torch.randn(300, 20)
    compiled = compile_quickly(model, x, batches=(1, 16, 256))
    assert_same_outputs(compiled, model, x[:rows], rows_near_threshold(model, x[:rows]) if rows else None)


@pytest.mark.parametrize("pattern", ["unstructured", "fan-in", "16x1", "16x16", "8x1"])
@pytest.mark.parametrize("block", [0, 1, 16])
def test_every_mask_gives_the_models_outputs(pattern: str, block: int) -> None:
    config = dg.GateConfig(net="linear", block=block) if block else None
    model = gated_mlp(config, (64, 96, 48, 5)) if config else dg.nn.GatedMLP((64, 96, 48, 5)).eval()
    dg.RigL(model, 0.2, pattern=pattern)
    x = torch.randn(64, 64)
    assert_same_outputs(compile_quickly(model, x), model, x, rows_near_threshold(model, x) if block else None)


@pytest.mark.parametrize("top_k", [1, 2])
def test_experts_without_a_capacity_are_lowered(top_k: int) -> None:
    model = dg.nn.SwitchMLP(20, 24, 6, 16, 5, top_k=top_k, capacity=None).eval()
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert len(compiled.plan.chains) == 2
    assert not any("in torch" in note for note in compiled.plan.notes)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


@pytest.mark.parametrize("options", [{"tau": 0.7, "theta": 0.6}, {"always_open": 1}, {"top_k": 3}])
def test_open_blocks_that_share_a_weight_are_lowered(options: dict[str, Any], tmp_path: Path) -> None:
    model = gated_mlp(dg.GateConfig(block=4, scale="softmax", **options), (20, 50, 5))
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert not any("in torch" in note for note in compiled.plan.notes)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))
    compiled.save(tmp_path / "plan.safetensors")
    loaded = dg.inference.CompiledModel.load(tmp_path / "plan.safetensors")
    assert torch.equal(loaded(x), compiled(x))


def test_two_gates_in_a_row_that_share_weights_stay_in_torch_and_are_right() -> None:
    """Their softmax is computed before a chain begins, and no layer can end one chain and begin the next."""
    model, x = gated_mlp(dg.GateConfig(block=4, scale="softmax")), torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert any("in torch" in note for note in compiled.plan.notes)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


def test_a_model_without_gates_is_compiled_too() -> None:
    x = torch.randn(32, 20)
    for model in (nn.Linear(20, 5), nn.Sequential(nn.Linear(20, 30, bias=False), nn.Tanh(), nn.Linear(30, 5))):
        assert_same_outputs(compile_quickly(model, x), model, x)


def test_without_kernels_the_outputs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from dynamicgate import ops
    from tests.inference.models import with_three_implementations

    model, x = gated_mlp(dg.GateConfig(block=16)), torch.randn(64, 20)
    monkeypatch.setattr(ops.chain, "run", partial(ops.chain.run, backend="torch"))
    for compiled in (compile_quickly(model, x), with_three_implementations(model, x)):
        assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))
