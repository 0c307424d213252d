"""The counters of one model, one for each shape of input: what a layer costs depends on it."""

from __future__ import annotations

from torch import nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.tracing import Shape, count_macs, shape_of
from dynamicgate.data.contract import Inputs, take_first

COUNTED_SAMPLES = 8


class ShapeCounters:
    """Counts a model again when its inputs have another shape. A counter that knows how costs change with the tokens of
    a sequence serves all lengths (`MacCounter.at`), and only images and sounds of another size or number are counted
    again."""

    def __init__(self, model: nn.Module, counter: MacCounter | None = None) -> None:
        """For one model, which may have been counted before. A counter that does not know for which shape it was made
        is used for all."""
        self.model = model
        self._for_all = counter if counter is not None and counter.shape is None else None
        self._found: dict[Shape, MacCounter] = {}
        if counter is not None and counter.shape is not None:
            self._found[_key(counter, counter.shape)] = counter

    def counter_for(self, inputs: Inputs) -> MacCounter:
        """The counter for inputs of this shape."""
        if self._for_all is not None:
            return self._for_all
        shape = shape_of(inputs)
        for counter in self._found.values():
            if _key(counter, shape) in self._found:
                return self._found[_key(counter, shape)]
        counter = count_macs(self.model, take_first(inputs, COUNTED_SAMPLES))
        self._found[_key(counter, shape)] = counter
        return counter


def _key(counter: MacCounter, shape: Shape) -> Shape:
    """The part of a shape that costs depend on."""
    return shape if counter.scaling is None or counter.scaling.one_length else tuple(each for each in shape if each[2])
