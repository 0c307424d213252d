"""One safetensors file for a model: its tensors, and a versioned JSON header with its architecture. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dynamicgate.files import write_atomically
from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig, check_same_config
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.gating.stages import stack_names, stages_of
from dynamicgate.io.architecture import build, describe
from dynamicgate.masks import connections, pattern_of, put_mask_
from dynamicgate.modules import unwrap

FORMAT = 2  # 2: stages. A file without them is written as format 1, which earlier versions read.
HEADER = "dynamicgate"


def save(model: nn.Module, path: str | Path, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write `model` to one file, atomically: weights, masks, gates with their settings, and how to build it again.

    `notes` are JSON values of your own that are stored in the header; `read_notes` reads them back.
    """
    base = unwrap(model)
    state = base.state_dict()
    header = {
        "kind": "model",
        "architecture": describe(base),
        "gates": describe_gates(base),
        **_describe_stages(base),
        "masks": describe_masks(base),
        "notes": dict(notes or {}),
    }
    write_tensors(Path(path), state, header)


def load(path: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """Read a model back, in evaluation mode.

    into: an instance of the model to load into, needed for classes of your own. It gets the masks of the file, and its
        gates where it has none yet.
    """
    path = Path(path)
    tensors, header = read_tensors(path, kind="model")
    model = into if into is not None else build(header["architecture"], path)
    present = named_gates(model)
    for row in header["gates"]:
        site = read_site(row["site"])
        if site.name not in present:
            gate_(model, GateConfig(**row["config"]), where=[site])
        else:
            check_same_config(present[site.name], GateConfig(**row["config"]), str(path))
    if "stages" in header and stages_of(model) is None:
        sites = [read_site(row) for row in header["stages"]["sites"]]
        gate_(model, GateConfig(**header["stages"]["config"]), where=sites)
    for name, mask in header["masks"].items():
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        put_mask_(linear, tensors[_mask_key(name)], mask["pattern"])
    if into is None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name in tensors:
                tensor.data = tensor.data.to(tensors[name].dtype)
    restore(model, tensors, path)
    return model.eval()


def describe_gates(model: nn.Module) -> list[dict[str, Any]]:
    """The site and the settings of each gate on units, as JSON values."""
    gates = named_gates(model)
    return [{"site": gate.site_at(name).to_dict(), "config": gate.config.to_dict()} for name, gate in gates.items()]


def describe_masks(model: nn.Module) -> dict[str, Any]:
    """The pattern of each layer that has a mask, by name."""
    linears = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)}
    return {name: {"pattern": pattern_of(m)} for name, m in linears.items() if connections(m) is not None}


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
    return dict(header["notes"])


def restore(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load `tensors` into `model` by name; if names or shapes differ, say which."""
    own = model.state_dict()
    problems = [f"{k} is not in the file" for k in own.keys() - tensors.keys()]
    problems += [f"{k} is not in the model" for k in tensors.keys() - own.keys()]
    problems += [
        f"{k} is {list(own[k].shape)} in the model and {list(tensors[k].shape)} in the file"
        for k in own.keys() & tensors.keys()
        if own[k].shape != tensors[k].shape
    ]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"{path} holds a model of another architecture: {'; '.join(sorted(problems)[:5])}{more}")
    model.load_state_dict(dict(tensors))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON header to one safetensors file, atomically."""
    storages: set[int] = set()
    flat = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        # safetensors refuses two names for one storage (tied weights); each gets its own copy in the file
        flat[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in storages else tensor
        storages.add(flat[name].untyped_storage().data_ptr())
    metadata = {HEADER: json.dumps({"format": FORMAT if "stages" in header else 1, **header})}
    write_atomically(path, lambda temporary: _save_file(flat, temporary, metadata))


def read_tensors(path: Path, *, kind: str, with_tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header that `write_tensors` wrote; any other file is refused with what is wrong with it."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file (truncated, or another kind of file): {error}"
        ) from error
    if HEADER not in metadata:
        raise ValueError(f"{path} is a safetensors file, but DynamicGate did not write it: it has no header of ours")
    header: dict[str, Any] = json.loads(metadata[HEADER])
    if header["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {header['format']}, this version reads up to {FORMAT}: upgrade dynamicgate to open it"
        )
    if header["kind"] != kind:
        raise ValueError(f"{path} holds a {header['kind']}, expected a {kind}")
    return tensors, header


def _mask_key(linear: str) -> str:
    return f"{linear}.mask" if linear else "mask"


def _save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # it wraps the operating system's error, a full disk for instance
        raise OSError(str(error)) from error
