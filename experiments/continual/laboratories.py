"""Two laboratories: PBMC 3k, then the 700 cells of PBMC 68k that come with scanpy.

Genes and their scale are those of the first laboratory's training cells; a gene that the second has not kept is 0
there. With the genes that both have, the choice of the second, which was made on its own cells, is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from dynamicgate.continual import Stream, in_order
from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.single_cell.preprocessing import import_scanpy
from dynamicgate.lab.runner import Job
from experiments.continual.cells import GENES, LIMIT, log_normalised, most_variable

TYPES = ("B", "NK", "monocyte", "dendritic", "CD4 T", "CD8 T")
MERGED = {  # labels of both, as far as they name the same type
    "B cells": 0, "CD19+ B": 0, "NK cells": 1, "CD56+ NK": 1, "CD14+ Monocytes": 2, "FCGR3A+ Monocytes": 2,
    "CD14+ Monocyte": 2, "Dendritic cells": 3, "Dendritic": 3, "CD4 T cells": 4, "CD4+/CD25 T Reg": 4,
    "CD4+/CD45RA+/CD25- Naive T": 4, "CD4+/CD45RO+ Memory": 4, "CD8 T cells": 5, "CD8+ Cytotoxic T": 5,
    "CD8+/CD45RA+ Naive Cytotoxic": 5,
}  # fmt: skip
TEST = 0.2


@dataclass(frozen=True, eq=False)
class Laboratories:
    """The cells of each laboratory: log-normalised values of genes, sparse, and types. shared: which genes both have.
    only_shared: whether the others may be used. choosing: test cells are left out, and others stand for them."""

    names: tuple[str, ...]
    x: tuple[Any, ...]
    y: tuple[Tensor, ...]
    shared: np.ndarray[Any, Any]
    only_shared: bool = False
    choosing: bool = False

    def sizes(self) -> dict[str, Any]:
        """For the table of runs."""
        cells, test = sum(map(len, self.y)), sum(round(TEST * len(y)) for y in self.y)
        features = int(self.shared.sum()) if self.only_shared else GENES
        return {"name": "pbmc3k and pbmc68k", "train": cells - test, "valid": 0, "test": test,
                "features": features, "classes": len(TYPES)}  # fmt: skip

    def stream(self, seed: int) -> Stream:
        """One laboratory after the other; a fifth of the cells of each is for testing."""
        orders = [torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)) for y in self.y]
        cuts = [round(TEST * len(y)) for y in self.y]
        orders = [order[cut:] if self.choosing else order for order, cut in zip(orders, cuts, strict=True)]
        fitted = self.x[0][orders[0][cuts[0] :].numpy()]
        if self.only_shared:
            fitted = fitted[:, self.shared]
        genes, mean_D, std_D = most_variable(fitted, GENES)
        columns = np.flatnonzero(self.shared)[genes] if self.only_shared else genes
        made = []
        for name, x, y, order, cut in zip(self.names, self.x, self.y, orders, cuts, strict=True):
            rows = (torch.from_numpy(x[:, columns].toarray()) - mean_D).div(std_D).clamp(-LIMIT, LIMIT)
            test, train = order[:cut], order[cut:]
            made.append(_Cells(name, Arrays(rows[train], y[train]), Arrays(rows[test], y[test])))
        return in_order(made, name="laboratories", scenario="domain")


@dataclass(frozen=True, eq=False)
class _Cells:
    name: str
    train: Arrays
    test: Arrays


def load(job: Job, data_dir: Path | None) -> Laboratories:
    """Both laboratories."""
    both = read(data_dir or default_data_dir())
    return Laboratories(*both, only_shared=job.table.data_options.get("genes") == "shared")


@lru_cache(maxsize=1)
def read(folder: Path) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[Tensor, ...], np.ndarray[Any, Any]]:
    """Names, cells and types of both, on the genes of the first; and which of these the second has."""
    x, numbers, names, symbols = log_normalised(folder)
    scanpy, _ = import_scanpy()
    second = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    place = {gene: number for number, gene in enumerate(second.var_names)}
    once = {gene for gene, count in zip(*np.unique(symbols, return_counts=True), strict=True) if count == 1}
    shared = np.array([gene in once and gene in place for gene in symbols])
    values = second.X.tocsc()[:, [place[gene] for gene in np.array(symbols)[shared]]].tocoo()
    wide = csr_matrix((values.data, (values.row, np.flatnonzero(shared)[values.col])), (second.n_obs, len(symbols)))
    own = torch.tensor([MERGED.get(names[number], -1) for number in numbers.tolist()])
    other = torch.tensor([MERGED.get(name, -1) for name in second.obs["bulk_labels"].astype(str)])
    kept = [((own >= 0).numpy(), x, own), ((other >= 0).numpy(), wide.astype(np.float32), other)]
    return ("PBMC 3k", "PBMC 68k"), tuple(v[at] for at, v, _ in kept), tuple(y[at] for at, _, y in kept), shared
