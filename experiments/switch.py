"""Table 5.5 of the paper on MNIST: unit gates against a mixture of experts, with a dense control and every MAC counted.

    python experiments/switch.py            # train (or continue), write results/switch-mnist.json, fill docs/switch.md
    python experiments/switch.py --quick    # one epoch on a few rows: does everything run?
    python experiments/switch.py --table    # only fill docs/switch.md from the committed results

The settings are those of the published code: AdamW (learning rate 1e-3, weight decay 0.01), batch 128, 8 epochs; the
router with top-2, capacity factor 2.5, random overflow, load balance 1e-2 and z-loss 1e-3; the gate on 512 units reads
the same layer, theta 0.05, mean p times 5e-4 after the first epoch. Different on purpose: 5,000 training rows are kept
for validation, the learning rate falls with a cosine, weight decay spares biases and gates, and there are three seeds.
MNIST is read from the folder in DYNAMICGATE_DATA. Run it again after an interruption: finished runs are found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynamicgate import schedule
from dynamicgate.budget import Budget
from dynamicgate.cost import Ledger
from dynamicgate.data import Splits, load
from dynamicgate.files import write_results, write_text
from dynamicgate.fit import fit
from dynamicgate.gate import GateConfig
from dynamicgate.measure import measure
from dynamicgate.nn import GatedMLP, Normalize, SwitchMLP
from dynamicgate.provenance import environment
from dynamicgate.report import markdown
from dynamicgate.routing import routing
from dynamicgate.save import load as load_model
from dynamicgate.save import save
from dynamicgate.usage import gates_of

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "switch-mnist.json"
PAGE = HERE.parent / "docs" / "switch.md"
EPOCHS, BATCH = 8, 128
TRAINING = {"batch": BATCH, "lr": 1e-3, "weight_decay": 0.01, "warmup": 0.0}
UNIT_GATE = GateConfig(net="linear", reads="same", theta=0.05, open=0.5)  # the published gate has no open start
SIZES = (784, 512, 10)
COLUMNS = {  # of the table, and where a run has them
    "accuracy": "accuracy",
    "active": "active",
    "corr": "corr_hardness",
    "corr, judge": "corr_judge",
    "entropy": "entropy",
    "cv": "cv",
    "MI": "mutual_information",
    "dropped": "dropped",
    "rows short": "rows_short",
    "unserved": "rows_unserved",
    "capacity": "capacity",
    "aux": "aux",
    "parameters": "params",
    "MACs": "executed",
    "of dense": "relative",
}


def dense(normalize: Normalize) -> tuple[nn.Module, Budget | None]:
    """The control that the paper leaves out, and the judge of hardness."""
    return GatedMLP(SIZES, normalize=normalize), None


def gate(normalize: Normalize) -> tuple[nn.Module, Budget | None]:
    """DynamicGate as published: a gate on each unit of the same network."""
    after_the_first_epoch = schedule.phases([0.0, 5e-4], [1 / EPOCHS], blend=0.0)
    budget = Budget(form="linear", weight=after_the_first_epoch, on_collapse="ignore")
    return GatedMLP(SIZES, UNIT_GATE, normalize=normalize), budget


def switch(top_k: int) -> Callable[[Normalize], tuple[nn.Module, Budget | None]]:
    """The published mixture of experts (top-2), or with the true Switch's one expert a row."""

    def prepared(normalize: Normalize) -> tuple[nn.Module, Budget | None]:
        return SwitchMLP(784, top_k=top_k, overflow="random", normalize=normalize), Budget(form="balance", weight=1e-2)

    return prepared


MODELS = {"dense": dense, "gate": gate, "switch top-2": switch(2), "switch top-1": switch(1)}


