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
from experiments.language import page
from experiments.language.plot import plot_costs
from experiments.language.tables import AT_1D, FRONTIER, GATE, LANGUAGE, VARIANTS

import dynamicgate as dg
from dynamicgate.accounting import count_macs
from dynamicgate.lab.language.ffn_methods import FFNSettings
from dynamicgate.lab.language.gpt import GPT, GPTConfig
from dynamicgate.lab.language.model_file import load_gpt
from dynamicgate.lab.result_file import read_runs


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
    assert "| the least expected tenth |" in page.token_table({GATE: [gate]})
    out = tmp_path / "tried" / "gpt.safetensors"
    run(monkeypatch, "save", "python", GATE, "--out", str(out), *words[1:])
    model, tokenizer, notes = load_gpt(out)
    assert (tokenizer.size, notes["text"], len(dg.named_gates(model))) == (256, "python", 2)


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
    assert "| gate 16d | 0.100 | 0.020 | 0.1900 | 0.1900 | 0 |" in page.layers_table(rows)
    assert plot_costs("python", rows).startswith("<svg")


def test_variants_and_rates_are_shown_relative_to_what_they_change() -> None:
    rows = {"as it is": [fake("as it is", 0, 1.4)], "ramp .5": [fake("ramp .5", 0, 1.45, executed=2e7)]}
    assert "| ramp .5 | 1.4500 | +0.0500 | 2.00 | 1 |" in page.variants_table(rows)
    assert page.variants_table({}) == ""
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
