"""What a model is called with next: enough samples to count its MACs."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from dynamicgate.accounting.shape_counters import COUNTED_SAMPLES
from dynamicgate.data.contract import Inputs, take_first
from dynamicgate.modules import unwrap


class NextInputs:
    """Looks at one forward pass of a model, the next one."""

    def __init__(self, model: nn.Module) -> None:
        """Wait for the next forward pass."""
        self.model = unwrap(model)
        self.inputs: Inputs | None = None
        self._handle = self.model.register_forward_pre_hook(self._see, with_kwargs=True)

    def stop(self) -> None:
        """Wait no longer."""
        self._handle.remove()

    def _see(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._handle.remove()
        if args and kwargs:
            kwargs = dict(inspect.signature(self.model.forward).bind(*args, **kwargs).arguments)
        self.inputs = take_first(kwargs or args, COUNTED_SAMPLES)

    def seen(self) -> Inputs:
        """The inputs of that forward pass."""
        if self.inputs is None:
            raise RuntimeError(
                "the budget counts the first forward pass after budget.apply_(model, progress), and there was none: "
                "run the model between apply_ and step, or pass counter=dynamicgate.count_macs(model, example)"
            )
        return self.inputs
