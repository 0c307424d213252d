"""`to_program` and `to_aot`: a model or a plan as a graph of torch operators, and as compiled machine code."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.data.contract import Inputs
from dynamicgate.export.chains import ChainParts, Split, split_model
from dynamicgate.export.example import as_example, batch_dimensions
from dynamicgate.export.exported import Exported, Form, check_form, copy_atomically
from dynamicgate.export.torch_form import ChainInTorch
from dynamicgate.export.verify import check_exportable, verify_export


def to_program(model: nn.Module, example: Inputs, *, form: Form = "auto") -> torch.export.ExportedProgram:
    """A model or a plan as `torch.export` knows it, for any number of rows, with torch operators only:
    ``torch.export.save(program, path)`` writes a file that loads without this package.

    form: "masks" computes everything. "skip" and "auto" compute later stages only for rows that open them; gates on
    units are masks in every form.
    """
    check_form(form)
    check_exportable(model)
    inputs = as_example(example)
    return _program(_split(model, inputs, form), inputs)


def to_aot(model: nn.Module, example: Inputs, path: str | Path, *, form: Form = "auto") -> Exported:
    """Compile a model or a plan ahead of time with AOTInductor, and compare the package with the model.

    The package is one `.pt2` file of machine code and weights for this kind of processor. It runs in C++, or by
    ``torch._inductor.aoti_load_package(path)``, without this package. Needs a C++ compiler. example and form are as in
    `to_program`.
    """
    check_form(form)
    check_exportable(model)
    inputs = as_example(example)
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"an AOTInductor package is a .pt2 file, received {path.name!r}")
    split = _split(model, inputs, form)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own code
        draft = Path(folder) / path.name
        torch._inductor.aoti_compile_and_package(_program(split, inputs), package_path=str(draft))
        package = _Package(str(draft))
        verification = verify_export(package, model, inputs, "the AOTInductor package")
        copy_atomically(draft, path)
    forms = [_described(parts, form) for parts in split.chains]
    return Exported(path, forms, split.notes, verification)


class _Package(nn.Module):
    """A compiled package, called as a model is."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.run: Any = torch._inductor.aoti_load_package(path)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """The outputs."""
        return self.run(*inputs, **named)


def _split(model: nn.Module, inputs: Inputs, form: Form) -> Split:
    return split_model(model, inputs, lambda _index, parts: ChainInTorch(parts, skip=form != "masks"))


def _program(split: Split, inputs: Inputs) -> torch.export.ExportedProgram:
    arguments = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else None
    dimensions = batch_dimensions(inputs)
    with torch.no_grad():
        return torch.export.export(split.body, arguments, named, dynamic_shapes=dimensions)


def _described(parts: ChainParts, form: Form) -> str:
    layers = f"layers {', '.join(parts.names)}" if parts.names else "a chain of layers"
    if parts.staged is not None:
        how = "all stages for all rows" if form == "masks" else "rows that stop leave out later stages"
        return f"{layers}: {len(parts.staged.stages)} stages, {how}"
    return f"{layers}: {'masks' if parts.is_gated else 'dense'}"
