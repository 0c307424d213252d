"""Which form of a chain is fastest for which batch size: list the candidates, time them, keep few.

Candidates are whole chains. The layouts of the layers are chosen one after the other with the rest held fixed, then the
best packed chain of every batch size meets the dense ones: torch, and our panels with the gates in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log

import torch
from torch import Tensor, nn

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.cpu.candidates import GateInTorch, PackedForm, RouterInTorch, TorchForm, torch_stage
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import ZEROS_WORTH_SKIPPING
from dynamicgate.inference.cpu.lower import Lowered
from dynamicgate.inference.cpu.timing import batches_of, race
from dynamicgate.inference.shadow_copy import held_bytes
from dynamicgate.ops import chain
from dynamicgate.ops.chain.packing import PANEL, columns_of_16

TORCH, OWN, UNGATED = "dense", "own dense", "ungated dense"
PREFER_TORCH = 0.97  # a lead of less than 3 % over dense torch is noise
PRICE_OF_A_FORM = 0.02  # of the time at one batch size: what another copy of the weights must gain
MOSTLY_OPEN = 0.6
Option = tuple[str, bool]
"""Layout and skip_zeros of one layer."""


@dataclass(frozen=True)
class Chosen:
    """The forms to keep, which of them runs each batch size, and what was measured."""

    forms: list[nn.Module]
    names: list[str]
    at: list[int]
    times: list[dict[str, float]]


class Forms:
    """The forms of one chain, packed when first asked for."""

    def __init__(self, lowered: Lowered) -> None:
        """Of `lowered`."""
        self.lowered = lowered
        self.made: dict[str, nn.Module] = {}
        self.options: dict[str, tuple[Option, ...]] = {}
        router = lowered.router
        self.router = None if router is None else RouterInTorch(GateInTorch(router.net), router.k, router.tau)

    def name_of(self, options: Sequence[Option]) -> str:
        """A packed form is named after the layouts of its layers."""
        name = " + ".join(layout + (" skipping zeros" if skip else "") for layout, skip in options)
        self.options[name] = tuple(options)
        return name

    def get(self, name: str) -> nn.Module:
        """The form of this name."""
        if name not in self.made:
            self.made[name] = self.part(name, len(self.lowered.stages))
        return self.made[name]

    def part(self, name: str, count: int) -> nn.Module:
        """The first `count` layers of a form."""
        layers = self.lowered.layers[:count]
        if name in (TORCH, OWN):
            return TorchForm([torch_stage(layer, own=name == OWN) for layer in layers])
        chosen = zip(layers, self.options[name], strict=False)
        packed = chain.pack([replace(layer, layout=layout, skip_zeros=skip) for layer, (layout, skip) in chosen])
        for form in self.made.values():  # forms that differ in how they skip only have the same weights
            if isinstance(form, PackedForm) and torch.equal(form.weights, packed.weights):
                packed = packed._replace(weights=form.weights)
        return PackedForm(packed)

    def chain(self, forms: Sequence[nn.Module], at: Sequence[int], batches: Sequence[int]) -> Chain:
        """A chain that runs `forms`, with what lies before them."""
        low = self.lowered
        extra = {"router": self.router, "norm_eps": low.norm_eps, "rows_only": low.rows_only}
        return Chain(forms, at, batches, low.stages[0].shape[1], **extra)  # type: ignore[arg-type]

    def call(self, form: nn.Module) -> Callable[[Tensor], Tensor]:
        """What is timed: all that a chain does with this form."""
        return self.chain([form], [0], [1]).forward

    @property
    def dense_bytes(self) -> int:
        """Memory of the weights and biases before anything was sliced."""
        return sum(4 * outputs * (inputs + 1) for outputs, inputs in (stage.shape for stage in self.lowered.stages))


def choose(
    forms: Forms,
    ungated: Callable[[Tensor], Tensor],
    rows_RD: Tensor,
    batches: Sequence[int],
    *,
    open_rates: Mapping[str, float],
    seconds: float,
    memory: float | None,
) -> Chosen:
    """Time the candidates on `rows_RD`, as they enter the chain, at each of `batches`, and keep the fastest.

    ungated: the layers without gates; it computes something else and is timed for comparison only.
    open_rates: of the gates, by site.
    """
    choices = options(forms.lowered, zeros=float((rows_RD == 0).double().mean()))
    share = seconds / len(batches) / (1 + sum(len(of_layer) > 1 for of_layer in choices))
    best = {batch: _best_layouts(forms, choices, batches_of(rows_RD, batch), share) for batch in batches}
    finalists = dict.fromkeys([TORCH, *([OWN] if _might_be_dense(forms.lowered, open_rates) else []), *best.values()])
    times = []
    for batch in batches:
        calls = {UNGATED: ungated} | {name: forms.call(forms.get(name)) for name in finalists}
        times.append(race(calls, batches_of(rows_RD, batch), share))
    sizes = {name: held_bytes(forms.get(name)) for name in finalists}
    kept, at = keep_few(times, sizes, None if memory is None else memory * forms.dense_bytes)
    found = Chosen([forms.get(name) for name in kept], kept, at, times)
    forms.made.clear()
    return found


def options(lowered: Lowered, zeros: float) -> list[list[Option]]:
    """The layouts worth trying for each layer, the most likely first. zeros: share of exact zeros in the input."""
    found: list[list[Option]] = []
    before: chain.Layer | None = None
    for layer in lowered.layers:
        dense = ("panels", False)
        rows = ("rows", False)
        of_layer = [dense] if not layer.block or layer.block >= 8 else [rows]  # panels pad a block to 16 units
        if layer.block and layer.block < PANEL:
            of_layer = list(dict.fromkeys([rows, *of_layer]))
        density = int(layer.weight.count_nonzero()) / layer.weight.numel()
        if density < 0.9:
            vectors = float(columns_of_16(layer.weight).float().mean())
            sparse = [("vectors", False)] if vectors < 0.9 else []
            if sparse and before is not None and before.block:  # most inputs are open, or so it may be
                sparse = [("columns", False), *sparse]
            sparse += [("csr", False)] if density < 0.5 else []
            of_layer = [*sparse, *of_layer]
        after_relu = before is not None and ACTIVATIONS[before.activation].makes_zeros and not before.block
        if (zeros >= ZEROS_WORTH_SKIPPING if before is None else after_relu) and layer.weight.shape[1] <= 1 << 16:
            of_layer += [(layout, True) for layout, _ in of_layer if layout in ("panels", "vectors")]
        found.append(of_layer)
        before = layer
    return found


def keep_few(
    times: Sequence[Mapping[str, float]], sizes: Mapping[str, int], limit: float | None
) -> tuple[list[str], list[int]]:
    """The set of forms that is fastest over all batch sizes, where another form must pay for its memory.

    Returns the names and, for each batch size, which of them is fastest there.
    """
    sets = [list(c) for count in range(1, min(len(sizes), len(times)) + 1) for c in combinations(sizes, count)]
    allowed = [names for names in sets if limit is None or sum(sizes[n] for n in names) <= limit]
    if not allowed:
        allowed = [[min(sizes, key=lambda name: sizes[name])]]

    def cost(names: list[str]) -> float:
        return sum(log(min(row[n] for n in names)) for row in times) + PRICE_OF_A_FORM * (len(names) - 1)

    kept = min(allowed, key=cost)
    if [TORCH] in allowed and all(row[TORCH] * PREFER_TORCH <= min(row[n] for n in kept) for row in times):
        kept = [TORCH]
    return kept, [min(range(len(kept)), key=lambda i: row[kept[i]]) for row in times]


def _might_be_dense(lowered: Lowered, open_rates: Mapping[str, float]) -> bool:
    """Whether dense panels with a gate in torch could win: small blocks, or hardly anything closed. Otherwise they are
    another copy of the weights for nothing."""
    gated = [stage for stage in lowered.stages if stage.layer.block]
    return any(s.layer.block < PANEL or open_rates[s.site or ""] > MOSTLY_OPEN for s in gated)


def _best_layouts(forms: Forms, choices: Sequence[list[Option]], xs: list[Tensor], seconds: float) -> str:
    current = [of_layer[0] for of_layer in choices]
    for i, of_layer in enumerate(choices):
        if len(of_layer) == 1:
            continue
        rivals = {forms.name_of([*current[:i], option, *current[i + 1 :]]): option for option in of_layer}
        times = race({name: forms.call(forms.get(name)) for name in rivals}, xs, seconds)
        current[i] = rivals[min(times, key=lambda name: times[name])]
    return forms.name_of(current)
