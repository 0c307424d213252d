"""The file from which `follow` goes on: model, optimizer and everything with a state, as one safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.budget import GateBudget
from dynamicgate.continual.contexts import Contexts
from dynamicgate.continual.learners import Learner
from dynamicgate.continual.streams import Stream
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.ownership import put_owners_as_in_
from dynamicgate.io.tensor_file import naming_damage, read_tensors, restore, write_tensors
from dynamicgate.sparsity import Recycler, Sparsifier
from dynamicgate.sparsity.consolidation import AnyKeeper, Consolidation
from dynamicgate.training.checkpoint import (
    flat_entries,
    nested_entries,
    random_state,
    refuse_other_settings,
    set_random_state,
)
from dynamicgate.training.fingerprint import budget_settings

LOOKED_AT = 32  # rows of a task that tell it from others
STATEFUL = ("keeper", "sparsifier", "recycler", "budget")


@dataclass(eq=False)
class Parts:
    """Everything that has a state beside the optimizer."""

    model: nn.Module
    learner: Learner
    keeper: AnyKeeper | None = None
    contexts: Contexts | None = None
    sparsifier: Sparsifier | None = None
    recycler: Recycler | None = None
    budget: GateBudget | None = None


def stream_settings(stream: Stream) -> dict[str, Any]:
    """What tells a stream from others: its rules, and a few rows and all labels of every task, as they are read."""
    digest = hashlib.blake2b(digest_size=16)
    for task in stream:
        rows = task.train.rows(torch.arange(min(LOOKED_AT, len(task.train))))
        digest.update(task.name.encode() + rows.cpu().float().contiguous().numpy().tobytes())
        digest.update(task.train.y.cpu().contiguous().numpy().tobytes())
    rules = {"scenario": stream.scenario, "known": stream.known, "tasks": len(stream)}
    return {"stream": stream.name, **rules, "data": digest.hexdigest()}


def part_settings(parts: Parts) -> dict[str, Any]:
    """What was asked of everything beside the model, as JSON values: a run that goes on must be asked for the same."""
    budget, contexts, sparsifier = parts.budget, parts.contexts, parts.sparsifier
    recycler = sparsifier.recycler if sparsifier is not None and sparsifier.recycler is not None else parts.recycler
    found = {
        "learner": parts.learner.settings,
        "sparsifier": None if sparsifier is None else sparsifier.settings,
        "recycler": None if recycler is None else recycler.settings,
        "budget": None if budget is None else budget_settings(budget),
        "contexts": None if contexts is None else contexts.settings,
        "keeper": parts.keeper.settings if isinstance(parts.keeper, Consolidation) else None,
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def write_walk(
    path: Path, parts: Parts, optimizer: torch.optim.Optimizer, position: Mapping[str, Any],
    settings: Mapping[str, Any], asked: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write all of it, atomically. asked: `part_settings` before the first step."""
    states: dict[str, Mapping[str, Any]] = {
        "model": parts.model.state_dict(),
        "optimizer": _flat(optimizer),
        "learner": parts.learner.state_dict(),
        "task": parts.learner.task_state(),
        "rng": random_state(),
        **{name: part.state_dict() for name in STATEFUL if (part := getattr(parts, name)) is not None},
    }
    if parts.sparsifier is not None and parts.sparsifier.recycler is not None:
        states["sparsifier_recycler"] = parts.sparsifier.recycler.state_dict()
    tensors = {f"{part}/{k}": v for part, state in states.items() for k, v in state.items() if isinstance(v, Tensor)}
    plain = {p: {k: v for k, v in s.items() if not isinstance(v, Tensor)} for p, s in states.items()}
    learner = {"tasks": parts.learner.tasks}
    current = None if parts.contexts is None else parts.contexts.current
    header = {"kind": "stream", "settings": dict(settings), "position": dict(position), "plain": plain,
              "learner": learner, "context": current, "asked": dict(asked)}  # fmt: skip
    write_tensors(path, tensors, header)


def read_walk(
    path: Path, parts: Parts, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Restore all of it in place; returns the position. Refuses a run with other settings."""
    tensors, header = read_tensors(path, kind="stream")
    with naming_damage(path):
        refuse_other_settings(path, header["settings"], settings)
        refuse_other_settings(path, header.get("asked", asked), asked)  # absent in older files

        def state(part: str) -> dict[str, Any]:
            found = {k.removeprefix(f"{part}/"): t for k, t in tensors.items() if k.startswith(f"{part}/")}
            return {**header["plain"].get(part, {}), **found}

        for name, module in parts.model.named_modules():
            if isinstance(module, Gate):  # what is borrowed has the shape it had then
                put_owners_as_in_(module, f"model/{name}.", tensors)
        restore(parts.model, state("model"), path)
        _restore_optimizer(optimizer, state("optimizer"))
        parts.learner.load_state_dict(state("learner"))
        parts.learner.tasks = header["learner"]["tasks"]
        parts.learner.load_task_state(state("task"))
        for name in STATEFUL:
            part = getattr(parts, name)
            if part is not None:
                part.load_state_dict(state(name))
        if parts.sparsifier is not None and parts.sparsifier.recycler is not None:
            parts.sparsifier.recycler.load_state_dict(state("sparsifier_recycler"))
        if parts.contexts is not None:
            parts.contexts.current = header["context"]
            parts.contexts.name_(header["context"])
        set_random_state(state("rng"))
        return dict(header["position"])


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer by number of parameter and name."""
    found = optimizer.state_dict()
    return {**flat_entries(found["state"]), "param_groups": found["param_groups"]}


def _restore_optimizer(optimizer: torch.optim.Optimizer, flat: dict[str, Any]) -> None:
    entries = {key: value for key, value in flat.items() if key != "param_groups"}
    optimizer.load_state_dict({"state": nested_entries(entries), "param_groups": flat["param_groups"]})
