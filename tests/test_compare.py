"""Models with their controls over seeds: what is trained, what is written, what is not done twice."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dynamicgate as dg
from dynamicgate.compare import MODELS, Settings, compare, run_one, settings_hash
from dynamicgate.compare.models import small
from dynamicgate.compare.settings import GATE_SHARE, LATER
from dynamicgate.data import Arrays, Splits, check_arrays
from dynamicgate.data import load as load_data
from dynamicgate.rewire import RigL

META = {"created", "commit", "command", "versions", "machine", "budget", "seeds", "epochs", "hidden", "data"}
RUN = {
    "model", "seed", "data", "quality", "macs", "proxies", "layers", "params", "seconds", "budget", "rewiring",
    "samples", "gates", "notes", "valid", "steps", "collapses", "settings", "folder",
}  # fmt: skip


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three clouds in ten dimensions."""
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    path = tmp_path_factory.mktemp("data") / "clouds.npz"
    np.savez(path, x=random.normal(size=(3, 10))[y] + 0.4 * random.normal(size=(240, 10)), y=y)
    return str(path)


@pytest.fixture(scope="module")
def settings(npz: str) -> Settings:
    return Settings(data=npz, epochs=5, batch=40, hidden=(20,), budget=0.5, block=2)


@pytest.fixture(scope="module")
def finished(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("compare")
    results = compare(settings, list(MODELS), [0, 1], out, command="dynamicgate compare ...")
    return out, json.loads(json.dumps(results))


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
    assert none == [None, None]
    full = (40, *hidden, 6)
    cost_of_a_unit = max(a + c for a, c in zip(model.sizes, model.sizes[2:], strict=False))
    assert abs(macs(model.sizes) - budget * macs(full)) <= cost_of_a_unit
    assert all(1 <= now <= was for now, was in zip(model.sizes, full, strict=True))
    widths = [now / was for now, was in zip(model.sizes[1:-1], hidden, strict=True)]
    assert max(widths) - min(widths) <= 1 / min(hidden), "all layers shrink by the same share"


def test_the_models_are_what_they_are_called(settings: Settings) -> None:
    splits = load_data(settings.data)
    made = {
        name: prepare(replace(settings, dropout=0.25, gate_share=0.2, model=name).resolved(splits), splits)
        for name, prepare in MODELS.items()
    }
    assert {name for name, prepared in made.items() if prepared.model.dropout.p == 0.0} == {"dense", "small"}
    kinds = {name: [g.config.kind for g in dg.gates_of(prepared.model).values()] for name, prepared in made.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == {
        "static": ["static"], "random": ["static"], "gate": ["dynamic"], "gate+rigl": ["dynamic"], "switch": ["router"],
    }  # fmt: skip
    targets = {name: prepared.budget.target for name, prepared in made.items() if prepared.budget}
    of_itself = pytest.approx(0.5 / 1.5)  # it is half as wide again as the network that the budget is a share of
    assert targets == {"static": 0.5, "gate": 0.5, "gate+rigl": of_itself, "switch": None}
    rewirers = {name: type(prepared.rewirer).__name__ for name, prepared in made.items() if prepared.rewirer}
    assert rewirers == {
        "pruned": "Magnitude", "static-sparse": "Static", "set": "SET", "rigl": "RigL", "gate+rigl": "RigL",
    }  # fmt: skip
    assert made["small"].model.sizes[1] == 10


@pytest.mark.parametrize("hidden", [(100,), (64, 48)])
def test_without_a_density_sparse_models_spend_the_budget(hidden: tuple[int, ...]) -> None:
    splits = splits_of(40, 6)
    base = Settings(budget=0.2, hidden=hidden, epochs=200, batch=4)
    for name in ("static-sparse", "set", "rigl"):
        chosen = replace(base, model=name).resolved(splits)
        assert dg.Ledger(MODELS[name](chosen, splits).model).relative({}) == pytest.approx(0.2, abs=0.001)
        assert (chosen.output == "sparse") == (hidden == (100,)), "a dense output layer of 600 is more than half of 920"
        assert 0.0 < chosen.density < 0.2 or chosen.output == "sparse"
    both = replace(base, model="rigl", density=0.3, output="sparse").resolved(splits)
    assert dg.Ledger(MODELS["rigl"](both, splits).model).relative({}) == pytest.approx(0.3, abs=0.001)
    asked = replace(base, model="gate+rigl", gate_share=0.05, open_rate=0.85, widen=1.0)
    fused = MODELS["gate+rigl"](asked.resolved(splits), splits)
    ledger = dg.Ledger(fused.model)
    assert ledger.gate / ledger.dense == pytest.approx(0.05 * 0.2, rel=0.1), "a twentieth of the budget decides"
    assert ledger.settled * 0.85 + 0.15 * ledger.gate / ledger.dense == pytest.approx(0.2, rel=0.02)
    switch = MODELS["switch"](replace(base, model="switch").resolved(splits), splits).model
    routed = {site: torch.eye(8)[:1] for site in dg.gates_of(switch)}
    full = macs((40, *hidden, 6))
    assert float(dg.Ledger(switch).executed(routed)) / full == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("budget", "gates"), [(0.05, 0), (0.3, 1)])
def test_a_gate_that_could_read_next_to_nothing_is_left_out(budget: float, gates: int, tmp_path: Path) -> None:
    splits = load_data("digits").flat()  # 9,472 MACs: a twentieth of 5 % pays for 3 inputs of each of 8 gates
    settings = Settings("digits", model="gate+rigl", budget=budget, epochs=1)
    model, budget_, rewirer = MODELS["gate+rigl"](settings.resolved(splits), splits)
    assert len(dg.gates_of(model)) == gates
    assert (budget_ is None) == (gates == 0)
    assert isinstance(rewirer, RigL)
    if not gates:
        found = run_one(settings.resolved(splits), splits, tmp_path, show=False)
        assert found["macs"]["relative"] == pytest.approx(budget, abs=0.001)
        assert found["notes"][0] == "no gates: a budget of 0.05 pays for fewer than 4 inputs for each of them"
    asked = replace(settings, gate_share=0.05).resolved(splits)
    assert len(dg.gates_of(MODELS["gate+rigl"](asked, splits).model)) == 1, "who asks for a share gets it"


@pytest.mark.parametrize(
    ("budget", "widen", "gate_share", "open_rate"),
    [(0.02, 1.0, 0.05, 0.85), (0.099, 1.0, 0.05, 0.85), (0.1, 1.25, 0.02, 0.95), (0.2, 1.5, 0.02, 0.95),
     (1.0, 1.5, 0.02, 0.95)],
)  # fmt: skip
def test_the_larger_the_budget_the_wider_the_model_and_the_lighter_its_gates(
    budget: float, widen: float, gate_share: float, open_rate: float
) -> None:
    splits = splits_of(400, 6)
    asked = Settings(model="gate+rigl", budget=budget, hidden=(256,), epochs=200, batch=4)
    found = asked.resolved(splits)
    assert found.widths == (round(widen * 256),)
    same = replace(asked, widen=widen, gate_share=gate_share, open_rate=open_rate).resolved(splits)
    assert (found.density, found.gate_density) == (same.density, same.gate_density)
    assert found.gate_density > 0.0
    assert replace(asked, model="rigl").resolved(splits).widths == (256,)


@pytest.mark.parametrize("distribution", ["uniform", "erk"])
def test_a_wider_sparse_model_spends_the_same(distribution: str) -> None:
    splits = splits_of(40, 6)
    asked = macs((40, 64, 48, 6))
    for name in ("static-sparse", "rigl", "pruned", "gate+rigl", "dense"):
        settings = Settings(
            model=name, budget=0.3, hidden=(64, 48), epochs=200, batch=4, widen=2.0, distribution=distribution
        ).resolved(splits)
        model, budget, rewirer = MODELS[name](settings, splits)
        assert model.sizes == ((40, 64, 48, 6) if name == "dense" else (40, 128, 96, 6))
        if rewirer is not None and budget is None:
            kept = sum(round(layer.density * layer.mask.numel()) for layer in rewirer.layers)
            last = 0 if settings.output == "sparse" else 96 * 6
            assert kept + last == pytest.approx(0.3 * asked, rel=0.01)
        if budget is not None:
            assert budget.target * macs(model.sizes) == pytest.approx(0.3 * asked)


@pytest.mark.parametrize(("hidden", "block"), [((100,), 1), ((64, 48), 1), ((96, 64), 16), ((50,), 16)])
def test_a_random_mask_spends_the_budget_on_units_that_nothing_moves(hidden: tuple[int, ...], block: int) -> None:
    splits = splits_of(40, 6)
    made = [
        MODELS["random"](replace(Settings(budget=0.5, hidden=hidden, block=block), model="random", seed=seed), splits)
        for seed in (0, 0, 1)
    ]
    sizes = (40, *hidden, 6)
    unit = block * max(a + c for a, c in zip(sizes, sizes[2:], strict=False))
    assert abs(dg.measure(made[0].model, splits.test).macs["relative"] - 0.5) <= unit / macs(sizes)
    masks = [torch.cat([gate.bias > 0 for gate in dg.gates_of(prepared.model).values()]) for prepared in made]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2]), "another seed, other units"
    dg.fit(made[0].model, splits.train, epochs=1, batch=8, show=False)
    after = torch.cat([gate.bias > 0 for gate in dg.gates_of(made[0].model).values()])
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


