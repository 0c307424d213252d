"""`to_onnx`: a model or a plan as one ONNX file of standard operators, verified by onnxruntime."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dynamicgate.data.contract import Inputs
from dynamicgate.data.schema import Schema, schema_of
from dynamicgate.export.chains import ChainParts, split_model
from dynamicgate.export.example import as_example, batch_dimensions, keywords_of
from dynamicgate.export.exported import Exported, Form, check_form, copy_atomically
from dynamicgate.export.verify import check_exportable, verify_export

if TYPE_CHECKING:
    import onnx

DOMAIN, CHAIN = "dynamicgate", "Chain"  # of nodes that are there only until the layers of a chain take their place
OPSET = 20
MOST_OPEN = 0.2
"""Gathering reads and writes the open weights before they are multiplied, and so costs several times what a dense layer
costs for the same weights: docs/export.md has the times behind this number."""
MOST_BYTES = 2**31 - 1  # of one ONNX file, by the format that it is written in


def to_onnx(model: nn.Module, example: Inputs, path: str | Path, *, form: Form = "auto") -> Exported:
    """Write a model, or a plan that `compile` made, to one ONNX file, and compare it with the model in onnxruntime.

    The file has standard operators only, in float32, and any number of rows. Nothing is written if it does not compute
    what the model computes.

    example: inputs as in use: a tensor, or a tuple or mapping of what the model is called with. A few hundred rows say
        how many units are open.
    form: "skip" leaves out work: behind an `If` only rows that open a stage are computed, and for a single row only the
        open blocks of gated layers are gathered and multiplied. "masks" multiplies closed units by zero, at the cost of
        the dense model. "auto" skips stages, and gathers where no more than a fifth of the blocks is open on the
        example.
    """
    _check_installed()
    check_form(form)
    check_exportable(model)
    path = Path(path)
    inputs = as_example(example)
    forms: list[str] = []
    parts_of: list[ChainParts] = []

    def placeholder(index: int, parts: ChainParts) -> nn.Module:
        parts_of.append(parts)
        return _Placeholder(index, parts.outputs)

    with _without_noise():
        split = split_model(model, inputs, placeholder)
        proto = (
            _single_node(split.body, inputs) if isinstance(split.body, _Placeholder) else _exported(split.body, inputs)
        )
        for node in [node for node in proto.graph.node if node.domain == DOMAIN]:
            parts = parts_of[next(a.i for a in node.attribute if a.name == "index")]
            skip = _skips(parts, form)
            forms.append(_described(parts, skip=skip))
            _write_chain(proto, node, parts, skip=skip)
        _finish(proto)
        _name_features(proto, schema_of(model))
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "model.onnx"
        _save(proto, draft)
        verification = verify_export(_Session(draft), model, inputs, "the ONNX file")
        copy_atomically(draft, path)
    return Exported(path, forms, split.notes, verification)


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"ONNX files need {error.name}, which is not installed: pip install 'dynamicgate[onnx]'"
        ) from error


class _Placeholder(nn.Module):
    """Stands for a chain while torch exports the model around it."""

    def __init__(self, index: int, outputs: int) -> None:
        super().__init__()
        self.index, self.outputs = index, outputs

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.outputs)
        attributes: dict[str, Any] = {"index": self.index, "rank": x.ndim}
        return torch.onnx.ops.symbolic(f"{DOMAIN}::{CHAIN}", (x,), attributes, dtype=x.dtype, shape=shape, version=1)


class _Session(nn.Module):
    """A file in onnxruntime, called as a model is."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.names = [entry.name for entry in self.session.get_inputs()]

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """The outputs: a tensor, or several."""
        given = dict(zip(self.names, inputs, strict=False)) | named
        found = self.session.run(None, {name: value.numpy() for name, value in given.items() if name in self.names})
        tensors = tuple(map(torch.from_numpy, found))
        return tensors[0] if len(tensors) == 1 else tensors


