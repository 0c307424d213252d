"""Where the connections of a layer may be: in a model with stages, each stage has a rectangle of the weight matrix.

              reads stage 1  reads stage 2
    stage 1   ###########    .............
    stage 2   %%%%%%%%%%%    %%%%%%%%%%%%%

Connections compete inside a rectangle only, and each rectangle has a density of its own. Those outside of all, the
dots, would read a later stage: they never exist. A layer without stages is one region, the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import Region, StageGate, stack_names, stages_of
from dynamicgate.gating.units_in_stages import allowed_inputs, position_in_stack, stage_of_blocks
from dynamicgate.modules import unwrap
from dynamicgate.sparsity.patterns import Pattern

SMALL_TILE = 64  # outputs or inputs: a layer may be smaller, its one ragged tile then exists or not


@dataclass(frozen=True)
class SparseRegion:
    """A rectangle of a weight matrix in which connections compete, and the fraction of it that exists."""

    rows: slice
    columns: slice
    stage: int
    density: float
    """At the end of training."""
    initial_density: float

    @property
    def at(self) -> tuple[slice, slice]:
        """Where it is: `weight[region.at]`."""
        return self.rows, self.columns

    @property
    def shape(self) -> torch.Size:
        """Outputs and inputs."""
        return shape_of(self)

    @property
    def wanted(self) -> float:
        """How many connections it has at the end of training, before rounding."""
        return self.density * self.shape.numel()


def shape_of(region: Region | SparseRegion) -> torch.Size:
    """The outputs and inputs of a region."""
    return torch.Size((region.rows.stop - region.rows.start, region.columns.stop - region.columns.start))


def layer_regions(model: nn.Module) -> dict[str, list[Region]]:
    """The regions of every Linear layer of a model, by its name."""
    staged = _staged_regions(model)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    return {name: staged.get(linear) or whole(linear) for name, linear in linears.items()}


def whole(linear: nn.Linear) -> list[Region]:
    """The regions of a layer without stages."""
    return [Region(slice(0, linear.out_features), slice(0, linear.in_features), 0)]


def _staged_regions(model: nn.Module) -> dict[nn.Module, list[Region]]:
    """The regions of the layers inside stages: those of the stack, and the gate networks that read hidden units."""
    stages = stages_of(model)
    if stages is None:
        return {}
    stack = [unwrap(model).get_submodule(name) for name in stack_names(model, stages)]
    found = {layer: stages.regions(position, layer.weight.shape) for position, layer in enumerate(stack)}  # type: ignore[arg-type]
    for site, gate in named_gates(model).items():
        allowed = allowed_inputs(model, site, gate)
        if allowed is not None and isinstance(gate.net, nn.Linear):
            position = position_in_stack(model, stages, site)
            assert position is not None
            found[gate.net] = _regions_of_gate(stages, position, gate, allowed)
    return found


def _regions_of_gate(stages: StageGate, position: int, gate: Gate, allowed: Tensor) -> list[Region]:
    """The blocks of each stage, and the inputs of the same stage and of earlier ones."""
    sizes = stage_of_blocks(stages, position, gate).bincount(minlength=stages.count)
    ends = sizes.cumsum(0).tolist()
    return [
        Region(slice(end - size, end), slice(0, int(allowed[end - 1].sum())), k)
        for k, (end, size) in enumerate(zip(ends, sizes.tolist(), strict=True))
    ]


def sparse_regions(
    places: Sequence[Region], density: Sequence[float], initial_density: Sequence[float]
) -> list[SparseRegion]:
    """The regions of a layer with their densities."""
    given = zip(places, density, initial_density, strict=True)
    return [SparseRegion(*place, final, initial) for place, final, initial in given]


def fill(regions: Sequence[SparseRegion], shape: torch.Size, mask_of: Callable[[SparseRegion], Tensor]) -> Tensor:
    """The mask of a layer from the masks of its regions; nothing exists outside of them."""
    parts = [mask_of(region) for region in regions]
    if len(parts) == 1:
        return parts[0]
    mask = torch.zeros(shape, dtype=torch.bool, device=parts[0].device)
    for region, part in zip(regions, parts, strict=True):
        mask[region.at] = part
    return mask


def check_tiles(
    layers: Mapping[str, nn.Linear], regions: Mapping[str, Sequence[SparseRegion]], pattern: Pattern
) -> None:
    """An error for a tile that is far larger than every layer, which are padded to whole tiles, or is in two stages."""
    outputs, inputs = (max(linear.weight.shape[i] for linear in layers.values()) for i in (0, 1))
    if pattern.rows > max(outputs, SMALL_TILE) or pattern.columns > max(inputs, SMALL_TILE):
        raise ValueError(
            f"pattern={pattern.name!r}: no layer has so many outputs or inputs; the largest tile that fits any is "
            f"{outputs}x{inputs}, and one that prunes something is smaller than the layers"
        )
    for name, linear in layers.items():
        _check_stages(name, linear, regions[name], pattern)


def _check_stages(name: str, linear: nn.Linear, regions: Sequence[SparseRegion], pattern: Pattern) -> None:
    """An error if a tile would belong to two stages."""
    for region in regions:
        rows = _cuts(region.rows, linear.out_features, pattern.rows)
        columns = _cuts(region.columns, linear.in_features, pattern.columns)
        if rows or columns:
            raise ValueError(
                f"the stages of {name!r} cut through the tiles of pattern {pattern.name!r}: a stage begins or ends at "
                f"{'output' if rows else 'input'} {(rows or columns)[0]}. Choose stages that are multiples of the "
                f"tile, such as multiples of 16 units, or use pattern='unstructured'"
            )


def _cuts(part: slice, size: int, tile: int) -> list[int]:
    return [bound for bound in (part.start, part.stop) if bound % tile and bound != size]


def check_stages_came_first(name: str, linear: nn.Linear, regions: Sequence[SparseRegion]) -> None:
    """An error if stages were put on a layer that a sparsifier holds already: it would grow what may not exist."""
    hooks = linear._forward_pre_hooks.values()
    if len(regions) == 1 and any(isinstance(getattr(hook, "__self__", None), StageGate) for hook in hooks):
        raise ValueError(f"stages were put on {name!r} after the sparsifier: put them on the model first")
