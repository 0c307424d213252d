"""One safetensors file for a model: its tensors, and a versioned JSON header with its architecture. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dynamicgate.data.schema import Schema, put_schema_, read_schema, schema_of
from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig, check_same_config
from dynamicgate.gating.ownership import put_owners_as_in_
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.gating.stages import stack_names, stages_of
from dynamicgate.io.architecture import build, describe
from dynamicgate.io.tensor_file import (
    check_size,
    naming_damage,
    read_tensors,
    refuse_differences,
    restore,
    write_tensors,
)
from dynamicgate.masks import connections, is_pruned, pattern_of, put_mask_
from dynamicgate.modules import unwrap

_ADDED = {"gate", "stages", "mask"}
"""What `gate_` and sparsifiers add to a model, as parts of the names of tensors."""


def save(
    model: nn.Module, path: str | Path, *, notes: Mapping[str, Any] | None = None, schema: Schema | None = None
) -> None:
    """Write `model` to one file, atomically: weights, masks, gates with their settings, and how to build it again.

    `notes` are JSON values of your own that are stored in the header; `read_notes` reads them back. `schema` says what
    the model reads and answers, by name; by default the one that it carries (`data.schema_of`).
    """
    _check_path(path)
    base = unwrap(model)
    schema = schema_of(base) if schema is None else schema
    state = base.state_dict()
    header = {
        "kind": "model",
        "architecture": describe(base),
        "gates": describe_gates(base),
        **_describe_stages(base),
        "masks": describe_masks(base),
        "notes": _checked_notes(notes),
        **({} if schema is None else {"schema": schema.to_json()}),
    }
    write_tensors(Path(path), state, header)


def _checked_notes(notes: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(notes or {})
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"notes must be JSON values: text, numbers, lists and mappings of these ({error})") from error
    return found


def load(path: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """Read a model back, in evaluation mode. It carries the schema of the file, if there is one (`data.schema_of`).

    into: an instance of the model to load into, needed for classes of your own. It gets the masks of the file, and its
        gates where it has none yet.
    """
    _check_path(path)
    path = Path(path)
    tensors, header = read_tensors(path, kind="model")
    if into is not None:
        _refuse_other_model(into, tensors, path)
    with naming_damage(path):
        _check_count(header["architecture"], tensors, path)
        _check_ranks(header["gates"], tensors, path)
        schema = schema_of_header(header, path)
        if into is None:  # an instance has the size that its owner chose
            check_size(lambda: _add_gates(build(header["architecture"], path), header, path), tensors, path)
        model = _add_gates(into if into is not None else build(header["architecture"], path), header, path)
        _add_stages(model, header)
        for name, gate in named_gates(model).items():
            put_owners_as_in_(gate, f"{name}.gate.", tensors)
        for name, mask in header["masks"].items():
            linear = model.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            put_mask_(linear, tensors[_mask_key(name)], mask["pattern"])
    if into is None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name in tensors:
                tensor.data = tensor.data.to(tensors[name].dtype)
    restore(model, tensors, path)
    put_schema_(model, schema)
    return model.eval()


def _refuse_other_model(into: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise ValueError unless the file has all tensors of the model, and no others but those of gates, stages and
    masks, which the model may lack: it is the model that is wrong then, and not the file."""
    own = unwrap(into).state_dict()
    lacking = [name for name in tensors.keys() - own.keys() if not _ADDED & set(name.split("."))]
    problems = [f"{name} is not in the model" for name in lacking]
    said = "was not saved from the model given with into=, which is another one"
    refuse_differences(own, tensors, path, problems, said=said)


