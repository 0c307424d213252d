"""`compile` for models that are called with tokens, dicts or keyword arguments, and for those that cannot be traced:
make the candidates, verify them, time them on the whole model, and keep the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dynamicgate import ops
from dynamicgate.accounting.counter import deployed
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.inference.decoder_parts import DecoderParts, cache_kind, parts_of
from dynamicgate.inference.language.calls import Inputs
from dynamicgate.inference.language.layer_by_layer import replace_layers
from dynamicgate.inference.language.native import NativeDecoder, NativeLanguageModel
from dynamicgate.inference.language.packed import decoder_of, in_halves
from dynamicgate.inference.language.plan import BY_LAYER, HALVES, NATIVE, TORCH, WHOLE, LanguagePlan
from dynamicgate.inference.language.timing import choose, time_models
from dynamicgate.inference.language.verify import LanguageReference
from dynamicgate.inference.shadow_copy import copy_sharing_memory, held_bytes, stop_sharing_
from dynamicgate.inference.timing import threads_of_torch
from dynamicgate.ops import native


@dataclass(frozen=True)
class Compiled:
    """What `compile_language` made. described: what a file needs besides tensors, see `saving`."""

    body: nn.Module
    plan: LanguagePlan
    described: dict[str, Any]


@torch.no_grad()
def compile_language(
    model: nn.Module, inputs: Inputs, *, batches: Sequence[int], threads: int | None, seconds: float
) -> Compiled:
    """The fastest verified way to run `model` as `inputs` call it. batches: rows of a call, where there is no cache."""
    inputs = inputs.mapped(lambda tensor: tensor.detach())
    kind = cache_kind(model)
    with threads_of_torch(threads):
        bodies, described, notes = _candidates(model)
        open_rates = _open_rates(bodies[TORCH], inputs)
        reference = LanguageReference(model, inputs, kind) if len(bodies) > 1 else None
        verified = {}
        for name in [name for name in bodies if name != TORCH]:
            assert reference is not None
            verified[name] = reference.verify(bodies[name])
            if verified[name] is None:
                notes.append(f"{name!r} is not used: most positions of the example have a logit near its threshold")
                del bodies[name]
        del reference
        timed = time_models(bodies, inputs, kind, batches, seconds, open_rates)
        chosen = choose(timed)
        regimes = [one.regime(chosen) for one in timed]
        body = bodies[chosen]
        if chosen not in NATIVE:
            stop_sharing_(body, model)
        plan = LanguagePlan(
            chosen, regimes, open_rates, notes, verified.get(chosen), ops.backend() if chosen != TORCH else "torch",
            torch.get_num_threads(), held_bytes(body) / max(1, held_bytes(model)),
        )  # fmt: skip
    return Compiled(body, plan, {"way": chosen, **described.get(chosen, {})})


def native_body(parts: DecoderParts, decoder: ops.decoder.Decoder | None = None) -> nn.Module:
    """A model around the native decoder of these parts; around another of the same parts where one is given."""
    packed = ops.decoder.pack_decoder(decoder_of(parts) if decoder is None else decoder)
    tied = parts.embed.weight is parts.head.weight
    native_decoder = NativeDecoder(packed, None if tied else parts.embed.weight.detach().clone())
    return NativeLanguageModel(native_decoder) if parts.into is None else parts.into(native_decoder)


def _candidates(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, dict[str, Any]], list[str]]:
    """By name, the ways to run the model, what describes them, and sentences about what cannot be native."""
    bodies: dict[str, nn.Module] = {TORCH: copy_sharing_memory(model)}
    described: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    if native.missing():
        return bodies, described, [f"the model runs in torch as it is: {native.missing()}"]
    try:
        parts = parts_of(bodies[TORCH])
        decoder = decoder_of(parts)
        for name, held in ((WHOLE, decoder), (HALVES, in_halves(decoder))):
            if held is not None:
                bodies[name] = native_body(parts, held).eval()
                described[name] = {"own": isinstance(bodies[name], NativeLanguageModel)}
    except ValueError as error:
        notes.append(f"not native as a whole: {error}")
        by_layer, layers, reasons = replace_layers(model)
        notes += [f"the gate of {site!r} stays in torch: {reason}" for site, reason in reasons.items()]
        if layers:
            bodies[BY_LAYER], described[BY_LAYER] = by_layer, {"layers": layers}
    return bodies, described, notes


def _open_rates(reference: nn.Module, inputs: Inputs) -> dict[str, float]:
    gates = named_gates(reference)
    if not gates:
        inputs.call(reference)  # an example that the model cannot read should fail here, in the model's own words
        return {}
    with usage(reference) as used:
        inputs.call(reference)
        decisions = deployed(gates, used)
        return {name: float(open_BG.double().mean()) for name, open_BG in decisions.items()}
