"""`dynamicgate predict`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from dynamicgate.files import write_atomically
from dynamicgate.lab.cli.options import LoaderOptions, loader_options
from dynamicgate.lab.cli.other_data import Allow, allowed, load_saved, options_for

if TYPE_CHECKING:
    from torch import nn

    from dynamicgate.accounting.prediction import Predictions
    from dynamicgate.data.schema import Schema

CELLS = ".h5ad"
PARQUET = (".parquet", ".pq")
WRITTEN = (".csv", ".tsv", *PARQUET, CELLS)
KEY = "dynamicgate"


@dataclass(frozen=True)
class Predict:
    """Predict the class of every row of a file with a saved model, and what each row costs.

    For example:
      dynamicgate predict runs/table/model.safetensors new.csv --out predictions.csv
      dynamicgate predict runs/cells/model.safetensors new.h5ad --out annotated.h5ad

    Columns, genes and categories are found by name and encoded as in training; no column with classes is needed.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`, or a saved compiled model."""
    data: Annotated[Positional[Path], arg(metavar="DATA")]
    """A .csv, .tsv, .parquet, .h5ad or .npz file (its array x)."""
    out: Annotated[Path, arg(metavar="FILE")]
    """Where to write: .csv, .tsv or .parquet with one line a row; .h5ad the cells with further columns in obs."""
    data_option: LoaderOptions = ()
    allow: Allow = ()

    def run(self) -> int:
        """Predict, write, and say what was done."""
        from dynamicgate.data.schema import schema_of
        from dynamicgate.lab.datasets.table_file import SUFFIXES

        read = (*SUFFIXES, CELLS, ".npz")
        for path, suffixes, what in ((self.data, read, "read"), (self.out, WRITTEN, "written")):
            if not path.name.lower().endswith(suffixes):
                raise ValueError(f"{path} cannot be {what}: its name must end with {', '.join(suffixes)}")
        if _ends(self.out, CELLS) and not _ends(self.data, CELLS):
            raise ValueError(f"{self.out}: only cells are written as {CELLS}, and {self.data} holds none; write a .csv")
        if self.out.exists() and self.data.exists() and self.out.samefile(self.data):
            raise ValueError(f"{self.out} is the file with the data: choose another, so that nothing is lost")
        model = load_saved(self.model)
        schema = schema_of(model)
        if schema is None:
            raise ValueError(
                f"{self.model} does not say which columns it reads: it was written by an earlier version, or without a "
                "schema; train it again"
            )
        given = dict(loader_options(self.data_option, None, "--data-option"))
        options = options_for(str(self.data), schema, given, {})
        notes = self._cells(model, options) if _ends(self.out, CELLS) else self._table(model, schema, options)
        print(*notes, f"wrote {self.out}", sep="\n")
        return 0

    def _cells(self, model: nn.Module, options: dict[str, Any]) -> list[str]:
        from dynamicgate.lab.datasets.single_cell.h5ad_file import read_h5ad
        from dynamicgate.omics import annotate

        cells = read_h5ad(self.data)
        unknown = sorted(options.keys() - {"layer", "gene_column"})
        if unknown:
            raise ValueError(f"{self.data}: predict has no use for the option {unknown[0]}; give layer or gene_column")
        found = annotate(cells, model, key=KEY, allow=allowed(self.allow), **options)
        write_atomically(self.out, lambda path: _write_cells(cells, path))
        return str(found).splitlines()

    def _table(self, model: nn.Module, schema: Schema, options: dict[str, Any]) -> list[str]:
        from dynamicgate.accounting.prediction import predict
        from dynamicgate.lab.datasets.aligned import load_aligned

        data = load_aligned(self.data, schema, part="all", labelled=False, options=options, allow=allowed(self.allow))
        answers = predict(model, data.rows)
        frame = _frame(answers, data.row_names)
        if self.out.name.lower().endswith(PARQUET):
            write_atomically(self.out, lambda path: frame.to_parquet(path, index=False))
        else:
            separator = "\t" if _ends(self.out, ".tsv") else ","
            write_atomically(self.out, lambda path: frame.to_csv(path, index=False, sep=separator))
        mean = float(answers.cost.mean())
        return [*data.notes, f"{len(frame):,} rows predicted; mean cost {mean:.4f} of the dense network"]


def _frame(answers: Predictions, row_names: tuple[str, ...] | None) -> Any:
    """One line a row: its name or number, the answer, the cost, and the scores of all outputs."""
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("tables need pandas, which is not installed: pip install 'dynamicgate[data]'") from error
    count = len(answers.cost)
    columns: dict[str, Any] = {"row": range(count)} if row_names is None else {"cell": row_names}
    if answers.task == "classification":
        columns |= {"prediction": answers.labels, "probability": answers.scores.max(1).values.numpy()}
    columns["cost"] = answers.cost.numpy()
    word = "value" if answers.task == "regression" else "p"
    return pd.DataFrame(columns | {f"{word}({name})": answers.scores[:, k] for k, name in enumerate(answers.classes)})


def _write_cells(cells: Any, path: Path) -> None:
    """Beside `path` first: libhdf5 does not write to a file that somebody has locked, ourselves included."""
    with TemporaryDirectory(dir=path.parent, prefix=".") as folder:
        cells.write_h5ad(Path(folder) / path.name)
        os.replace(Path(folder) / path.name, path)


def _ends(path: Path, suffix: str) -> bool:
    return path.name.lower().endswith(suffix)
