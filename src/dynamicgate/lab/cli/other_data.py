"""What `measure` and `predict` share: data that a model was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from tyro.conf import UseAppendAction, arg

from dynamicgate.choices import ALLOWED

if TYPE_CHECKING:
    from torch import nn

    from dynamicgate.data.schema import Schema

Allow: TypeAlias = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(
        metavar="NAME",
        help="What to accept that is refused by default, and counted in the output: "
        + "; ".join(f"`{name}`, {meaning}" for name, meaning in ALLOWED.items())
        + ". For several, separate them by commas or repeat this option.",
    ),
]


def load_saved(path: Path) -> nn.Module:
    """A model file, or one that a compiled model was saved to."""
    from dynamicgate.inference.compiled_model import KIND, CompiledModel
    from dynamicgate.io.model_file import load as load_model
    from dynamicgate.io.tensor_file import read_tensors

    _, header = read_tensors(path, kind=("model", KIND), with_tensors=False)
    return CompiledModel.load(path) if header["kind"] == KIND else load_model(path)


def allowed(texts: Sequence[str]) -> frozenset[str]:
    """The names of `--allow`, checked."""
    from dynamicgate.data.alignment import check_allowed

    return check_allowed([name.strip() for text in texts for name in text.split(",") if name.strip()])


def options_for(name: str, schema: Schema | None, given: dict[str, str], of_file: dict[str, str]) -> dict[str, object]:
    """The loader options of a dataset: those of the command line, and else those that the model was trained with.

    Of a file whose columns are found by name, only those that say where things are in it: which columns are read, and
    how, the model knows.
    """
    from dynamicgate.lab.datasets.aligned import CELLS, OF_CELLS, OF_TABLES
    from dynamicgate.lab.datasets.loading import LOADERS
    from dynamicgate.lab.datasets.table_file import SUFFIXES

    by_name = schema is not None and schema.columns and name not in LOADERS
    known = OF_TABLES if name.lower().endswith(SUFFIXES) else OF_CELLS if name.lower().endswith(CELLS) else None
    if not by_name or known is None:
        return {**(given or of_file)}
    return {**{key: value for key, value in of_file.items() if key in known}, **given}
