"""Language models: the tables, a few runs from end to end, and what the page says of runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.language import __main__ as command
from experiments.language import opened, page, plot, shown, variants
from experiments.language import rows as rows_module
from experiments.language import train as train_module
from experiments.language.leads import Lead
from experiments.language.tables import AT_1D, EIGHT_EXPERTS, FOUR_EXPERTS, FRONTIER, GATE, LANGUAGE, VARIANTS

import dynamicgate as dg
from dynamicgate.accounting import count_macs
from dynamicgate.lab.language.ffn_methods import FFNSettings, prepare
from dynamicgate.lab.language.gpt import GPT, GPTConfig
from dynamicgate.lab.language.model_file import load_gpt
from dynamicgate.lab.language.resumable import DivergenceError
from dynamicgate.lab.language.training import LanguageRun
from dynamicgate.lab.result_file import read_runs, write_runs


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A short prepared text in place of the Python source."""
    folder = tmp_path / "data" / "language"
    folder.mkdir(parents=True)
    tokens = (np.cumsum(np.random.default_rng(0).integers(1, 3, 6000)) % 256).astype(np.uint8)
    parts = ("train", "valid", "test")
    for part in parts:
        tokens.tofile(folder / f"python-bytes-{part}.bin")
    about = {
        "name": "python", "tokenizer": "bytes", "vocabulary": 256, "dtype": "uint8",
        "bytes": dict.fromkeys(parts, 6000), "sha256": dict.fromkeys(parts, ""),
    }  # fmt: skip
    (folder / "python-bytes.json").write_text(json.dumps(about))
    return tmp_path / "data"


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["language", *words])
    command.main()


@pytest.mark.slow
def test_a_few_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_dir: Path) -> None:
    monkeypatch.setattr(command, "LANGUAGE", replace(LANGUAGE, root=tmp_path))
    words = ("python", "--quick", "--jobs", "1", "--device", "cpu", "--data-dir", str(data_dir))
    run(monkeypatch, *words, "--only", "dense 1d", GATE)
    runs = {one["model"]: one for one in read_runs(tmp_path / "runs" / "language-quick" / "results" / "python.jsonl")}
    assert set(runs) == {"dense 1d", GATE}
    gate, dense = runs[GATE], runs["dense 1d"]
    assert gate["macs"]["executed"] == pytest.approx(dense["macs"]["executed"], rel=0.05)
    assert gate["macs"]["training"] > dense["macs"]["training"]
    assert {"valid", "test", "bits_per_byte"} == set(gate["quality"])
    assert gate["tokens"] == 20 * 4 * 32
    assert len(list((tmp_path / "runs" / "language-quick").rglob("model.safetensors"))) == 2
    assert dense["token_costs"] is None
    assert gate["token_costs"]["mean"] == pytest.approx(np.mean(gate["quality"]["test"]["open"]), rel=0.05)
    assert "| later letter |" in opened.token_table({GATE: [gate]})
    assert "| seed 0 |" in opened.seeds_table({GATE: [gate]})
    for figure in page.figures("python", {"dense 1d": [dense], GATE: [gate]}).values():
        assert figure.startswith("<svg")
    spent = plot.spent(gate)
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(gate["macs"]["training"])
    out, half = tmp_path / "tried" / "gpt.safetensors", tmp_path / "tried" / "half.safetensors"
    run(monkeypatch, "save", "python", GATE, "--out", str(out), *words[1:])
    run(monkeypatch, "save", "python", GATE, "--half", "--out", str(half), *words[1:])
    model, tokenizer, notes = load_gpt(out)
    assert (tokenizer.size, notes["text"], len(dg.named_gates(model))) == (256, "python", 2)
    assert half.stat().st_size < 0.65 * out.stat().st_size
    small, whole = load_gpt(half)[0].state_dict(), model.state_dict()
    for name, value in whole.items():
        exact = ".gate." in name or value.ndim < 2
        assert torch.equal(small[name], value if exact else value.bfloat16().float())


