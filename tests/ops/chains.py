"""Random chains for the tests, and which of their rows are decided beyond rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynamicgate import ops
from dynamicgate.ops.chain.reference import logits, reference

MARGIN = 1e-3  # a logit nearer to its cut may fall on either side in float32


@dataclass(frozen=True)
class Sketch:
    """The shape of one layer; its numbers come from a seed."""

    outputs: int
    layout: str = "panels"
    block: int = 0
    rank: int = 0  # of the gate network; 0: linear
    cut: str = "some"  # "all", "none", "some", "each" (per block), "top" (only `keep`)
    keep: int = 0
    tau: float | None = None
    soft_width: float | None = None  # where the gate has a cut to start from: "some" and "each", without `keep`
    hidden: str = "identity"
    activation: str = "relu"
    given: bool = False
    skip_zeros: bool = False
    gate_layout: str = "panels"  # what the first map of the gate network is sparse for: "csr", "vectors"


def sparse_for(layout: str, weight: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """`weight` with zeros where this layout can leave them out."""
    outputs, inputs = weight.shape
    if layout == "csr":
        return weight * (torch.rand(outputs, inputs, generator=generator) < share)
    if layout in ("vectors", "columns"):
        rows = torch.rand(-(-outputs // 16), inputs, generator=generator) < share
        return weight * rows.repeat_interleave(16, dim=0)[:outputs]
    return weight


def build(inputs: int, sketches: list[Sketch], seed: int) -> list[ops.Layer]:
    """Layers with random numbers, sparse where the layout is."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    layers: list[ops.Layer] = []
    for s in sketches:
        weight = sparse_for(s.layout, randn(s.outputs, inputs) / inputs**0.5, 0.35, generator)
        gate = None
        blocks = -(-s.outputs // s.block) if s.block else 0
        if blocks and not s.given:
            shapes = [(s.rank, inputs), (blocks, s.rank)] if s.rank else [(blocks, inputs)]
            cuts = {"all": -torch.inf, "none": torch.inf, "top": torch.inf, "some": 0.2, "each": randn(blocks)}
            keep = min(s.keep or int(s.cut == "top"), blocks)
            soft_width = s.soft_width if s.cut in ("some", "each") and not keep else None
            # where logits also scale the result their rounding, which grows with them, does so too: they stay small
            scales = soft_width is not None or s.tau is not None
            sizes = [shape[1] ** -0.5 if scales else 1.0 for shape in shapes]
            maps = [randn(*shape) * size for shape, size in zip(shapes, sizes, strict=True)]
            maps[0] = sparse_for(s.gate_layout, maps[0], 0.2, generator)
            gate = ops.GateNet(
                tuple(maps),
                tuple(randn(shape[0]) for shape in shapes),
                hidden=s.hidden, cut=cuts[s.cut], keep=keep, tau=s.tau if soft_width is None else None, soft_width=soft_width,
            )  # fmt: skip
        skip = s.skip_zeros and s.layout in ("panels", "vectors") and not (layers and layers[-1].block)
        bias = randn(s.outputs) if seed % 3 else None
        layers.append(ops.Layer(weight, bias, s.activation, s.block, gate, s.layout, skip))
        inputs = s.outputs
    return layers


def inputs_for(layers: list[ops.Layer], rows: int, seed: int, stride: str = "rows") -> tuple[Tensor, Tensor | None]:
    """x with exact zeros, in one of three memory layouts, and the factor of a layer without a gate."""
    generator = torch.Generator().manual_seed(seed + 1)
    features = layers[0].weight.shape[1]
    x = torch.randn(rows, features, generator=generator) * (torch.rand(rows, features, generator=generator) < 0.7)
    if stride == "columns":
        x = x.T.contiguous().T
    elif stride == "wide":
        x = torch.cat((x, torch.full_like(x, torch.nan)), dim=1)[:, :features]
    given = [layer.blocks for layer in layers if layer.block and layer.gate is None]
    if not given:
        return x, None
    closed = torch.rand(rows, given[0], generator=generator) < 0.5
    return x, torch.randn(rows, given[0], generator=generator).masked_fill(closed, 0.0)


def expect(x: Tensor, layers: list[ops.Layer], factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """The float64 result, and the rows in which no gate is so near its cut that rounding could move it."""
    clear = torch.ones(x.shape[0], dtype=torch.bool)
    h = x.double()
    for layer in layers:
        if layer.gate is not None:
            z = logits(h, layer.gate)
            clear &= ((z - torch.as_tensor(layer.gate.cut)).abs() > MARGIN).all(dim=1)
            if 0 < layer.gate.keep < layer.blocks:
                sorted_z = z.sort(dim=1, descending=True).values
                clear &= sorted_z[:, layer.gate.keep - 1] - sorted_z[:, layer.gate.keep] > MARGIN
        h = reference(h, [layer], factor)
    return h, clear


def assert_close(y: Tensor, x: Tensor, layers: list[ops.Layer], factor: Tensor | None) -> None:
    """Against float64: relative to the size of the result, because sums of different order differ."""
    expected, clear = expect(x, layers, factor)
    assert y.shape == expected.shape
    assert y.dtype == torch.float32
    error = (y.double() - expected).abs()[clear]
    assert (error <= 2e-5 * (1.0 + expected.abs()[clear])).all(), f"error {error.max():.3g}"
