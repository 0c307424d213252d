"""A model of PBMC 3k annotates other cells by gene name: scanpy's pbmc68k_reduced, which ships with scanpy.

    python -m experiments.annotate_cells            # writes experiments/results/annotate-cells.json

Two sets of genes: `selected`, the 2,000 that the dataset selects, of which the other cells lack most, so that their
mean over the training cells is filled in; and `shared`, those that both datasets measured. Beside a gated and a dense
network stands a logistic regression on the same genes of the same training cells, filled in and normalised in the same
way; its penalty is chosen on the validation cells.

The 68k cells come from another experiment, and their types from a comparison with sorted populations; `SAME_TYPE` says
which of the types mean the same. Cells of other types are left out of the score and counted. FCGR3A+ monocytes have no
type of their own there, so that an answer of theirs is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import dynamicgate as dg
from dynamicgate.data.arrays import Arrays
from dynamicgate.data.cells import encode_cells, match_genes
from dynamicgate.files import environment, write_text
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import Settings, run_one

HERE = Path(__file__).resolve().parent
BUDGET, LAYER = 0.3, "raw"
GENES = {"selected": 2000, "shared": None}
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
SAME_TYPE = {
    "CD14+ Monocyte": "CD14+ Monocytes",
    "CD19+ B": "B cells",
    "CD4+/CD25 T Reg": "CD4 T cells",
    "CD4+/CD45RA+/CD25- Naive T": "CD4 T cells",
    "CD4+/CD45RO+ Memory": "CD4 T cells",
    "CD56+ NK": "NK cells",
    "CD8+ Cytotoxic T": "CD8 T cells",
    "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T cells",
    "Dendritic": "Dendritic cells",
}


def other_cells() -> Any:
    """scanpy's pbmc68k_reduced, log-normalised in raw."""
    import scanpy as sc  # type: ignore[import-untyped, unused-ignore]

    with warnings.catch_warnings():  # of a file in an old format
        warnings.simplefilter("ignore")
        return sc.datasets.pbmc68k_reduced()


def only_shared(splits: Splits, genes: list[str]) -> Splits:
    """The same cells with only those genes that are among `genes`, by symbol."""
    assert splits.schema is not None
    kept = sorted(match_genes(genes, splits.schema, "pbmc68k_reduced"))
    columns = tuple(splits.schema.columns[k] for k in kept)
    schema = replace(splits.schema, columns=columns, features=len(kept))
    train, valid, test = (Arrays(part.values[:, kept], part.y) for part in parts_of(splits))
    mean, std = (torch.as_tensor(constants)[kept] for constants in (splits.mean, splits.std))
    return replace(splits, train=train, valid=valid, test=test, mean=mean, std=std, schema=schema)


def parts_of(splits: Splits) -> tuple[Arrays, Arrays, Arrays]:
    """Training, validation and test cells."""
    return splits.train, splits.valid, splits.test


def score(labels: list[str], truth: list[str | None]) -> dict[str, float]:
    """Accuracy and mean recall of the types over the cells whose type both datasets have."""
    pairs = [(label, true) for label, true in zip(labels, truth, strict=True) if true is not None]
    recalls = [
        statistics.mean(label == true for label, true in pairs if true == kind)
        for kind in sorted({true for _, true in pairs})
    ]
    accuracy = statistics.mean(label == true for label, true in pairs)
    return {"accuracy": accuracy, "mean_recall": statistics.mean(recalls), "cells": len(pairs)}


def network(name: str, splits: Splits, seed: int, cells: Any, truth: list[str | None]) -> dict[str, Any]:
    """Train a network, save it, load it, and annotate the other cells with what was loaded."""
    options = (("labels", "louvain"),)
    settings = Settings("pbmc3k", model=name, seed=seed, budget=BUDGET, data_options=options).resolved(splits)
    with tempfile.TemporaryDirectory() as folder:
        run = run_one(settings, splits, Path(folder), show=False)
        model = dg.load(Path(folder) / "model.safetensors")
    annotated = cells.copy()
    done = dg.omics.annotate(annotated, model, layer=LAYER, allow=["missing-columns"])
    return {
        "model": name,
        "test": {"accuracy": run["quality"]["accuracy"], "cost": run["macs"]["relative"]},
        "other": {**score(list(annotated.obs["dynamicgate"]), truth), "cost": done.cost},
        "coverage": done.coverage,
        "notes": list(done.notes),
    }


