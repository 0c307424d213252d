"""Which layers become sparse, and the density of each: uniform, Erdos-Renyi-Kernel (ERK), or given by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import TypeVar

import torch
from torch import nn

from dynamicgate.choices import Distribution as Distribution
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import stages_of
from dynamicgate.linears import is_conv1d

ByStage = float | Sequence[float]
Density = float | Mapping[str, ByStage]
Key = TypeVar("Key")


def tied_to(linear: nn.Linear, model: nn.Module) -> tuple[nn.Linear, ...]:
    """The other layers of `model` with the same weight."""
    others = (m for m in model.modules() if isinstance(m, nn.Linear) and m is not linear)
    return tuple(m for m in others if m.weight is linear.weight)


def choose_layers(
    model: nn.Module, density: Density, include: Sequence[str], exclude: Sequence[str]
) -> tuple[dict[str, nn.Linear], dict[str, str]]:
    """The Linear layers to make sparse, and for each of the others the reason why it stays dense.

    By default all layers except the last one of the model and the gate networks. Naming layers, in `include` or as
    keys of `density`, selects exactly those.
    """
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    transposed = [name for name, m in model.named_modules() if is_conv1d(m)]
    wanted = list(include) or (list(density) if isinstance(density, Mapping) else [])
    for pattern in [*wanted, *exclude]:
        if not any(fnmatch(name, pattern) for name in linears):
            raise ValueError(f"no Linear layer is called {pattern!r}; the layers are {', '.join(linears) or 'none'}")
    of_gates = {id(m) for gate in named_gates(model).values() for m in gate.modules()}
    stages = stages_of(model)
    of_gates |= set() if stages is None else {id(m) for m in stages.modules()}
    base = [name for name, m in linears.items() if id(m) not in of_gates]
    chosen: dict[str, nn.Linear] = {}
    left = dict.fromkeys(transposed, "a Conv1D, whose weight is transposed: only nn.Linear layers can be sparse")
    for name, linear in linears.items():
        twin = next((one for one, other in chosen.items() if other.weight is linear.weight), None)
        if twin is not None:
            left[name] = f"its weight is that of {twin!r}, whose mask it shares"
        elif any(fnmatch(name, pattern) for pattern in exclude):
            left[name] = "excluded"
        elif wanted:
            if any(fnmatch(name, pattern) for pattern in wanted):
                chosen[name] = linear
            else:
                left[name] = "not asked for"
        elif id(linear) in of_gates:
            left[name] = "a gate network"
        elif name == base[-1] and len(base) + len(transposed) > 1:
            left[name] = "the output layer"
        else:
            chosen[name] = linear
    if not chosen:
        raise ValueError(
            f"no layer is left to make sparse; the Linear layers are {', '.join(linears) or 'none'}"
            + (f", and {len(transposed)} layers are Conv1D, which cannot be sparse" if transposed else "")
        )
    return chosen, left


def densities(shapes: Mapping[str, torch.Size], density: Density, distribution: Distribution) -> dict[str, float]:
    """The density of each layer, for layers without stages."""
    found = region_densities({name: [shape] for name, shape in shapes.items()}, density, distribution)
    return {name: value for name, (value,) in found.items()}


def region_densities(
    shapes: Mapping[str, Sequence[torch.Size]], density: Density, distribution: Distribution
) -> dict[str, list[float]]:
    """The density of each region of each layer, from the shapes of its regions: one for each of its stages."""
    for value in _values(density):
        if not 0.0 < value <= 1.0:
            raise ValueError(f"a density is a fraction of the connections: expected 0 < density <= 1, received {value}")
    if isinstance(density, Mapping):
        for name in shapes:
            if not any(fnmatch(name, pattern) for pattern in density):
                raise ValueError(
                    f"no density is given for {name!r}, only for {', '.join(density)}: add one, or exclude the layer"
                )
        # the last matching pattern wins, as in a list of rules from general to specific
        last = {name: [v for pattern, v in density.items() if fnmatch(name, pattern)][-1] for name in shapes}
        return {name: _by_stage(name, last[name], len(parts)) for name, parts in shapes.items()}
    if distribution == "uniform":
        return {name: [density] * len(parts) for name, parts in shapes.items()}
    if distribution != "erk":
        raise ValueError(f"distribution must be uniform or erk, received {distribution!r}")
    found = _erk({(name, k): shape for name, parts in shapes.items() for k, shape in enumerate(parts)}, density)
    return {name: [found[name, k] for k in range(len(parts))] for name, parts in shapes.items()}


def initial_densities(final: Mapping[str, Sequence[float]], initial_density: Density | None) -> dict[str, list[float]]:
    """The density each region of each layer starts with: at least its `final` one, and that one for None."""
    if initial_density is None:
        return {name: list(values) for name, values in final.items()}
    for value in _values(initial_density):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"initial_density is a fraction of the connections: expected 0 to 1, received {value}")
    rules = initial_density if isinstance(initial_density, Mapping) else {"*": initial_density}
    found = {}
    for name, values in final.items():
        given = [_by_stage(name, v, len(values)) for pattern, v in rules.items() if fnmatch(name, pattern)]
        found[name] = [max(of_stage) for of_stage in zip(values, *given, strict=True)]
    return found


def _values(density: Density) -> list[float]:
    """All numbers in it."""
    if isinstance(density, Sequence):
        raise ValueError(
            f"densities by stage are given by layer, as {{'layers.0': {tuple(density)}}}, received {density!r} alone"
        )
    given = density.values() if isinstance(density, Mapping) else [density]
    return [number for value in given for number in (value if isinstance(value, Sequence) else [value])]


def _by_stage(name: str, value: ByStage, stages: int) -> list[float]:
    """The density of each stage of a layer."""
    if not isinstance(value, Sequence):
        return [value] * stages
    if stages == 1 or len(value) != stages:
        has = "no stages: expected one density" if stages == 1 else f"{stages} stages: expected one density or {stages}"
        raise ValueError(f"{name!r} has {has}, received {', '.join(f'{v:g}' for v in value)}")
    return list(value)


def cubic_density(initial: float, final: float, start: float, end: float, progress: float) -> float:
    """The density at `progress` if it falls from `initial` to `final` between `start` and `end`, along a cubic that is
    steep at first (Zhu and Gupta)."""
    if progress >= end:
        return final
    left = (end - max(progress, start)) / (end - start or 1.0)
    return final + (initial - final) * left**3


def _erk(shapes: Mapping[Key, torch.Size], density: float) -> dict[Key, float]:
    """Density of a layer in proportion to (inputs + outputs) / (inputs x outputs), `density` over all layers together.
    A layer that would need more than all of its connections is dense, and the others divide what is left."""
    full: set[Key] = set()
    while True:
        sparse = {name: shape for name, shape in shapes.items() if name not in full}
        wanted = density * sum(s.numel() for s in shapes.values()) - sum(shapes[name].numel() for name in full)
        scale = wanted / sum(sum(shape) for shape in sparse.values()) if sparse else 0.0
        found = {name: scale * sum(shape) / shape.numel() for name, shape in sparse.items()}
        over = {name for name, value in found.items() if value > 1.0}
        if not over:
            return {name: found.get(name, 1.0) for name in shapes}
        full |= over