def run(name: str, seed: int, splits: Splits, epochs: int, out: Path, *, label: str) -> dict[str, Any]:
    """Train one model and measure it once on the test rows, or find what an earlier call left in its folder."""
    model, budget, folder = prepare(name, seed, splits, epochs, out)
    finished = folder / "run.json"
    if finished.exists():
        return json.loads(finished.read_text(encoding="utf-8"))
    history = fit(
        model, splits.train, valid=splits.valid, budget=budget, epochs=epochs, seed=seed, out=folder, label=label,
        **TRAINING,  # type: ignore[arg-type]
    )  # fmt: skip
    save(model, folder / "model.safetensors")
    torch.manual_seed(seed)  # random overflow draws at evaluation too
    measured = measure(model, splits.test, batch=BATCH)
    judge = prepare("dense", seed, splits, epochs, out)[2] / "model.safetensors"
    routed = routing(model, splits.test, batch=BATCH, judge=load_model(judge)).to_dict() if gates_of(model) else {}
    penalties = [row["penalty"] for row in history.log if row["penalty"] is not None and row["epoch"] == epochs - 1]
    full = Ledger(GatedMLP(SIZES)).dense
    result = {
        "model": name,
        "seed": seed,
        "accuracy": measured.quality["accuracy"],
        "valid": history.final,
        "aux": statistics.mean(penalties) if budget is not None else None,
        "params": measured.params,
        "executed": measured.macs["executed"],
        "of which gate": measured.macs["gate"],
        "relative": measured.macs["executed"] / full,
        **routed,
        "seconds": round(history.seconds, 1),
    }
    write_text(finished, json.dumps(result))
    return result


def prepare(name: str, seed: int, splits: Splits, epochs: int, out: Path) -> tuple[nn.Module, Budget | None, Path]:
    """A fresh model with its budget, and the folder of its run, which is found by all that the run was asked to do."""
    torch.manual_seed(seed)
    model, budget = MODELS[name](Normalize(splits.mean, splits.std))
    asked = {
        **TRAINING,
        "epochs": epochs,
        "rows": len(splits.train),
        "model": [f"{key} {list(parameter.shape)}" for key, parameter in model.named_parameters()],
        "gates": {key: asdict(gate.config) for key, gate in gates_of(model).items()},
        "budget": re.sub(" at 0x[0-9a-f]+", "", repr(budget)),
    }
    digest = hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=4).hexdigest()
    return model, budget, out / f"{name.replace(' ', '-')}-s{seed}-{digest}"


def table(results: dict[str, Any]) -> str:
    """One row a model: mean over seeds, with the standard deviation where it shows."""
    lines = [f"| model | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    for name in MODELS:
        runs = [run for run in results["runs"] if run["model"] == name]
        if runs:
            lines.append(
                f"| {name} | {' | '.join(_cell([run.get(key) for run in runs]) for key in COLUMNS.values())} |"
            )
    return "\n".join(lines)


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with the table put between its markers."""
    return markdown.filled(page, "switch", table(results))


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, spread = statistics.mean(known), statistics.stdev(known) if len(known) > 1 else 0.0
    counts = all(isinstance(value, int) for value in known)
    digits = next(digits for least, digits in ((1000, 0), (1, 2), (0.01, 4), (0, 6)) if abs(mean) >= least)
    digits = 0 if counts or mean == 0.0 else digits
    return f"{mean:,.{digits}f}" + (f" ± {spread:,.{digits}f}" if spread > 0.0 else "")


def main() -> None:
    """Train what is missing, write the results and fill the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch, 5,000 rows; leaves no results")
    parser.add_argument(
        "--only", choices=list(MODELS), help="one model, after dense, which is its judge; leaves no results"
    )
    parser.add_argument("--table", action="store_true", help="only fill docs/switch.md from the committed results")
    args = parser.parse_args()
    if not args.table:
        seeds, epochs = (1, 1) if args.quick else (args.seeds, EPOCHS)
        names = list(dict.fromkeys(["dense", args.only])) if args.only else list(MODELS)
        jobs = [(seed, name) for seed in range(seeds) for name in names]
        runs = []
        for position, (seed, name) in enumerate(jobs, start=1):
            splits = load("mnist", seed=seed)
            if args.quick:
                splits = replace(splits, train=splits.train.take(torch.arange(5000)))
            label = f"[{position}/{len(jobs)}] {name} seed {seed}"
            out = HERE.parent / "runs" / ("switch-quick" if args.quick else "switch-mnist")
            runs.append(run(name, seed, splits, epochs, out, label=label))
        meta = {
            **environment("python experiments/switch.py"),
            "seeds": list(range(seeds)),
            "epochs": epochs,
            **TRAINING,
            "data": splits.info(),
        }
        results = {"meta": meta, "runs": runs}
        print(table(results))
        if args.quick or args.only:
            return
        write_results(RESULTS, meta, runs)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), results))


if __name__ == "__main__":
    main()
