"""A path of modules as a chain of `chain.Layer`: normalisation folded, static gates and unread units sliced away.

Shapes in names: D features read, N units, G blocks, R inner width of a gate network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Gate, count_of
from dynamicgate.inference.cpu.dead_units import droppable, sliced
from dynamicgate.inference.cpu.find import Path
from dynamicgate.inference.cpu.folding import Affine, Stage, changed
from dynamicgate.nn import Normalize
from dynamicgate.ops import GateNet, chain


@dataclass(frozen=True)
class Router:
    """Experts that compete for the first layer of a chain: logits in torch, softmax, the k most probable."""

    net: GateNet
    k: int
    tau: float


@dataclass(frozen=True)
class Lowered:
    """A chain in the words of `ops`, not yet packed."""

    stages: list[Stage]
    router: Router | None = None
    norm_eps: float | None = None
    """The first layer was behind a LayerNorm with this epsilon and expects its features as `scaled_features` makes."""
    rows_only: bool = False
    """A BatchNorm was folded: features must be the second of two dimensions."""
    dropped: tuple[str, ...] = ()
    """The sites that lost blocks which an input might open."""

    @property
    def layers(self) -> list[chain.Layer]:
        """The layers alone."""
        return [stage.layer for stage in self.stages]


def scaled_features(x_BD: Tensor, eps: float) -> Tensor:
    """x / sigma, and mu / sigma as one more feature: all that a Linear behind a LayerNorm needs, because
    W LN(x) + b = (W g)(x / sigma) - (W g 1) mu / sigma + (W beta + b). Zeros of x stay zeros and can be skipped."""
    mean_B1 = x_BD.mean(dim=-1, keepdim=True)
    inverse_B1 = torch.rsqrt((x_BD - mean_B1).square().mean(dim=-1, keepdim=True) + eps)
    return torch.cat((x_BD * inverse_B1, mean_B1 * inverse_B1), dim=-1)


def lower(path: Path, gates: Mapping[str, Gate], drop: Mapping[str, Tensor] | None = None) -> Lowered:
    """`path` as layers. drop: by site, the blocks to remove (never open, and the caller does not want them)."""
    made_by = {g.site.producers[0]: g for g in gates.values() if g.site.producers and g.config.kind != "static"}
    stages: list[Stage] = []
    router: Router | None = None
    norm_eps: float | None = None
    affine: Affine = Affine()
    activated = rows_only = False
    for step in path.steps:
        if step.kind == "layer norm":
            assert isinstance(step.module, nn.LayerNorm)
            norm_eps = step.module.eps
            affine = Affine(step.module.weight, step.module.bias, step.module.normalized_shape[0])
        elif step.kind == "activation":
            stages[-1] = changed(stages[-1], activation=step.activation)
            activated = True
        elif step.kind == "affine":
            assert step.module is not None
            rows_only = rows_only or isinstance(step.module, nn.BatchNorm1d)
            scale, shift = _constants(step.module)
            if stages and not activated:
                stages[-1] = _scaled_outputs(stages[-1], scale, shift)
            else:
                affine = affine.then(scale, shift)
        elif step.kind == "linear":
            linear = step.module
            assert isinstance(linear, nn.Linear)
            affine = affine.then(_static_factor(gates.get(step.name)), None)
            layer = chain.Layer(*affine.fold(linear.weight, linear.bias))
            gate = made_by.get(step.name)
            if gate is not None:
                net = gate_net(gate, affine)
                if gate.config.kind == "router":
                    router = Router(net, net.top_k, float(gate.tau))
                layer = replace(layer, block=gate.config.block, gate=None if router and not stages else net)
            shape = (linear.out_features, linear.in_features)
            stages.append(Stage(step.name, layer, shape, gate.site.name if gate else None))
            affine, activated = Affine(), False
    can_drop = [s.site for s in stages if s.site and s.site in (drop or {}) and droppable(s)]
    return Lowered(sliced(stages, drop or {}), router, norm_eps, rows_only, tuple(can_drop))


def _constants(module: nn.Module) -> tuple[Tensor, Tensor]:
    """scale and shift, float64, of a module that is scale * x + shift."""
    if isinstance(module, Normalize):
        scale = 1.0 / module.std.double()
        return scale, -module.mean.double() * scale
    assert isinstance(module, nn.BatchNorm1d)
    assert module.running_mean is not None
    assert module.running_var is not None
    scale = torch.rsqrt(module.running_var.double() + module.eps)
    if module.weight is not None:
        scale = scale * module.weight.detach().double()
    shift = -module.running_mean.double() * scale
    return scale, shift if module.bias is None else shift + module.bias.detach().double()


def _scaled_outputs(stage: Stage, scale_N: Tensor, shift_N: Tensor) -> Stage:
    layer = stage.layer
    units = layer.weight.shape[0]
    bias_N = torch.zeros(units, dtype=torch.float64) if layer.bias is None else layer.bias.double()
    weight = (layer.weight.double() * scale_N.expand(units)[:, None]).float()
    return changed(stage, weight=weight, bias=(bias_N * scale_N + shift_N).float())


@torch.no_grad()
def _static_factor(gate: Gate | None) -> Tensor | None:
    """What a static gate multiplies the units by: the same for every input."""
    if gate is None or gate.config.kind != "static":
        return None
    return gate.per_unit(gate(torch.zeros(1, 1)).scale[0].double())


@torch.no_grad()
def gate_net(gate: Gate, affine: Affine | None = None) -> GateNet:
    """The gate network on the features of its source; a sigmoid above theta is a logit above tau * logit(theta)."""
    config = gate.config
    linears = [m for m in gate.net.modules() if isinstance(m, nn.Linear)]
    pairs: list[tuple[Tensor, Tensor | None]] = [
        (m.weight.detach(), None if m.bias is None else m.bias.detach()) for m in linears
    ]
    pairs[0] = (affine or Affine()).fold(*pairs[0])
    tau, theta = float(gate.tau), float(gate.theta)
    cut, keep = tau * math.log(theta / (1.0 - theta)), count_of(config.always_open, gate.blocks)
    if config.evaluate == "soft":
        cut, keep = -math.inf, 0
    elif config.top_k is not None:
        cut, keep = math.inf, count_of(config.top_k, gate.blocks)
    scaled = config.evaluate == "soft" or config.scale
    return GateNet(
        tuple(w for w, _ in pairs),
        tuple(b for _, b in pairs),
        hidden="relu" if config.net == "two-layer" else "identity",
        cut=cut,
        top_k=keep,
        tau=tau if scaled else None,
        soft_width=config.soft_width * tau or None,
    )
