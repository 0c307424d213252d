"""Counted work against the clock: trained models, compiled, beside the dense network of the full width.

    python experiments/latency.py                # train (or continue), time with one thread, write results/latency.json
    python experiments/latency.py --only pbmc3k  # one data set; its rows go to runs/latency/, not to the results
    python experiments/latency.py --quick        # one epoch and short races: does everything run?

Every trained model is compiled on test rows at batch 1 and 256, which checks it against the hard model, and then runs
in turn with the dense network of its data and seed in one process with one thread; medians are compared. A ratio below
1 is a gain. MNIST and PBMC 3k are read from the folder in DYNAMICGATE_DATA. Finished runs are found again.

PBMC 3k has the sizes of the paper, GELU, and the 2,000 genes with the largest normalised dispersion (scanpy's
cell_ranger) on training cells: rarely expressed genes, so nearly all inputs are exactly 0. GELU leaves no zeros, so in
the second layer only gate and structure save.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dynamicgate.files import environment, write_results
from dynamicgate.gating.attach import ungate_
from dynamicgate.inference import compile
from dynamicgate.inference.cpu.timing import batches_of, race
from dynamicgate.io.model_file import load as load_model
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.single_cell.prepare import import_scanpy
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import Settings, run_one, settings_hash

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "runs"
BATCHES = (1, 256)
MOST_ROWS = 2048
GENES = 2000
ALL_GENES = 32738


@dataclass(frozen=True)
class Comparison:
    """What the models of one data set share, and what each adds to it; the first is the dense network."""

    settings: Settings
    models: dict[str, dict[str, Any]]
    seeds: int = 1
    quick: dict[str, Any] = field(default_factory=lambda: {"epochs": 1})


COMPARISONS = {
    "mnist": Comparison(
        Settings("mnist", budget=0.1),
        {
            "dense": {},
            "small": {},
            "gate, block 16": {"model": "gate", "block": 16},
            "gate, block 64": {"model": "gate", "block": 64},
            "rigl": {},
            "rigl, 16x1": {"model": "rigl", "pattern": "16x1"},
            "gate+rigl, 16x1": {"model": "gate+rigl", "pattern": "16x1"},
        },
    ),
    "pbmc3k": Comparison(
        Settings(
            "pbmc3k",
            hidden=(1000, 500),
            block=128,
            pattern="16x1",
            activation="gelu",
            data_options=(("genes", str(ALL_GENES)),),
        ),
        {
            "dense": {"block": None, "pattern": "unstructured"},
            "gate+rigl, 16x1, budget 0.1": {"model": "gate+rigl", "budget": 0.1},
            "gate+rigl, 16x1, budget 0.03": {"model": "gate+rigl", "budget": 0.03},
        },
        quick={"epochs": 6},  # of 15 steps each
    ),
}


def rows_of(name: str, seed: int) -> Splits:
    """The data of a comparison, PBMC 3k with the genes chosen here."""
    settings = COMPARISONS[name].settings
    splits = load_dataset(settings.data, seed=seed, options=dict(settings.data_options)).flat()
    return dispersed(splits, GENES) if name == "pbmc3k" else splits


def dispersed(splits: Splits, genes: int) -> Splits:
    """Only the genes whose dispersion stands out most among genes of like mean, on training cells."""
    scanpy, anndata = import_scanpy()
    seen = (splits.train.values > 0).any(0).nonzero().squeeze(1)  # silent genes would fill whole bins of means
    cells = anndata.AnnData(splits.train.values[:, seen].numpy())
    found = scanpy.pp.highly_variable_genes(cells, n_top_genes=genes, flavor="cell_ranger", inplace=False)
    kept = seen[torch.from_numpy(found["highly_variable"].to_numpy())]
    assert isinstance(splits.mean, torch.Tensor)
    assert isinstance(splits.std, torch.Tensor)
    train, valid, test = (
        replace(arrays, x=arrays.values[:, kept].contiguous()) for arrays in (splits.train, splits.valid, splits.test)
    )
    return replace(splits, train=train, valid=valid, test=test, mean=splits.mean[kept], std=splits.std[kept])


def trained(name: str, label: str, seed: int, out: Path, quick: bool) -> tuple[dict[str, Any], Path]:
    """The run of one model and its folder; trained, unless an earlier call has done that."""
    asked = COMPARISONS[name]
    settings = replace(asked.settings, **{"model": label, **asked.models[label], "seed": seed})
    return run_of(replace(settings, **asked.quick) if quick else settings, rows_of(name, seed), out)


def run_of(settings: Settings, splits: Splits, out: Path) -> tuple[dict[str, Any], Path]:
    """The run with these settings on these rows, found by what it was asked to do, and its folder."""
    settings = settings.resolved(splits)
    folder = out / "runs" / f"{settings.model}-s{settings.seed}-{settings_hash(settings, splits)}"
    return run_one(settings, splits, folder), folder


def clocked(
    dense: Path, model: Path, rows: torch.Tensor, seconds: float, batches: Sequence[int] = BATCHES
) -> tuple[dict[str, Any], list[str]]:
    """By batch size the times of the dense network and of the compiled model, and how that runs; the plan's notes."""
    fast = compile(load_model(model), rows, batches=batches, seconds=2 * seconds * len(batches))
    rivals = {"dense": ungate_(load_model(dense)).eval(), "ours": fast}
    found: dict[str, Any] = {}
    for at, batch in enumerate(batches):
        times = race(rivals, batches_of(rows, batch), seconds)
        layers = [layer for chain in fast.plan.chains for layer in chain[at].layers]
        found[str(batch)] = {
            "ratio": times["ours"] / times["dense"],
            "dense_us": times["dense"],
            "ours_us": times["ours"],
            "layers": [{"name": x.name, "choice": x.choice, "us": x.chosen_us, "macs": x.macs} for x in layers],
        }
    return found, fast.plan.notes


