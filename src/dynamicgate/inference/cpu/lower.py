"""Lower a chain of modules to `ops.chain.Layer`s: normalisation is folded, static gates and dead units are sliced away.

Shapes in names: D features read, N units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.gating.gate import Gate
from dynamicgate.inference.cpu.dead_units import droppable, without_dead_units
from dynamicgate.inference.cpu.find import LinearChain
from dynamicgate.inference.cpu.folding import Affine, Stage, with_layer
from dynamicgate.inference.cpu.stages import StageOrder, stage_order
from dynamicgate.inference.gates import factor_for_all, gate_net, router_k, same_for_all
from dynamicgate.masks import connections
from dynamicgate.nn import Normalize


@dataclass(frozen=True)
class Router:
    """Experts that compete for the first layer of a chain: logits in torch, softmax, the k most probable, or those
    above the threshold where k is None."""

    net: ops.GateNet
    k: int | None
    tau: float


@dataclass(frozen=True)
class Lowered:
    """A chain as `ops.chain.Layer`s, not yet packed."""

    stages: list[Stage]
    router: Router | None = None
    norm_eps: float | None = None
    """The first layer came after a LayerNorm with this epsilon, and reads what `scaled_features` returns."""
    rows_only: bool = False
    """A BatchNorm was folded: features must be the second of two dimensions."""
    removed: bool = False
    """Whether units were removed. In the model, zero times an infinite one of them is NaN."""
    dropped: tuple[str, ...] = ()
    """The sites that lost blocks which some input might open."""
    order: StageOrder | None = None
    """Where the units of each layer are divided in stages, and when a row stops. No unit was removed then."""

    @property
    def layers(self) -> list[ops.chain.Layer]:
        """The layers alone."""
        return [stage.layer for stage in self.stages]

    @property
    def dense_bytes(self) -> int:
        """The memory of weights and biases before anything was sliced away."""
        return sum(4 * outputs * (inputs + 1) for outputs, inputs in (stage.shape for stage in self.stages))


def scaled_features(x_BD: Tensor, eps: float) -> Tensor:
    """x / sigma, and mu / sigma as one more feature: all that a Linear after a LayerNorm needs, because
    W LN(x) + b = (W g)(x / sigma) - (W g 1) mu / sigma + (W beta + b). Zeros of x stay zeros and can be skipped."""
    mean_B1 = x_BD.mean(dim=-1, keepdim=True)
    inverse_B1 = torch.rsqrt((x_BD - mean_B1).square().mean(dim=-1, keepdim=True) + eps)
    return torch.cat((x_BD * inverse_B1, mean_B1 * inverse_B1), dim=-1)


def lower_chain(chain: LinearChain, gates: Mapping[str, Gate], drop: Mapping[str, Tensor] | None = None) -> Lowered:
    """`chain` as layers. drop: by site, blocks to remove although some input might open them."""
    drop = drop or {}
    sites = {name: gate.site_at(name) for name, gate in gates.items() if not same_for_all(gate)}
    by_producer = {site.producers[0]: name for name, site in sites.items() if site.producers}
    stages: list[Stage] = []
    router: Router | None = None
    norm_eps: float | None = None
    affine: Affine = Affine()
    activated = rows_only = False
    for step in chain.steps:
        if step.kind == "layer norm":
            assert isinstance(step.module, nn.LayerNorm)
            norm_eps = step.module.eps
            affine = Affine(step.module.weight, step.module.bias, step.module.normalized_shape[0])
        elif step.kind == "activation":
            stages[-1] = with_layer(stages[-1], activation=step.activation)
            activated = True
        elif step.kind == "affine":
            assert step.module is not None
            rows_only = rows_only or isinstance(step.module, nn.BatchNorm1d)
            scale, shift = _scale_and_shift(step.module)
            if stages and not activated:
                stages[-1] = _scaled_outputs(stages[-1], scale, shift)
            else:
                affine = affine.then(scale, shift)
        elif step.kind == "linear":
            linear = step.module
            assert isinstance(linear, nn.Linear)
            affine = affine.then(_static_factor(gates.get(step.name)), None)
            layer = ops.chain.Layer(*affine.fold(_weight_of(linear, chain), linear.bias))
            site = by_producer.get(step.name)
            if site is not None:
                gate = gates[site]
                net = affine.fold_gate(gate_net(gate))
                if gate.config.competes:
                    router = Router(net, router_k(gate), float(gate.tau))
                layer = replace(layer, block=gate.block, gate=None if router and not stages else net)
            shape = (linear.out_features, linear.in_features)
            stages.append(Stage(step.name, layer, shape, site))
            affine, activated = Affine(), False
    if chain.stages is not None:
        return Lowered(stages, None, norm_eps, rows_only, order=stage_order(chain.stages))
    dropped = tuple(s.site for s in stages if s.site and s.site in drop and droppable(s))
    fewer = without_dead_units(stages, drop)
    removed = any(not torch.equal(a.layer.weight, b.layer.weight) for a, b in zip(stages, fewer, strict=True))
    return Lowered(fewer, router, norm_eps, rows_only, removed=removed, dropped=dropped)


def _weight_of(linear: nn.Linear, chain: LinearChain) -> Tensor:
    """Its weight. In stages without what the mask leaves out, which the last optimizer step may have brought back: the
    layer itself removes it only when it runs."""
    mask = connections(linear) if chain.stages is not None else None
    return linear.weight if mask is None else linear.weight * mask


def _scale_and_shift(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Scale and shift, in float64, of a module that computes scale * x + shift."""
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
    return with_layer(stage, weight=weight, bias=(bias_N * scale_N + shift_N).float())


@torch.no_grad()
def _static_factor(gate: Gate | None) -> Tensor | None:
    """What a gate multiplies the units by, where that is the same for every input."""
    if gate is None or (factor_G := factor_for_all(gate)) is None:
        return None
    return gate.per_unit(factor_G.double())
