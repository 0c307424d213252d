"""Look at a model at work: what the source of a site reads, and its hidden units before any gate.

Shapes in names: B rows (tokens), D features read, N units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.data.contract import Inputs, call, count_samples, iterate, move
from dynamicgate.gating.integrations import Tokens, watch_tokens
from dynamicgate.gating.sites import Site
from dynamicgate.modules import evaluating
from dynamicgate.training.progress import Progress

See = Callable[[Site, Tensor, Tensor], None]
Update = Callable[[float, str], None]
SEQUENCES, ROWS = 8, 1024  # samples at a time of data that is one tensor: of token ids, and of anything else


def read_batches(data: Any, tokens: int) -> list[Inputs]:
    """The first batches, enough for `tokens` tokens; an endless stream is read no further."""
    found: list[Inputs] = []
    seen = 0
    for inputs, _ in iterate(data, _size(data)):
        found.append(inputs)
        seen += count_tokens(inputs)
        if seen >= tokens:
            break
    if not seen:
        raise ValueError("expected at least one batch with at least one token, received none")
    return found


def count_tokens(inputs: Inputs) -> int:
    """How many tokens a batch holds, padding left out; how many samples where there are no token ids."""
    if isinstance(inputs, Mapping):
        if isinstance(mask := inputs.get("attention_mask"), Tensor) and mask.ndim == 2:
            return int(mask.sum())
        ids = inputs.get("input_ids")
    else:
        ids = inputs[0] if isinstance(inputs, tuple) else inputs
    if isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point():
        return ids.numel()
    return count_samples(inputs)


@torch.no_grad()
def observe(
    model: nn.Module, sites: Sequence[Site], batches: Sequence[Inputs], see: See, update: Update | None = None
) -> None:
    """Run the model on the batches as if every gate were open, and call `see(site, x_BD, h_BN)` for each site and
    batch: the input of its source and its units, one row for each token that is not padding. Factors are their own
    input."""
    device = next(model.parameters()).device
    consumers = {site.consumer: model.get_submodule(site.consumer) for site in sites}
    with (
        evaluating(model), watch_tokens(model, consumers) as tokens, _Observer(model, sites, see, tokens).attached()
    ):  # fmt: skip
        for done, inputs in enumerate(batches, start=1):
            call(model, move(inputs, device))
            if update is not None:
                update(done / len(batches), f"batch {done} of {len(batches)}")


def between(progress: Progress, start: float, end: float) -> Update:
    """Shows the progress of a part of the work that takes a bar from `start` to `end`."""
    return lambda fraction, text: progress.update(start + (end - start) * fraction, text)


class _Observer:
    """Hooks around the gates, if there are any: one sees the units before the gate does, one puts them back."""

    def __init__(self, model: nn.Module, sites: Sequence[Site], see: See, tokens: Tokens | None) -> None:
        self.model, self.sites, self.see, self.tokens = model, sites, see, tokens
        self._read: dict[str, Tensor] = {}
        self._units: dict[str, Tensor] = {}

    @contextmanager
    def attached(self) -> Iterator[_Observer]:
        handles = []
        try:
            factors = [site for site in self.sites if site.factors]
            others = [site for site in self.sites if not site.factors]
            for site in factors:
                activation = self.model.get_submodule(site.consumer)
                handles.append(activation.register_forward_hook(self._take_factors(site), prepend=True))
                handles.append(activation.register_forward_hook(self._show_factors(site)))
            for site in others:
                consumer = self.model.get_submodule(site.consumer)
                handles.append(consumer.register_forward_pre_hook(self._take_units(site), prepend=True))
                handles.append(consumer.register_forward_pre_hook(self._put_back(site)))
            for site in others:  # after the above: a source may be the consumer of the site before
                source = self.model.get_submodule(site.source)
                handles.append(source.register_forward_pre_hook(self._read_source(site)))
            for site in others:
                consumer = self.model.get_submodule(site.consumer)
                handles.append(consumer.register_forward_pre_hook(self._show(site)))
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _take_units(self, site: Site) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self._units[site.name] = args[0]

        return hook

    def _put_back(self, site: Site) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self._units[site.name], *args[1:])

        return hook

    def _read_source(self, site: Site) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self._read[site.name] = args[0]

        return hook

    def _show(self, site: Site) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            read, units = self._read.pop(site.name), self._units.pop(site.name)
            self.see(site, self._rows(site, read), self._rows(site, units))

        return hook

    def _take_factors(self, site: Site) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], given: Tensor) -> None:
            self._units[site.name] = given

        return hook

    def _show_factors(self, site: Site) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], _cut: Tensor) -> Tensor:
            factors = self._units.pop(site.name)
            rows = self._rows(site, factors)
            self.see(site, rows, rows)
            return factors

        return hook

    def _rows(self, site: Site, values: Tensor) -> Tensor:
        """One row for each token that is not padding."""
        rows = values.flatten(0, -2)
        counted = None if self.tokens is None else self.tokens.counted(self.model.get_submodule(site.consumer))
        return rows if counted is None or counted.numel() != len(rows) else rows[counted.flatten()]


def _size(data: Any) -> int:
    first = data[0] if isinstance(data, tuple) and data else data
    if isinstance(first, Mapping) or (isinstance(first, Tensor) and not first.is_floating_point()):
        return SEQUENCES
    return ROWS
