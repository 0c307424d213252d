"""Random layers with thresholds for the tests, and the rows whose result rounding cannot change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dynamicgate.ops.chain import Layer, reference_chain
from tests.ops.chains import sparse_for

LAYOUTS = ["panels", "half panels", "byte panels"]
ROWS = [1, 2, 3, 5, 12, 13, 31, 257]  # up to twelve or six, by the processor, read what is open alone
LEFT_OUT = {"some": 0.7, "none": 0.0, "all": 1e6}  # thresholds for numbers of a size of about one
NEAR = 1e-5


def build(
    inputs: int, outputs: int, layout: str = "panels", *, above: float = 0.7, value: bool = False, bias: bool = True,
    activation: str = "silu", seed: int = 0, factors: float | None = None,
) -> Layer:  # fmt: skip
    """A layer with thresholds of about `above` on its inputs, and of about `factors` on what multiplies its value
    projection."""
    draw = torch.Generator().manual_seed(seed + inputs + outputs)

    def weight() -> Tensor:
        return sparse_for(layout, torch.randn(outputs, inputs, generator=draw) / inputs**0.5, 1.0, draw)

    def thresholds(size: float = above, count: int = inputs) -> Tensor:
        return size * (0.5 + torch.rand(count, generator=draw))

    of_bias = torch.randn(outputs, generator=draw) if bias else None
    by_value = (weight(), of_bias) if value or factors is not None else (None, None)
    value_above = None if by_value[0] is None else thresholds()
    of_factors = None if factors is None else thresholds(factors, outputs)
    return Layer(
        weight(), of_bias, activation, 0, None, layout, False, *by_value, thresholds(), value_above, of_factors
    )


def rows_of(count: int, features: int, seed: int = 1) -> Tensor:
    """Inputs with some zeros in the first row."""
    x = torch.randn(count, features, generator=torch.Generator().manual_seed(seed))
    x[0, ::5] = 0.0
    return x


def expect(x: Tensor, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    """The float64 result, and the rows in which nothing is so near a threshold that rounding could move it across."""
    clear, h = torch.ones(len(x), dtype=torch.bool), x.double()
    for number, layer in enumerate(layers):
        read = [] if number == 0 else [(h, layer.above), (h, layer.value_above)]  # what is given is not rounded
        if layer.factors_above is not None:
            first = Layer(layer.weight, layer.bias, layer.activation, above=layer.above)
            read.append((reference_chain(h, [first]), layer.factors_above))
        for values, above in read:
            if above is not None:
                clear &= ((values.abs() - above.double()).abs() > NEAR).all(1)
        h = reference_chain(h, [layer])
    return h, clear


def off(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest number that is wanted."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-6)) if found.numel() else 0.0
