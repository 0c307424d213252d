"""What PEFT asks for more entries of an adapter's file; imports PEFT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peft.utils import AuxiliaryTrainingWrapper
from torch import Tensor, nn


class GatesInAdapter(AuxiliaryTrainingWrapper):
    """A child of a `PeftModel` that adds its gates to the file of each adapter. It wraps and computes nothing."""

    def __init__(self, model: nn.Module, entries: Callable[[nn.Module], dict[str, Tensor]]) -> None:
        """For the gates of this model, whichever it has when an adapter is saved; `entries` gives what to save."""
        nn.Module.__init__(self)
        self._adapters: set[str] = set()
        self._active_adapter: list[str] = []
        self._disable_adapters = False
        self._models = (model,)  # in a tuple, because a child cannot be the parent of its parent
        self._entries = entries

    def __getattr__(self, name: str) -> Any:
        """Its own attributes only: there is no module inside whose attributes it could have."""
        return nn.Module.__getattr__(self, name)

    def adapter_state_dict(  # type: ignore[override]  # as PEFT calls it, and as its own wrappers have it
        self, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Called when an adapter is saved."""
        return self._entries(self._models[0])

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        """Nothing for PEFT to load: `dynamicgate.hf.adapters` does."""
        return {}

    def check_set_adapter(self, adapter_name: str | list[str]) -> str | None:
        """It belongs to all adapters."""
        return None

    def set_adapter(self, adapter_names: str | list[str], inference_mode: bool = False) -> None:
        """Gates do not change with the adapter."""

    def delete_adapter(self, adapter_name: str, new_active_adapters: list[str] | None) -> None:
        """Gates stay."""

    def _get_available_adapters(self) -> set[str]:
        return set()
