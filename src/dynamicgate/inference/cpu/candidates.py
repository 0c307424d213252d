"""The ways to run one chain: dense in torch, dense in our panels, or packed with a layout for each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import ZEROS_WORTH_SKIPPING
from dynamicgate.inference.cpu.layers import DenseLayers, PackedLayers, dense_layer
from dynamicgate.inference.cpu.lower import Lowered
from dynamicgate.inference.gates import GateInTorch, RouterInTorch
from dynamicgate.ops.chain.packing import PANEL, columns_of_16


class LayerLayout(NamedTuple):
    """How a packed layer holds its weights, and whether it leaves out exact zeros of its input."""

    layout: str
    skip_zeros: bool = False


@dataclass(frozen=True)
class Candidate:
    """One way to run a whole chain."""

    name: str
    layouts: tuple[LayerLayout, ...] | None = None
    """One for each layer of a packed chain; None: layer by layer, all units."""


DENSE = Candidate("dense")
OWN_DENSE = Candidate("own dense")


def packed(layouts: Sequence[LayerLayout]) -> Candidate:
    """The whole chain in one op, named after the layouts of its layers."""
    names = (layout + (" skipping zeros" if skip_zeros else "") for layout, skip_zeros in layouts)
    return Candidate(" + ".join(names), tuple(layouts))


def layouts_to_try(layers: Sequence[ops.chain.Layer], zeros: float) -> list[list[LayerLayout]]:
    """For each layer the layouts that may be fastest, the most likely first. zeros: fraction of exact zeros in the
    input."""
    return [_layouts_of(layer, before, zeros) for layer, before in zip(layers, [None, *layers], strict=False)]


def _layouts_of(layer: ops.chain.Layer, before: ops.chain.Layer | None, zeros: float) -> list[LayerLayout]:
    dense, rows = LayerLayout("panels"), LayerLayout("rows")
    of_layer = [dense] if not layer.block or layer.block >= 8 else [rows]  # panels pad a block to 16 units
    if layer.block and layer.block < PANEL:
        of_layer = list(dict.fromkeys([rows, *of_layer]))
    density = int(layer.weight.count_nonzero()) / layer.weight.numel()
    if density < 0.9:
        vectors = float(columns_of_16(layer.weight).float().mean())
        sparse = [LayerLayout("vectors")] if vectors < 0.9 else []
        if sparse and before is not None and before.block:  # in case most inputs are open
            sparse = [LayerLayout("columns"), *sparse]
        sparse += [LayerLayout("csr")] if density < 0.5 else []
        of_layer = [*sparse, *of_layer]
    after_zeros = before is not None and ACTIVATIONS[before.activation].makes_zeros and not before.block
    if (zeros >= ZEROS_WORTH_SKIPPING if before is None else after_zeros) and layer.weight.shape[1] <= 1 << 16:
        of_layer += [LayerLayout(layout, True) for layout, _ in of_layer if layout in ("panels", "vectors")]
    return of_layer


class Candidates:
    """Builds the candidates of one chain, each when it is first asked for."""

    whole_stream = False
    """Whether timing must see every row of the example, because rows cost very different times."""

    def __init__(self, lowered: Lowered) -> None:
        """All of them compute what `lowered` says."""
        self.lowered = lowered
        self._built: dict[Candidate, nn.Module] = {}
        router = lowered.router
        self.router = None if router is None else RouterInTorch(GateInTorch(router.net), router.k, router.tau)

    def layouts_to_try(self, zeros: float) -> list[list[LayerLayout]]:
        """For each layer the layouts that may be fastest. zeros: fraction of exact zeros in the input."""
        return layouts_to_try(self.lowered.layers, zeros)

    def build(self, candidate: Candidate) -> nn.Module:
        """The layers of the chain, run that way."""
        if candidate not in self._built:
            self._built[candidate] = self.build_first(candidate, len(self.lowered.stages))
        return self._built[candidate]

    def build_first(self, candidate: Candidate, count: int) -> nn.Module:
        """The first `count` layers of the chain, run that way."""
        layers = self.lowered.layers[:count]
        if candidate.layouts is None:
            return DenseLayers([dense_layer(layer, panels=candidate == OWN_DENSE) for layer in layers])
        laid_out = zip(layers, candidate.layouts, strict=False)
        program = ops.chain.pack([replace(layer, layout=layout, skip_zeros=skip) for layer, (layout, skip) in laid_out])
        return self._packed(program)

    def _packed(self, program: ops.chain.Packed) -> PackedLayers:
        for other in self._built.values():  # candidates that differ only in what they skip have the same weights
            if isinstance(other, PackedLayers) and torch.equal(other.weights, program.weights):
                program = program._replace(weights=other.weights)
        return PackedLayers(program)

    def compiled_dense(self) -> Callable[[Tensor], Tensor]:
        """The layers without gates and masks in our dense panels: how fast the kernels alone are. The weights have the
        shapes of the model's and other values, on which the time does not depend."""
        layers = []
        for i, stage in enumerate(self.lowered.stages):
            outputs, inputs = stage.shape
            inputs += i == 0 and self.lowered.norm_eps is not None  # the mean is one more feature
            weight = torch.full((outputs, inputs), 1.0 / inputs)
            layers.append(ops.chain.Layer(weight, torch.zeros(outputs), stage.layer.activation))
        dense, features = PackedLayers(ops.chain.pack(layers)), self.lowered.stages[0].shape[1]
        return Chain(
            [dense], [0], [1], features, norm_eps=self.lowered.norm_eps, rows_only=self.lowered.rows_only
        ).forward

    def forget_built_(self) -> None:
        """Let go of everything that was built."""
        self._built.clear()

    def chain(self, implementations: Sequence[nn.Module], choice: Sequence[int], batches: Sequence[int]) -> Chain:
        """A chain that runs `implementations[choice[i]]` for `batches[i]` rows, after the router and the norm."""
        return Chain(
            implementations,
            choice,
            batches,
            self.lowered.stages[0].shape[1],
            router=self.router,
            norm_eps=self.lowered.norm_eps,
            rows_only=self.lowered.rows_only,
        )

    def call(self, implementation: nn.Module) -> Callable[[Tensor], Tensor]:
        """What is timed: everything that a chain does with this implementation."""
        return self.chain([implementation], [0], [1]).forward
