"""Which parts of the budget's controller are needed, and what noise in training adds: an ablation on digits.

    python -m experiments.controller            # writes experiments/results/controller-digits.json

Variants of the same gated network at the same budget, over paired seeds. "before" is what the hard gates execute before
the final calibration, "after" what they execute with it; accuracy is that of the finished model on validation data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dynamicgate.budget import Budget
from dynamicgate.files import environment, write_text
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods.hyperparameters import Settings, given
from dynamicgate.lab.methods.models import gate
from dynamicgate.training import fit

HERE = Path(__file__).resolve().parent
VARIANTS: dict[str, tuple[dict[str, Any], Callable[[float], Budget]]] = {
    "penalty and steering": ({}, lambda target: Budget(target=target)),
    "penalty alone": ({}, lambda target: Budget(target=target, steer=0.0)),
    "steering alone": ({}, lambda target: Budget(target=target, gain=0.0, integral=0.0)),
    "both, no noise (policy hard)": ({"policy": "hard"}, lambda target: Budget(target=target)),
}


def run(variant: str, seed: int, epochs: int) -> dict[str, float]:
    """Train one variant; returns what it executed and its accuracy on validation data."""
    changes, make_budget = VARIANTS[variant]
    splits = load_dataset("digits", seed=seed)
    settings = replace(Settings(seed=seed, epochs=epochs), **changes).resolved(splits)
    torch.manual_seed(seed)
    model = gate(settings, splits).model
    budget = make_budget(settings.budget)
    with tempfile.TemporaryDirectory() as folder:
        history = fit(
            model, splits.train, valid=splits.valid, budget=budget, epochs=epochs, batch=given(settings.batch),
            lr=given(settings.lr), weight_decay=settings.weight_decay, seed=seed, out=folder,
            label=f"{variant}, seed {seed}",
        )  # fmt: skip
    assert history.final is not None
    before = next(row["valid"]["relative"] for row in reversed(history.log) if row["valid"])
    return {"seed": seed, "before": before, "after": history.final["relative"], "accuracy": history.final["accuracy"]}


def main() -> None:
    """Run all variants in a long and in a short training, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for epochs in (60, 10):
        for variant in VARIANTS:
            runs = [run(variant, seed, epochs) for seed in range(args.seeds)]
            mean = {key: statistics.mean(r[key] for r in runs) for key in ("before", "after", "accuracy")}
            print(f"{epochs:>3} epochs  {variant:<30}", "  ".join(f"{key} {value:.4f}" for key, value in mean.items()))
            rows.append({"variant": variant, "epochs": epochs, "mean": mean, "runs": runs})
    meta = {**environment("python -m experiments.controller"), "data": "digits", "budget": Settings().budget}
    write_text(HERE / "results" / "controller-digits.json", json.dumps({"meta": meta, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
