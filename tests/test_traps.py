"""Traps that a careful reader once found in the core, one test each, lettered as they were reported."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate
import dynamicgate as dg
from dynamicgate.budget import OpenLoopBudget
from dynamicgate.training.fingerprint import hash_data
from dynamicgate.training.loop import Run
from dynamicgate.training.options import FitOptions


def gated(**config: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return dg.gate_(model, dg.GateConfig(block=4, **config))  # type: ignore[return-value]


class Nested(nn.Module):
    """A gated block inside a model."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.block(x))


# --- (a) getters do not write


def test_a_looking_at_a_part_of_a_model_leaves_a_running_budget_alone() -> None:
    model = dg.gate_(Nested(), dg.GateConfig(kind="static"))
    budget, x = dg.Budget(target=0.9), torch.randn(8, 6)
    for progress in (0.1, 0.2):
        budget.apply_(model, progress)
        with dg.usage(model) as used:
            assert list(dg.named_gates(model.block)) == ["2"], "as the part sees it"
            model(x)
        dg.named_gates(model.block)
        budget.step(used, progress)
    assert list(dg.named_gates(model)) == ["block.2"]
    assert dg.named_gates(model)["block.2"].site.consumer == "block.2"


def test_a_the_sites_of_a_gate_follow_the_point_of_view() -> None:
    model = dg.gate_(Nested(), dg.GateConfig(kind="static"))
    (gate,) = dg.named_gates(model).values()
    assert gate.site_at("block.2").producers == ("block.0",)
    assert gate.site_at("2").producers == ("0",)
    outer = nn.Sequential(nn.Identity(), model)
    assert list(dg.named_gates(outer)) == ["1.block.2"]
    assert gate.site_at("1.block.2").source == "1.block.0"
    assert dg.measure(outer, torch.randn(4, 6)).macs["relative"] == pytest.approx(1.0)


# --- (b) one number for budget, measure and report, on any model