def test_every_model_of_every_table_is_a_known_method() -> None:
    for table in LANGUAGE.tables:
        for asked in table.models.values():
            FFNSettings(**asked["ffn"])
    assert all(asked.get("executes", asked["width"]) == 1 for asked in AT_1D.values())


def test_choices_are_made_without_test_text() -> None:
    for table in LANGUAGE.tables:
        chooses = table.name.endswith(("-rates", "-variants"))
        assert all((asked.get("test", True) is False) == chooses for asked in table.models.values()), table.name
    assert "as it is" in VARIANTS


def test_tables_of_equal_cost_train_as_long_as_the_dense_model_with_4d_costs() -> None:
    """Counted with the models themselves, forward three times, and closed blocks where gates learn from them."""
    table = LANGUAGE.table("python-equal-cost")
    spent = {}
    for name, asked in table.models.items():
        ffn = FFNSettings(**asked["ffn"])
        sizes = GPTConfig(
            vocabulary=256, width=0, **{key: asked[key] for key in ("features", "layers", "heads", "context")}
        )
        base = token_macs(sizes)
        width = ffn.width if ffn.executes is None else ffn.executes
        unit = 2 * sizes.features**2 * sizes.layers
        closed = (ffn.width - width) * unit if ffn.learns_from_closed_blocks else 0.0
        spent[name] = asked["steps"] * (3 * (base + width * unit) + closed)
    assert spent == pytest.approx(dict.fromkeys(spent, spent["dense 4d"]), rel=1e-3)


def token_macs(sizes: GPTConfig) -> float:
    """MACs of a token outside the feed-forward layers, by the counter."""
    narrow = GPT(replace(sizes, width=sizes.features))
    counter = count_macs(narrow, torch.zeros(1, sizes.context, dtype=torch.long))
    return counter.dense / sizes.context - 2 * sizes.features**2 * sizes.layers


def fake(model: str, seed: int, bits: float, executed: float = 1e7, **more: Any) -> dict[str, Any]:
    quality = {"bits_per_byte": bits, "valid": {}, "test": {"open": more.get("open")}}
    macs = {"executed": executed, "training": 2 * executed, "relative": 0.19, "target": more.get("target")}
    return {"model": model, "seed": seed, "quality": quality, "macs": macs, "params": 1e6, "collapses": []}


def lost(model: str, seed: int) -> dict[str, Any]:
    """As `train` returns a run whose loss became NaN."""
    macs = {"relative": None}
    return {"model": model, "seed": seed, "quality": {"bits_per_byte": None}, "macs": macs, "diverged": "at step 30"}


def test_the_table_pairs_the_gate_with_every_model_by_seed() -> None:
    rows = {
        "dense 1d": [fake("dense 1d", seed, 1.5 + 0.01 * seed) for seed in range(3)],
        GATE: [fake(GATE, seed, 1.4 + 0.01 * seed, open=[0.1, 0.02], target=0.19) for seed in range(3)],
        "router 16d": [fake("router 16d", seed, 1.39 + 0.02 * seed) for seed in range(2)],
    }
    text = page.main_table(rows)
    assert "| dense 1d | 10.00 M (1.000) | – | 1.0 M | 1.5100 ± 0.0248 | +0.1000 (0) | 3 |" in text
    assert f"| **{GATE}** |" in text
    assert "| -0.0050 (" in text  # two seeds only
    assert "| gate 16d | 0.100 | 0.020 | 0.1900 | 0.1900 | +0.00 | 0 of 3 | 0 |" in opened.layers_table(rows)
    assert plot.plot_costs("python", rows).startswith("<svg")


def test_a_missed_budget_is_shown_by_its_worst_run() -> None:
    runs = [fake(GATE, seed, 1.4, open=[0.1, 0.02], target=0.19) for seed in range(3)]
    runs[1]["macs"]["relative"], runs[2]["macs"]["relative"] = 0.174, 0.199
    assert "| 0.1900 | 0.1877 | -1.60 | 1 of 3 | 0 |" in opened.layers_table({GATE: runs})
    assert shown.said_budget({GATE: runs}) == "no: worst run -1.60 points"
    assert shown.said_budget({GATE: [runs[0]]}) == "yes: worst run +0.00 points"


