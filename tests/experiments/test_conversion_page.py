"""What is asked of converted models, and what the page says of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from experiments.conversion import language, page, tables
from experiments.conversion.models import language_model
from experiments.conversion.students import Arm, Samples, make_student
from experiments.conversion.texts import TESTED_ON
from experiments.conversion.training import Training, rate_of
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.result_file import write_runs
from dynamicgate.lab.runner import Experiment


def stored(experiment: Experiment, name: str, runs: dict[str, dict[str, Any]]) -> None:
    """Runs of these models, as a finished experiment leaves them."""
    data = {"name": "x", "train": 24_000_000, "valid": 1, "test": 1, "features": "smollm2", "classes": 9}
    found = []
    for job in experiment.jobs([experiment.table(name)]):
        if job.model in runs and job.seed == 0:
            meta = {"data": data, "created": "2026-01-01"}
            found.append({"model": job.model, "seed": 0, "hash": job.hash, "meta": meta, **runs[job.model]})
    write_runs(experiment.results / f"{name}.jsonl", found)


def test_the_page_compares_with_the_dense_model_that_had_the_same_tokens(tmp_path: Path) -> None:
    experiment = Experiment("conversion", tables.tables(), tmp_path)
    assert page.pages(experiment) == {page.PAGE: {"conversion": page.MISSING, "minilm": page.MISSING}}

    def language_run(bits: float, tokens: int, ffn: float) -> dict[str, Any]:
        macs = {"ffn": ffn}
        test = {name: {"perplexity": 20.0 * bits, "bits_per_byte": bits, "macs": macs} for name in TESTED_ON}
        macs = {"ffn": ffn, "relative": 0.68}
        return {"quality": {"bits_per_byte": bits, "test": test}, "macs": macs, "tokens": tokens}

    dense, gate, oracle = language_run(1.0, 5, 1.0), language_run(1.1, 5, 0.5), language_run(1.2, 0, 0.5)
    stored(experiment, "smollm2-2m", {tables.DENSE: dense, "gate 50 %": gate, "block oracle 50 %": oracle})
    encoder = {"quality": {"cosine": 0.98, "least": 0.9}, "macs": {"ffn": 0.5, "relative": 0.7}, "tokens": 5}
    stored(experiment, "minilm", {"gate 50 %": encoder})
    sections: Any = page.pages(experiment)[page.PAGE]
    assert "Trained with 2 M tokens each, drawn from 24.0 M tokens of text:" in sections["conversion"]
    texts = "22.00 (+10.0%) | 22.00 (+10.0%) | 22.00 (+10.0%)"
    assert f"| gate 50 % | 0.500 | 0.680 | {texts} | 1.1000 | +10.0% | yes |" in sections["conversion"]
    assert "| 1.2000 | +20.0% | no |" in sections["conversion"]
    assert "No run yet: unit oracle 75 %; " in sections["conversion"]
    missing = len(tables.smollm2_models(1)) - 3 - page.NAMED
    assert f"; {missing} more." in sections["conversion"]
    assert "| gate 50 % | 0.500 | 0.700 | 0.9800 | 0.9000 | yes | 1 |" in sections["minilm"]


def test_the_page_says_what_is_executed_where_it_differs_by_text_and_which_runs_diverged() -> None:
    def quality(ffn: float) -> dict[str, Any]:
        test = {
            name: {"perplexity": 20.0, "bits_per_byte": 1.0, "macs": {"ffn": ffn + 0.01 * number}}
            for number, name in enumerate(TESTED_ON)
        }
        return {"quality": {"bits_per_byte": 1.0, "test": test}, "macs": {"ffn": ffn, "relative": 0.7}, "tokens": 5}

    lost = {"quality": {"bits_per_byte": None}, "macs": {"relative": None}, "tokens": 5, "diverged": "at step 3"}
    text = page.conversion_table({"gate 50 %": [quality(0.5)], "experts 50 %": [lost]})
    assert "| gate 50 % | 0.500, 0.510, 0.520 |" in text
    assert "| experts 50 % | diverged |" in text
    assert "| 0, 1 diverged |" in page.minilm_table({"gate 50 %": [lost]})


def test_other_designs_of_the_gate_are_asked_for_at_every_fraction() -> None:
    models = tables.smollm2_models(tables.MILLION)
    for ffn in tables.FRACTIONS:
        arms = []
        for design in tables.DESIGNS:
            asked = models[f"gate {tables.percent(ffn)}, {design}"]
            arms.append(Arm(**{name: asked[name] for name in language.ARM if name in asked}))
        assert all((arm.method, arm.ffn) == ("gate", ffn) for arm in arms)
        assert [(arm.block, arm.rank, arm.ramp) for arm in arms] == [(16, None, 0.8), (8, None, 0.5), (1, 0.125, 0.5)]
    assert (Arm(method="gate").rank, Arm(method="gate").ramp) == (None, 0.5)
    assert {asked["ffn"] for asked in tables.minilm_models(tables.MILLION).values()} == {0.5, 0.25}


def test_the_rank_of_a_design_is_that_of_its_gate_networks() -> None:
    dense = language_model(None).requires_grad_(False)
    batches = [
        {"input_ids": torch.randint(256, (8, 16), generator=torch.Generator().manual_seed(seed))} for seed in (0, 1)
    ]
    samples = Samples(batches, batches)
    arm = Arm(method="gate", ffn=0.6, **tables.DESIGNS["single units, rank d / 8"])
    for gate in dg.named_gates(make_student(arm, dense, samples).model).values():
        assert isinstance(gate.net, nn.Sequential)
        assert (gate.block, gate.blocks) == (1, 128)
        assert gate.net[0].weight.shape == (4, 32), "32 features, an eighth of them"
    plain = dg.named_gates(make_student(Arm(method="gate", ffn=0.6, block=8), dense, samples).model)
    assert {type(gate.net) for gate in plain.values()} == {nn.Linear}


def test_a_student_is_trained_in_the_way_that_it_asks_for() -> None:
    models = tables.minilm_models(tables.MILLION)
    for ffn in ("50 %", "25 %"):
        for student, block in ((f"gate {ffn}", None), (f"static width {ffn}", None), (f"gate {ffn}, blocks of 8", 8)):
            asked = models[student]
            assert (rate_of(asked), asked.keys() & {"of_tokens", "dropout"}) == ({}, set())
            for name, of_tokens, dropout in (
                ("learning rate 5e-4", None, None),
                ("learning rate 5e-4, tokens too", 1.0, None),
                ("learning rate 5e-4, no dropout", None, False),
                ("learning rate 5e-4, tokens too, no dropout", 1.0, False),
            ):
                asked = models[f"{student}, {name}"]
                assert Training(steps=1, **rate_of(asked)).lr == 5e-4
                assert (asked.get("block"), asked.get("of_tokens"), asked.get("dropout")) == (block, of_tokens, dropout)
    assert Training(steps=1).lr == 1e-4
    assert len(models) == 2 * (3 + len(tables.DESIGNS) + 3 * 4)
