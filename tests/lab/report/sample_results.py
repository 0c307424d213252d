"""Small, realistic results for the tests of the report; every random number is seeded."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

from dynamicgate.lab.report.reading import LOG_FILE, SAMPLES_FILE, SPARSITY_KEY, TIMING_FILE

SHAPES = {  # model: (accuracy, relative, macro-F1 below accuracy, parameters)
    "dense": (0.9790, 1.0, 0.0008, 9610),
    "small": (0.9710, 0.302, 0.0010, 2910),
    "dropout": (0.9805, 1.0, 0.0008, 9610),
    "static": (0.9660, 0.297, 0.0012, 9618),
    "gate": (0.9755, 0.301, 0.0010, 10138),
}
SPARSE = {
    "pruned": (0.9770, 0.30, 0.0009, 9610),
    "static-sparse": (0.9690, 0.30, 0.0011, 9610),
    "rigl": (0.9745, 0.30, 0.0010, 9610),
    "set": (0.9735, 0.30, 0.0010, 9610),
    "gate+rigl": (0.9760, 0.302, 0.0010, 10138),
    "switch": (0.9725, 0.31, 0.0010, 38500),
}
STAGED = {
    "staged": (0.9765, 0.30, 0.0010, 14410),
    "cascade": (0.9735, 0.30, 0.0010, 28830),
    "staged-random": (0.9640, 0.30, 0.0010, 14410),
}
DYNAMIC_SPARSE = ("rigl", "set", "gate+rigl", "staged", "staged-random")
IN_STAGES = tuple(STAGED)
ALL_MODELS = (*SHAPES, *SPARSE)
STAGE_COSTS = (0.12, 0.42, 0.9)
STAGE_STOPS = (216, 108, 36)  # of 360 samples
DENSE_MACS = 9472


def make_run(model: str, seed: int, data: str = "digits") -> dict[str, Any]:
    """A run as `dynamicgate compare` writes it."""
    chance = random.Random(f"{data}-{model}-{seed}")
    accuracy, relative, below, params = {**SHAPES, **SPARSE, **STAGED}[model]
    accuracy += chance.gauss(0, 0.004)
    gated = model in ("static", "gate", "gate+rigl", "switch")
    relative += chance.gauss(0, 0.003) if gated else 0.0
    return {
        "model": model,
        "seed": seed,
        "data": data,
        "quality": {"accuracy": accuracy, "macro_f1": accuracy - below},
        "macs": {
            "dense": DENSE_MACS,
            "executed": relative * DENSE_MACS,
            "gate": 512.0 if "gate" in model else 0.0,
            "relative": relative,
            "relative_zero_skip": relative * chance.uniform(0.5, 0.6),
        },
        "proxies": {
            "compute_proxy_p": 0.29 if gated else None,
            "compute_proxy_g": 0.25 if gated else None,
            "relmac_p": 0.28 if gated else None,
            "relmac_g": 0.24 if gated else None,
            "relmac_fuse_p": None,
            "relmac_fuse_g": None,
        },
        "layers": [
            {"name": "layers.0", "open": relative, "density": 1.0, "macs": relative * 8192},
            {"name": "layers.1", "open": relative, "density": 1.0, "macs": relative * 1280},
        ],
        "params": params,
        "seconds": 6.0 + chance.random(),
        "budget": 0.3 if gated or model in STAGED else None,
        "folder": f"runs/{model}-s{seed}-1a2b3c4d",
        "samples": {"p5": relative * 0.8, "p50": relative, "p95": relative * 1.2},
        "gates": [make_gate(model, chance)] if gated else [],
        **(make_stages(accuracy) if model in STAGED else {}),
    }


def make_stages(accuracy: float) -> dict[str, Any]:
    """What a run says about three stages, and its curve."""
    each = [accuracy - 0.02, accuracy - 0.005, accuracy + 0.005]
    curve = [
        {"relative": 0.12 + 0.78 * at / 4, "accuracy": each[0] + 0.025 * at / 4, "cut": None if at == 4 else -at}
        for at in range(5)
    ]
    stages = {"open": [1.0, 0.4, 0.1], "relative": list(STAGE_COSTS), "accuracy": each}
    return {"stages": {**stages, "random": accuracy - 0.01, "cost_error": 0.25, "cut": [-1.0, -1.0]}, "curve": curve}


def make_gate(model: str, chance: random.Random) -> dict[str, Any]:
    """A gate of eight blocks: the static one opens the same two for every class."""
    static = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    rates = [static if model == "static" else [round(chance.random() ** 2, 3) for _ in range(8)] for _ in range(10)]
    varying = 0.0 if model == "static" else 0.75
    return {
        "name": "layers.1",
        "blocks": 8,
        "block": 16,
        "open": 0.25,
        "always_on": 0.25 if not varying else 0.125,
        "always_off": 0.75 if not varying else 0.125,
        "varying": varying,
        "variance": 0.14 * bool(varying),
        "open_by_class": rates,
    }


def make_results(models: tuple[str, ...] = tuple(SHAPES), seeds: int = 5, data: str = "digits") -> dict[str, Any]:
    """Results of every model over the seeds, with what is known about the machine."""
    return {
        "meta": {
            "created": "2025-11-15T02:10:00+00:00",
            "commit": "1a2b3c4d5e6f",
            "versions": {"dynamicgate": "0.1.0", "torch": "2.13.0", "python": "3.11.2", "numpy": "2.3.1"},
            "machine": {"system": "Linux", "arch": "aarch64", "cores": 2, "threads": 2},
            "command": "dynamicgate demo --budget 0.3 --seeds 5",
            "budget": 0.3,
            "seeds": list(range(seeds)),
            "epochs": 30,
            "hidden": [128],
            "data": {
                "name": data,
                "train": 1149,
                "valid": 288,
                "test": 360,
                "features": 64,
                "classes": 10,
                "majority": 0.1019,
            },
        },
        "runs": [make_run(model, seed, data) for model in models for seed in range(seeds)],
    }


def with_savings(run: dict[str, Any], by_sparsity: float, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The run with what sparsity saves, what gates save, and notes."""
    macs = run["macs"]
    by_gates = 1.0 - by_sparsity - macs["relative"] + macs["gate"] / macs["dense"]
    return {**run, "macs": {**macs, "structure_saved": by_sparsity, "gate_saved": by_gates}, "notes": list(notes)}


