"""Watch the forward passes of a model: which positions are tokens, and how many keys each of them looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dynamicgate.gating.recomputation import recomputing
from dynamicgate.gating.work import ENCODER, Work
from dynamicgate.hf.tokens import Call, labelled, parameters_of, read_call
from dynamicgate.hf.visible_keys import MASKS, is_attention, visible_keys


class TokenWatch:
    """What the parts and the attention layers of a model are called with; see `dynamicgate.gating.integrations`."""

    def __init__(self, model: nn.Module, gates: Mapping[str, nn.Module]) -> None:
        """For the gates of `model`, by site name."""
        self.parts = {name: module for name, module in model.named_modules() if isinstance(module, PreTrainedModel)}
        self.attentions = {
            name: module
            for name, module in model.named_modules()
            if is_attention(module) and _innermost(self.parts, name) is not None
        }
        self._outermost = next(iter(self.parts), None)
        self._part_of_gate = {gate: _innermost(self.parts, site) for site, gate in gates.items()}
        self._part_of = {name: _innermost(self.parts, name) for name in self.attentions}
        modules = {**self.parts, **self.attentions}
        by_class = {type(module): parameters_of(module) for module in {type(m): m for m in modules.values()}.values()}
        self._parameters = {name: by_class[type(module)] for name, module in modules.items()}
        self._now: dict[str, Call] = {}
        self._from_labels: Tensor | None = None
        self._samples = 0
        self._by_mask: dict[tuple[Any, ...], tuple[Tensor, int, Tensor]] = {}
        self._tokens: dict[str, list[Tensor | int]] = {}
        self._keys: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
        self.positions: dict[str, int] = {}
        self.pairs: dict[str, int] = {}

    def counted(self, gate: nn.Module) -> Tensor | None:
        """The positions that `gate` reads and that hold tokens; None: all."""
        part = self._part_of_gate.get(gate)
        return None if part is None or part not in self._now else self._now[part].counted_BT

    def stream(self, layer: str, x: Tensor) -> str | None:
        """The stream whose positions are the rows of `x`; None: no stream."""
        part = _innermost(self.parts, layer)
        part = self._outermost if part is None else part
        call = None if part is None else self._now.get(part)
        if call is None:
            return None
        if call.encoded is not None and x.data_ptr() == call.encoded.data_ptr() and x.shape == call.encoded.shape:
            return f"{part}{ENCODER}"
        rows = x.shape[:-1]
        same = call.shape is not None and rows.numel() == call.shape[0] * call.shape[1]
        return part if same and (len(rows) == 1 or rows[0] == call.samples) else None

    def work(self) -> Work | None:
        """What the forward passes so far have processed."""
        if not self._samples:
            return None
        keys = {name: torch.cat([_of_tokens(*call) for call in calls]) for name, calls in self._keys.items()}
        counts: dict[str, Tensor | int] = {name: sum(found) for name, found in self._tokens.items()}
        totals = [*counts.values(), *(each.sum(dtype=torch.float64) for each in keys.values())]
        device = next((total.device for total in totals if isinstance(total, Tensor)), torch.device("cpu"))
        # all at once: on a GPU every answer is a wait
        found = torch.stack([torch.as_tensor(total, device=device).double() for total in totals]).tolist()
        tokens, pairs = found[: len(counts)], found[len(counts) :]
        return Work(
            self._samples, dict(zip(counts, tokens, strict=True)), dict(zip(keys, pairs, strict=True)), keys
        )  # fmt: skip

    def see_part(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a part runs."""
        part, given = self.parts[name], dict(zip(self._parameters[name], args, strict=False)) | kwargs
        if name == self._outermost:
            self._from_labels = None
            self._by_mask.clear()
        labels = given.get("labels")
        writes = "decoder_input_ids" in self._parameters[name]
        if writes and isinstance(labels, Tensor) and labels.ndim == 2:
            self._from_labels = labelled(labels) if given.get("decoder_attention_mask") is None else None
        call = self._now[name] = read_call(part, given, self._from_labels, writes=writes)
        if name == self._outermost:
            self._samples += call.samples
        self._tokens.setdefault(name, []).append(call.tokens)
        self._tokens.setdefault(f"{name}{ENCODER}", []).append(call.encoder_tokens)
        self._add(name, 0 if call.shape is None else call.shape[0] * call.shape[1])
        self._add(f"{name}{ENCODER}", 0 if call.encoded is None else call.encoded.shape[:-1].numel())

    def see_attention(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before an attention layer runs."""
        if recomputing():
            return
        given = dict(zip(self._parameters[name], args, strict=False)) | kwargs
        states = next((value for value in given.values() if isinstance(value, Tensor) and value.ndim == 3), None)
        if states is None:
            return
        keys_BQ, keys = self._visible_keys(self.attentions[name], given, states)
        part = self._part_of[name]
        counted = self._now[part].counted_BT if part in self._now else None
        self._keys.setdefault(name, []).append((keys_BQ, counted))
        self.pairs[name] = self.pairs.get(name, 0) + states.shape[0] * states.shape[1] * keys

    def _visible_keys(self, layer: nn.Module, given: dict[str, Any], states: Tensor) -> tuple[Tensor, int]:
        """Counted once for all layers that are given the same mask."""
        mask = next((given[name] for name in MASKS if isinstance(given.get(name), Tensor)), None)
        if mask is None or mask.ndim != 4 or torch.compiler.is_compiling():
            return visible_keys(layer, given, states)
        key = id(mask), states.shape[:2], hasattr(layer, "is_causal"), given.get("encoder_attention_mask") is None
        if key not in self._by_mask:
            self._by_mask[key] = (*visible_keys(layer, given, states), mask)  # held, so that its id stays its own
        return self._by_mask[key][:2]

    def _add(self, stream: str, positions: int) -> None:
        self.positions[stream] = self.positions.get(stream, 0) + positions


@contextmanager
def watch_tokens(model: nn.Module, gates: Mapping[str, nn.Module]) -> Iterator[TokenWatch]:
    """Knows the tokens of the forward passes inside the block."""
    watch = TokenWatch(model, gates)
    handles = [
        part.register_forward_pre_hook(_hook(watch.see_part, n), with_kwargs=True) for n, part in watch.parts.items()
    ]
    for name, layer in watch.attentions.items():
        handles.append(layer.register_forward_pre_hook(_hook(watch.see_attention, name), with_kwargs=True))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _hook(see: Any, name: str) -> Any:
    owner = get_ident()

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or get_ident() == owner:  # other threads may run the model meanwhile
            see(name, args, kwargs)

    return hook


def _innermost(parts: Mapping[str, nn.Module], layer: str) -> str | None:
    around = [name for name in parts if not name or layer == name or layer.startswith(f"{name}.")]
    return max(around, key=len) if around else None


def _of_tokens(keys_BQ: Tensor, counted_BQ: Tensor | None) -> Tensor:
    """The keys of the positions that hold tokens."""
    return keys_BQ.flatten() if counted_BQ is None or counted_BQ.shape != keys_BQ.shape else keys_BQ[counted_BQ]
