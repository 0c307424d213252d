"""Counted work against latency: trained models, compiled, compared with the dense network of the full width.

python -m experiments.latency           # train what is missing, time with one thread, write results/latency.json
python -m experiments.latency pbmc3k    # one dataset; its rows go to runs/latency, not to the results
python -m experiments.latency --quick   # short training and timing: does everything run?

Every trained model is compiled on validation rows at batch 1 and 256, which verifies it against the reference model.
Then it runs over test rows in turn with the dense network of its dataset and seed, in one process with one thread. The
dense network runs three ways: eager, by `torch.compile` and as our own plan. Ratios are to the faster of the last two;
one below 1 is a gain. MNIST and PBMC 3k are read from the folder in DYNAMICGATE_DATA.

PBMC 3k has the sizes of the paper, GELU, and the 2,000 genes with the largest normalised dispersion (scanpy's
cell_ranger) on training cells: rarely expressed genes, so nearly all inputs are exactly 0. GELU leaves no zeros, so in
the second layer only gates and masks save.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynamicgate.files import environment, write_results
from dynamicgate.gating.attach import ungate_
from dynamicgate.inference import compile
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.timing import batches_of
from dynamicgate.io.model_file import load as load_model
from dynamicgate.lab.datasets.single_cell.preprocessing import import_scanpy
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Experiment, Job, Table, run_jobs, run_parallel, train_settings
from dynamicgate.lab.runner.prepared import load_splits
from experiments import ROOT
from experiments.command import asked_experiment, engine_of, exit_code, parser_of

MODULE = "experiments.latency"
MODEL = "model.safetensors"
BATCHES = (1, 256)
RIVALS = ("torch.compile", "our dense plan")
MAX_ROWS = 2048
GENES = 2000
ALL_GENES = 32738


def most_dispersed(splits: Splits, genes: int = GENES) -> Splits:
    """Only the genes whose dispersion is largest compared with genes of similar mean, on training cells."""
    scanpy, anndata = import_scanpy()
    expressed = (splits.train.values > 0).any(0).nonzero().squeeze(1)  # silent genes would fill whole bins of means
    cells = anndata.AnnData(splits.train.values[:, expressed].numpy())
    found = scanpy.pp.highly_variable_genes(cells, n_top_genes=genes, flavor="cell_ranger", inplace=False)
    kept = expressed[torch.from_numpy(found["highly_variable"].to_numpy())]
    assert isinstance(splits.mean, torch.Tensor)
    assert isinstance(splits.std, torch.Tensor)
    train, valid, test = (
        replace(arrays, x=arrays.values[:, kept].contiguous()) for arrays in (splits.train, splits.valid, splits.test)
    )
    return replace(splits, train=train, valid=valid, test=test, mean=splits.mean[kept], std=splits.std[kept])


PBMC3K: dict[str, Any] = {"hidden": [1000, 500], "activation": "gelu"}
IN_TILES: dict[str, Any] = {"model": "gate+rigl", "pattern": "16x1"}
TABLES = (
    Table(
        name="mnist",
        data="mnist",
        models={
            "dense": {"budget": 0.1},
            "small": {"budget": 0.1},
            "gate, block 16": {"model": "gate", "block": 16, "budget": 0.1},
            "gate, block 64": {"model": "gate", "block": 64, "budget": 0.1},
            "rigl": {"budget": 0.1},
            "rigl, 16x1": {"model": "rigl", "pattern": "16x1", "budget": 0.1},
            "gate+rigl, 16x1": {**IN_TILES, "budget": 0.1},
        },
        train=train_settings,
        seeds=(0,),
    ),
    Table(
        name="pbmc3k",
        data="pbmc3k",
        data_options={"genes": ALL_GENES},
        changes=(Change("most_dispersed", most_dispersed),),
        models={
            "dense": PBMC3K,
            "gate+rigl, 16x1, budget 0.1": {**PBMC3K, **IN_TILES, "block": 128, "budget": 0.1},
            "gate+rigl, 16x1, budget 0.03": {**PBMC3K, **IN_TILES, "block": 128, "budget": 0.03},
        },
        train=train_settings,
        seeds=(0,),
        quick={"epochs": 6},  # of 15 steps each
    ),
)
LATENCY = Experiment("latency", TABLES, ROOT)


def time_model(
    dense: Path,
    model: Path,
    example: torch.Tensor,
    stream: torch.Tensor,
    seconds: float,
    batches: Sequence[int] = BATCHES,
) -> tuple[dict[str, Any], list[str]]:
    """By batch size the times of the dense network in its three ways and of the compiled model, and how its layers run;
    the plan's notes."""
    compiled = compile(load_model(model), example, batches=batches, seconds=2 * seconds * len(batches))
    plain = ungate_(load_model(dense)).eval()
    candidates: dict[str, Callable[[torch.Tensor], object]] = {
        "eager": plain,
        "torch.compile": torch.compile(plain, dynamic=False),
        "our dense plan": compile(plain, example, batches=batches, seconds=2 * seconds * len(batches)),
        "ours": compiled,
    }
    found: dict[str, Any] = {}
    for at, batch in enumerate(batches):
        rows = batches_of(stream, batch)
        with torch.inference_mode():
            candidates["torch.compile"](rows[0])  # compiles for this size now, so that the clock does not see it
        times = time_calls(candidates, rows, seconds)
        rival = min(RIVALS, key=times.__getitem__)
        layers = [layer for chain in compiled.plan.chains for layer in chain[at].layers]
        found[str(batch)] = {
            "ratio": times["ours"] / times[rival],
            "rival": rival,
            "us": times,
            "layers": [{"name": x.name, "choice": x.choice, "us": x.chosen_us, "macs": x.macs} for x in layers],
        }
    return found, compiled.plan.notes


