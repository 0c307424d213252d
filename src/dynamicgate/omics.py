"""Annotate single cells (AnnData) with a trained model: genes by name, and what each cell cost.

>>> import dynamicgate as dg
>>> print(dg.omics.annotate(adata, dg.load("model.safetensors")))
>>> adata.obs["dynamicgate"]

Needs `pip install 'dynamicgate[omics]'`; nothing here imports scanpy or anndata, which come with the data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dynamicgate.accounting.prediction import predict
from dynamicgate.data.arrays import Arrays
from dynamicgate.data.cells import adata_values, encode_cells, gene_names
from dynamicgate.data.schema import schema_of
from dynamicgate.io import load


@dataclass(frozen=True)
class Annotation:
    """What `annotate` did: how many cells, how many of the model's genes were there, and in sentences the rest."""

    cells: int
    genes: int
    genes_found: int
    cost: float
    """Mean executed MACs of a cell, as a fraction of the dense network."""
    notes: tuple[str, ...]

    @property
    def coverage(self) -> float:
        """The fraction of the model's genes that the cells have."""
        return self.genes_found / self.genes

    def __str__(self) -> str:
        head = f"{self.cells:,} cells annotated; {self.genes_found:,} of the model's {self.genes:,} genes found"
        return "\n".join([f"{head} ({self.coverage:.1%}); mean cost {self.cost:.4f} of the dense network", *self.notes])


def annotate(
    adata: Any,
    model: nn.Module | str | Path,
    *,
    key: str = "dynamicgate",
    layer: str | None = None,
    gene_column: str | None = None,
    allow: Collection[str] = (),
    batch: int = 1024,
) -> Annotation:
    """Write labels, probabilities and cost of each cell into `adata`, in place; returns what was done.

    obs[key] is the label, obs[f"{key}_probability"] how probable the model finds it, obs[f"{key}_cost"] the executed
    MACs as a fraction of the dense network. obsm[f"{key}_probabilities"] has all classes, in the order of
    uns[key]["classes"].

    model: one that was trained on cells, as `load` returns it, or the path of its file.
    layer: of the values; None is X, "raw" is adata.raw where no layer has that name.
    gene_column: the column of var with the names of genes; None: its index. The model's own names or symbols fit.
    allow: see `data.alignment.ALLOWED`; genes that the data lack are refused unless "missing-columns" is there, and
        then have their mean over the model's training cells.
    """
    model = load(model) if isinstance(model, str | Path) else model
    schema = schema_of(model)
    if schema is None or schema.kind != "cells":
        raise ValueError(
            "the model does not know its genes: annotate takes a model that was trained on cells, such as "
            "`dynamicgate train --data cells.h5ad` writes, loaded by `dynamicgate.load`"
        )
    if schema.task != "classification":
        raise ValueError(f"annotate takes a model of classes, received one of {schema.task}")
    values = adata_values(adata, layer)
    found = encode_cells(values.X, gene_names(values, gene_column), schema, "adata", allow=allow)
    rows = Arrays(found.rows, torch.zeros(len(found.rows), dtype=torch.int64), found.prepare)
    answers = predict(model, rows, batch=batch)
    likely = answers.scores.max(1).values
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    adata.obs[key] = pd.Categorical(answers.labels, categories=list(answers.classes))
    adata.obs[f"{key}_probability"] = likely.numpy()
    adata.obs[f"{key}_cost"] = answers.cost.numpy()
    adata.obsm[f"{key}_probabilities"] = answers.scores.float().numpy()
    genes = len(schema.columns)
    done = Annotation(len(rows), genes, len(found.prepare.places), float(answers.cost.mean()), tuple(found.notes))
    adata.uns[key] = {"classes": list(answers.classes), **asdict(done), "notes": list(done.notes)}
    return done
