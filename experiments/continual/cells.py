"""PBMC 3k, one pair of cell types after the other: genes and their scale are those of the first pair.

Which genes vary among types that come later is not known when features are chosen, so only training cells of the first
task are looked at. Shapes in names: N cells, D genes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.single_cell.pbmc3k import LABELS, find_counts, read_counts, read_labels
from dynamicgate.lab.datasets.single_cell.preprocessing import MIN_GENE_STD, preprocess_counts, split_cells
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.streams import class_order
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.jobs import fewer_rows

GENES, TYPES_A_TASK, TEST, LIMIT = 2000, 2, 0.2, 5.0


@dataclass(frozen=True, eq=False, repr=False)
class Cells(Splits):
    """Training and test cells. inner: without the test cells, validation cells in their place, to choose settings."""

    inner: Splits | None = None


def load(job: Job, data_dir: Path | None) -> Splits:
    """Cells of a seed, scaled by what is known when the first task is."""
    x, y, names, _ = log_normalised(data_dir or default_data_dir())
    splits = prepared(x, y, names, job.seed)
    return fewer_rows(splits, job.table.quick_rows) if job.quick else splits


def prepared(x_ND: Any, y_N: Tensor, names: tuple[str, ...], seed: int) -> Cells:
    """Training and test cells by the seed, on the genes that vary most in the first task of the seed."""
    train, valid, test = split_cells(y_N, seed, test_fraction=TEST, test_seed=seed, what="pbmc3k")
    inner = scaled_cells(x_ND, y_N, names, seed, (train, valid, valid))
    return scaled_cells(x_ND, y_N, names, seed, (torch.cat([train, valid]), valid, test), inner)


def scaled_cells(
    x_ND: Any, y_N: Tensor, names: tuple[str, ...], seed: int, parts: tuple[Tensor, ...], inner: Splits | None = None
) -> Cells:
    """Cells of three parts, on genes and with a scale of the training cells of the first task."""
    train = parts[0]
    first = class_order(_Labels(Arrays(torch.zeros(len(train), 1), y_N[train])), seed)[:TYPES_A_TASK]
    fitted = train[torch.isin(y_N[train], torch.tensor(first))]
    genes, mean_D, std_D = most_variable(x_ND[fitted.numpy()], GENES)
    rows = torch.from_numpy(x_ND[:, genes].toarray())
    rows = (rows - mean_D).div(std_D).clamp(-LIMIT, LIMIT)
    arrays = [Arrays(rows[index], y_N[index]) for index in parts]
    return Cells("pbmc3k", arrays[0], arrays[1], arrays[2], len(names), 0.0, 1.0, names, inner=inner)


def most_variable(x_ND: Any, count: int) -> tuple[np.ndarray[Any, Any], Tensor, Tensor]:
    """The genes of these cells whose log-normalised values vary most, in their order; mean and standard deviation."""
    mean_D = np.asarray(x_ND.mean(0)).ravel()
    variance_D = np.maximum(np.asarray(x_ND.multiply(x_ND).mean(0)).ravel() - mean_D**2, 0.0)
    chosen = np.sort(np.argsort(-variance_D, kind="stable")[:count])
    std = np.maximum(np.sqrt(variance_D[chosen]), MIN_GENE_STD)
    return chosen, torch.from_numpy(mean_D[chosen]).float(), torch.from_numpy(std).float()


@lru_cache(maxsize=1)
def log_normalised(folder: Path) -> tuple[Any, Tensor, tuple[str, ...], tuple[str, ...]]:
    """Every labelled cell on its own: counts to a fixed sum, then log1p, as a sparse matrix; types, their names, and
    symbols of genes."""
    source = find_counts(folder)
    counts = read_counts(source)
    places = (source.parent / LABELS, folder / LABELS, folder / "pbmc3k" / LABELS)
    types = read_labels(next(path for path in places if path.exists()), "louvain")
    of_cell = [types.get(cell, "") for cell in counts.obs_names]
    kept = [place for place, name in enumerate(of_cell) if name]
    names, numbers = np.unique([of_cell[place] for place in kept], return_inverse=True)
    counts = counts[kept]
    cells = preprocess_counts(counts, torch.arange(len(kept)), genes=None, what=str(source))
    return cells.X.tocsr(), torch.from_numpy(numbers), tuple(map(str, names)), tuple(counts.var["symbol"])


class _Labels:
    """Training rows, as streams ask for them."""

    def __init__(self, train: Arrays) -> None:
        self.train = self.test = train
