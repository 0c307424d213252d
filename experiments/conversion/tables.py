"""Which students are compared, and with how many tokens each is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.runner import Experiment, Job, Table
from experiments import ROOT
from experiments.conversion import language, sentences
from experiments.conversion.own_text import read_own_text
from experiments.conversion.texts import OWN_TEXT, TESTED_ON, Texts, load_texts, own_texts

DENSE = "dense + same tokens"
FRACTIONS = (0.75, 0.5, 0.25)  # of the MACs of the feed-forward layers
MAGNITUDE: dict[str, Any] = {
    "method": "magnitude",
    "ramp": 0.05,
    "at_once": 16,
}  # at_once: windows, because decisions on single units take memory
TOLD_FASTER: dict[str, dict[str, Any]] = {  # students of SmolLM2 that are asked for with three times the rate too
    "magnitude {}": MAGNITUDE,
    "gate {}, blocks of 8": {"method": "gate", "block": 8},
    "static width {}": {"method": "static width"},
}
FOUR_TIMES_THE_STEPS = {"batch": 8, "lr": 6e-4}
SMALL_BATCHES: dict[str, Any] = {**MAGNITUDE, "at_once": None, "gate_lr": 1e-2}
MORE_STEPS: dict[str, dict[str, Any]] = {  # all with the same batches and rate
    DENSE: {"method": "dense"},
    "magnitude 50 %": {**SMALL_BATCHES, "ffn": 0.5},
    "magnitude 50 %, inputs alone": {**SMALL_BATCHES, "ffn": 0.5, "factors": False},
    "magnitude 25 %": {**SMALL_BATCHES, "ffn": 0.25},
    "static width 50 %": {"method": "static width", "ffn": 0.5},
    "static width 25 %": {"method": "static width", "ffn": 0.25},
}
DESIGNS: dict[str, dict[str, Any]] = {  # of the gate: smaller blocks choose more finely, and their networks cost more
    "blocks of 16, longer ramp": {"block": 16, "ramp": 0.8},
    "blocks of 8": {"block": 8},
    "single units, rank d / 8": {"block": 1, "rank": 1 / 8},
}
FASTER = 5e-4  # learning rate of the weights, in place of 1e-4
FASTER_NAME = "learning rate 5e-4"
WAYS: dict[str, dict[str, Any]] = {  # to train students of MiniLM; of_tokens: on the outputs of all layers too
    FASTER_NAME: {"lr": FASTER},
    f"{FASTER_NAME}, tokens too": {"lr": FASTER, "of_tokens": 1.0},
    f"{FASTER_NAME}, no dropout": {"lr": FASTER, "dropout": False},
    f"{FASTER_NAME}, tokens too, no dropout": {"lr": FASTER, "of_tokens": 1.0, "dropout": False},
}
MILLION = 1_000_000
SMOLLM2_TOKENS = {
    "smollm2": 60 * MILLION, "smollm2-10m": 10 * MILLION, "smollm2-2m": 2 * MILLION, "smollm2-own-text": 10 * MILLION,
    "smollm2-own-text-20m": 20 * MILLION,
}  # fmt: skip
MINILM_TOKENS = {  # minilm-less-text draws its tokens from a part of the books, which `tokens --millions 12` makes
    "minilm-60m": 60 * MILLION, "minilm": 20 * MILLION, "minilm-less-text": 20 * MILLION, "minilm-2m": 2 * MILLION,
}  # fmt: skip
SMOLLM2 = {"context": 1024, "batch": 32, "windows": 256}
MINILM = {"batch": 512, "sentences": 4096}
QUICK_SMOLLM2 = {"context": 32, "batch": 4, "at_once": None, "windows": 8, "tokens": 20 * 4 * 32}
QUICK_MINILM = {"batch": 8, "sentences": 32, "tokens": 4000}


def percent(fraction: float) -> str:
    """As names of models have it."""
    return f"{100 * fraction:.0f} %"


def smollm2_models(tokens: int) -> dict[str, dict[str, Any]]:
    """Everything at every fraction; what needs no training comes first, because it is quick."""
    shared = {**SMOLLM2, "tokens": tokens}
    models: dict[str, dict[str, Any]] = {DENSE: {**shared, "method": "dense"}}
    for method in (
        "unit oracle",
        "block oracle",
        "ordered block oracle",
        "threshold",
        "input thresholds",
        "gate",
        "static width",
        "experts",
    ):
        for ffn in FRACTIONS:
            if method == "threshold" and ffn <= 1 / 3:  # the gate projection, which is always computed, is a third
                continue
            models[f"{method} {percent(ffn)}"] = {**shared, "method": method, "ffn": ffn}
    for ffn in FRACTIONS:
        for name, design in DESIGNS.items():
            models[f"gate {percent(ffn)}, {name}"] = {**shared, "method": "gate", "ffn": ffn, **design}
        models[f"magnitude {percent(ffn)}"] = {**shared, "ffn": ffn, **MAGNITUDE}
        for name, asked in TOLD_FASTER.items():
            models[f"{name.format(percent(ffn))}, learning rate 3e-4"] = {**shared, "ffn": ffn, "lr": 3e-4, **asked}
    for method, asked in MORE_STEPS.items():
        models[f"{method}, more steps"] = {**shared, **FOUR_TIMES_THE_STEPS, **asked}
    return models


def minilm_models(tokens: int) -> dict[str, dict[str, Any]]:
    """Gates at half and at a quarter of the feed-forward layers, and their controls."""
    shared = {**MINILM, "tokens": tokens}
    models = {}
    for ffn in (0.5, 0.25):
        for method in ("gate", "static width", "converted"):
            models[f"{method} {percent(ffn)}"] = {**shared, "method": method, "ffn": ffn}
        for name, design in DESIGNS.items():
            models[f"gate {percent(ffn)}, {name}"] = {**shared, "method": "gate", "ffn": ffn, **design}
        for name, way in WAYS.items():
            for method in ("gate", "static width"):
                models[f"{method} {percent(ffn)}, {name}"] = {**shared, "method": method, "ffn": ffn, **way}
            models[f"gate {percent(ffn)}, blocks of 8, {name}"] = {
                **shared, "method": "gate", "ffn": ffn, "block": 8, **way,
            }  # fmt: skip
    return models


def load_language(job: Job, data_dir: Path | None) -> Texts:
    """All texts, in tokens of SmolLM2; in a quick run text of this repository."""
    return own_texts(TESTED_ON) if job.quick else load_texts("smollm2", TESTED_ON, data_dir)


def load_with_own_text(job: Job, data_dir: Path | None) -> Texts:
    """The same and, to learn from, text that the dense model wrote."""
    found = load_language(job, data_dir)
    if job.quick:
        return found
    own = read_own_text("smollm2", data_dir or default_data_dir())
    return Texts({**found.texts, OWN_TEXT: own}, found.folder)


def load_sentences(job: Job, data_dir: Path | None) -> Texts:
    """Books, in tokens of MiniLM."""
    return own_texts(("books",)) if job.quick else load_texts("minilm", ("books",), data_dir)


def tables() -> tuple[Table, ...]:
    """All tables; those with fewer tokens are for less time on a GPU."""
    made = [
        Table(
            name=name, data=f"books+python+{OWN_TEXT}" if OWN_TEXT in name else "books+python",
            models=smollm2_models(tokens), train=language.train,
            load=load_with_own_text if OWN_TEXT in name else load_language, seeds=(0,), quick=QUICK_SMOLLM2,
        )
        for name, tokens in SMOLLM2_TOKENS.items()
    ]  # fmt: skip
    made += [
        Table(
            name=name, data="books", models=minilm_models(tokens), train=sentences.train, load=load_sentences,
            seeds=(0, 1, 2), quick=QUICK_MINILM,
        )
        for name, tokens in MINILM_TOKENS.items()
    ]  # fmt: skip
    return tuple(made)


CONVERSION = Experiment("conversion", tables(), ROOT)
