"""Does an exported file compute what its model computes?

A model is compared in float64, as plans are, and rows that rounding may send the other way are left out and counted. A
plan is compared with itself: it no longer knows the model that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.data.contract import Inputs, call
from dynamicgate.export.chains import ChainParts, split_model
from dynamicgate.export.example import first_rows
from dynamicgate.gating.gate import scale_units
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import stages_of
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.lower import scaled_features
from dynamicgate.inference.cpu.verify import verify_model
from dynamicgate.inference.gates import GateInTorch, RouterInTorch
from dynamicgate.inference.plan import Verification
from dynamicgate.inference.verify import MARGIN, near_tie, refuse_above
from dynamicgate.modules import evaluating, unwrap
from dynamicgate.ops.chain.stages import score_stages, stop_rows
from dynamicgate.ops.gate_net import NEAREST, logits

TOLERANCE = 1e-5  # of the largest output
ROWS = 256


def check_exportable(model: nn.Module) -> None:
    """Raise ValueError for a model whose outputs no file can repeat."""
    stages = stages_of(model)
    if stages is not None and stages.config.decide == "random":
        raise ValueError("stages that are decided at random are a control for experiments: no file repeats their draws")
    for name, gate in named_gates(model).items():
        if gate.config.capacity is not None:
            raise ValueError(
                f"the experts of {name!r} have a capacity, so that a row depends on the rows beside it: export the "
                "model with capacity=None"
            )


def verify_export(exported: nn.Module, model: nn.Module, inputs: Inputs, what: str) -> Verification | None:
    """Compare what was exported with the model on the example; ValueError if outputs differ. None for inputs or outputs
    that are more than one tensor of numbers, which are compared without leaving out any row."""
    model = unwrap(model)
    inputs = first_rows(inputs, ROWS)
    if isinstance(model, CompiledModel):
        assert isinstance(inputs, Tensor)
        return _verify_plan(exported, model, inputs, what)
    with torch.no_grad(), evaluating(model):
        expected = call(model, inputs)
        if isinstance(inputs, Tensor) and inputs.is_floating_point() and isinstance(expected, Tensor):
            return verify_model(exported, model, inputs, batches=(1, 16), tolerance=TOLERANCE, what=what)
        refuse_above(TOLERANCE, _largest_error(call(exported, inputs), expected), "the example", what)
    return None


def _largest_error(found: Any, expected: Any) -> float:
    pairs = list(zip(_tensors(found), _tensors(expected), strict=True))
    scale = max(float(want.abs().max()) for _, want in pairs)
    return max(float((have.double() - want.double()).abs().max()) for have, want in pairs) / max(scale, 1e-6)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for each in values for tensor in _tensors(each)]


@torch.no_grad()
def _verify_plan(exported: nn.Module, plan: CompiledModel, x: Tensor, what: str) -> Verification:
    near_B = torch.zeros(len(x), dtype=torch.bool)

    def watched(_index: int, parts: ChainParts) -> nn.Module:
        return _Watched(parts, near_B)

    split_model(plan, x, watched).body(x)
    expected = plan(x)
    scale = max(float(expected.abs().max()), 1e-6)
    worst = 0.0
    for batch in (1, 16):
        y = torch.cat([exported(part) for part in x.split(batch)])
        wrong = (y.double() - expected.double()).abs().flatten(1).amax(1)[~near_B] / scale
        worst = max(worst, float(wrong.max()) if wrong.numel() else 0.0)
        refuse_above(TOLERANCE, worst, f"batch {batch}", what)
    return Verification(2 * int((~near_B).sum()), 2 * int(near_B.sum()), worst)


class _Watched(nn.Module):
    """Computes a chain in float64, and marks samples with a decision that rounding could change."""

    def __init__(self, parts: ChainParts, near_B: Tensor) -> None:
        super().__init__()
        self.parts, self.near_B = parts, near_B

    def forward(self, x: Tensor) -> Tensor:
        parts, rows = self.parts, x.reshape(-1, x.shape[-1]).double()
        if parts.norm_eps is not None:
            rows = scaled_features(rows, parts.norm_eps)
        if parts.staged is None:
            out = self._gated(rows)
        else:
            scored = score_stages(rows, parts.staged)
            cut_K, size = rows.new_tensor(parts.staged.cut), scored.outputs[-1].abs().max().clamp(min=1.0)
            self._mark((scored.score_BK - cut_K).abs() < MARGIN * size)
            out = stop_rows(scored.outputs, scored.score_BK, cut_K)
        return out.reshape(*x.shape[:-1], -1).to(x.dtype)

    def _gated(self, h: Tensor) -> Tensor:
        for layer in self.parts.layers:
            factor = None
            if layer.block:
                router = self.parts.router if layer.gate is None else None
                net = layer.gate if router is None else router.net
                assert net is not None
                z = logits(h, net)
                if net.hidden == NEAREST:
                    self._mark(near_tie(F.linear(h, net.weights[0].double(), net.biases[0].double())))  # type: ignore[union-attr]
                margin = MARGIN * z.abs().max().clamp(min=1.0)
                k = net.top_k if router is None or router.k is None else router.k
                self._mark((z - torch.as_tensor(net.cut)).abs() < margin)
                if 0 < k < z.shape[-1]:
                    best = z.sort(dim=-1, descending=True).values
                    self._mark((best[:, k - 1] - best[:, k] < margin)[:, None])
                in_torch = GateInTorch(net)
                factor = (
                    in_torch.factors(z) if router is None else RouterInTorch(in_torch, router.k, router.tau).factors(z)
                )
            bias = None if layer.bias is None else layer.bias.double()
            h = ACTIVATIONS[layer.activation].function(F.linear(h, layer.weight.double(), bias))
            h = h if factor is None else scale_units(h, factor, layer.block)
        return h

    def _mark(self, near: Tensor) -> None:
        self.near_B |= near.reshape(len(self.near_B), -1).any(1)