def row(name: str, label: str, seed: int, out: Path, quick: bool) -> dict[str, Any]:
    """Quality, counted work and time of one trained model."""
    splits = rows_of(name, seed)
    example = next(iter(splits.test.batches(MOST_ROWS)))[0]
    run, folder = trained(name, label, seed, out, quick)
    _, dense = trained(name, next(iter(COMPARISONS[name].models)), seed, out, quick)
    times, notes = clocked(dense / "model.safetensors", folder / "model.safetensors", example, 0.5 if quick else 6.0)
    macs = run["macs"]
    found = {
        "data": name,
        "model": label,
        "seed": seed,
        "accuracy": run["quality"]["accuracy"],
        "valid_accuracy": run["valid"]["accuracy"],
        "relative": macs["relative"],
        "relative_zero_skip": macs["relative_zero_skip"],
        "input_zeros": float((example == 0).float().mean()),
        "batches": times,
        "notes": notes,
        "settings": run["settings"],
    }
    ratios = "".join(f"  batch {batch} {x['ours_us']:,.1f} us, {x['ratio']:.3f}" for batch, x in times.items())
    print(f"{name}  {label}  {found['accuracy']:.2%}  MACs {found['relative']:.3f}{ratios}", flush=True)
    return found


def main() -> None:
    """Train what is missing with all threads, then time everything in a process with one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(COMPARISONS), help="one data set; leaves no results")
    parser.add_argument("--quick", action="store_true", help="short training, short races; leaves no results")
    parser.add_argument("--clock", action="store_true", help="only time what is trained, in this process")
    args = parser.parse_args()
    out = RUNS / ("latency-quick" if args.quick else "latency")
    jobs = [
        (name, label, seed, out / name, args.quick)
        for name in ([args.only] if args.only else COMPARISONS)
        for seed in range(COMPARISONS[name].seeds)
        for label in COMPARISONS[name].models
    ]
    if args.clock:
        path = out / f"{args.only or 'all'}.json" if args.only or args.quick else HERE / "results" / "latency.json"
        rows = [row(*job) for job in jobs]
        write_results(path, environment("python experiments/latency.py"), rows)
        print(f"wrote {path.relative_to(HERE.parent)}")
        return
    for job in jobs:
        trained(*job)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--clock"], env=one_thread, check=True)


if __name__ == "__main__":
    main()