def time_job(job: Job, *, data_dir: Path | None) -> dict[str, Any]:
    """Quality, counted work and latency of one trained model, and where they come from."""
    splits = load_splits(job, data_dir)
    example, stream = (next(iter(part.batches(MAX_ROWS)))[0] for part in (splits.valid, splits.test))
    run = json.loads((job.folder / "run.json").read_text(encoding="utf-8"))
    dense = job.of(next(iter(job.table.models)))
    seconds = 0.5 if job.quick else 6.0
    times, notes = time_model(dense.folder / MODEL, job.folder / MODEL, example, stream, seconds)
    return {
        "data": job.table.name,
        "model": job.model,
        "seed": job.seed,
        "accuracy": run["quality"]["accuracy"],
        "valid_accuracy": run["valid"]["accuracy"],
        "relative": run["macs"]["relative"],
        "relative_zero_skip": run["macs"]["relative_zero_skip"],
        "input_zeros": float((stream == 0).float().mean()),
        "batches": times,
        "notes": notes,
        "settings": run["settings"],
        "meta": environment(f"python -m {MODULE}"),
    }


def train_and_time(experiment: Experiment, args: argparse.Namespace) -> None:
    """Train what is missing in parallel, then time one model after the other in a process with one thread."""
    tables = experiment.tables if args.name is None else [experiment.table(args.name)]
    jobs = experiment.jobs(tables, device=args.device)
    command = f"python -m {MODULE}"
    with engine_of(args) as engine:
        run_jobs(jobs, experiment.work / "results", engine=engine, data_dir=args.data_dir, command=command)
    rows = []
    for _, row in run_parallel(partial(time_job, data_dir=args.data_dir), jobs, processes=1):
        meta = row.pop("meta")
        rows.append(row)
        ratios = "".join(f"  batch {b} {x['us']['ours']:,.1f} us, {x['ratio']:.3f}" for b, x in row["batches"].items())
        print(f"{row['data']}  {row['model']}  {row['accuracy']:.2%}  MACs {row['relative']:.3f}{ratios}", flush=True)
    if args.name is None and not args.quick:
        path = ROOT / "experiments" / "results" / "latency.json"
    else:
        path = experiment.work / f"{args.name or 'all'}.json"
    write_results(path, meta, rows)
    print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    """Parse and run."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("name", nargs="?", default=None, help="mnist or pbmc3k; by default both")
    args = parser.parse_args()
    train_and_time(asked_experiment(LATENCY, args), args)


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
