"""A mixture of experts against a loop over rows and experts in float64, inside other models, saved, and trained."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import fit, measure, named_gates
from dynamicgate.budget import OpenLoopBudget
from dynamicgate.budget.penalties import PENALTIES
from dynamicgate.distributed import RowMeans
from dynamicgate.nn import GatedMLP, Normalize, Switch, SwitchMLP
from tests.training.easy import blobs


def with_preferences(switch: Switch, spread: float = 2.0) -> Switch:
    """With a router that prefers some experts, not the near-uniform one it starts with."""
    nn.init.normal_(switch.down.gate.net.weight, std=spread)
    return switch


def naive(switch: Switch, x_BD: Tensor, top_k: int, capacity: float | None) -> tuple[Tensor, list[Tensor]]:
    """Row by row and expert by expert: each expert a small MLP of its own, which takes rows until it is full."""
    parameters = [switch.up.weight, switch.up.bias, switch.down.weight, switch.down.bias]
    parameters += [switch.down.gate.net.weight, switch.down.gate.net.bias]
    leaves = [parameter.detach().double().requires_grad_() for parameter in parameters]
    up_w, up_b, down_w, down_b, router_w, router_b = leaves
    left = [math.inf if capacity is None else math.ceil(capacity * len(x_BD) * top_k / switch.experts)] * switch.experts
    rows = []
    for x in x_BD.double():
        p = torch.softmax(router_w @ x + router_b, 0)
        chosen = sorted(range(switch.experts), key=lambda e: -p[e].item())[:top_k]
        total = sum(p[e] for e in chosen) if top_k > 1 else torch.ones(())
        y, dropped = down_b, True
        for e in chosen:
            if left[e] == 0:
                continue
            left[e] -= 1
            dropped = False
            units = slice(e * switch.width, (e + 1) * switch.width)
            y = y + p[e] / total * (down_w[:, units] @ torch.relu(up_w[units] @ x + up_b[units]))
        rows.append(x if dropped and switch.fallback == "identity" else y)
    return torch.stack(rows), leaves


@pytest.mark.parametrize("fallback", ["identity", "bias"])
@pytest.mark.parametrize(
    ("features", "experts", "width", "top_k", "capacity", "rows"),
    [
        (5, 3, 7, 1, None, 11),
        (5, 3, 7, 1, 1.0, 11),
        (6, 5, 3, 2, None, 9),
        (6, 5, 3, 2, 0.5, 13),
        (4, 4, 1, 3, 0.3, 7),
        (3, 1, 5, 1, 0.4, 6),
        (2, 2, 3, 2, 1.0, 5),
    ],
)
def test_experts_match_a_naive_float64_loop_in_outputs_and_gradients(
    features: int, experts: int, width: int, top_k: int, capacity: float | None, rows: int, fallback: Any
) -> None:
    switch = with_preferences(Switch(features, experts, width, top_k, capacity, fallback=fallback))
    x = torch.randn(rows, features)
    out = switch(x)
    expected, leaves = naive(switch, x, top_k, capacity)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    direction = torch.randn_like(out)
    (out * direction).sum().backward()
    (expected * direction.double()).sum().backward()
    mine = [switch.up.weight, switch.up.bias, switch.down.weight, switch.down.bias, *switch.down.gate.net.parameters()]
    for parameter, leaf in zip(mine, leaves, strict=True):
        wanted = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(parameter.grad.double(), wanted, rtol=1e-4, atol=1e-5)


def all_to(switch: Switch, expert: int) -> Switch:
    with torch.no_grad():
        switch.down.gate.net.weight.mul_(1e-3)
        switch.down.gate.net.bias[expert] = 5.0
    return switch


@pytest.mark.parametrize("fallback", ["identity", "bias"])
def test_when_all_rows_go_to_one_expert_it_keeps_the_first_and_the_fallback_takes_the_rest(fallback: Any) -> None:
    switch = all_to(Switch(4, 3, 5, capacity=0.75, fallback=fallback), 1)
    x = torch.randn(8, 4)
    out = switch(x)
    assert switch.down.gate.expert_capacity(8) == 2
    expected, _ = naive(switch, x, 1, 0.75)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    left = x if fallback == "identity" else switch.down.bias.expand(8, -1)
    assert torch.equal(out[2:], left[2:])
    assert not torch.equal(out[:2], left[:2])


@pytest.mark.parametrize("top_k", [1, 2])
def test_an_expert_that_no_row_reached_gets_no_gradient_but_the_router_does(top_k: int) -> None:
    switch = all_to(Switch(4, 3, 5, top_k), 1)
    with torch.no_grad():
        switch.down.gate.net.bias[2] = 4.0
    switch(torch.randn(8, 4)).square().sum().backward()
    reached = {1} if top_k == 1 else {1, 2}
    for e in range(3):
        units = slice(e * 5, (e + 1) * 5)
        gradients = (switch.up.weight.grad[units], switch.up.bias.grad[units], switch.down.weight.grad[:, units])
        assert [bool((gradient != 0).any()) for gradient in gradients] == [e in reached] * 3
    assert (switch.down.gate.net.weight.grad != 0).any()


def test_each_token_of_a_sequence_has_its_own_experts() -> None:
    switch = with_preferences(Switch(4, 3, 5, 2, 0.6))
    x = torch.randn(2, 6, 4)
    assert torch.equal(switch(x).flatten(0, 1), switch(x.flatten(0, 1)))


def test_an_expert_is_initialised_like_a_network_of_its_own_width() -> None:
    switch = Switch(64, 16, 100)
    bound = 1 / math.sqrt(100)
    assert 0.98 * bound < switch.down.weight.abs().max() <= bound
    assert 0.9 / 8 < switch.up.weight.abs().max() <= 1 / 8


# --- cost


@pytest.mark.parametrize(("top_k", "macs"), [(2, 1_459_200), (1, 934_912)])
def test_the_papers_network_costs_the_sum_of_its_layers_and_its_router(top_k: int, macs: int) -> None:
    model = SwitchMLP(784, top_k=top_k, capacity=None)
    assert measure(model, torch.randn(6, 784)).macs["executed"] == macs
    assert macs == 784 * 512 + 512 * 8 + top_k * 2 * 512 * 512 + 512 * 10
    published, output_biases = 4_613_650, 7 * 512  # we have one, the published experts one each
    assert sum(p.numel() for p in model.parameters()) == published - output_biases


def test_dropped_assignments_cost_nothing() -> None:
    model = SwitchMLP(6, hidden=5, experts=4, width=3, outputs=2, capacity=0.6)
    with_preferences(model.switch)
    x = torch.randn(20, 6)
    executed = 0
    with dg.usage(model.eval()) as used:
        model(x)
    for kept in used["switch.down"].open.tolist():
        executed += 6 * 5 + 5 * 4 + 5 * 2
        for ran in kept:
            executed += int(ran) * (5 * 3 + 3 * 5)
    assert used["switch.down"].open.sum() < 40
    assert measure(model, x, batch=20).macs["executed"] == executed / 20


# --- inside other models


def two_switches() -> nn.Sequential:
    first, second = (
        with_preferences(Switch(6, 4, 3, 2, 1.0)),
        with_preferences(Switch(6, 3, 5, activation="gelu", fallback="bias")),
    )
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), first, nn.ReLU(), second, nn.Linear(6, 3))


MODELS: dict[str, Any] = {
    "alone": lambda: with_preferences(Switch(8, 4, 3, 2, 1.5)),
    "two in a Sequential": two_switches,
    "the paper's network": lambda: SwitchMLP(8, 6, 4, 5, 3, normalize=Normalize(0.3, 0.9)),
    "without its router": lambda: dg.ungate_(SwitchMLP(8, 6, 4, 5, 3)),
    "with unit gates instead": lambda: dg.gate_(dg.ungate_(Switch(8, 4, 3)), dg.GateConfig()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_equals_the_saved_one_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = MODELS[name]().eval()
    dg.save(model, tmp_path / "model.safetensors")
    back = dg.load(tmp_path / "model.safetensors")
    x = torch.randn(20, 8)
    assert torch.equal(back(x), model(x))
    assert [g.config for g in named_gates(back).values()] == [g.config for g in named_gates(model).values()]
    assert list(named_gates(back)) == list(named_gates(model))
    assert measure(back, x).macs == measure(model, x).macs


def test_a_switch_brings_its_router_along_wherever_it_is_put() -> None:
    model = two_switches()
    assert list(named_gates(model)) == ["2.down", "4.down"]
    assert named_gates(model)["4.down"].site_at("4.down") == dg.Site("4.down", ("4.up",), "4.up", 15)
    assert list(named_gates(model[2])) == ["down"], "seen from inside"
    assert list(named_gates(torch.compile(model, backend="eager"))) == ["2.down", "4.down"]
    assert list(named_gates(nn.ModuleDict({"body": nn.Sequential(nn.Identity(), model[4])}))) == ["body.1.down"]
    assert list(named_gates(model)) == ["2.down", "4.down"]
    x = torch.randn(7, 8)
    assert {layer["name"] for layer in measure(model, x).layers} == {"0", "2.up", "2.down", "4.up", "4.down", "5"}


def test_gates_whose_new_path_does_not_tell_the_names_of_their_layers_say_so() -> None:
    model = dg.gate_(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)))
    assert list(named_gates(model[2:])) == ["2", "4"]
    shifted = nn.Sequential(nn.Identity(), *model)
    assert list(named_gates(shifted)) == ["3", "5"]
    with pytest.raises(ValueError, match="the layers of the gate on '2' have other names in this model"):
        measure(shifted, torch.randn(3, 4))


def test_units_that_the_fallback_may_pass_on_are_no_site_and_others_can_be_gated() -> None:
    sites = {site.name for site in dg.find_sites(two_switches())}
    assert "2.up" not in sites, "dropped rows carry these units past the experts"
    assert "2.down" in sites
    assert "5" in sites
    plain = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), Switch(6, 2, 3, fallback="bias"))
    dg.gate_(plain, dg.GateConfig(kind="static"), where="2.up")
    assert list(named_gates(plain)) == ["2.up", "2.down"]
    with pytest.raises(ValueError, match=r"'2.down' already has a gate"):
        dg.gate_(plain, where="2.down")


def test_without_its_router_it_is_the_dense_network_of_all_experts() -> None:
    switch = dg.ungate_(Switch(4, 3, 5, capacity=1.0))
    x = torch.randn(6, 4)
    assert torch.equal(switch(x), switch.down(torch.relu(switch.up(x))))


def test_a_copy_has_its_own_router() -> None:
    model = two_switches().eval()
    clone = copy.deepcopy(model)
    x = torch.randn(9, 8)
    before = model(x)
    assert torch.equal(clone(x), before)
    nn.init.zeros_(clone[4].down.gate.net.weight)
    assert not torch.equal(clone(x), before)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("drop_policy", ["position", "random"])
def test_a_torch_compiled_switch_equals_the_eager_one_for_any_number_of_rows(drop_policy: Any) -> None:
    torch._dynamo.reset()
    switch = with_preferences(Switch(6, 4, 3, 2, 0.7, drop_policy=drop_policy))
    compiled = torch.compile(switch, fullgraph=True, backend="eager")
    for rows in (9, 12, 31):
        x = torch.randn(rows, 6)
        torch.manual_seed(5)
        expected = switch(x)
        torch.manual_seed(5)
        torch.testing.assert_close(compiled(x), expected)
    compiled(x).sum().backward()
    assert (switch.down.gate.net.weight.grad != 0).any()


# --- training


@pytest.mark.parametrize("top_k", [1, 2])
def test_fit_trains_experts_and_balances_their_load(top_k: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SwitchMLP(8, 16, 4, 8, 3, top_k=top_k, capacity=2.0)
    history = fit(
        model, blobs(), valid=blobs(60, seed=3), budget=OpenLoopBudget(form="balance", weight=1e-2), epochs=8, batch=24,
        lr=1e-2, out=tmp_path, show=False,
    )  # fmt: skip
    assert measure(model, blobs(seed=1)).quality["accuracy"] > 0.97
    assert history.final is not None
    found = dg.accounting.measure_routing(model, blobs(seed=1))
    assert found.cv is not None
    assert found.cv < 0.6, "three blobs and four experts: at most one is idle"
    least_balance_penalty = 1e-2  # weight times 1, for even routing and small logits
    assert history.log[-2]["penalty"] > least_balance_penalty


def test_the_balance_penalty_spreads_rows_that_would_all_go_to_one_expert() -> None:
    loads = []
    for weight in (0.0, 0.3):
        torch.manual_seed(0)
        model = SwitchMLP(8, 16, 4, 8, 3, top_k=1, capacity=None)
        with torch.no_grad():
            model.switch.down.gate.net.bias[0] = 1.0
        fit(model, blobs(), budget=OpenLoopBudget(form="balance", weight=weight), epochs=6, batch=24, show=False)
        loads.append(dg.accounting.measure_routing(model, blobs(seed=1)))
    unbalanced, balanced = loads
    assert unbalanced.cv is not None
    assert balanced.cv is not None
    assert balanced.cv < 0.5 * unbalanced.cv


def test_a_budget_does_not_mistake_dropped_assignments_for_a_collapse() -> None:
    model, x = with_preferences(Switch(8, 4, 2, capacity=1.0)), torch.randn(64, 8)
    budget = OpenLoopBudget(form="balance", weight=1e-2, on_collapse="act", floor=0.15)
    rates = []
    for progress in (0.0, 0.05):
        budget.apply_(model, progress)
        with dg.usage(model) as used:
            model(x)
        found = budget.step(used, progress)
        balance = PENALTIES["balance"](used["down"], model.down.gate, 0.0, RowMeans(x))
        torch.testing.assert_close(found, 1e-2 * balance, rtol=1e-6, atol=0.0)  # and nothing that lifts to the floor
        rates.append(float(used["down"].open.mean()))
        all_to(model, 1)
    assert rates[0] > 0.15 > rates[1]
    assert budget.collapses == []


def test_training_with_random_drops_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def train(out: Path, fails_at: float) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = SwitchMLP(8, 8, 4, 4, 3, capacity=0.8, drop_policy="random")
        passes: list[int] = []

        def fail(module: nn.Module, _inputs: Any) -> None:
            passes.extend([1] * module.training)
            if len(passes) >= fails_at:
                raise ZeroDivisionError

        model.register_forward_pre_hook(fail)
        budget = OpenLoopBudget(form="balance", weight=1e-2)
        fit(model, blobs(), budget=budget, epochs=3, batch=24, out=out, checkpoint_seconds=0, show=False)
        return model.state_dict()

    whole = train(tmp_path / "whole", math.inf)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "parts", 17)
    parts = train(tmp_path / "parts", math.inf)
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"experts": 0}, "features, experts and width must be 1 or more, received 4, 0 and 5"),
        ({"top_k": 4}, "top_k is a number of experts, expected 1 to 3, received 4"),
        ({"top_k": 0}, "top_k is a number of experts, expected 1 to 3, received 0"),
        ({"top_k": 0.5}, "top_k is a number of experts, expected 1 to 3, received 0.5"),
        ({"capacity": -1.0}, "capacity is a factor on an even .*received -1.0"),
        ({"drop_policy": "never"}, "drop_policy must be one of position, random, received 'never'"),
        ({"fallback": "zero"}, "fallback must be identity or bias, received 'zero'"),
        ({"activation": "step"}, "activation must be one of relu, gelu, .*received 'step'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Switch(**{"features": 4, "experts": 3, "width": 5, **arguments})


def test_a_network_without_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="inputs and outputs must be 1 or more, received 0 and 10"):
        SwitchMLP(0)


def test_balance_is_refused_for_gates_that_do_not_route() -> None:
    model = GatedMLP((8, 6, 3), dg.GateConfig(kind="static"))
    with pytest.raises(
        ValueError, match=r"form 'balance' spreads rows over the experts.* of kind 'static' on 'layers.1'"
    ):
        fit(model, blobs(), budget=OpenLoopBudget(form="balance", weight=1e-2), epochs=1, show=False)
