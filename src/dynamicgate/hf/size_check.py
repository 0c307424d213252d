"""Sizes are checked when a model with gates is loaded, as they are for one without.

Transformers leaves its check out for every model with a quantizer, because quantised weights have other shapes. Ours
have not. A transform of names that changes no name lets us see each tensor on its way into the model, and the record in
which Transformers notes tensors of another size: the error, the report and `ignore_mismatched_sizes` are then its own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming


class _Unchanged(ConversionOps):
    """A converter must have an operation."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, list[Tensor]]:
        return input_dict


class SizeCheck(WeightConverter):
    """Takes every tensor that no converter of the model takes, and hands it on if it has the size of its parameter."""

    __slots__ = ("mismatched", "seen")

    def __init__(self) -> None:
        """For one call of `from_pretrained`."""
        super().__init__(r"^(.+)$", r"\1", [_Unchanged()])
        self.seen: set[str] = set()
        """The names of all tensors that were handed to it."""
        self.mismatched: set[str] = set()
        """Those that have another size in the model, and that Transformers initialises if it is told to."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> _CheckedTensor:
        """Transformers copies a converter for each tensor. What it then gets is a renaming, so that the tensor is
        sharded and offloaded as one that nobody converts."""
        return _CheckedTensor(self)


class _CheckedTensor(WeightRenaming):
    __slots__ = ("check",)

    def __init__(self, check: SizeCheck) -> None:
        super().__init__(r"^(.+)$", r"\1")
        self.check = check

    def convert(
        self, layer_name: str, model: Any = None, config: Any = None, hf_quantizer: Any = None, loading_info: Any = None
    ) -> dict[str, list[Tensor]]:
        """The tensor under its name; nothing if it has another size."""
        (tensors,) = self.materialize_tensors().values()
        self.check.seen.add(layer_name)
        if layer_name.endswith(_EXTRA_STATE_KEY_SUFFIX):
            return {layer_name: tensors}
        parameter = model.get_parameter_or_buffer(layer_name)
        wanted = getattr(parameter, "_local_tensor", parameter).shape  # of a sharded one, the part on this process
        if tensors[0].shape == wanted:
            return {layer_name: tensors}
        self.check.mismatched.add(layer_name)
        loading_info.missing_keys.discard(layer_name)
        loading_info.mismatched_keys.add((layer_name, tensors[0].shape, wanted))
        return {}
