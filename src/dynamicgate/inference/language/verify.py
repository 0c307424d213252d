"""Does a compiled language model compute what its model computes? Compared in float64: the example, and tokens that the
float64 reference generates greedily, from prompts and caches.

Rounding may flip a gate whose logit is at its threshold, and then all later positions of that sequence may differ. A
position that differs is excused only by such a logit, at it or before it; if most positions need an excuse, nothing was
verified, and the plan is not used.

Gates that open by size are so many that rounding flips one of a model every few dozen tokens, and all that follows with
it. So plans with thresholds are compared twice: with nothing left out, where every position has to agree, and as they
are, where a few have to, with a short prompt for one sequence, which is soon run token by token. A position agrees only
if all of its decisions do.

Shapes in names: B sequences, T positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.inference.decoder_parts import CacheKind, most_positions
from dynamicgate.inference.language.calls import Generation, Inputs, scores_of
from dynamicgate.inference.language.native import NativeDecoder
from dynamicgate.inference.language.thresholds import all_above, opens_by_size, without_thresholds
from dynamicgate.inference.plan import Verification
from dynamicgate.inference.shadow_copy import copy_in_float64
from dynamicgate.inference.verify import TOLERANCE, near_threshold, refuse_above

MOST_SEQUENCES, PROMPT, GENERATED = 2, 48, 24
SHORT_PROMPT = 2  # with thresholds
LEAST_COMPARED = 0.5
LEAST_WITH_THRESHOLDS = 8  # positions, or half of them if they are fewer


@dataclass(frozen=True)
class Expected:
    """What the float64 reference gives for one call, and which positions have a logit near its threshold."""

    scores: Tensor
    near: Tensor | None
    """[B, T]; None where the recorded decisions do not fit the positions (padding is not recorded)."""
    real: Tensor | None = None
    """[B, T]; the positions that are no padding, whose outputs mean nothing; None where all of them are compared."""


class Recorded(NamedTuple):
    """What the float64 reference gives for an example, the tokens that it generates with their prompt, and its steps
    there."""

    expected: Expected
    tokens: Tensor | None
    steps: list[Expected]


class LanguageReference:
    """The float64 reference on an example: its scores there, and the tokens that it generates."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, inputs: Inputs, kind: CacheKind | None, *, generated: int = GENERATED) -> None:
        """`generated`: how many tokens are generated after the prompt, where the model has a cache."""
        self.inputs, self.kind, self.most, self.generated = inputs, kind, most_positions(model), generated
        wide = copy_in_float64(model)
        by_size = any(map(opens_by_size, named_gates(wide).values()))
        self.recorded = self._record(wide, *((1, SHORT_PROMPT) if by_size else (MOST_SEQUENCES, PROMPT)))
        self.expected, self.tokens, self.steps = self.recorded
        self.all_above: Recorded | None = None
        if by_size:
            with all_above(wide):
                self.all_above = self._record(wide, MOST_SEQUENCES, PROMPT)

    def _record(self, wide: nn.Module, sequences: int, tokens: int) -> Recorded:
        """sequences, tokens: at most so many of the example are the prompt."""
        inputs, kind, ids = self.inputs, self.kind, self.inputs.ids
        expected = _expect(wide, lambda: scores_of(_widened(inputs).call(wide)), causal=kind is not None)
        expected = replace(expected, real=_real(inputs, expected.scores))
        if ids is None or kind is None:
            return Recorded(expected, None, [])
        prompt = _unpadded(inputs, ids)[:sequences, :tokens]
        generated = self.generated
        if self.most is not None:
            generated = min(generated, self.most - prompt.shape[1] + 1)
        generation, new, chosen, steps = Generation(wide, kind), prompt, [prompt], []
        for _ in range(generated):
            at = new
            steps.append(_expect(wide, lambda at=at: generation.step(at), causal=True))  # type: ignore[misc]
            new = steps[-1].scores[:, -1].argmax(-1, keepdim=True)
            chosen.append(new)
        return Recorded(expected, torch.cat(chosen, dim=1), steps)

    @torch.no_grad()
    def verify(self, body: nn.Module) -> Verification | None:
        """Compare `body`: ValueError if it differs, None if too many positions cannot be compared."""
        decoders = [module for module in body.modules() if isinstance(module, NativeDecoder)]
        if self.all_above is not None and decoders:
            with without_thresholds(decoders):
                self._compare(body, self.all_above)
        found = self._compare(body, self.recorded)
        least = LEAST_COMPARED * (found.rows + found.near_threshold)
        if self.all_above is not None and decoders:
            least = min(least, LEAST_WITH_THRESHOLDS)
        return found if found.rows >= least else None

    def _compare(self, body: nn.Module, recorded: Recorded) -> Verification:
        comparison = _Comparison()
        comparison.add(scores_of(self.inputs.call(body)), recorded.expected, fresh=True)
        if recorded.tokens is not None and self.kind is not None:
            generation, past = Generation(body, self.kind), 0
            for step in recorded.steps:
                until = past + step.scores.shape[1]
                comparison.add(generation.step(recorded.tokens[:, past:until]), step, fresh=past == 0)
                past = until
        return Verification(comparison.compared, comparison.left_out, comparison.error)


