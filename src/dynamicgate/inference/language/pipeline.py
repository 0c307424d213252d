"""`compile` for models that are called with tokens, dicts or keyword arguments, and for those that cannot be traced:
make the candidates, verify them, time them on the whole model, and keep the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dynamicgate import ops
from dynamicgate.accounting.counter import deployed
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.inference.decoder_parts import DecoderParts, EncoderParts, cache_kind, most_positions, whole_parts_of
from dynamicgate.inference.language.calls import Inputs
from dynamicgate.inference.language.layer_by_layer import replace_layers
from dynamicgate.inference.language.machine import reached
from dynamicgate.inference.language.native import NativeDecoder, NativeLanguageModel
from dynamicgate.inference.language.packed import decoder_of, stored_in
from dynamicgate.inference.language.plan import BY_LAYER, BYTES, HALVES, NATIVE, TORCH, WHOLE, LanguagePlan, Rounding
from dynamicgate.inference.language.rounding import rounded_copy, rounding_of
from dynamicgate.inference.language.saving import native_decoder
from dynamicgate.inference.language.timing import choose, time_models
from dynamicgate.inference.language.verify import LanguageReference
from dynamicgate.inference.language.work import read_rates, work_of
from dynamicgate.inference.plan import Verification
from dynamicgate.inference.shadow_copy import copy_sharing_memory, held_bytes, stop_sharing_
from dynamicgate.inference.timing import threads_of_torch
from dynamicgate.ops import native


@dataclass(frozen=True)
class Compiled:
    """What `compile_language` made. described: what a file needs besides tensors, see `saving`."""

    body: nn.Module
    plan: LanguagePlan
    described: dict[str, Any]


@dataclass
class _Ways:
    """By name, the ways to run a model that are left, what describes each in a file, and what comparing it found.
    parts: of a model that runs natively as a whole."""

    bodies: dict[str, nn.Module]
    described: dict[str, dict[str, Any]]
    notes: list[str]
    parts: DecoderParts | EncoderParts | None = None
    verified: dict[str, Verification] = field(default_factory=dict)

    def add_native(self, name: str, body: nn.Module) -> None:
        self.bodies[name] = body.eval()
        within = native_decoder(body)[0] if isinstance(self.parts, EncoderParts) else None
        self.described[name] = {"own": isinstance(body, NativeLanguageModel), "within": within}

    def add_layers(self, model: nn.Module) -> None:
        """Its feed-forward layers one by one."""
        by_layer, layers, reasons = replace_layers(model)
        self.notes += [f"the gate of {site!r} stays in torch: {reason}" for site, reason in reasons.items()]
        if layers:
            self.bodies[BY_LAYER], self.described[BY_LAYER] = by_layer, {"layers": layers}

    def verify(self, reference: LanguageReference, names: Sequence[str]) -> None:
        """Compare these; those that cannot be compared are left out, and so is a whole model that differs: a forward
        of somebody else may do something that its parts do not show."""
        for name in names:
            reason = "most positions of the example have a logit near its threshold"
            try:
                found = reference.verify(self.bodies[name])
            except (ValueError, TypeError, IndexError, RuntimeError) as error:  # what a stand-in may make of arguments
                if name not in NATIVE:
                    raise
                found, reason = None, str(error)
            if found is None:
                self.notes.append(f"{name!r} is not used: {reason}")
                del self.bodies[name]
            else:
                self.verified[name] = found


@torch.no_grad()
def compile_language(
    model: nn.Module, inputs: Inputs, *, batches: Sequence[int], threads: int | None, seconds: float, int8: bool = False
) -> Compiled:
    """The fastest verified way to run `model` as `inputs` call it. batches: rows of a call, where there is no cache.
    int8: a way with rounded weights may be chosen too."""
    inputs = inputs.mapped(lambda tensor: tensor.detach())
    with threads_of_torch(threads):
        ways = _candidates(model)
        kind = None if isinstance(ways.parts, EncoderParts) else cache_kind(model)
        if int8 and WHOLE not in ways.bodies:
            raise ValueError(f"weights='int8' is for models that run natively as a whole: {ways.notes[0]}")
        open_rates = _open_rates(ways.bodies[TORCH], inputs)
        rounding = None
        if len(ways.bodies) > 1:
            reference = LanguageReference(model, inputs, kind)
            ways.verify(reference, [name for name in ways.bodies if name != TORCH])
            if list(ways.bodies) == [TORCH] and ways.parts is not None:
                ways.add_layers(model)
                ways.verify(reference, [name for name in ways.bodies if name != TORCH])
            if int8:
                rounding = _add_int8(ways, model, reference)
            del reference
        cached = WHOLE in ways.bodies and kind is not None
        work, read = None, [*open_rates.values()]
        if cached and isinstance(ways.parts, DecoderParts):
            rates = {gate: open_rates[name] for name, gate in named_gates(ways.bodies[TORCH]).items()}
            work, read = work_of(ways.parts, rates), read_rates(ways.parts, rates)
        most = most_positions(model)
        timed = time_models(ways.bodies, inputs, kind, batches, seconds, read, work, most)
        chosen = choose(timed)
        regimes = [one.regime(chosen) for one in timed]
        body = ways.bodies[chosen]
        if chosen not in NATIVE:
            stop_sharing_(body, model)
        plan = LanguagePlan(
            chosen, regimes, open_rates, ways.notes, ways.verified.get(chosen),
            ops.backend() if chosen != TORCH else "torch", torch.get_num_threads(),
            held_bytes(body) / max(1, held_bytes(model)), rounding if chosen == BYTES else None,
            reached() if chosen in NATIVE else None,
        )  # fmt: skip
    return Compiled(body, plan, {"way": chosen, **ways.described.get(chosen, {})})


def _add_int8(ways: _Ways, model: nn.Module, reference: LanguageReference) -> Rounding | None:
    """Add the model with rounded weights, compared with the rounded model in float64, and return what rounding
    changes."""
    rounded = rounded_copy(model)
    parts = whole_parts_of(rounded)
    decoder = stored_in(decoder_of(parts), "byte panels")
    if decoder is None:
        ways.notes.append("int8 weights are not used: most weights of this model cannot be read as bytes")
        return None
    ways.add_native(BYTES, native_body(parts, decoder))
    of_rounded = LanguageReference(rounded, reference.inputs, reference.kind)
    ways.verify(of_rounded, [BYTES])
    exact, scores = reference.expected.scores, of_rounded.expected.scores
    if isinstance(parts, EncoderParts):
        change = float((scores - exact).abs().max()) / max(float(exact.abs().max()), 1e-6)
        ways.notes.append(f"int8 weights change outputs of the example by up to {change:.2g} of the largest")
        return None
    return rounding_of(reference.inputs, exact, scores)


def native_body(parts: DecoderParts | EncoderParts, decoder: ops.decoder.Decoder | None = None) -> nn.Module:
    """A model around the native decoder of these parts; around another of the same parts where one is given."""
    packed = ops.decoder.pack_decoder(decoder_of(parts) if decoder is None else decoder)
    if isinstance(parts, EncoderParts):
        return parts.into(NativeDecoder(packed, None))
    tied = parts.embed.weight is parts.head.weight
    positions = None if parts.positions is None else parts.positions.detach().clone()
    native_decoder = NativeDecoder(packed, None if tied else parts.embed.weight.detach().clone(), positions)
    return NativeLanguageModel(native_decoder) if parts.into is None else parts.into(native_decoder)


def _candidates(model: nn.Module) -> _Ways:
    """The ways to run the model as it is, and sentences about what cannot be native."""
    ways = _Ways({TORCH: copy_sharing_memory(model)}, {}, [])
    if native.missing():
        ways.notes.append(f"the model runs in torch as it is: {native.missing()}")
        return ways
    try:
        parts = whole_parts_of(ways.bodies[TORCH])
        decoder = decoder_of(parts)
        kept = {WHOLE: decoder, HALVES: stored_in(decoder, "half panels")}
        bodies = {name: native_body(parts, held) for name, held in kept.items() if held is not None}
    except ValueError as error:
        ways.notes.append(f"not native as a whole: {error}")
        ways.add_layers(model)
        return ways
    ways.parts = parts
    for name, body in bodies.items():
        ways.add_native(name, body)
    return ways


def _open_rates(reference: nn.Module, inputs: Inputs) -> dict[str, float]:
    gates = named_gates(reference)
    if not gates:
        inputs.call(reference)  # an example that the model cannot read should fail here, in the model's own words
        return {}
    with usage(reference) as used:
        inputs.call(reference)
        decisions = deployed(gates, used)
        return {name: float(open_BG.double().mean()) for name, open_BG in decisions.items()}
