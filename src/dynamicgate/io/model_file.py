"""One safetensors file for a model: its tensors, and a versioned JSON header that rebuilds its structure. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.files import write_atomically
from dynamicgate.gating.attach import gate_, ungate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.masks import UNSTRUCTURED, pattern_of, put_mask_
from dynamicgate.modules import unwrap
from dynamicgate.nn import FFN, GatedMLP, Normalize, Switch, SwitchMLP

FORMAT = 1
HEADER = "dynamicgate"


def save(model: nn.Module, path: str | Path, *, notes: Mapping[str, Any] | None = None) -> None:
    """Write `model` to one file, atomically. `notes` (JSON values) travel in the header; see `read_notes`."""
    base = unwrap(model)
    state = base.state_dict()
    linears = {name: m for name, m in base.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)}
    header = {
        "kind": "model",
        "structure": describe(base),
        "gates": [{"site": asdict(g.site), "config": asdict(g.config)} for g in named_gates(base).values()],
        "masks": {name: pattern_of(m) for name, m in linears.items() if _mask_key(name) in state},
        "notes": dict(notes or {}),
    }
    write_tensors(Path(path), state, header)


def load(path: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """Read a model back, in evaluation mode. A model of your own classes needs `into=`: an ungated instance of it."""
    path = Path(path)
    tensors, header = read_tensors(path, kind="model")
    model = into if into is not None else build(header["structure"], path)
    present = named_gates(model)
    for row in header["gates"]:
        site = Site(**{**row["site"], "producers": tuple(row["site"]["producers"])})
        if site.name not in present:
            gate_(model, GateConfig(**row["config"]), where=[site])
    for name, structure in _structures(header["masks"]).items():
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        put_mask_(linear, tensors[_mask_key(name)], structure)
    if into is None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name in tensors:
                tensor.data = tensor.data.to(tensors[name].dtype)
    restore(model, tensors, path)
    return model.eval()


def read_notes(path: str | Path) -> dict[str, Any]:
    """The notes a model file was saved with."""
    _, header = read_tensors(Path(path), kind="model", with_tensors=False)
    return dict(header["notes"])


def restore(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load tensors by name; say exactly what differs if the structure is another."""
    own = model.state_dict()
    problems = [f"{k} is missing in the file" for k in own.keys() - tensors.keys()]
    problems += [f"{k} has no place in the model" for k in tensors.keys() - own.keys()]
    problems += [
        f"{k} is {list(own[k].shape)} in the model and {list(tensors[k].shape)} in the file"
        for k in own.keys() & tensors.keys()
        if own[k].shape != tensors[k].shape
    ]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"{path} holds a model of another structure: {'; '.join(sorted(problems)[:5])}{more}")
    model.load_state_dict(dict(tensors))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Tensors and a JSON header in one safetensors file, atomically."""
    seen: set[int] = set()
    flat = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        # safetensors refuses two names for one storage (tied weights); each gets its own copy in the file
        flat[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor
        seen.add(flat[name].untyped_storage().data_ptr())
    metadata = {HEADER: json.dumps({"format": FORMAT, **header})}
    write_atomically(path, lambda temporary: _save_file(flat, temporary, metadata))


def read_tensors(path: Path, *, kind: str, with_tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; a sentence that says what is wrong with the file if it is not that."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file (truncated or of another kind): {error}"
        ) from error
    if HEADER not in metadata:
        raise ValueError(f"{path} is a safetensors file, but DynamicGate did not write it: it has no structure header")
    header: dict[str, Any] = json.loads(metadata[HEADER])
    if header["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {header['format']}, this version reads up to {FORMAT}: upgrade dynamicgate to open it"
        )
    if header["kind"] != kind:
        raise ValueError(f"{path} holds a {header['kind']}, expected a {kind}")
    return tensors, header


def _structures(masks: dict[str, str] | list[str]) -> dict[str, str]:
    """Files of the first format list the masked layers without the structure of their masks."""
    return masks if isinstance(masks, dict) else dict.fromkeys(masks, UNSTRUCTURED)


def _mask_key(linear: str) -> str:
    return f"{linear}.mask" if linear else "mask"


def _save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # it wraps the operating system's error, a full disk for instance
        raise OSError(str(error)) from error


# --- structure: how to rebuild a module from JSON; what cannot be described is named, and needs `into=` --------------

_PLAIN = {a.module.__name__: a.module for a in ACTIVATIONS.values() if not a.options}
_PLAIN |= {cls.__name__: cls for cls in (nn.Sigmoid, nn.Mish)}
_WITH_OPTIONS = {a.module.__name__: a for a in ACTIVATIONS.values() if a.options}
_DESCRIBED = (
    FFN, GatedMLP, Switch, SwitchMLP, Normalize, nn.Sequential, nn.Linear, nn.LayerNorm, nn.BatchNorm1d, nn.Dropout,
    nn.ELU, nn.Softplus, nn.Flatten, *_PLAIN.values(), *(a.module for a in _WITH_OPTIONS.values()),
)  # fmt: skip
_FFN_SETTINGS = ("activation", "gate_gradient", "kernels")


def describe(module: nn.Module) -> dict[str, Any]:
    """A JSON description from which `build` makes an untrained twin without gates."""
    name = type(module).__name__
    if type(module) not in _DESCRIBED:  # a subclass may compute something else
        return {"kind": "custom", "class": f"{type(module).__module__}.{type(module).__qualname__}"}
    match module:
        case GatedMLP():
            extra = {"sizes": module.sizes, "activation": module.activation, "dropout": module.dropout.p}
            return {"kind": name, **extra, "normalize": describe(module.normalize)}
        case Switch():
            size = [module.features, module.experts, module.width]
            extra = {"unserved": module.unserved, "activation": module.activation, "kernels": module.kernels}
            return {"kind": name, "size": size, **extra}
        case FFN():
            size = [module.up.in_features, module.up.out_features, module.down.out_features]
            extra = {"value": module.value is not None, "bias": module.up.bias is not None}
            return {"kind": name, "size": size, **extra, **{key: getattr(module, key) for key in _FFN_SETTINGS}}
        case SwitchMLP():
            ends = [module.fc1.in_features, module.fc2.out_features]
            parts = {"switch": describe(module.switch), "normalize": describe(module.normalize)}
            return {"kind": name, "ends": ends, **parts}
        case nn.Sequential():
            # not named_children(), which leaves out a module that occurs a second time
            return {"kind": name, "modules": {key: describe(child) for key, child in module._modules.items()}}
        case nn.Linear():
            return {
                "kind": "Linear",
                "size": [module.in_features, module.out_features],
                "bias": module.bias is not None,
            }
        case nn.LayerNorm():
            extra = {"elementwise_affine": module.weight is not None, "bias": module.bias is not None}
            return {"kind": name, "shape": list(module.normalized_shape), "eps": module.eps, **extra}
        case nn.BatchNorm1d():
            arguments = ("eps", "momentum", "affine", "track_running_stats")
            return {"kind": name, "features": module.num_features, **{key: getattr(module, key) for key in arguments}}
        case nn.Dropout():
            return {"kind": name, "p": module.p}
        case _ if name in _WITH_OPTIONS:
            return {"kind": name, **{key: getattr(module, key) for key in _WITH_OPTIONS[name].options}}
        case nn.ELU():
            return {"kind": name, "alpha": module.alpha}
        case nn.Softplus():
            return {"kind": name, "beta": module.beta, "threshold": module.threshold}
        case nn.Flatten():
            return {"kind": name, "dims": [module.start_dim, module.end_dim]}
        case Normalize():
            return {"kind": name, "shape": list(module.mean.shape), "std_shape": list(module.std.shape)}
    return {"kind": name}


def build(structure: dict[str, Any], path: Path) -> nn.Module:
    """The module that `describe` described."""
    s = structure
    match s["kind"]:
        case "GatedMLP":
            model = GatedMLP(s["sizes"], activation=s["activation"], dropout=s["dropout"])
            model.normalize = build(s["normalize"], path)  # type: ignore[assignment]
            return model
        case "Switch":
            extra = {"kernels": s.get("kernels", "auto")}  # files of the first version have none
            return ungate_(Switch(*s["size"], unserved=s["unserved"], activation=s["activation"], **extra))
        case "FFN":
            return FFN(*s["size"], **{key: s[key] for key in ("value", "bias", *_FFN_SETTINGS)})
        case "SwitchMLP":
            (inputs, outputs), (features, experts, width) = s["ends"], s["switch"]["size"]
            network = SwitchMLP(inputs, features, experts, width, outputs, top_k=1)
            network.switch = build(s["switch"], path)  # type: ignore[assignment]
            network.normalize = build(s["normalize"], path)  # type: ignore[assignment]
            return network
        case "Sequential":
            sequential = nn.Sequential()
            for key, child in s["modules"].items():
                sequential.add_module(key, build(child, path))
            return sequential
        case "Linear":
            return nn.Linear(s["size"][0], s["size"][1], bias=s["bias"])
        case "LayerNorm":
            return nn.LayerNorm(s["shape"], s["eps"], elementwise_affine=s["elementwise_affine"], bias=s["bias"])
        case "BatchNorm1d":
            return nn.BatchNorm1d(s["features"], s["eps"], s["momentum"], s["affine"], s["track_running_stats"])
        case "Dropout":
            return nn.Dropout(s["p"])
        case kind if kind in _WITH_OPTIONS:
            return _WITH_OPTIONS[kind].module(**{key: s[key] for key in _WITH_OPTIONS[kind].options})
        case "ELU":
            return nn.ELU(s["alpha"])
        case "Softplus":
            return nn.Softplus(s["beta"], s["threshold"])
        case "Flatten":
            return nn.Flatten(*s["dims"])
        case "Normalize":
            return Normalize(torch.zeros(s["shape"]), torch.ones(s["std_shape"]))
        case "custom":
            raise ValueError(
                f"{path} holds a model of your own class {s['class']}: pass an instance with load(path, into=model)"
            )
        case kind if kind in _PLAIN:
            return _PLAIN[kind]()
    raise ValueError(
        f"{path} describes a layer of kind {s['kind']!r}, which this version does not know: upgrade dynamicgate"
    )