class _Comparison:
    def __init__(self) -> None:
        self.compared = self.left_out = 0
        self.error = 0.0
        self.excused: Tensor | None = None

    def add(self, got: Tensor, want: Expected, *, fresh: bool) -> None:
        """fresh: these are the first positions of their sequences."""
        scores = want.scores
        if want.real is not None:
            got, scores = (t.masked_fill(~want.real[..., None], 0.0) for t in (got, scores))
        scale = max(float(scores.abs().max()), 1e-6)
        wrong = (got.double() - scores).abs() / scale
        if want.near is None or want.near.shape != wrong.shape[:-1]:
            wrong_BT = wrong.reshape(len(wrong), -1)
            near_BT = torch.zeros_like(wrong_BT, dtype=torch.bool)
        else:
            wrong_BT, near_BT = wrong.amax(-1), want.near
        wrong_BT, near_BT = wrong_BT.reshape(len(wrong), -1), near_BT.reshape(len(wrong), -1)
        before = torch.zeros(len(wrong), dtype=torch.bool) if fresh or self.excused is None else self.excused
        excused_BT = (near_BT.long().cumsum(1) > 0) | before[:, None]
        good_BT = wrong_BT <= TOLERANCE  # false for NaN
        bad = wrong_BT[~good_BT & ~excused_BT]
        if bad.numel():
            refuse_above(TOLERANCE, float(bad.max()), "a position without a logit near its threshold")
        self.error = max(self.error, float(wrong_BT[good_BT].max()) if bool(good_BT.any()) else 0.0)
        self.compared += int(good_BT.sum())
        self.left_out += int((~good_BT).sum())
        self.excused = excused_BT[:, -1]


def _expect(wide: nn.Module, call: Callable[[], Tensor], *, causal: bool) -> Expected:
    """causal: a position depends on those before it only; else a logit near its threshold excuses its whole row."""
    gates = named_gates(wide)
    with usage(wide) as used:
        scores = call()
        near: Tensor | None = torch.zeros(scores.shape[:-1], dtype=torch.bool)
        for name, gate in gates.items():
            if name not in used or near is None:
                near = None
                break
            at_gate = near_threshold(gate, used[name]).any(-1)
            if len(at_gate) != len(near):
                near = None
            elif causal:
                near = near | at_gate.reshape(near.shape) if at_gate.numel() == near.numel() else None
            else:
                near = near | at_gate.reshape(len(near), -1).any(1).reshape(-1, *(1,) * (near.ndim - 1))
    return Expected(scores, near)


def _real(inputs: Inputs, scores: Tensor) -> Tensor | None:
    """Which positions are no padding, where the model gives something for each of them."""
    mask = inputs.kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2 or scores.shape[:2] != mask.shape or scores.ndim != 3:
        return None
    return None if bool((mask != 0).all()) else mask != 0


def _widened(inputs: Inputs) -> Inputs:
    return inputs.mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def _unpadded(inputs: Inputs, ids_BT: Tensor) -> Tensor:
    """The tokens of all sequences, or of the one with the fewest padding without it."""
    mask = inputs.kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != ids_BT.shape or bool((mask != 0).all()):
        return ids_BT
    row = int((mask != 0).sum(1).argmax())
    return ids_BT[row : row + 1, mask[row] != 0]
