"""A compiled chain as layers again: what its kernels were given before it was packed for them."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.dense_stages import DenseStages
from dynamicgate.inference.cpu.layers import DenseLayers, PackedLayers
from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.chain.stage_packing import is_staged, unpack_staged
from dynamicgate.ops.chain.stages import Staged
from dynamicgate.ops.chain.unpacking import unpack


def unpacked_chain(chain: Chain) -> list[Layer] | Staged | None:
    """The layers of one implementation: all of them compute the same. None where all are dense stages, which do not
    know where the units of every layer are divided."""
    packed = [m for m in chain.implementations if isinstance(m, PackedLayers)]
    if packed and is_staged(packed[0].program):
        return unpack_staged(packed[0].weights, packed[0].program)
    if isinstance(chain.implementations[0], DenseStages):
        return None
    return _unpacked(packed[0]) if packed else _dense(chain.implementations[0])


def _unpacked(held: PackedLayers) -> list[Layer]:
    layers = unpack(held.weights, held.program)
    # Packed, every block has a cut of its own; in a plan they are all the same.
    nets = [None if layer.gate is None else replace(layer.gate, cut=float(layer.gate.cut[0])) for layer in layers]  # type: ignore[index]
    return [replace(layer, gate=net) for layer, net in zip(layers, nets, strict=True)]


def _dense(held: nn.Module) -> list[Layer]:
    assert isinstance(held, DenseLayers)
    found = []
    for layer in held.layers:
        net = None if layer.gate is None else layer.gate.net  # type: ignore[union-attr]
        if layer.program is None:
            weight, bias = layer.weight, layer.bias
        else:
            (packed,) = unpack(layer.weight, layer.program)  # type: ignore[arg-type]
            weight, bias = packed.weight, packed.bias
        found.append(Layer(weight, bias, layer.activation, layer.block, net))  # type: ignore[arg-type]
    return found