def test_runs_that_diverged_are_counted_and_left_out_of_means() -> None:
    rows = {
        "dense 1d": [fake("dense 1d", 0, 1.5), lost("dense 1d", 1)],
        GATE: [fake(GATE, seed, 1.4) for seed in range(2)],
        "top-k 16d": [lost("top-k 16d", 0)],
    }
    text = page.main_table(rows)
    assert "| 1.5000 | +0.1000 | 1, 1 diverged |" in text
    assert "| top-k 16d | – | – | – | – | – | 0, 1 diverged |" in text
    assert "| a | – | diverged |" in page.rates_table({"a 0.002": [lost("a", 0)], "b 0.001": [fake("b", 0, 1.0)]})
    table = LANGUAGE.table("python-variants")
    first = {"as it is": [fake("as it is", 0, 1.4)], "ramp .25": [lost("ramp .25", 0)]}
    assert "| ramp .25 | – | – | – | – | – | 0, 1 diverged |" in variants.variants_table(
        first, table, variants.noise({})
    )


def test_models_without_a_run_are_named() -> None:
    table = LANGUAGE.table("books-large")
    found = {model: [fake(model, 0, 1.0)] for model in table.models if model != "dense 8d"}
    assert rows_module.said_missing(table, found) == "No run yet: dense 8d."
    assert rows_module.said_missing(table, {**found, "dense 8d": []}) == ""
    assert rows_module.said_missing(table, found, 1) == "No run yet: dense 8d."
    assert rows_module.said_missing(table, {"dense 8d": []}, 1).endswith(f"; {len(table.models) - 2} more.")


def test_stored_seeds_beyond_those_that_are_asked_for_are_shown(tmp_path: Path) -> None:
    experiment = replace(LANGUAGE, root=tmp_path)
    table = replace(experiment.table("python"), seeds=(0, 1), own_seeds={})
    data = {"name": "x", "train": 1, "valid": 1, "test": 1, "features": "bytes", "classes": 256}
    more = experiment.jobs([replace(table, seeds=(0, 1, 2, 3))])
    runs = [
        {**fake(job.model, job.seed, 1.0), "hash": job.hash, "meta": {"data": data, "created": "2026-01-01"}}
        for job in more
        if job.model == "dense 2d"
    ]
    write_runs(experiment.results / "python.jsonl", runs)
    assert [run["seed"] for run in rows_module.read_rows(experiment, table)["dense 2d"]] == [0, 1, 2, 3]


def test_what_was_asked_is_answered_by_corrected_p() -> None:
    def said(*leads: Lead) -> list[str]:
        return [shown.said_lead({"dense 8d": lead}, ("dense 8d",)).partition(":")[0] for lead in leads]

    better, worse, close = Lead(0.1, 0.01), Lead(-0.1, 0.01), Lead(0.1, 0.2)
    assert said(better, worse, close, Lead(0.1, None)) == ["better", "worse", "not told apart", "one seed"]
    assert shown.said_lead({}, ("dense 8d",)) == "–"


def test_layers_at_the_floor_are_counted_from_the_settings() -> None:
    run = fake(GATE, 0, 1.4, open=[3 / 64, 3 / 64 + 5e-4, 0.06])
    run["settings"] = {"features": 512, "layers": 3, "ffn": AT_1D[GATE]}
    assert shown.layers_at_floor(run) == 2
    assert shown.said_floor({GATE: [run]}) == "2 of 3"