def make_sparsity_rows(progress: float, layers: int = 1) -> dict[str, dict[str, float]]:
    """What a log entry says about sparse layers: exploration grows from the density, churn falls to 0."""
    return {
        f"layers.{index}": {
            "density": 0.2,
            "explored": 0.2 + (0.4 - 0.1 * index) * progress,
            "churn": 0.3 * (1 - progress),
        }
        for index in range(layers)
    }


def make_log(steps: int = 200, seed: int = 0, sparse_layers: int = 0) -> list[dict[str, Any]]:
    """A training log in which a gate closes from 0.8 towards its target, and so many layers prune and regrow."""
    chance = random.Random(seed)
    entries = []
    for step in range(steps):
        progress = step / (steps - 1)
        opened = 0.25 + 0.55 * (1 - progress) ** 3 + chance.gauss(0, 0.015)
        entries.append(
            {
                "step": step,
                "epoch": step // 10,
                "progress": progress,
                "loss": 2.3 * (1 - progress) + 0.05,
                "penalty": 0.1,
                "lr": 0.001,
                "relative": opened + 0.05,
                "reference": 0.3 + 0.7 * max(0.0, 1 - 3 * progress),
                "lambda": 2.0 * progress * (1 - progress),
                "sites": {"layers.1": {"p": opened + 0.02, "g": opened, "tau": 1.0, "theta": 0.5, "cut": 0.5}},
                "valid": {"accuracy": 0.9 * progress} if step % 20 == 19 else None,
                **({SPARSITY_KEY: make_sparsity_rows(progress, sparse_layers)} if sparse_layers else {}),
            }
        )
    return entries