def regression(splits: Splits, cells: Any, truth: list[str | None]) -> dict[str, Any]:
    """Logistic regression on the same genes, filled in and normalised as the networks do."""
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped, unused-ignore]

    assert splits.schema is not None
    mean, std = (np.asarray(constants) for constants in (splits.mean, splits.std))

    def normal(x: torch.Tensor) -> npt.NDArray[Any]:
        return np.asarray((x.numpy() - mean) / std)

    train, valid, test = (normal(part.values) for part in parts_of(splits))
    fits = [LogisticRegression(C=c, max_iter=2000).fit(train, splits.train.y.numpy()) for c in PENALTIES]
    best = max(range(len(PENALTIES)), key=lambda k: fits[k].score(valid, splits.valid.y.numpy()))
    values = cells.raw.to_adata()
    found = encode_cells(values.X, list(values.var_names), splits.schema, allow=["missing-columns"])
    everyone = found.prepare(found.rows[torch.arange(len(found.rows))])
    answers = [splits.class_names[k] for k in fits[best].predict(normal(everyone))]
    return {
        "model": "logistic regression",
        "C": PENALTIES[best],
        "test": {"accuracy": float(fits[best].score(test, splits.test.y.numpy()))},
        "other": score(answers, truth),
        "coverage": found.coverage,
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds: accuracy on the test cells of PBMC 3k and on the other cells, and what the others cost."""
    rows = []
    for genes, model in dict.fromkeys((run["genes"], run["model"]) for run in runs):
        of = [run for run in runs if (run["genes"], run["model"]) == (genes, model)]
        cost = [run["other"]["cost"] for run in of if "cost" in run["other"]]
        rows.append(
            {
                "genes": genes,
                "model": model,
                "coverage": statistics.mean(run["coverage"] for run in of),
                "test": statistics.mean(run["test"]["accuracy"] for run in of),
                "other": statistics.mean(run["other"]["accuracy"] for run in of),
                "other_std": statistics.pstdev(run["other"]["accuracy"] for run in of),
                "mean_recall": statistics.mean(run["other"]["mean_recall"] for run in of),
                "cost": statistics.mean(cost) if cost else None,
            }
        )
    return rows


def main() -> None:
    """Train over all seeds and both sets of genes, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, default=None)
    args = parser.parse_args()
    made_by = environment("python -m experiments.annotate_cells")  # of the code as it is now
    cells = other_cells()
    truth = [SAME_TYPE.get(str(kind)) for kind in cells.obs["bulk_labels"]]
    genes = [str(name) for name in cells.raw.var_names]
    runs = []
    for seed in range(args.seeds):
        for chosen, count in GENES.items():
            splits = load_dataset("pbmc3k", data_dir=args.data_dir, seed=seed, options={"genes": count})
            splits = splits if count is not None else only_shared(splits, genes)
            found = [network(name, splits, seed, cells, truth) for name in ("gate", "dense")]
            found.append(regression(splits, cells, truth))
            runs += [{"genes": chosen, "features": splits.train.features, "seed": seed, **run} for run in found]
            for run in found:
                accuracies = f"PBMC 3k {run['test']['accuracy']:.4f}  68k {run['other']['accuracy']:.4f}"
                print(f"seed {seed}  {chosen:<9} {run['model']:<20} coverage {run['coverage']:.3f}  {accuracies}")
    summary = summarise(runs)
    keys = ("coverage", "test", "other", "mean_recall", "cost")
    print(f"\n{'genes':<10}{'model':<22}" + "".join(f"{key:>12}" for key in keys))
    for row in summary:
        values = (f"{row[key]:>12.4f}" if row[key] is not None else f"{'-':>12}" for key in keys)
        print(f"{row['genes']:<10}{row['model']:<22}" + "".join(values))
    meta = {
        **made_by,
        "trained_on": "pbmc3k (louvain)",
        "applied_to": "scanpy.datasets.pbmc68k_reduced, raw",
        "same_type": SAME_TYPE,
        "left_out": {"cells": truth.count(None), "types": sorted(set(cells.obs["bulk_labels"]) - SAME_TYPE.keys())},
        "budget": BUDGET,
        "summary": summary,
    }
    write_text(HERE / "results" / "annotate-cells.json", json.dumps({"meta": meta, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
