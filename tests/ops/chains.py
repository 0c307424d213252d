"""Random chains for the tests, their float64 results, and which of their rows rounding cannot change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dynamicgate.ops import GateNet, chain
from dynamicgate.ops.chain import reference_chain
from dynamicgate.ops.gate_net import logits

MARGIN = 1e-3  # a logit closer to its cut may fall on either side in float32
THREADS = (1, 2, 8)


@dataclass(frozen=True)
class Sketch:
    """The shape of one layer; its numbers come from a seed."""

    outputs: int
    layout: str = "panels"
    block: int = 0
    rank: int = 0  # of the gate network; 0: linear
    cut: str = "some"  # "all", "none", "some", "each" (per block), "top" (only `top_k`)
    top_k: int = 0
    tau: float | None = None
    soft_width: float | None = None  # used where the gate has a finite cut: "some" and "each", without `top_k`
    hidden: str = "identity"
    activation: str = "relu"
    given: bool = False
    skip_zeros: bool = False
    value: bool = False  # where the input is not gated and zeros are not skipped
    gate_layout: str = "panels"  # the layout for which the first map of the gate network is sparse: "csr", "vectors"
    competes: bool = False  # where the gate has a `tau`: open blocks share one weight
    unbounded: bool = False  # where the gate has a soft width


def sparse_for(layout: str, weight: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """`weight` with zeros where this layout can skip them, or rounded to what it holds."""
    outputs, inputs = weight.shape
    if layout == "half panels":
        return weight.to(torch.bfloat16).to(weight.dtype)
    if layout == "byte panels":
        return chain.rounded_to_bytes(weight)
    if layout == "csr":
        return weight * (torch.rand(outputs, inputs, generator=generator) < density)
    if layout in ("vectors", "columns"):
        rows = torch.rand(-(-outputs // 16), inputs, generator=generator) < density
        return weight * rows.repeat_interleave(16, dim=0)[:outputs]
    return weight


def build(inputs: int, sketches: list[Sketch], seed: int) -> list[chain.Layer]:
    """Layers with random numbers, sparse where the layout is sparse."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    layers: list[chain.Layer] = []
    for s in sketches:
        weight = sparse_for(s.layout, randn(s.outputs, inputs) / inputs**0.5, 0.35, generator)
        gate = None
        blocks = -(-s.outputs // s.block) if s.block else 0
        if blocks and not s.given:
            shapes = [(s.rank, inputs), (blocks, s.rank)] if s.rank else [(blocks, inputs)]
            cuts = {"all": -torch.inf, "none": torch.inf, "top": torch.inf, "some": 0.2, "each": randn(blocks)}
            top_k = min(s.top_k or int(s.cut == "top"), blocks)
            soft_width = s.soft_width if s.cut in ("some", "each") and not top_k else None
            # rounding errors of logits grow with them: where logits also scale the result, they are kept small
            scales = soft_width is not None or s.tau is not None
            sizes = [shape[1] ** -0.5 if scales else 1.0 for shape in shapes]
            maps = [randn(*shape) * size for shape, size in zip(shapes, sizes, strict=True)]
            maps[0] = sparse_for(s.gate_layout, maps[0], 0.2, generator)
            gate = GateNet(
                tuple(maps),
                tuple(randn(shape[0]) for shape in shapes),
                hidden=s.hidden if s.rank else "identity",
                cut=cuts[s.cut],
                top_k=top_k,
                tau=s.tau if soft_width is None else None,
                soft_width=soft_width,
                competes=s.competes and s.tau is not None and soft_width is None,
                unbounded=s.unbounded and soft_width is not None,
            )
        skip = s.skip_zeros and s.layout in ("panels", "vectors") and not (layers and layers[-1].block)
        bias = randn(s.outputs) if seed % 3 else None
        value: tuple[Tensor | None, Tensor | None] = (None, None)
        if s.value and not skip and not (layers and layers[-1].block):
            weights = sparse_for(s.layout, randn(s.outputs, inputs) / inputs**0.5, 0.35, generator)
            value = (weights, randn(s.outputs) if seed % 2 else None)
        layers.append(chain.Layer(weight, bias, s.activation, s.block, gate, s.layout, skip, *value))
        inputs = s.outputs
    return layers


def inputs_for(layers: list[chain.Layer], rows: int, seed: int, stride: str = "rows") -> tuple[Tensor, Tensor | None]:
    """x with exact zeros, in one of three memory layouts, and the factors of the layer that has none of its own."""
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


def named_clearly(h: Tensor, gate: GateNet, margin: float) -> Tensor:
    """The rows in which rounding cannot make another value the largest, where a gate names the nearest prototype."""
    if gate.hidden != "nearest" or len(gate.weights[0]) < 2:
        return torch.ones(len(h), dtype=torch.bool)
    first = replace(gate, weights=gate.weights[:1], biases=gate.biases[:1], hidden="identity")
    best = logits(h, first).topk(2, dim=1).values
    return ~(best[:, 0] - best[:, 1] <= margin * (1 + best[:, 1].abs()))


def expect(x: Tensor, layers: list[chain.Layer], factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """The float64 result, and the rows in which no logit is so close to its cut that rounding could flip it."""
    clear = torch.ones(x.shape[0], dtype=torch.bool)
    h = x.double()
    for layer in layers:
        if layer.gate is not None:
            z = logits(h, layer.gate)
            clear &= named_clearly(h, layer.gate, MARGIN)
            clear &= ((z - torch.as_tensor(layer.gate.cut)).abs() > MARGIN).all(dim=1)
            if 0 < layer.gate.top_k < layer.blocks:
                sorted_z = z.sort(dim=1, descending=True).values
                clear &= sorted_z[:, layer.gate.top_k - 1] - sorted_z[:, layer.gate.top_k] > MARGIN
        h = reference_chain(h, [layer], factor)
    return h, clear


def on_threads(counts: Sequence[int], run: Callable[[], Tensor]) -> list[Tensor]:
    """What it gives with each of these numbers of threads; with those that there are, if none is named."""
    before = torch.get_num_threads()
    results = []
    for count in counts or (before,):
        torch.set_num_threads(count)
        try:
            results.append(run())
        finally:
            torch.set_num_threads(before)
    return results


def assert_close(results: Sequence[Tensor], x: Tensor, layers: list[chain.Layer], factor: Tensor | None) -> None:
    """Compare with float64, relative to the size of the result, because sums in another order differ."""
    expected, clear = expect(x, layers, factor)
    for y in results:
        assert y.shape == expected.shape
        assert y.dtype == torch.float32
        error = (y.double() - expected).abs()[clear]
        assert (error <= 2e-5 * (1.0 + expected.abs()[clear])).all(), f"error {error.max():.3g}"