def test_options_of_sparse_models_leave_other_runs_where_they_were() -> None:
    splits = splits_of(40, 6)
    plain, asked = (Settings(model="dense", density=d).resolved(splits) for d in (0.0, 0.0))
    assert settings_hash(plain, splits) == settings_hash(asked, splits)
    rigl = Settings(model="rigl").resolved(splits)
    assert settings_hash(rigl, splits) != settings_hash(replace(rigl, structure="16x1"), splits)


def test_the_rank_of_the_gates_is_what_their_share_of_the_budget_pays_for() -> None:
    splits = splits_of(784, 10)
    found = Settings(hidden=(256,), budget=0.3).resolved(splits)
    gate = found.rank * (784 + 256)
    assert abs(gate - GATE_SHARE * 0.3 * macs((784, 256, 10))) <= 0.5 * (784 + 256)
    assert Settings(hidden=(256,), rank=3).resolved(splits).rank == 3
    assert Settings(hidden=(4000,), budget=1.0).resolved(splits).rank == 32
    assert Settings(hidden=(4,), budget=0.1).resolved(splits).rank == 2


def test_what_is_not_said_comes_from_the_data_set() -> None:
    splits = load_data("digits")
    found = Settings().resolved(splits)
    assert (found.hidden, found.epochs, found.batch) == ((128,), 60, 32)
    found = Settings(hidden=(5, 6), epochs=2, batch=7).resolved(splits)
    assert (found.hidden, found.epochs, found.batch) == ((5, 6), 2, 7)
    assert Settings().resolved(splits_of(5, 2)).batch == 8, "no more than there are rows"


