"""Save and load the full state of a training run as one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.budget import GateBudget
from dynamicgate.gating.folding import fold_as_in_
from dynamicgate.io.tensor_file import naming_damage, read_tensors, restore, write_tensors
from dynamicgate.sparsity import Sparsifier


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    budget: GateBudget | None,
    sparsifier: Mapping[str, Any] | None,
    *,
    settings: Mapping[str, Any],
    position: Mapping[str, Any],
    rng: Mapping[str, Tensor],
) -> None:
    """Weights, masks, gates with tau and theta, optimizer, budget, state of the sparsifier, random state, position."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    optimizer_tensors, optimizer_rest = _flatten(optimizer.state_dict())
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors.items()}
    tensors |= {f"rng.{name}": tensor for name, tensor in rng.items()}
    tensors |= {f"sparsifier.{name}": value for name, value in (sparsifier or {}).items() if isinstance(value, Tensor)}
    header = {
        "kind": "checkpoint",
        "settings": dict(settings),
        "position": dict(position),
        "optimizer": optimizer_rest,
        "budget": budget.state_dict() if budget is not None else None,
        "sparsifier": {name: value for name, value in (sparsifier or {}).items() if not isinstance(value, Tensor)},
    }
    write_tensors(path, tensors, header)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    budget: GateBudget | None,
    sparsifier: Sparsifier | None,
    *,
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore everything in place; returns the position and the random state. Refuses a run with other settings."""
    tensors, header = read_tensors(path, kind="checkpoint")
    with naming_damage(path):
        refuse_other_settings(path, header["settings"], settings)
        fold_as_in_(model, _under("model.", tensors))
        restore(model, _under("model.", tensors), path)
        optimizer.load_state_dict(_unflatten(_under("optimizer.", tensors), header["optimizer"]))
        if budget is not None and header["budget"] is not None:
            budget.load_state_dict(header["budget"])
        if sparsifier is not None:
            sparsifier.load_state_dict({**header["sparsifier"], **_under("sparsifier.", tensors)})
        return dict(header["position"]), _under("rng.", tensors)


def refuse_other_settings(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting in which a saved run and this one differ."""
    for name in current.keys() | saved.keys():
        then, now = saved.get(name), current.get(name)
        if then != now:
            raise ValueError(
                f"{path} was made with {name}={then!r}, this run has {name}={now!r}: choose another output "
                "folder, or delete that file to start over"
            )


def random_state() -> dict[str, Tensor]:
    """The state of torch's generators, CPU and, where there is one, GPU."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _flatten(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    flat = flat_entries(state["state"])
    tensors = {key: value for key, value in flat.items() if isinstance(value, Tensor)}
    scalars = {key: value for key, value in flat.items() if not isinstance(value, Tensor)}
    return tensors, {"scalars": scalars, "param_groups": state["param_groups"]}


def _unflatten(tensors: Mapping[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    return {"state": nested_entries({**tensors, **rest["scalars"]}), "param_groups": rest["param_groups"]}


def flat_entries(state: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What an optimizer keeps for its parameters, by number of parameter and name."""
    return {f"{index}.{name}": value for index, entries in state.items() for name, value in entries.items()}


def nested_entries(flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The inverse of `flat_entries`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in flat.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