def _check_count(architecture: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Modules without tensors are free to describe, and building hundreds of thousands takes minutes."""
    count, waiting, most = 0, [architecture], 1000 + 20 * len(tensors)
    while waiting and count <= most:
        value = waiting.pop()
        count += isinstance(value, dict)
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if count > most:
        raise ValueError(f"{path} is damaged: it describes more than {most} modules, and has {len(tensors)} tensors")


def _check_ranks(gates: list[dict[str, Any]], tensors: Mapping[str, Tensor], path: Path) -> None:
    """The rank and the number of contexts are the sizes of a gate that do not follow from the layers around it."""
    longest = max((side for tensor in tensors.values() for side in tensor.shape), default=0)
    for row in gates:
        for name, words in (("rank", "of rank"), ("contexts", "for this many contexts:")):
            size = row["config"].get(name)
            if size is not None and not (isinstance(size, int) and size <= longest):
                raise ValueError(
                    f"{path} is damaged: it describes a gate {words} {size!r:.40}, and has no tensor for it"
                )


def _add_gates(model: nn.Module, header: Mapping[str, Any], path: Path) -> nn.Module:
    """The model with the gates that it does not have yet, in place; those it has must be the same."""
    present = named_gates(model)
    for row in header["gates"]:
        site, config = read_site(row["site"]), GateConfig(**row["config"])
        if site.name not in present:
            gate_(model, config, where=[site])
        else:
            check_same_config(present[site.name], config, str(path))
    return model


def _add_stages(model: nn.Module, header: Mapping[str, Any]) -> None:
    """Stages, where the model has none yet. Their tensors are no larger than the weights of the layers they divide."""
    if "stages" in header and stages_of(model) is None:
        sites = [read_site(row) for row in header["stages"]["sites"]]
        gate_(model, GateConfig(**header["stages"]["config"]), where=sites)


def describe_gates(model: nn.Module) -> list[dict[str, Any]]:
    """The site and the settings of each gate on units, as JSON values."""
    gates = named_gates(model)
    return [{"site": gate.site_at(name).to_dict(), "config": gate.config.to_dict()} for name, gate in gates.items()]


def describe_masks(model: nn.Module) -> dict[str, Any]:
    """The pattern of each layer that has a mask, by name."""
    linears = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)}
    return {
        name: {"pattern": pattern_of(m)}
        for name, m in linears.items()
        if connections(m) is not None and not is_pruned(m)
    }


def read_site(row: Mapping[str, Any]) -> Site:
    """The site that `describe_gates` described."""
    return Site(**{**row, "producers": tuple(row["producers"])})


def _describe_stages(model: nn.Module) -> dict[str, Any]:
    """The stages of a model as a part of the header; nothing for one without."""
    stages = stages_of(model)
    if stages is None:
        return {}
    names = stack_names(model, stages)
    sites = [
        Site(consumer, (producer,), producer, site.width)
        for producer, consumer, site in zip(names, names[1:], stages.sites, strict=False)
    ]
    return {"stages": {"sites": [site.to_dict() for site in sites], "config": stages.config.to_dict()}}


def read_notes(path: str | Path) -> dict[str, Any]:
    """The notes a model file was saved with."""
    _, header = read_tensors(Path(path), kind="model", with_tensors=False)
    notes = header.get("notes")
    if not isinstance(notes, dict):
        raise ValueError(f"{path} is damaged: expected notes by name, received {notes!r:.60}")
    return notes


def schema_in(path: str | Path) -> Schema | None:
    """The schema in a model file; None if it has none."""
    _, header = read_tensors(Path(path), kind="model", with_tensors=False)
    return schema_of_header(header, Path(path))


def schema_of_header(header: Mapping[str, Any], path: Path) -> Schema | None:
    """The schema in the header of a file; None if it has none."""
    if "schema" not in header:  # of an earlier version, or of a model of your own
        return None
    try:
        return read_schema(header["schema"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: what it says about its data does not fit: {error}") from error


def _check_path(path: object) -> None:
    if not isinstance(path, str | Path):
        raise TypeError(f"expected the path of a model file, received {type(path).__name__}")


def _mask_key(linear: str) -> str:
    return f"{linear}.mask" if linear else "mask"