def make_timing(
    run: dict[str, Any], batches: tuple[int, ...] = (1, 16, 256), threads: int = 1, as_older_versions: bool = False
) -> dict[str, Any]:
    """What `dynamicgate bench` writes; small batches have an overhead. Older versions timed the model without
    its gates, and a narrow network is fast then."""
    width = 0.3 if run["model"] == "small" else 1.0
    rows = []
    for batch in batches:
        full = 20.0 + 2.0 * batch
        ours = full * (run["macs"]["relative"] + 0.2 / batch)
        eager, fastest = 5.0 * full, full * width if as_older_versions else full
        kinds = {"dense": fastest} if as_older_versions else {"dense": eager, "dense, compiled": fastest}
        gains = {} if as_older_versions else {"kernel_gain": [5.0] * 3, "gate_gain": [fastest / ours] * 3}
        rows.append({"batch": batch, **kinds, "ours": ours, **gains})
    meta = {"command": "dynamicgate bench", "machine": {"cores": 2, "threads": threads}}
    asked = {} if as_older_versions else {"dense_as_asked_for": True}
    return {"meta": meta, **asked, "rows": rows, "plan": {"chains": [], "threads": threads}}


def make_picture(shade: int) -> str:
    """A PNG of two by two grey pixels in base64."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    lines = zlib.compress(bytes([0, shade, 255, 0, 0, shade]))
    parts = (b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)), (b"IDAT", lines), (b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)).decode()


def make_sample(run: dict[str, Any], row: int, cost: float, predicted: int = 3, **look: Any) -> dict[str, Any]:
    """A test sample of class 3 that cost this fraction of the dense MACs."""
    measured = {"macs": cost * (run["macs"].get("dense") or 0.0), "hardness": 0.25}
    return {"row": row, **measured, "label": 3, "predicted": predicted, **(look or {"picture": make_picture(row)})}


def make_sample_stats(run: dict[str, Any]) -> dict[str, Any]:
    """What measuring leaves beside a run: gates that depend on the input spend more on some samples."""
    dense, relative = (run["macs"].get(key) or 0.0 for key in ("dense", "relative"))
    staged = bool(run.get("stages"))
    varies = staged or any(gate["varying"] for gate in run.get("gates") or [])
    low, high = (relative - 0.1, relative + 0.1) if varies else (relative, relative)
    levels = [
        {"macs": cost * dense, "count": count, "wrong": 2 * (at + 1), "hardness": 0.1 + 0.2 * at}
        for at, (cost, count) in enumerate(zip(STAGE_COSTS, STAGE_STOPS, strict=True))
    ]
    kinds = ("easiest", "hardest", "cheapest", "most_expensive") if varies else ("easiest", "hardest")
    return {
        "count": 360,
        "classes": [],
        "macs": {"low": low * dense, "high": high * dense, "counts": [10, 80, 180, 80, 10] if varies else [360]},
        "macs_by_class": [relative * dense] * 10,
        "macs_if_right": relative * dense,
        "macs_if_wrong": (relative + 0.02 * varies) * dense,
        "correlation": 0.125 if varies else None,
        **({"levels": levels, "cost_error": 0.25} if staged else {}),
        **{
            kind: [
                make_sample(run, row, STAGE_COSTS[row % 3] if staged else relative, predicted=3 if row else 8)
                for row in range(3 * place, 3 * place + 3)
            ]
            for place, kind in enumerate(kinds)
        },
    }


def write_timings(folder: Path, results: dict[str, Any], models: tuple[str, ...] = ()) -> Path:
    """The same folder after `dynamicgate bench` on every run, or on those of some models."""
    for run in results["runs"]:
        if not models or run["model"] in models:
            (folder / run["folder"] / TIMING_FILE).write_text(json.dumps(make_timing(run)), encoding="utf-8")
    return folder


def write_sample(folder: Path, results: dict[str, Any]) -> Path:
    """The folder that `dynamicgate compare` writes: results.json, and a log and sample statistics for every run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    for index, run in enumerate(results["runs"]):
        if not run.get("folder"):
            continue
        place = folder / run["folder"]
        place.mkdir(parents=True, exist_ok=True)
        entries = make_log(seed=index, sparse_layers=2 if run["model"] in DYNAMIC_SPARSE else 0)
        if not run.get("gates"):
            entries = [{**entry, "sites": {}, "relative": None, "reference": None} for entry in entries]
        (place / SAMPLES_FILE).write_text(json.dumps(make_sample_stats(run)), encoding="utf-8")
        (place / LOG_FILE).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return folder
