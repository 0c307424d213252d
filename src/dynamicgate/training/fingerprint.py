"""The fingerprint of a run: a checkpoint is continued only by a run with the same settings, data and functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.budget import GateBudget
from dynamicgate.data.many_inputs import Samples
from dynamicgate.data.tasks import Task
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import StageGate, stages_of
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.loader_stream import LoaderStream
from dynamicgate.training.options import FitOptions
from dynamicgate.training.reading import Source

NOT_SETTINGS = ("counter", "sparsifier")  # fields of a budget that follow from the model
CHUNK = 4096  # rows


def fingerprint(
    *,
    model: nn.Module,
    data_hash: str,
    valid_hash: str | None,
    budget: GateBudget | None,
    sparsifier: Sparsifier | None,
    options: FitOptions,
    class_weights: Tensor | None,
) -> dict[str, Any]:
    """All settings as JSON values, except the number of processes, which may change when a run is continued."""
    return {
        **asdict(options),
        "data": data_hash,
        "valid": valid_hash,
        "budget": None if budget is None else budget_settings(budget),
        "sparsifier": sparsifier.settings if sparsifier is not None else None,
        "class_weights": None if class_weights is None else class_weights.tolist(),
        "gates": {name: gate.config.to_dict() for name, gate in named_gates(model).items()},
        **structure(model),
    }


def structure(model: nn.Module) -> dict[str, Any]:
    """What each module computes, by its name, and which parameters are not trained. Gates have their config;
    a class of the user's by its code as well."""
    gates = [module for module in model.modules() if isinstance(module, Gate | StageGate)]
    inside = {id(module) for gate in gates for module in gate.modules()}
    found: dict[str, Any] = {
        f"module {name!r}": _describe_module(module)
        for name, module in model.named_modules()
        if id(module) not in inside
    }
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return {**found, "frozen": frozen}


def _describe_module(module: nn.Module) -> str:
    kind = type(module)
    text = f"{kind.__module__}.{kind.__qualname__}({module.extra_repr()})"
    replaced = vars(module).get("forward")
    forward = kind.forward if replaced is None else getattr(replaced, "__func__", replaced)
    code = getattr(forward, "__code__", None)
    known = replaced is None and kind.__module__.partition(".")[0] in ("torch", "dynamicgate")
    return text if known or code is None else f"{text} {_digest(code)}"


def stage_settings(model: nn.Module) -> dict[str, Any]:
    """The stages of a model; nothing for one without."""
    stages = stages_of(model)
    return {} if stages is None else {"bounds": [list(b) for b in stages.bounds], "decide": stages.config.decide}


def data_identity(data: Source) -> str:
    """A digest of data in memory; of a DataLoader, whose rows only it knows, how many batches it has."""
    return json.dumps(data.settings) if isinstance(data, LoaderStream) else hash_data(data)


def hash_data(data: Samples) -> str:
    """A digest of all rows as stored, in order, and of all targets. Another order of rows or columns is other data."""
    digest = hashlib.blake2b(digest_size=16)
    store = getattr(data, "x", None)
    for index in torch.arange(len(data)).split(CHUNK):
        if isinstance(store, Mapping | tuple):
            named = data.rows(index)
            parts = sorted(named.items()) if isinstance(named, Mapping) else list(enumerate(named))
            for name, value in parts:
                digest.update(f"{name}".encode())
                if isinstance(value, Tensor):
                    _digest_tensor(digest, value)
                else:
                    digest.update(repr(value).encode())
        else:
            assert store is not None
            _digest_tensor(digest, store[index.to(store.device) if isinstance(store, Tensor) else index])
    digest.update(data.y.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _digest_tensor(digest: Any, part: Tensor) -> None:
    digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
    digest.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def describe_task(task: Task) -> Any:
    """The loss as a JSON value that changes whenever it changes; None for the cross entropy of classes."""
    loss = task.settings
    if isinstance(loss, nn.Module):
        constants = {name: value.tolist() for name, value in loss.state_dict().items()}
        options = {name: value for name, value in vars(loss).items() if isinstance(value, int | float | str)}
        return [_describe_module(loss), constants, options]
    return _describe(loss, "loss")


def budget_settings(budget: GateBudget) -> dict[str, Any]:
    """What was asked of a budget, as JSON values."""
    # checkpoints of earlier versions know nothing of these
    later = {"fold": False, "order_units": False, "wait": True}
    left_out = [name for name, default in later.items() if getattr(budget, name, default) == default]
    names = [f.name for f in fields(budget) if f.init and f.name not in (*NOT_SETTINGS, *left_out)]
    return {"kind": type(budget).__name__, **{name: _describe(getattr(budget, name), name) for name in names}}


def _describe(value: Any, name: str) -> Any:
    """A setting as a JSON value that changes whenever the setting changes."""
    if isinstance(value, partial):
        arguments = {key: _describe(v, name) for key, v in value.keywords.items()}
        return [_describe(value.func, name), [_describe(v, name) for v in value.args], arguments]
    if isinstance(value, tuple | list):
        return [_describe(v, name) for v in value]
    if callable(value):
        return describe_function(value, name)
    return value


def describe_function(function: Callable[..., Any], name: str) -> list[str]:
    """The name of a function and a digest of its code: an edited function is another function."""
    qualified = getattr(function, "__qualname__", "<unnamed>")
    code = getattr(function, "__code__", None)
    if "<" in qualified or code is None:
        raise ValueError(
            f"{name} is {function!r}, which cannot be told from another function when this run is continued: use a "
            "function defined at the top of a module, functools.partial of one, or dynamicgate.schedule; or call fit "
            "without out="
        )
    return [f"{function.__module__}.{qualified}", _digest(code)]


def _digest(code: CodeType) -> str:
    """Of what the code does: functions inside it are digested too, because their names would be their addresses."""
    constants = [_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return hashlib.blake2b(code.co_code + repr((constants, code.co_names)).encode(), digest_size=8).hexdigest()