def test_variants_and_rates_are_shown_relative_to_what_they_change() -> None:
    rows = {"as it is": [fake("as it is", 0, 1.4)], "ramp .5": [fake("ramp .5", 0, 1.45, executed=2e7)]}
    for one in (*rows["as it is"], *rows["ramp .5"]):
        one["quality"]["valid"]["open"] = [0.05, 0.1]
    table = replace(LANGUAGE.table("python-variants"), models={name: {} for name in ("as it is", "ramp .5", "other")})
    text = variants.variants_table(rows, table, variants.Noise(0.01, 6))
    assert "| ramp .5 | 1.4500 | +0.0500 | 0.0500 to 0.1000 | 0 | 2.00 | 1 |" in text
    assert "| other | – | – | – | – | – | 0 |" in text
    assert variants.variants_table({}, table, variants.Noise(None, 0)) == ""
    assert "(noise)" in variants.variants_table(rows, table, variants.Noise(0.03, 6))
    seeds = [fake(GATE, seed, 1.0) for seed in range(3)]
    for one, reached in zip(seeds, (1.0, 1.01, 1.02), strict=True):
        one["quality"]["valid"]["bits_per_byte"] = reached
    assert variants.noise({GATE: seeds}).spread == pytest.approx(0.01)
    assert "0.0100 bits over 3 seeds" in variants.noise({GATE: seeds}).text
    rates = {
        "dense 1d 0.001": [fake("", 0, 1.4)],
        "dense 1d 0.002": [fake("", 0, 1.3)],
        "gate 16d 0.002": [fake("", 0, 1.2)],
    }
    assert "| gate 16d | – | 1.2000 |" in page.rates_table(rates)


def test_an_unknown_table_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown table 'poems'"):
        run(monkeypatch, "poems")
    assert set(AT_1D) < set(FRONTIER)


def test_a_model_that_no_table_has_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"unknown models gate 15d: there are dense 1d; gate 16d"):
        run(monkeypatch, "python", "--only", "dense 1d", "gate 15d")


def test_routers_are_named_by_the_experts_that_they_open() -> None:
    assert (FOUR_EXPERTS, EIGHT_EXPERTS) == ("router 16d, 4 experts", "router 16d, 8 experts")
    table = LANGUAGE.table("books-large")
    assert EIGHT_EXPERTS in table.models
    assert FOUR_EXPERTS not in table.models
    assert table.seeds_of(EIGHT_EXPERTS) == table.seeds_of("dense 8d") == (0, 1, 2)


def test_variants_of_the_floor_leave_something_to_choose() -> None:
    for block in (32, 64, 256, 512):
        assert VARIANTS[f"no block always open, blocks of {block}"] == {"always_open": 0, "block": block}
    assert FFNSettings(**{**AT_1D[GATE], **VARIANTS["floor .055"]}).floor > AT_1D[GATE]["always_open"]
    assert all(len(VARIANTS[name]["rates"]) == 6 for name in VARIANTS if name.startswith("equal tokens"))


def test_a_loss_that_is_no_number_is_stored_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_dir: Path
) -> None:
    def diverge(self: LanguageRun) -> None:
        self.step = 3
        raise DivergenceError("the loss became nan at step 3: lower the learning rate")

    monkeypatch.setattr(LanguageRun, "train", diverge)
    experiment = replace(LANGUAGE, root=tmp_path, quick=True)
    table = experiment.table("python")
    (job,) = [job for job in experiment.jobs([table], device="cpu") if job.model == "dense 1d"]
    assert table.load is not None
    found = table.train(job, table.load(job, data_dir))
    assert found["quality"] == {"bits_per_byte": None}
    assert found["diverged"].startswith("the loss became nan")
    assert found["tokens"] == 3 * 4 * 32
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(("name", "layers"), [("equal tokens", 2), ("no block always open, floor .04", 2)])
def test_quick_runs_of_variants_fit_their_few_layers(name: str, layers: int) -> None:
    asked = {**AT_1D[GATE], **VARIANTS[name]}
    settings = FFNSettings(**{**asked, **train_module.quick_layers(asked, layers)})
    sizes = GPTConfig(vocabulary=256, features=32, layers=layers, heads=2, width=0, context=16)
    assert len(dg.named_gates(prepare(settings, sizes, torch.device("cpu")).model)) == layers