def test_results_have_exactly_the_documented_keys(finished: tuple[Path, dict[str, Any]]) -> None:
    out, returned = finished
    results = json.loads((out / "results.json").read_text())
    assert results == returned
    assert results.keys() == {"meta", "runs"}
    assert results["meta"].keys() == META
    assert [(run["seed"], run["model"]) for run in results["runs"]] == [(s, m) for s in (0, 1) for m in MODELS]
    for run in results["runs"]:
        assert run.keys() == RUN
        assert run["quality"].keys() == {"accuracy", "macro_f1"}
        assert run["macs"].keys() == {
            "dense", "executed", "gate", "relative", "relative_zero_skip", "structure_saved", "gate_saved",
        }  # fmt: skip
        assert run["proxies"].keys() == {
            f"{name}_{of}" for name in ("compute_proxy", "relmac", "relmac_fuse") for of in "pg"
        }
        layer_keys = {"name", "open", "density", "present", "macs", "product"}
        assert [layer.keys() for layer in run["layers"]] == [layer_keys] * 2
        assert run["data"] == "clouds"
        assert run["seconds"] > 0
        assert run["params"] > 0


def test_the_numbers_of_a_run_fit_together(finished: tuple[Path, dict[str, Any]]) -> None:
    for run in finished[1]["runs"]:
        found = run["macs"]
        assert found["dense"] == macs((10, 20, 3)), "relative to the full network, for the small one too"
        assert found["relative"] == pytest.approx(found["executed"] / found["dense"])
        kept = 1.0 - found["structure_saved"] - found["gate_saved"]
        assert found["relative"] == pytest.approx(kept + found["gate"] / found["dense"])
        assert sum(layer["macs"] for layer in run["layers"]) + found["gate"] == pytest.approx(found["executed"])
        assert found["relative_zero_skip"] <= found["relative"]
        assert run["samples"]["p5"] <= run["samples"]["p50"] <= run["samples"]["p95"]
        if run["model"] in ("dense", "dropout"):
            assert found["relative"] == 1.0
        else:
            assert abs(found["relative"] - 0.5) < 0.1  # a block of 2 of 20 units is a tenth
        assert run["steps"] == 5 * math.ceil(163 / 40)


