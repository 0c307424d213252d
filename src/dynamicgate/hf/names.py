"""Small questions about the modules and arguments of Hugging Face models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import nn


def has_only(module: Any, names: set[str]) -> bool:
    """Whether these are its children, but for those that do nothing."""
    if not isinstance(module, nn.Module):
        return False
    return {name for name, child in module.named_children() if not isinstance(child, nn.Identity)} == names


def stranger(parts: Iterable[nn.Module], files: Collection[str]) -> str | None:
    """The first of these modules that is of no such file of Transformers, or whose forward was replaced: its names may
    be known, and what it computes is not."""
    for part in parts:
        if type(part).__module__ not in files or "forward" in vars(part):
            return type(part).__name__
    return None


def files_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """Where Transformers defines models of these kinds."""
    return tuple(f"transformers.models.{kind.partition('/')[0]}.modeling_{kind.rpartition('/')[2]}" for kind in kinds)


def refuse_arguments(config: Any, given: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """ValueError where a caller, or the configuration of the model, asks a native model for something that it does not
    read or keep. known: what it may be given."""
    of_config = {name: getattr(config, name, False) for name in ("output_attentions", "output_hidden_states")}
    wanted = {name: value for name, value in {**of_config, **given}.items() if value is not None and value is not False}
    asked = [name for name in wanted if name not in known]
    if asked:
        raise ValueError(f"a native model does not read or keep this: leave out {', '.join(asked)}")