def _single_node(body: _Placeholder, inputs: Inputs) -> onnx.ModelProto:
    """A model that is one chain from its input to its output: nothing is left for torch to export."""
    import onnx
    from onnx import helper

    assert isinstance(inputs, Tensor)
    leading = ["rows", *inputs.shape[1:-1]]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [*leading, size])
        for name, size in (("x", inputs.shape[-1]), ("y", body.outputs))
    )
    node = helper.make_node(CHAIN, ["x"], ["y"], domain=DOMAIN, index=body.index, rank=inputs.ndim)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph([node], "model", [x], [y]), opset_imports=opsets, ir_version=10)


def _exported(body: nn.Module, inputs: Inputs) -> onnx.ModelProto:
    """What torch makes of the model, with a node for each chain."""
    arguments = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else None
    with torch.no_grad():
        program = torch.onnx.export(
            body,
            arguments,
            kwargs=named,
            dynamo=True,
            dynamic_shapes=batch_dimensions(inputs),
            input_names=keywords_of(body, inputs),
            opset_version=OPSET,
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _stable_sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """A sort that leaves ties in their order, which torch does not translate: TopK of everything does."""
    from onnxscript import opset18 as op

    end = {} if dim == -1 else {"end": dim + 1}
    return op.TopK(values, op.Shape(values, start=dim, **end), axis=dim, largest=int(descending))


def _skips(parts: ChainParts, form: Form) -> bool:
    if parts.staged is not None:
        return form != "masks"
    rate_is_low = parts.open_rate is not None and parts.open_rate <= MOST_OPEN
    return parts.is_gated and (form == "skip" or (form == "auto" and rate_is_low))


def _described(parts: ChainParts, *, skip: bool) -> str:
    layers = f"layers {', '.join(parts.names)}" if parts.names else "a chain of layers"
    if parts.staged is not None:
        how = "rows that stop leave out later stages" if skip else "all stages for all rows"
        return f"{layers}: {len(parts.staged.stages)} stages, {how}"
    if not parts.is_gated:
        return f"{layers}: dense"
    open_rate = "" if parts.open_rate is None else f", {parts.open_rate:.0%} of the blocks open on the example"
    return f"{layers}: {'open blocks are gathered for single rows' if skip else 'masks'}{open_rate}"


def _write_chain(proto: onnx.ModelProto, node: onnx.NodeProto, parts: ChainParts, *, skip: bool) -> None:
    """Put the layers of a chain in the place of its node."""
    from dynamicgate.export.onnx_chain import write_chain

    rank = next(a.i for a in node.attribute if a.name == "rank")
    graph = write_chain(f"chain_{len(proto.graph.initializer)}", node.input[0], node.output[0], parts, rank, skip=skip)
    position = list(proto.graph.node).index(node)
    nodes = [*proto.graph.node[:position], *graph.nodes, *proto.graph.node[position + 1 :]]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(graph.constants.values())


def _finish(proto: onnx.ModelProto) -> None:
    """Take off what only the placeholders needed."""
    kept = [entry for entry in proto.opset_import if entry.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def _name_features(proto: onnx.ModelProto, schema: Schema | None) -> None:
    """Write what the inputs and outputs mean into the metadata of the file, as JSON: for who encodes rows elsewhere."""
    if schema is None:
        return
    import onnx

    columns = {"features": schema.feature_names, "classes": schema.classes}
    onnx.helper.set_model_props(proto, {name: json.dumps(list(found)) for name, found in columns.items() if found})


def _save(proto: onnx.ModelProto, path: Path) -> None:
    import onnx

    if proto.ByteSize() > MOST_BYTES:
        raise ValueError(
            f"the model takes {proto.ByteSize() / 1e9:.1f} GB, and an ONNX file holds 2 GB: export it with "
            "form='masks', which holds every weight once, or as an AOTInductor package"
        )
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString())


@contextmanager
def _without_noise() -> Iterator[None]:
    """Without what torch says about its own code and about packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx._internal.exporter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