def test_each_run_leaves_its_model_and_its_log(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    for run in results["runs"]:
        folder = out / run["folder"]
        assert {"model.safetensors", "log.jsonl", "last.safetensors", "run.json"} <= {p.name for p in folder.iterdir()}
        assert json.loads((folder / "run.json").read_text()) == {k: v for k, v in run.items() if k != "folder"}
        model = dg.load(folder / "model.safetensors")
        splits = load_data(run["settings"]["data"], seed=run["seed"])
        measured = dg.measure(model, splits.test)
        assert measured.quality == run["quality"]
        assert measured.macs["executed"] == run["macs"]["executed"]


def test_a_student_has_a_teacher_of_its_own(settings: Settings, tmp_path: Path) -> None:
    splits = load_data(settings.data, seed=0)
    chosen = replace(settings, model="rigl", distill=0.5).resolved(splits)
    run = run_one(chosen, splits, tmp_path, show=False)
    teacher = json.loads((tmp_path / "teacher" / "run.json").read_text())
    assert (teacher["model"], teacher["macs"]["relative"]) == ("dropout", 1.0)
    assert run["model"] == "rigl"
    assert run["seconds"] > teacher["seconds"]


def test_models_of_a_seed_start_alike_and_seeds_differ(finished: tuple[Path, dict[str, Any]]) -> None:
    losses = {}
    for run in finished[1]["runs"]:
        first = (finished[0] / run["folder"] / "log.jsonl").read_text().splitlines()[0]
        losses[run["model"], run["seed"]] = json.loads(first)["loss"]
    assert losses["dense", 0] != losses["dense", 1]


def test_finished_runs_are_not_repeated(finished: tuple[Path, dict[str, Any]], settings: Settings) -> None:
    out, results = finished
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*")}
    again = compare(settings, list(MODELS), [0, 1], out, command="again")
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*")} == before
    assert json.loads(json.dumps(again["runs"])) == results["runs"]
    assert again["meta"]["command"] == "again"


def test_one_more_seed_or_model_is_added_to_what_is_there(settings: Settings, tmp_path: Path) -> None:
    compare(settings, ["dense"], [0], tmp_path, command="")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/run.json")}
    results = compare(settings, ["dense", "small"], [0], tmp_path, command="")
    assert [run["model"] for run in results["runs"]] == ["dense", "small"]
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/run.json")}
    assert len(after) == 2
    assert before.items() < after.items()


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 1e-3},
        {"epochs": 4},
        {"budget": 0.4},
        {"hidden": (21,)},
        {"block": 1},
        {"seed": 1},
        {"tau": 0.9},
        {"ramp": 0.5},
        {"clip": 1.0},
    ],
)
def test_another_setting_is_another_folder(change: dict[str, Any], settings: Settings) -> None:
    splits = load_data(settings.data)
    assert settings_hash(replace(settings, **change), splits) != settings_hash(settings, splits)


