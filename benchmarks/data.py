"""Is training bound by the model or by the data? The fraction of an epoch that goes into making batches.

    python benchmarks/data.py            # writes benchmarks/results/data.json; MNIST from DYNAMICGATE_DATA

Epochs that only make the batches and epochs that train on them take turns in one process; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.data import batches
from dynamicgate.files import environment, write_text
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits

NETWORKS = {"mnist": (256,), "cifar10": (1024, 512), "tiny-imagenet": (256,)}


def epoch(splits: Splits, number: int, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of one epoch as `fit` makes them."""
    for index in batches(len(splits.train), batch, seed=0, epoch=number):
        yield splits.train.rows(index, training=True), splits.train.y[index]


def time_epochs(name: str, batch: int, rounds: int) -> dict[str, float]:
    """Median seconds of an epoch that only makes batches and of an epoch of dense training, and their ratio."""
    splits = load_dataset(name).flat()
    model = dg.nn.GatedMLP((splits.train.features, *NETWORKS[name], splits.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    alone, training = [], []
    for number in range(rounds):
        start = time.perf_counter()
        for _x, _y in epoch(splits, number, batch):
            pass
        middle = time.perf_counter()
        for x, y in epoch(splits, number, batch):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        alone.append(middle - start)
        training.append(time.perf_counter() - middle)
    data, whole = statistics.median(alone), statistics.median(training)
    return {"rows": len(splits.train), "batches_s": data, "training_s": whole, "fraction": data / whole}


def main() -> None:
    """Time each dataset and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist,cifar10,tiny-imagenet")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "data.json")
    args = parser.parse_args()
    rows = []
    for name in args.data.split(","):
        found = time_epochs(name, args.batch, args.rounds)
        print(f"{name:>14}  batches {found['batches_s']:.2f} of {found['training_s']:.2f} s = {found['fraction']:.3f}")
        rows.append({"data": name, "hidden": NETWORKS[name], "batch": args.batch, "rounds": args.rounds, **found})
    write_text(args.out, json.dumps({"meta": environment("python benchmarks/data.py"), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
