"""The models of a comparison: what they are, and that each spends the budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data import check_arrays
from dynamicgate.gating.stages import stages_of
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import MODELS, Settings, run_one, settings_hash
from dynamicgate.lab.methods.hyperparameters import GATE_FRACTION
from dynamicgate.lab.methods.models import small
from dynamicgate.sparsity import RigL


def splits_of(features: int, classes: int) -> Splits:
    part = check_arrays(torch.randn(classes * 4, features), torch.arange(classes * 4) % classes)
    return Splits("random", part, part, part, classes, 0.0, 1.0)


def macs(sizes: tuple[int, ...]) -> int:
    return sum(a * b for a, b in pairwise(sizes))


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("hidden", [(7,), (128,), (300,), (64, 64), (256, 32), (96, 80, 64)])
def test_the_small_network_costs_what_the_budget_allows_to_within_a_unit(
    budget: float, hidden: tuple[int, ...]
) -> None:
    splits = splits_of(40, 6)
    model, *none = small(Settings(budget=budget, hidden=hidden), splits)
    assert none == [None, None, None]
    full = (40, *hidden, 6)
    cost_of_a_unit = max(a + c for a, c in zip(model.sizes, model.sizes[2:], strict=False))
    assert abs(macs(model.sizes) - budget * macs(full)) <= cost_of_a_unit
    assert all(1 <= now <= was for now, was in zip(model.sizes, full, strict=True))
    widths = [now / was for now, was in zip(model.sizes[1:-1], hidden, strict=True)]
    assert max(widths) - min(widths) <= 1 / min(hidden), "all layers shrink by the same factor"


@pytest.mark.parametrize("name", ["dense", "small"])
def test_dense_networks_have_a_dropout_of_their_own(settings: Settings, name: str) -> None:
    splits = load_dataset(settings.data)
    asked = replace(settings, model=name, dropout=0.5, dense_dropout=0.2).resolved(splits)
    assert MODELS[name](asked, splits).model.dropout.p == 0.2


def test_the_models_are_what_they_are_called(settings: Settings) -> None:
    splits = load_dataset(settings.data)
    made = {
        name: prepare(replace(settings, dropout=0.25, gate_fraction=0.2, model=name).resolved(splits), splits)
        for name, prepare in MODELS.items()
    }
    in_stages = {name: stages.count for name, prepared in made.items() if (stages := stages_of(prepared.model))}
    assert in_stages == {"staged": 3, "staged-random": 3}, "a cascade is made of networks without stages"
    assert {name for name, prepared in made.items() if prepared.stage_loss} == {"staged", "staged-random"}
    assert {name for name, prepared in made.items() if prepared.model.dropout.p == 0.0} == {"dense", "small"}
    kinds = {name: [g.config.kind for g in dg.named_gates(prepared.model).values()] for name, prepared in made.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == {
        "static": ["static"], "random": ["static"], "gate": ["dynamic"], "gate+rigl": ["dynamic"], "switch": ["router"],
    }  # fmt: skip
    targets = {name: getattr(prepared.budget, "target", None) for name, prepared in made.items() if prepared.budget}
    of_itself = pytest.approx(0.5 / 1.5)  # it is half as wide again as the network that the budget refers to
    assert targets == {
        "static": 0.5, "gate": 0.5, "gate+rigl": of_itself, "switch": None, "staged": of_itself,
        "staged-random": of_itself,
    }  # fmt: skip
    sparsifiers = {name: type(prepared.sparsifier).__name__ for name, prepared in made.items() if prepared.sparsifier}
    assert sparsifiers == {
        "pruned": "Magnitude", "static-sparse": "Static", "set": "SET", "rigl": "RigL", "gate+rigl": "RigL",
        "staged": "RigL", "staged-random": "RigL", "cascade": "RigL", "sparsify": "RigL",
    }  # fmt: skip
    assert made["small"].model.sizes[1] == 10


@pytest.mark.parametrize("hidden", [(100,), (64, 48)])
def test_without_a_density_sparse_models_use_up_the_budget(hidden: tuple[int, ...]) -> None:
    splits = splits_of(40, 6)
    base = Settings(budget=0.2, hidden=hidden, epochs=200, batch=4)
    for name in ("static-sparse", "set", "rigl"):
        chosen = replace(base, model=name).resolved(splits)
        counter = dg.accounting.MacCounter.for_mlp(MODELS[name](chosen, splits).model)
        assert counter.relative({}) == pytest.approx(0.2, abs=0.001)
        assert (chosen.output == "sparse") == (hidden == (100,)), "a dense output layer of 600 is more than half of 920"
        assert 0.0 < chosen.density < 0.2 or chosen.output == "sparse"
    both = replace(base, model="rigl", density=0.3, output="sparse").resolved(splits)
    assert dg.accounting.MacCounter.for_mlp(MODELS["rigl"](both, splits).model).relative({}) == pytest.approx(
        0.3, abs=0.001
    )
    asked = replace(base, model="gate+rigl", gate_fraction=0.05, open_rate=0.85, widen=1.0)
    fused = MODELS["gate+rigl"](asked.resolved(splits), splits)
    counter = dg.accounting.MacCounter.for_mlp(fused.model)
    assert counter.gate / counter.dense == pytest.approx(0.05 * 0.2, rel=0.1), "a twentieth of the budget"
    assert fused.sparsifier is not None
    final = counter.all_open_without(fused.sparsifier.pending)
    assert final * 0.85 + 0.15 * counter.gate / counter.dense == pytest.approx(0.2, rel=0.02)
    switch = MODELS["switch"](replace(base, model="switch").resolved(splits), splits).model
    routed = {site: torch.eye(8)[:1] for site in dg.named_gates(switch)}
    full = macs((40, *hidden, 6))
    assert float(dg.accounting.MacCounter.for_mlp(switch).executed(routed)) / full == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("budget", "gates"), [(0.05, 0), (0.3, 1)])
def test_there_are_no_gates_where_they_could_read_only_a_few_inputs(budget: float, gates: int, tmp_path: Path) -> None:
    splits = load_dataset("digits").flat()  # 9,472 MACs: a twentieth of 5 % allows 3 inputs for each of 8 gates
    settings = Settings("digits", model="gate+rigl", budget=budget, epochs=1)
    model, budget_, sparsifier, _ = MODELS["gate+rigl"](settings.resolved(splits), splits)
    assert len(dg.named_gates(model)) == gates
    assert (budget_ is None) == (gates == 0)
    assert isinstance(sparsifier, RigL)
    if not gates:
        found = run_one(settings.resolved(splits), splits, tmp_path, show=False)
        assert found["macs"]["relative"] == pytest.approx(budget, abs=0.001)
        assert found["notes"][0] == "no gates: a budget of 0.05 pays for fewer than 4 inputs for each of them"
    asked = replace(settings, gate_fraction=0.05).resolved(splits)
    assert len(dg.named_gates(MODELS["gate+rigl"](asked, splits).model)) == 1, "gates that are asked for are there"


@pytest.mark.parametrize(
    ("budget", "widen", "gate_fraction", "open_rate"),
    [(0.02, 1.0, 0.05, 0.85), (0.099, 1.0, 0.05, 0.85), (0.1, 1.25, 0.02, 0.95), (0.2, 1.5, 0.02, 0.95),
     (1.0, 1.5, 0.02, 0.95)],
)  # fmt: skip
def test_the_larger_the_budget_the_wider_the_model_and_the_lighter_its_gates(
    budget: float, widen: float, gate_fraction: float, open_rate: float
) -> None:
    splits = splits_of(400, 6)
    asked = Settings(model="gate+rigl", budget=budget, hidden=(256,), epochs=200, batch=4)
    found = asked.resolved(splits)
    assert found.widths == (round(widen * 256),)
    same = replace(asked, widen=widen, gate_fraction=gate_fraction, open_rate=open_rate).resolved(splits)
    assert (found.density, found.gate_density) == (same.density, same.gate_density)
    assert found.gate_density > 0.0
    assert replace(asked, model="rigl").resolved(splits).widths == (256,)


@pytest.mark.parametrize("distribution", ["uniform", "erk"])
def test_a_wider_sparse_model_costs_the_same(distribution: str) -> None:
    splits = splits_of(40, 6)
    asked = macs((40, 64, 48, 6))
    for name in ("static-sparse", "rigl", "pruned", "gate+rigl", "dense"):
        settings = Settings(
            model=name, budget=0.3, hidden=(64, 48), epochs=200, batch=4, widen=2.0, distribution=distribution
        ).resolved(splits)
        model, budget, sparsifier, _ = MODELS[name](settings, splits)
        assert model.sizes == ((40, 64, 48, 6) if name == "dense" else (40, 128, 96, 6))
        if sparsifier is not None and budget is None:
            kept = sum(round(layer.density * layer.mask.numel()) for layer in sparsifier.layers)
            last = 0 if settings.output == "sparse" else 96 * 6
            assert kept + last == pytest.approx(0.3 * asked, rel=0.01)
        if budget is not None:
            assert budget.target * macs(model.sizes) == pytest.approx(0.3 * asked)


@pytest.mark.parametrize(("hidden", "block"), [((100,), 1), ((64, 48), 1), ((96, 64), 16), ((50,), 16)])
def test_a_random_mask_uses_up_the_budget_and_training_does_not_change_it(hidden: tuple[int, ...], block: int) -> None:
    splits = splits_of(40, 6)
    made = [
        MODELS["random"](replace(Settings(budget=0.5, hidden=hidden, block=block), model="random", seed=seed), splits)
        for seed in (0, 0, 1)
    ]
    sizes = (40, *hidden, 6)
    unit = block * max(a + c for a, c in zip(sizes, sizes[2:], strict=False))
    assert abs(dg.measure(made[0].model, splits.test).macs["relative"] - 0.5) <= unit / macs(sizes)
    masks = [torch.cat([gate.bias > 0 for gate in dg.named_gates(prepared.model).values()]) for prepared in made]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2]), "another seed draws other units"
    dg.fit(made[0].model, splits.train, epochs=1, batch=8, show=False)
    after = torch.cat([gate.bias > 0 for gate in dg.named_gates(made[0].model).values()])
    assert torch.equal(after, masks[0])


def test_the_activation_is_the_one_asked_for_and_only_another_one_is_another_run() -> None:
    splits = splits_of(40, 6)
    relu, gelu = (Settings(hidden=(8,), model="gate", activation=name).resolved(splits) for name in ("relu", "gelu"))
    assert MODELS["gate"](gelu, splits).model.activation == "gelu"
    assert settings_hash(relu, splits) != settings_hash(gelu, splits)


def test_the_period_fits_a_short_run() -> None:
    splits = splits_of(40, 6)
    assert Settings(model="rigl", epochs=10, batch=4).resolved(splits).every == int(0.75 * 60 / 10)
    assert Settings(model="rigl", epochs=1000, batch=4).resolved(splits).every == 100
    assert Settings(model="rigl", epochs=10, batch=4, every=7).resolved(splits).every == 7


def test_options_of_sparse_models_do_not_change_the_hash_of_others() -> None:
    splits = splits_of(40, 6)
    plain, asked = (Settings(model="dense", density=d).resolved(splits) for d in (None, None))
    assert settings_hash(plain, splits) == settings_hash(asked, splits)
    rigl = Settings(model="rigl").resolved(splits)
    assert settings_hash(rigl, splits) != settings_hash(replace(rigl, pattern="16x1"), splits)


def test_the_rank_of_gate_networks_is_as_large_as_their_fraction_of_the_budget_allows() -> None:
    splits = splits_of(784, 10)
    found = Settings(hidden=(256,), budget=0.3).resolved(splits)
    gate = found.rank * (784 + 256)
    assert abs(gate - GATE_FRACTION * 0.3 * macs((784, 256, 10))) <= 0.5 * (784 + 256)
    assert Settings(hidden=(256,), rank=3).resolved(splits).rank == 3
    assert Settings(hidden=(4000,), budget=1.0).resolved(splits).rank == 32
    assert Settings(hidden=(4,), budget=0.1).resolved(splits).rank == 1


def test_a_gate_keeps_half_of_what_it_may_open_open_for_every_input() -> None:
    splits = splits_of(784, 10)
    model = MODELS["gate"](Settings(hidden=(256,), budget=0.2).resolved(splits), splits).model
    (gate,) = dg.named_gates(model).values()
    assert gate.config.always_open == pytest.approx(0.1)
    assert gate.config.train == "hard", "what is trained is what is deployed"
    with torch.no_grad():
        gate.bias.fill_(-20.0)
    assert gate.eval()(torch.randn(50, 784)).open.mean(-1).min() >= 0.1, "closed gates leave no input with nothing"
    for other in ("static", "gate+rigl"):
        assert Settings(model=other, hidden=(256,)).resolved(splits).always_open == 0.0


def test_defaults_come_from_the_dataset() -> None:
    splits = load_dataset("digits")
    found = Settings().resolved(splits)
    assert (found.hidden, found.epochs, found.batch) == ((128,), 60, 32)
    found = Settings(hidden=(5, 6), epochs=2, batch=7).resolved(splits)
    assert (found.hidden, found.epochs, found.batch) == ((5, 6), 2, 7)
    assert Settings().resolved(splits_of(5, 2)).batch == 8, "no more than there are rows"


@pytest.mark.parametrize("model", ["static", "gate", "gate+rigl"])
def test_the_soft_width_reaches_the_gates(model: str) -> None:
    splits = splits_of(40, 6)
    asked = Settings(model=model, hidden=(64,), epochs=1, batch=8, soft_width=1.1, gate_fraction=0.2).resolved(splits)
    found = dg.named_gates(MODELS[model](asked, splits).model)
    assert [gate.config.soft_width for gate in found.values()] == [1.1]
