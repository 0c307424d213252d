"""Every kind of gate, block, mask and normalisation: a compiled model gives the hard model's outputs."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.inference.cpu.choose import TORCH, keep_few, options
from dynamicgate.inference.cpu.find import find_paths, look, trace
from dynamicgate.inference.cpu.lower import lower
from tests.inference.models import assert_same, gated, quick, undecided

GATES = {
    "static": dg.GateConfig(kind="static", block=4),
    "static, scaled": dg.GateConfig(kind="static", scale=True),
    "static, top-k": dg.GateConfig(kind="static", block=4, top_k=3),
    "linear": dg.GateConfig(net="linear", block=16),
    "low-rank": dg.GateConfig(net="low-rank", rank=3, block=1),
    "two-layer": dg.GateConfig(net="two-layer", rank=5, block=8),
    "top-k": dg.GateConfig(block=4, top_k=2),
    "top share": dg.GateConfig(block=3, top_k=0.5),
    "always open": dg.GateConfig(block=4, always_open=2, theta=0.7),
    "scaled": dg.GateConfig(block=4, scale=True, tau=0.6),
    "scaled top-k": dg.GateConfig(block=4, scale=True, top_k=2, tau=2.0),
    "soft": dg.GateConfig(block=4, evaluate="soft"),
    "threshold": dg.GateConfig(block=4, theta=0.8, tau=0.5),
    "soft_width": dg.GateConfig(block=4, theta=0.6, tau=0.5, soft_width=1.5),
    "static, soft_width": dg.GateConfig(kind="static", tau=0.7, soft_width=2.0),
}


@pytest.mark.parametrize("name", GATES)
def test_every_kind_of_gate_gives_the_hard_models_outputs(name: str) -> None:
    model, x = gated(GATES[name]), torch.randn(64, 20)
    fast = quick(model, x)
    assert_same(fast, model, x, undecided(model, x))
    assert fast.plan.notes == [note for note in fast.plan.notes if "in torch" not in note]
    assert fast.plan.checked["rows"] > 0


@pytest.mark.parametrize("net", ["linear", "two-layer"])
@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("sizes", [(20, 37, 5), (20, 37, 51, 3)])
def test_gates_with_a_ramp_give_the_hard_models_outputs_on_odd_sizes(
    sizes: tuple[int, ...], block: int, net: str
) -> None:
    config = dg.GateConfig(net=net, rank=3, block=block, theta=0.6, tau=0.8, soft_width=1.3)  # type: ignore[arg-type]
    model, x = gated(config, sizes), torch.randn(257, 20)
    with dg.usage(model) as used:
        model(x)
        factor_BG = used["layers.1"].scale
    assert bool(((factor_BG > 0.1) & (factor_BG < 0.9)).any())
    fast = quick(model, x, batches=(1, 256))
    for rows in (1, 257):
        # No row is left out: what rounding may close is multiplied by next to nothing.
        assert_same(fast, model, x[:rows])
    with torch.no_grad():
        assert (fast(x) - gated_as(model, soft_width=0.0)(x)).abs().max() > 1e-2


def gated_as(model: nn.Module, **changes: object) -> nn.Module:
    """A copy whose gates have other settings."""
    twin = copy.deepcopy(model)
    for gate in dg.named_gates(twin).values():
        gate.config = replace(gate.config, **changes)
    return twin


@pytest.mark.parametrize("block", [1, 2, 7, 8, 16, 17, 48, 64])
def test_every_block_size_gives_the_hard_models_outputs(block: int) -> None:
    model, x = gated(dg.GateConfig(net="linear", block=block)), torch.randn(64, 20)
    assert_same(quick(model, x), model, x, undecided(model, x))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_every_activation_gives_the_hard_models_outputs(activation: str) -> None:
    model, x = gated(dg.GateConfig(block=16), activation=activation, dropout=0.3), torch.randn(40, 20)
    assert_same(quick(model, x), model, x, undecided(model, x))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 256, 300])
def test_every_batch_size_gives_the_hard_models_outputs(rows: int) -> None:
    model, x = gated(dg.GateConfig(block=16)), torch.randn(300, 20)
    fast = quick(model, x, batches=(1, 16, 256))
    assert_same(fast, model, x[:rows], undecided(model, x[:rows]) if rows else None)


@pytest.mark.parametrize("pattern", ["unstructured", "fan-in", "16x1", "16x16", "8x1"])
@pytest.mark.parametrize("block", [0, 1, 16])
def test_every_mask_gives_the_hard_models_outputs(pattern: str, block: int) -> None:
    config = dg.GateConfig(net="linear", block=block) if block else None
    model = gated(config, (64, 96, 48, 5)) if config else dg.nn.GatedMLP((64, 96, 48, 5)).eval()
    dg.RigL(model, 0.2, pattern=pattern)
    x = torch.randn(64, 64)
    assert_same(quick(model, x), model, x, undecided(model, x) if block else None)


@pytest.mark.parametrize("kind", [None, "dynamic"])
def test_units_that_were_pruned_are_sliced_away(kind: str | None) -> None:
    model = gated(dg.GateConfig(block=1), (20, 64, 5)) if kind else dg.nn.GatedMLP((20, 64, 5)).eval()
    pruner = dg.sparsity.Magnitude(model, 0.25, pattern="units", prune_from=0.1, until=0.1, every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(64, 20)
    model(x).sum().backward()
    pruner.step(optimizer, 0.5)
    model.eval()
    fast = quick(model, x)
    assert "sliced to 16 x 20" in str(fast.plan)
    assert_same(fast, model, x, undecided(model, x) if kind else None)


def test_static_gates_are_sliced_away_and_cost_nothing() -> None:
    model = gated(GATES["static"], (20, 48, 5))
    open_units = int(dg.named_gates(model)["layers.1"](torch.zeros(1, 20)).open.sum()) * 4
    fast = quick(model, torch.randn(32, 20))
    assert f"sliced to {open_units} x 20" in str(fast.plan)
    assert f"sliced to 5 x {open_units}" in str(fast.plan)


def test_a_static_gate_that_closes_everything_leaves_the_bias() -> None:
    model = gated(GATES["static"])
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias.fill_(-3.0)
    x = torch.randn(32, 20)
    assert_same(quick(model, x), model, x)


def test_a_unit_without_inputs_goes_into_the_bias_of_its_reader() -> None:
    model = dg.nn.GatedMLP((20, 32, 16, 5), activation="gelu").eval()
    with torch.no_grad():
        model.layers[0].weight[:10] = 0.0
        model.layers[1].weight[3] = 0.0
    x = torch.randn(32, 20)
    fast = quick(model, x)
    assert "sliced to 22 x 20" in str(fast.plan)
    assert_same(fast, model, x)


def test_a_model_whose_units_are_all_constant_still_answers() -> None:
    model = dg.nn.GatedMLP((20, 32, 5)).eval()
    with torch.no_grad():
        model.layers[0].weight.zero_()
    x = torch.randn(32, 20)
    assert_same(quick(model, x), model, x)


def test_static_input_gates_and_hidden_gates_work_together() -> None:
    model = gated(dg.GateConfig(block=8), normalize=dg.nn.Normalize(torch.randn(20), torch.rand(20) + 0.5))
    dg.gate_(model, dg.GateConfig(kind="static", open=0.6), where=dg.where.inputs)
    with torch.no_grad():
        dg.named_gates(model)["layers.0"].bias.copy_(torch.randn(20))
    x = torch.randn(64, 20)
    fast = quick(model, x)
    assert not any("in torch" in note for note in fast.plan.notes)
    assert_same(fast, model, x, undecided(model, x))


@pytest.mark.parametrize("features", [(), (20,)])
def test_input_normalisation_is_folded_and_raw_zeros_are_skipped(features: tuple[int, ...]) -> None:
    normalize = dg.nn.Normalize(torch.rand(features) + 0.1, torch.rand(features) + 0.5)
    model = gated(dg.GateConfig(net="two-layer", block=16), normalize=normalize)
    x = torch.randn(64, 20).relu()
    x[3] = 0.0
    assert_same(quick(model, x), model, x, undecided(model, x))
    hard = model.eval()
    graph = trace(hard)
    look(hard, graph, x)
    (path,), _ = find_paths(hard, graph, dg.named_gates(hard))
    low = lower(path, dg.named_gates(hard))
    assert ("panels", True) in options(low, zeros=float((x == 0).float().mean()))[0]
    assert ("panels", True) not in options(low, zeros=0.0)[0]


@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_norm_of_an_input_with_zeros_is_folded(affine: bool) -> None:
    norm = nn.LayerNorm(20, elementwise_affine=affine)
    if affine:
        nn.init.normal_(norm.weight, 1.0, 0.3)
        nn.init.normal_(norm.bias)
    model = nn.Sequential(norm, nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5)).eval()
    dg.gate_(model, dg.GateConfig(block=16))
    x = torch.randn(64, 20).relu()
    fast = quick(model, x)
    assert isinstance(fast.body, nn.Module)
    assert fast.body.norm_eps == norm.eps
    assert_same(fast, model, x, undecided(model, x))
    x = torch.randn(64, 20) + 3.0
    kept = quick(model, x)
    assert not hasattr(kept.body, "norm_eps")
    assert_same(kept, model, x, undecided(model, x))


def test_batch_norm_is_folded_on_either_side_of_the_activation() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(20), nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(),
        nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 5), nn.BatchNorm1d(5),
    )  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm1d):
            for tensor in (module.weight, module.running_var):
                nn.init.uniform_(tensor, 0.5, 2.0)
            for tensor in (module.bias, module.running_mean):
                nn.init.normal_(tensor)
    x = torch.randn(64, 20)
    fast = quick(model.eval(), x)
    assert [row.name for row in fast.plan.chains[0][0].layers] == ["1", "4", "8"]
    assert_same(fast, model, x)
    with pytest.raises(ValueError, match="a batch norm was folded in"):
        fast(x[None])


@pytest.mark.parametrize("top_k", [1, 2])
def test_experts_without_a_capacity_are_lowered(top_k: int) -> None:
    model = dg.nn.SwitchMLP(20, 24, 6, 16, 5, top_k=top_k, capacity=None).eval()
    x = torch.randn(64, 20)
    fast = quick(model, x)
    assert len(fast.plan.chains) == 2
    assert not any("in torch" in note for note in fast.plan.notes)
    assert_same(fast, model, x, undecided(model, x))


def test_a_model_without_gates_is_compiled_too() -> None:
    x = torch.randn(32, 20)
    for model in (nn.Linear(20, 5), nn.Sequential(nn.Linear(20, 30, bias=False), nn.Tanh(), nn.Linear(30, 5))):
        assert_same(quick(model, x), model, x)


def test_blocks_that_never_open_are_reported_and_removed_only_if_asked() -> None:
    model = gated(dg.GateConfig(net="linear", block=16), (20, 64, 5))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias[1] = -1e3
    x = torch.randn(64, 20)
    kept, dropped = quick(model, x), quick(model, x, drop_never_open=True)
    assert "'layers.1': 1 of 4 blocks never open on the calibration data (kept" in str(kept.plan)
    assert "sliced" not in str(kept.plan)
    assert "1 of 4 blocks never open on the calibration data (removed)" in str(dropped.plan)
    assert "sliced to 48 x 20" in str(dropped.plan)
    assert_same(kept, model, x, undecided(model, x))
    assert_same(dropped, model, x, undecided(model, x))


def test_blocks_that_compete_are_not_removed() -> None:
    model = gated(dg.GateConfig(net="linear", block=16, always_open=1), (20, 64, 5))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias[1] = -1e3
    x = torch.randn(64, 20)
    fast = quick(model, x, drop_never_open=True)
    assert "blocks never open on the calibration data (kept" in str(fast.plan)
    assert_same(fast, model, x, undecided(model, x))


def test_rows_that_would_open_a_removed_block_are_not_held_against_the_plan() -> None:
    model = gated(dg.GateConfig(net="linear", block=16), (20, 64, 5))
    x = torch.randn(200, 20)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        rarely = used["layers.1"].open[:, 2] == 0
    fast = quick(model, x, calibration=x[rarely], drop_never_open=True)
    assert fast.plan.checked["ties"] >= int((~rarely).sum())


def test_the_model_that_was_compiled_is_left_as_it_was() -> None:
    model = gated(dg.GateConfig(block=16), normalize=dg.nn.Normalize(0.3, 2.0))
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(32, 20)
    fast = quick(model, x)
    y = fast(x)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(fast(x), y)


def test_more_than_one_copy_of_the_weights_is_kept_only_where_it_pays() -> None:
    sizes = {TORCH: 100, "panels": 110}
    assert keep_few([{TORCH: 10.0, "panels": 2.0}, {TORCH: 10.0, "panels": 10.1}], sizes, None) == (["panels"], [0, 0])
    split = [{TORCH: 10.0, "panels": 2.0}, {TORCH: 10.0, "panels": 20.0}]
    assert keep_few(split, sizes, None) == ([TORCH, "panels"], [1, 0])
    assert keep_few(split, sizes, 150.0) == (["panels"], [0, 0])
    assert keep_few(split, sizes, 1.0) == ([TORCH], [0, 0])


def test_a_lead_within_the_noise_goes_to_dense_torch() -> None:
    assert keep_few([{TORCH: 10.0, "panels": 9.8}], {TORCH: 100, "panels": 110}, None) == ([TORCH], [0])
    assert keep_few([{TORCH: 10.0, "panels": 9.6}], {TORCH: 100, "panels": 110}, None) == (["panels"], [0])


def test_the_memory_that_is_held_can_be_limited() -> None:
    model, x = gated(dg.GateConfig(block=16), (64, 256, 10)), torch.randn(64, 64)
    assert quick(model, x, memory=1.1).plan.memory < 1.1


def test_the_threads_of_torch_are_as_before() -> None:
    before = torch.get_num_threads()
    assert quick(gated(dg.GateConfig(block=16)), torch.randn(8, 20), threads=1).plan.threads == 1
    assert torch.get_num_threads() == before


def test_the_plan_is_printed_with_times_and_macs() -> None:
    model, x = gated(dg.GateConfig(block=16)), torch.randn(64, 20)
    fast = quick(model, x)
    shown = str(fast.plan)
    for word in ("layer", "choice", "dense us", "chosen us", "MACs", "batch 1", "batch 16", "checked"):
        assert word in shown
    assert {row.name for row in fast.plan.chains[0][0].layers} == {"layers.0", "layers.1", "layers.2"}
    assert all(regime.chosen in regime.times and TORCH in regime.times for regime in fast.plan.chains[0])
    total = sum(row.macs for row in fast.plan.chains[0][0].layers)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        counter = dg.accounting.MacCounter.for_mlp(model)
        assert total == pytest.approx(float(counter.executed({name: used[name].open for name in used})), rel=1e-4)
