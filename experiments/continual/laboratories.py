"""Two laboratories: PBMC 3k, then the 700 cells of PBMC 68k that come with scanpy, on the genes that both have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynamicgate.continual import Stream, in_order
from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.single_cell.pbmc3k import LABELS, find_counts, read_counts, read_labels
from dynamicgate.lab.datasets.single_cell.preprocessing import import_scanpy
from dynamicgate.lab.runner import Job

TYPES = ("B", "NK", "monocyte", "dendritic", "CD4 T", "CD8 T")
MERGED = {  # labels of both, as far as they name the same type
    "B cells": 0, "CD19+ B": 0, "NK cells": 1, "CD56+ NK": 1, "CD14+ Monocytes": 2, "FCGR3A+ Monocytes": 2,
    "CD14+ Monocyte": 2, "Dendritic cells": 3, "Dendritic": 3, "CD4 T cells": 4, "CD4+/CD25 T Reg": 4,
    "CD4+/CD45RA+/CD25- Naive T": 4, "CD4+/CD45RO+ Memory": 4, "CD8 T cells": 5, "CD8+ Cytotoxic T": 5,
    "CD8+/CD45RA+ Naive Cytotoxic": 5,
}  # fmt: skip
TOTAL = 1e4  # counts of a cell after normalisation, as in the second laboratory's own file
TEST = 0.2


@dataclass(frozen=True, eq=False)
class Laboratories:
    """The cells of each laboratory: log-normalised values of shared genes, and types."""

    names: tuple[str, ...]
    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]

    def sizes(self) -> dict[str, Any]:
        """For the table of runs."""
        cells = sum(map(len, self.y))
        test = round(TEST * cells)
        return {"name": "pbmc3k and pbmc68k", "train": cells - test, "valid": 0, "test": test,
                "features": self.x[0].shape[1], "classes": len(TYPES)}  # fmt: skip

    def stream(self, seed: int) -> Stream:
        """One laboratory after the other; a fifth of the cells of each is for testing."""
        return in_order([_split(n, x, y, seed) for n, x, y in zip(self.names, self.x, self.y, strict=True)],
                        name="laboratories", scenario="domain")  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Cells:
    name: str
    train: Arrays
    test: Arrays


def _split(name: str, x: Tensor, y: Tensor, seed: int) -> _Cells:
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    cut = round(TEST * len(y))
    test, train = order[:cut], order[cut:]
    return _Cells(name, Arrays(x[train], y[train]), Arrays(x[test], y[test]))


def load(job: Job, data_dir: Path | None) -> Laboratories:
    """Both laboratories."""
    folder = data_dir or default_data_dir()
    source = find_counts(folder)
    first = read_counts(source)
    labels_path = next(path for path in (source.parent / LABELS, folder / LABELS, folder / "pbmc3k" / LABELS)
                       if path.exists())  # fmt: skip
    labels = read_labels(labels_path, "louvain")
    scanpy, _ = import_scanpy()
    second = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    types = second.obs["bulk_labels"].astype(str).tolist()
    symbols = first.var["symbol"].tolist()
    genes = [gene for gene in second.var_names if symbols.count(gene) == 1]
    place = {gene: number for number, gene in enumerate(symbols)}
    counts = first.X.tocsr()
    size = np.asarray(counts.sum(1)).ravel()
    scaled = counts.multiply(TOTAL / np.maximum(size, 1.0)[:, None]).tocsc()[:, [place[gene] for gene in genes]]
    own = [MERGED.get(labels.get(cell, ""), -1) for cell in first.obs_names]
    both = [
        (np.log1p(scaled.toarray()), own),
        (np.asarray(second[:, genes].X.todense()), [MERGED.get(name, -1) for name in types]),
    ]
    kept = [(torch.from_numpy(np.asarray(x, dtype=np.float32)), torch.tensor(y)) for x, y in both]
    return Laboratories(
        ("PBMC 3k", "PBMC 68k"), tuple(x[y >= 0] for x, y in kept), tuple(y[y >= 0] for _, y in kept)
    )  # fmt: skip
