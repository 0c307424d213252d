"""What the plan says of a chain: for every layer and batch size the choice in words, and its times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.cpu.choose import OWN, TORCH, UNGATED, Chosen, Forms, Option
from dynamicgate.inference.cpu.find import Path
from dynamicgate.inference.cpu.folding import Stage
from dynamicgate.inference.cpu.timing import batches_of, race
from dynamicgate.inference.plan import LayerPlan, Regime
from dynamicgate.ops import chain

SPLIT_BY_CLOCK = 64 << 20  # bytes of weights


def regimes_of(
    path: Path,
    forms: Forms,
    chosen: Chosen,
    rows_RD: Tensor,
    batches: Sequence[int],
    macs: Mapping[str, float],
    seconds: float,
) -> list[Regime]:
    """One row for each layer and batch size. The time of a layer is what a chain with it takes longer than without, in
    a chain of large layers, which would have to be packed once more for that, its share of the executed MACs."""
    stages = forms.lowered.stages
    counts = range(1, len(stages) + 1)
    share = seconds / len(batches) / 2
    dense_calls = [ungated(path, count) for count in counts]
    found = []
    for batch, at, times in zip(batches, chosen.at, chosen.times, strict=True):
        xs, name = batches_of(rows_RD, batch), chosen.names[at]
        dense = _split(dense_calls, xs, share, times[UNGATED])
        if forms.dense_bytes < SPLIT_BY_CLOCK:
            parts = [forms.call(forms.part(name, count)) for count in counts[:-1]]
            mine = _split([*parts, forms.call(chosen.forms[at])], xs, share, times[name])
        else:
            work = [macs.get(stage.name, 0.0) for stage in stages]
            mine = [times[name] * macs_ / max(sum(work), 1.0) for macs_ in work]
        choices = choices_of(stages, name, forms.options.get(name, ()))
        layers = [
            LayerPlan(s.name, s.shape, choice, d, c, macs.get(s.name, 0.0))
            for s, choice, d, c in zip(stages, choices, dense, mine, strict=True)
        ]
        rivals = {key: t for key, t in times.items() if key != UNGATED}
        found.append(Regime(batch, layers, name, rivals, times[UNGATED]))
    return found


def _split(
    calls: Sequence[Callable[[Tensor], Tensor]], xs: Sequence[Tensor], seconds: float, total: float
) -> list[float]:
    """`total` shared out over the layers, from the times of the chain's beginnings."""
    if len(calls) == 1:
        return [total]
    ends = list(race({str(i): call for i, call in enumerate(calls)}, xs, seconds).values())
    steps = [max(0.0, b - a) for a, b in zip([0.0, *ends[:-1]], ends, strict=True)]
    return [step * total / max(sum(steps), 1e-9) for step in steps]


def choices_of(stages: Sequence[Stage], form: str, options: Sequence[Option]) -> list[str]:
    """What each layer does, in words."""
    found = []
    for i, stage in enumerate(stages):
        layer = stage.layer
        outputs, inputs = layer.weight.shape
        words = [form] if form in (TORCH, OWN) else _words(layer, *options[i])
        if layer.block and form in (TORCH, OWN):
            words.append("closed by gate")
        elif i and stages[i - 1].layer.block and form not in (TORCH, OWN) and options[i][0] not in ("csr", "columns"):
            words.append("open inputs only")
        if outputs < stage.shape[0] or inputs < stage.shape[1]:
            words.append(f"sliced to {outputs} x {inputs}")
        found.append(", ".join(words))
    return found


def _words(layer: chain.Layer, layout: str, skips: bool) -> list[str]:
    words = {"vectors": "16x1 vectors", "columns": "16x1 vectors"}
    if layout == "csr":
        fan_in = layer.weight.count_nonzero(1)
        words["csr"] = "constant fan-in" if bool((fan_in == fan_in[0]).all()) else "CSR"
    if not layer.block:
        return [words.get(layout, "zero-skip" if skips else OWN), *(["zero-skip"] if skips and layout in words else [])]
    kind = "unit-gated" if layer.block == 1 else f"block-gated ({layer.block})"
    return [kind + (f" x {words[layout]}" if layout in words else ""), *(["zero-skip"] if skips else [])]


def ungated(path: Path, count: int | None = None) -> Callable[[Tensor], Tensor]:
    """The first `count` layers of the path, or all, as they would run without gates in eager torch."""
    calls: list[Callable[[Tensor], Tensor]] = []
    linears = 0
    for step in path.steps:
        if step.kind == "linear":
            if linears == count:
                break
            linears += 1
            linear: Any = step.module
            calls.append(lambda x, m=linear: F.linear(x, m.weight, m.bias))  # type: ignore[misc]
        elif step.kind == "activation":
            calls.append(ACTIVATIONS[step.activation].function)
        elif step.kind != "nothing":
            assert step.module is not None
            calls.append(step.module)

    def run(x: Tensor) -> Tensor:
        for call in calls:
            x = call(x)
        return x

    return run
