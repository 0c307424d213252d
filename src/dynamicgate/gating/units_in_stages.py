"""Gates on units inside stages: a gate that decides for a stage may read nothing that a later stage computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynamicgate.gating.config import GateConfig
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.sites import Site
from dynamicgate.gating.stages import StageGate, stack_names, stages_of


def position_in_stack(model: nn.Module, stages: StageGate, consumer: str) -> int | None:
    """Which site of the stack `consumer` reads; None where it reads none."""
    names = stack_names(model, stages)
    return names.index(consumer) - 1 if consumer in names[1:] else None


def check_fits(model: nn.Module, site: Site, config: GateConfig) -> None:
    """An error for a gate that cannot sit inside the stages of the model."""
    stages = stages_of(model)
    position = None if stages is None else position_in_stack(model, stages, site.consumer)
    if stages is not None and position is not None:
        check_fits_at(stages, position, site, config)


def check_fits_at(stages: StageGate, position: int, site: Site, config: GateConfig) -> None:
    """The same at one position of the stack."""
    bounds = stages.bounds[position]
    block = config.block or site.default_block
    torn = [bound for bound in bounds[1:-1] if bound % block]
    if torn:
        raise ValueError(
            f"blocks of {block} units do not fit the stages of {site.name!r}, which begin at units "
            f"{', '.join(map(str, bounds[1:-1]))}: use a block that divides them"
        )
    if config.kind == "router" or config.top_k is not None or config.always_open:
        raise ValueError(
            f"inside stages blocks may not compete: a block of stage 1 cannot know those of stage 2. Expected "
            f"kind='dynamic' or 'static' without top_k and always_open at {site.name!r}"
        )
    reads_units = position > 0 or config.reads == "same"
    if config.kind == "dynamic" and reads_units and config.net != "linear":
        raise ValueError(
            f"the gate at {site.name!r} reads hidden units of several stages: expected net='linear', of which each "
            f"block can read its own and earlier stages only, received net={config.net!r}"
        )


def keep_order_(model: nn.Module, name: str, gate: Gate) -> None:
    """Mask the network of a gate inside stages, so that no block reads units of a later stage."""
    allowed = allowed_inputs(model, name, gate)
    if allowed is None:
        return
    stages, net = stages_of(model), gate.net
    assert stages is not None
    assert isinstance(net, nn.Linear)
    stages.keep_order_(net, allowed)


def allowed_inputs(model: nn.Module, name: str, gate: Gate) -> Tensor | None:
    """Which inputs each block of a linear gate may read; None where it may read all."""
    stages = stages_of(model)
    position = None if stages is None else position_in_stack(model, stages, name)
    if stages is None or position is None or gate.config.kind == "static":
        return None
    source = position if gate.config.reads == "same" else position - 1
    if source < 0:
        return None  # the input of the model is there from the beginning
    blocks = stage_of_blocks(stages, position, gate)
    return (blocks[:, None] >= stages.stage_of_units(source)[None, :]).to(gate.tau.device)


def stage_of_blocks(stages: StageGate, position: int, gate: Gate) -> Tensor:
    """The stage of each block."""
    return stages.stage_of_units(position)[torch.arange(gate.blocks) * gate.block]