class Tokens(nn.Module):
    """A layer for every token, a head for every sequence, and attention between them that no Linear layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 300)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.head(self.down(F.relu(self.up(x))).mean(1))


def test_b_the_budget_of_an_own_loop_on_sequences_is_what_measure_says() -> None:
    torch.manual_seed(0)
    model = dg.gate_(Tokens(), dg.GateConfig(net="low-rank", rank=2, block=8))
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            nn.init.normal_(gate.last.weight, std=1.0)
    x = torch.randn(10, 64, 32)
    budget = dg.Budget(target=0.7)
    budget.apply_(model, 0.5)
    with dg.usage(model) as used:
        model(x)
    budget.step(used, 0.5)
    found = dg.measure(model, x)
    assert budget.relative == pytest.approx(found.macs["relative"], rel=1e-6)
    assert budget.counter is not None
    assert budget.counter.dense == found.macs["dense"] == 64 * 2 * 32 * 64 + 32 * 300 + 2 * 64 * 64 * 32


def test_b_a_budget_that_the_tokens_can_reach_is_not_refused_for_the_head() -> None:
    model = dg.gate_(Tokens(), dg.GateConfig(net="low-rank", rank=1, block=8))
    budget = dg.Budget(target=0.62)  # counted as an MLP the head alone would take 0.70
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(torch.randn(2, 64, 32))
    assert float(budget.step(used, 0.0).detach()) == 0.0


def test_b_sequences_of_several_lengths_are_counted_each_with_its_own_length() -> None:
    model = dg.gate_(Tokens(), dg.GateConfig(kind="static"))
    short, long = torch.randn(4, 16, 32), torch.randn(4, 64, 32)
    alone = [dg.measure(model, x).macs["executed"] for x in (short, long)]
    assert dg.measure(model, [short, long]).macs["executed"] == pytest.approx(sum(alone) / 2)


def test_b_nothing_counts_a_model_as_an_mlp_without_saying_so() -> None:
    with pytest.raises(TypeError, match="rows"):
        dg.accounting.MacCounter(gated())  # type: ignore[call-arg]


# --- (c) one call steps, one only tells


def test_c_asking_for_the_penalty_changes_nothing() -> None:
    model, x = gated(), torch.randn(8, 6)
    budget = dg.Budget(target=0.6, warmup=0.0, anneal=0.1)
    budget.apply_(model, 0.5)
    with dg.usage(model) as used:
        model(x)
    first = budget.step(used, 0.5)
    before = budget.state_dict()
    assert budget.lambda_ > 0.0
    for _ in range(3):
        assert torch.equal(budget.penalty(used), first)
    assert budget.state_dict() == before
    budget.step(used, 0.5)
    assert budget.state_dict() != before, "a step is a step, also at the same progress"


# --- (d) a run is continued only by the same run


def linearly(progress: float) -> float:
    return progress


def scaled(progress: float, *, by: float) -> float:
    return by * progress


def train(out: Path, budget: Any, x: Tensor | None = None, *, epochs: int = 1) -> None:
    torch.manual_seed(0)
    x = torch.arange(240.0).reshape(40, 6) / 100 if x is None else x
    dg.fit(gated(), (x, torch.arange(40) % 3), budget=budget, epochs=epochs, batch=20, out=out, show=False)


def test_d_functions_without_a_name_are_refused_where_a_run_can_be_continued(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weight is <function .*lambda.*cannot be told from another function"):
        train(tmp_path, OpenLoopBudget(weight=lambda t: 0.1 * t))
    assert not list(tmp_path.iterdir()), "refused before it trains"

    def local(progress: float) -> float:
        return progress

    with pytest.raises(ValueError, match="cannot be told from another function"):
        train(tmp_path, OpenLoopBudget(weight=partial(local)))


def test_d_two_schedules_are_two_runs(tmp_path: Path) -> None:
    train(tmp_path, OpenLoopBudget(weight=partial(scaled, by=0.1)))
    train(tmp_path, OpenLoopBudget(weight=partial(scaled, by=0.1)))
    with pytest.raises(ValueError, match="was made with budget="):
        train(tmp_path, OpenLoopBudget(weight=partial(scaled, by=9.9)))
    with pytest.raises(ValueError, match="was made with budget="):
        train(tmp_path, OpenLoopBudget(weight=linearly))


def test_d_the_same_values_in_another_order_are_other_data(tmp_path: Path) -> None:
    x, y = torch.arange(240.0).reshape(40, 6) / 100, torch.arange(40) % 3
    columns, rows = x[:, [1, 0, 2, 3, 4, 5]], x[torch.randperm(40)]
    data = [dg.data.Arrays(a, y) for a in (x, columns, rows)]
    assert len({hash_data(d) for d in data}) == 3
    assert hash_data(data[0]) == hash_data(dg.data.Arrays(x.clone(), y.clone()))
    train(tmp_path, None, x)
    with pytest.raises(ValueError, match="was made with data="):
        train(tmp_path, None, columns)


# --- (e) no module is hidden behind a function


def modules() -> list[ModuleType]:
    found = [dynamicgate]
    for info in pkgutil.walk_packages(dynamicgate.__path__, "dynamicgate."):
        if not info.name.endswith("__main__") and ".ops.ffn." not in info.name and not info.name.endswith("_kernels"):
            found.append(importlib.import_module(info.name))
    return found


def test_e_every_module_can_be_reached_by_its_name() -> None:
    for module in modules():
        package, _, name = module.__name__.rpartition(".")
        if package:
            assert getattr(sys.modules[package], name) is module, f"{module.__name__} is hidden"


# --- (f) sparsity and budget talk through arguments


def test_f_a_sparsifier_leaves_nothing_on_a_layer_but_its_mask_and_pattern() -> None:
    linear = nn.Linear(6, 16)
    before = set(vars(linear))
    model = nn.Sequential(linear, nn.ReLU(), nn.Linear(16, 3))
    sparsifier = dg.RigL(model, 0.5, initial_density=1.0)
    assert set(vars(linear)) - before == {"mask_pattern"}
    assert sparsifier.pending(linear) == 48
    assert sparsifier.pending(nn.Linear(6, 16)) == 0


def test_f_fit_tells_the_budget_which_connections_are_still_to_be_pruned(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dg.gate_(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)), dg.GateConfig(kind="static"))
    sparsifier, budget = dg.RigL(model, 0.5, initial_density=1.0, every=2), dg.Budget(target=0.4)
    data = torch.randn(60, 6), torch.arange(60) % 3
    dg.fit(model, data, budget=budget, sparsifier=sparsifier, epochs=2, batch=10, show=False)
    assert budget.sparsifier is sparsifier


# --- (g) keyword arguments, and no option is silently ignored


def test_g_what_has_many_fields_takes_them_by_name_only() -> None:
    for kind in (FitOptions, dg.GateConfig, dg.Budget, OpenLoopBudget):
        assert all(f.kw_only for f in fields(kind) if f.init), kind
    kinds = {p.kind for name, p in inspect.signature(Run.__init__).parameters.items() if name != "self"}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "static", "rank": 3},
        {"kind": "static", "net": "two-layer"},
        {"kind": "static", "reads": "same"},
        {"net": "linear", "rank": 3},
        {"kind": "router", "theta": 0.7},
        {"kind": "router", "open": 0.3},
        {"top_k": 2, "theta": 0.7},
        {"top_k": 2, "always_open": 1},
        {"kind": "router", "drop_policy": "random"},
    ],
    ids=str,
)
def test_g_an_option_of_a_gate_that_would_do_nothing_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="means nothing with"):
        dg.GateConfig(**config)


@pytest.mark.parametrize("option", ["weight", "form", "target_rate"])
def test_g_a_closed_loop_has_no_weight_and_an_open_loop_no_target(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        dg.Budget(target=0.3, **{option: 0.5})
    with pytest.raises(TypeError, match="target"):
        OpenLoopBudget(target=0.3)  # type: ignore[call-arg]


def test_g_a_weight_for_a_teacher_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"distill_weight=0.3 is .* of the loss: pass teacher="):
        dg.fit(gated(), (torch.randn(9, 6), torch.arange(9) % 3), distill_weight=0.3)


# --- (h) what needs no torch loads without it, and importing loads nothing else

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_h_the_report_needs_no_torch() -> None:
    code = WITHOUT.format(absent=("torch", "numpy", "safetensors")) + "import dynamicgate.lab.report"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_h_the_core_loads_torch_numpy_and_safetensors_and_nothing_else() -> None:
    roots = "{name.partition('.')[0] for name in sys.modules}"
    code = f"""
import sys, torch, numpy, safetensors.torch
before = {roots}
import dynamicgate
for name in dynamicgate.__all__:
    getattr(dynamicgate, name)
print(*sorted({roots} - before - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("dynamicgate.lab")))
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["dynamicgate"]


@pytest.mark.slow
def test_h_the_core_imports_and_trains_with_the_lab_absent() -> None:
    code = """
import sys
class NoLab:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("dynamicgate.lab"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoLab())
import torch, dynamicgate as dg
torch.manual_seed(0)
x = torch.randn(512, 32); y = (x[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
plan = dg.sparsify_(model, macs=0.4)
dg.fit(model, (x, y), **plan, epochs=4, show=False)
found = dg.measure(model, (x, y))
fast = dg.compile(model, x, seconds=0.1)
assert abs(found.macs["relative"] - 0.4) < 0.02, found
assert torch.allclose(fast(x), model(x), atol=1e-4)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr[-3000:]
