"""Libraries whose models need more than gates: which of our modules looks after their models.

The core imports none of these libraries. Our module for one is loaded when a model that is made of its classes gets
gates or masks, or is recorded or compiled. It has three functions:

- `structure_changed(model)`: gates or masks came or went, so that whatever the library saves must say so;
- `watch_tokens(model, gates)`: a context that knows which rows of a forward pass are padding, and how many keys a
  token looks at; see `Tokens`;
- `whole_parts(model)`: what a decoder or an encoder is made of, of `dynamicgate.inference.decoder_parts`, or a
  ValueError that says why it cannot run natively as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor, nn

from dynamicgate.gating.work import Work

MODULES = {"transformers": "dynamicgate.hf.integration"}


class Tokens(Protocol):
    """Which rows of the forward pass that is running hold tokens that count."""

    def counted(self, gate: nn.Module) -> Tensor | None:
        """A mask of the positions [sequences, positions] that `gate` reads, 0 for padding; None: all of them count."""

    def work(self) -> Work | None:
        """What the forward passes so far have processed; None before the first."""

    def stream(self, layer: str, x: Tensor) -> str | None:
        """The stream whose positions are the rows of `x`, which a linear layer is about to read; None: no stream."""

    @property
    def positions(self) -> Mapping[str, int]:
        """By stream, the positions of all forward passes so far, padding included: what torch computes."""

    @property
    def pairs(self) -> Mapping[str, int]:
        """By attention layer, the pairs of query and key that torch computes, padding and hidden ones included."""

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """The parts of the model that have tokens of their own, by name."""

    @property
    def attentions(self) -> Mapping[str, nn.Module]:
        """The attention layers, by name."""


def structure_changed(model: nn.Module) -> None:
    """Tell the library of a model that gates or masks were put on it or taken off."""
    found = module_for(model)
    if found is not None:
        found.structure_changed(model)


def watch_tokens(model: nn.Module, gates: Mapping[str, nn.Module]) -> AbstractContextManager[Tokens | None]:
    """While it is open, knows which tokens count; gives None for a model without tokens."""
    found = module_for(model)
    return nullcontext(None) if found is None else found.watch_tokens(model, gates)


def module_for(model: nn.Module) -> Any:
    """Our module for the library of a model; None for a model of no such library."""
    classes: set[type] = {type(module) for module in model.modules()}
    homes = map(_home, classes)
    home = next((home for home in homes if home is not None), None)
    return None if home is None else import_module(home)


@cache
def _home(cls: type) -> str | None:
    packages = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next((MODULES[package] for package in packages if package in MODULES), None)