def test_a_run_without_a_ramp_is_found_where_it_was_before_there_were_ramps(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = load_data(settings.data)
    asked = asdict(settings)
    now = settings_hash(settings, splits)
    assert asked.pop("ramp") == 0.0
    monkeypatch.delitem(LATER, "ramp")
    monkeypatch.setattr("dynamicgate.compare.settings.asdict", lambda _settings: asked)
    assert settings_hash(settings, splits) == now


@pytest.mark.parametrize("model", ["static", "gate", "gate+rigl"])
def test_the_ramp_reaches_the_gates(model: str) -> None:
    splits = splits_of(40, 6)
    asked = Settings(model=model, hidden=(64,), epochs=1, batch=8, ramp=1.1, gate_share=0.2).resolved(splits)
    found = dg.gates_of(MODELS[model](asked, splits).model)
    assert [gate.config.ramp for gate in found.values()] == [1.1]


def test_other_data_under_the_same_name_is_another_folder(settings: Settings) -> None:
    splits = load_data(settings.data)
    changed = replace(splits, train=Arrays(splits.train.x + 1, splits.train.y))
    assert settings_hash(settings, changed) != settings_hash(settings, splits)


def test_a_changed_setting_trains_again(settings: Settings, tmp_path: Path) -> None:
    first = compare(settings, ["dense"], [0], tmp_path, command="")["runs"][0]
    second = compare(replace(settings, lr=1e-2), ["dense"], [0], tmp_path, command="")["runs"][0]
    assert first["folder"] != second["folder"]
    assert len(list(tmp_path.glob("runs/*"))) == 2
    assert first["quality"] != second["quality"] or first["valid"] != second["valid"]


def test_a_run_made_twice_is_the_same_run(settings: Settings, tmp_path: Path) -> None:
    splits = load_data(settings.data)
    chosen = replace(settings, model="gate").resolved(splits)
    runs = [run_one(chosen, splits, tmp_path / name) for name in ("one", "two")]
    for run in runs:
        del run["seconds"]
    assert runs[0] == runs[1]
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("models", "change", "sentence"),
    [
        (["dense", "gatt"], {}, "unknown models gatt; choose from dense, small, dropout, static, random, gate"),
        ([], {}, r"unknown models \(none given\)"),
        (["dense", "gate"], {"budget": 0.05}, "a budget of 0.05 cannot be met: the gate networks alone cost"),
        (["dense"], {"budget": 0.0}, "expected 0 < budget <= 1, received 0.0"),
        (["dense"], {"budget": 1.5}, "expected 0 < budget <= 1, received 1.5"),
        (["dense", "gate"], {"block": -1}, "block is a number of units and must be an integer >= 1, received -1"),
        (["dense", "rigl"], {"budget": 0.01, "output": "dense"}, "does not even pay for the dense output layer"),
        (["dense", "rigl"], {"every": 100}, "would never rewire"),
        (["dense", "set"], {"density": 1.5}, "a density is a share of the connections"),
        (["dense", "set"], {"structure": "round"}, "a structure is 'unstructured', 'fan-in' or a cell"),
        (["dense", "gate"], {"theta": 1.0}, "expected 0 < theta < 1, received 1.0"),
        (["dense", "gate"], {"dropout": 1.0}, r"dropout must be in \[0, 1\), received 1.0"),
        (["dense"], {"hidden": (20, 0)}, r"hidden widths must be 1 or more, received \(20, 0\)"),
    ],
)
def test_a_mistake_is_known_before_anything_is_trained(
    models: list[str], change: dict[str, Any], sentence: str, settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        compare(replace(settings, **change), models, [0], tmp_path, command="")
    assert list(tmp_path.iterdir()) == []


def test_no_seeds_is_a_mistake(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one seed is needed"):
        compare(settings, ["dense"], [], tmp_path, command="")
