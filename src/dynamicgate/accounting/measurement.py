"""Measure what a model really does: quality, executed MACs per sample, the paper's proxies, what its gates depend on.

Counting rules. Hard gates as deployed; every Linear layer with both of its gates and its mask, and every convolution
with the gates on its channels; gate networks and the output layer included; per sample and summed, never a product of
means. A gate evaluated softly saves nothing. What is saved is split: first the connections that do not exist, then, of
those that do, the ones between closed units.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.attention import AttentionMacs
from dynamicgate.accounting.convolutions import ConvMacs
from dynamicgate.accounting.counted import CountsRows, measure_rows
from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.accounting.linear import LayerMacs
from dynamicgate.accounting.proxies import Openness, product_of_means, proxies, where_products_mislead
from dynamicgate.accounting.quality import Quality, check_answers, check_metrics, infer_task, task_of_schema
from dynamicgate.accounting.shape_counters import ShapeCounters
from dynamicgate.accounting.stage_costs import finite_cut
from dynamicgate.accounting.stage_tally import StageTally
from dynamicgate.accounting.zero_skipping import gate_zero_skipping, zero_skipping
from dynamicgate.data.by_name import batches_by_name
from dynamicgate.data.contract import Inputs, call, move
from dynamicgate.data.schema import schema_of
from dynamicgate.data.tasks import Metric, OwnLoss, Task, as_task
from dynamicgate.display import ShownAsText
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, named_gates, usage
from dynamicgate.modules import evaluating, unwrap
from dynamicgate.nn.normalize import Normalize


@dataclass(frozen=True, repr=False)
class Measurement(ShownAsText):
    """What one model did on one dataset. `to_dict` is the JSON that results files hold."""

    quality: dict[str, float]
    macs: dict[str, float]
    proxies: dict[str, float]
    layers: list[dict[str, Any]]
    params: int
    samples: dict[str, float]
    gates: list[dict[str, Any]]
    count: int
    notes: list[str] = field(default_factory=list)
    """Sentences on data that were found by name, and on layers whose cost a product of mean rates would misstate."""
    stages: dict[str, Any] | None = None
    """For a model with stages, with one entry a stage: `open`, the fraction of rows that opened it; `relative`, what a
    row costs that stops after it; `accuracy`, if all rows stopped after it. `random` is the accuracy if the same stops
    were dealt to rows at random, `cost_error` the correlation of a row's cost with being wrong, `cut` where it is."""
    curve: list[dict[str, Any]] = field(default_factory=list)
    """The accuracy-cost curve of a model with stages, one point for each place of the cut; `calibrate_` goes there."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings. A cut below all scores is None: JSON has no -inf."""
        found = asdict(self)
        for point in ([] if self.stages is None else [found["stages"]]) + found["curve"]:
            point["cut"] = finite_cut(point["cut"])
        return found

    @property
    def relative(self) -> float:
        """The headline: executed MACs per sample as a fraction of the dense model's."""
        return self.macs["relative"]

    @property
    def accuracy(self) -> float:
        """Fraction of correct classes; an error where the targets were none, or no classes."""
        if "accuracy" not in self.quality:
            found = f", but {', '.join(self.quality)}" if self.quality else ""
            raise AttributeError(f"no accuracy was measured{found}: the data had no class labels")
        return self.quality["accuracy"]

    def _brief(self) -> str:
        quality = "".join(f"{name} {value:.4f}, " for name, value in self.quality.items())
        return f"{quality}relative {self.relative:.4f}, {self.count:,} samples"

    def __str__(self) -> str:
        m = self.macs
        rest = m["executed"] - m["gate"] - sum(x["macs"] for x in self.layers)  # attention, convolutions without gates
        lines = [
            *(f"{name:<22}{value:.4f}" for name, value in self.quality.items()),
            f"{'executed MACs':<22}{m['executed']:,.0f} of {m['dense']:,.0f} per sample = {m['relative']:.4f}",
            f"{'  of which gates':<22}{m['gate']:,.0f}",
            f"{'  saved by structure':<22}{m['structure_saved']:.4f}",
            f"{'  saved by gates':<22}{m['gate_saved']:.4f}",
            f"{'  skipping zeros':<22}{m['relative_zero_skip']:.4f}",
            f"{'  p5 / p50 / p95':<22}{self.samples['p5']:.4f} / {self.samples['p50']:.4f} / {self.samples['p95']:.4f}",
            f"{'parameters':<22}{self.params:,}",
            "",
            f"{'layer':<22}{'open':>8}{'density':>9}{'MACs':>14}",
            *(f"{x['name']:<22}{x['open']:>8.3f}{x['density']:>9.3f}{x['macs']:>14,.0f}" for x in self.layers),
            *([f"{'all that is no Linear':<22}{'':>17}{rest:>14,.0f}"] if rest > 0.5 else []),
            *_stage_lines(self.stages),
            *(["", *self.notes] if self.notes else []),
        ]
        return "\n".join(lines)


def measure(
    model: nn.Module,
    data: Any,
    *,
    batch: int = 1024,
    watch: Callable[[Tensor, Tensor], None] | None = None,
    loss: str | Task | OwnLoss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    allow: Collection[str] = (),
) -> Measurement:
    """Run `model` in evaluation mode over `data` and account for every multiply-accumulate.

    data: see `dynamicgate.data.contract`. Without targets the quality is left out. Batches of different shapes (longer
    and shorter sequences) are counted each with its own shape. Where the model carries a schema (`data.schema_of`),
    columns, genes and classes of DataFrames and AnnData are found by name and encoded as in its training.
    watch: called with the outputs of each batch and the MACs of each of its samples.
    loss: what the targets are, as in `fit`. None: what the schema says; without one, whole numbers, one per row, are
        classes, matrices of 0 and 1 labels, and float targets, one for each output, measurements.
    metrics: functions `(outputs, targets)` to a number, by name, besides those of the task.
    allow: what to accept that is refused by default in data found by name; see `data.alignment.ALLOWED`.
    """
    base, schema = unwrap(model), schema_of(unwrap(model))
    batches, notes = batches_by_name(data, schema, batch, allow=allow)
    metrics = check_metrics(metrics)
    task = task_of_schema(schema) if loss is None else as_task(loss)
    if isinstance(base, CountsRows):
        return Measurement(**measure_rows(base, batches, task=task, metrics=metrics, watch=watch), notes=notes)
    device = next(model.parameters()).device
    tally = _Tally(model, task, metrics)
    with evaluating(model), torch.no_grad():
        for inputs, y in batches:
            inputs = move(inputs, device)
            counter = tally.counters.counter_for(inputs)
            out, used, nonzero = _observe(model, counter, inputs)
            tally.add(counter.at(used.work), out, used, nonzero, y)
            if watch is not None:
                watch(out, tally.per_sample[-1])
    if not tally.per_sample:
        raise ValueError("nothing to measure: the dataset is empty")
    if tally.not_numbers:
        rows = sum(len(macs) for macs in tally.per_sample)
        warnings.warn(f"the model answers NaN for {tally.not_numbers} of {rows} rows", stacklevel=2)
    found = tally.result(sum(p.numel() for p in model.parameters()))
    return replace(found, notes=[*notes, *found.notes])


def _observe(model: nn.Module, counter: MacCounter, inputs: Inputs) -> tuple[Tensor, Usage, dict[str, Tensor]]:
    """One forward pass: the outputs, the decisions of all gates, and the non-zero inputs of each layer."""
    nonzero: dict[str, Tensor] = {}
    normalized: list[tuple[Tensor, Tensor]] = []

    def record_nonzero(name: str, in_gate: Gate | None) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            # An affine map of the input folds into the layer behind it, so that raw zeros are what can be skipped. Not
            # behind a gate that depends on the input: what its closed inputs contribute to the bias would vary.
            folds = in_gate is None or in_gate.config.kind == "static"
            raw = [before for before, after in normalized if folds and after is args[0]]
            now = (raw[0] if raw else args[0]) != 0
            if name in nonzero:  # a layer that runs again: one call after the other, as in `Usage`
                now = torch.cat([nonzero[name].flatten(0, -2), now.flatten(0, -2)])
            nonzero[name] = now

        return hook

    def remember(_module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        normalized.append((args[0], out))

    handles = [
        layer.linear.register_forward_pre_hook(record_nonzero(layer.name, layer.read.gate), prepend=True)
        for layer in counter.layers
    ]
    handles += [m.register_forward_hook(remember) for m in unwrap(model).modules() if isinstance(m, Normalize)]
    try:
        with usage(model) as used:
            out = call(model, inputs)
        if not isinstance(out, Tensor):
            raise TypeError(
                f"expected a model that returns one tensor, with a row for each sample; this one returns "
                f"{type(out).__name__}. For Hugging Face models use dynamicgate.hf.measure"
            )
        if used.padded:
            raise ValueError(
                "this batch has padding, which is no row, so that rows do not say where a sample ends: use "
                "dynamicgate.hf.measure, which counts tokens, or batches of sequences of one length"
            )
        return out, used, nonzero
    finally:
        for handle in handles:
            handle.remove()


class _Tally:
    """Sums over batches; nothing is averaged before the end."""

    def __init__(self, model: nn.Module, task: Task | None, metrics: Mapping[str, Metric]) -> None:
        self.model, self.task, self.metrics = model, task, metrics
        self.counters = ShapeCounters(model)
        self.samples: dict[MacCounter, int] = {}
        self.per_sample: list[Tensor] = []
        self.relative: list[Tensor] = []
        self.zero_skip = self.deciding = 0.0
        self.not_numbers = 0  # rows whose outputs are NaN
        self.layer_macs: dict[str, float] = {}
        self.open_units: dict[str, float] = {}
        self.openness = {name: Openness(name, gate) for name, gate in named_gates(model).items()}
        self.stages = StageTally()
        self.quality: Quality | None = None

    def add(
        self,
        counter: MacCounter,
        out: Tensor,
        used: Usage,
        nonzero: dict[str, Tensor],
        y: Tensor | None,
    ) -> None:
        samples = len(out)
        y = None if y is None else self._answered(out, y)
        classes = self.task is not None and self.task.name == "classification"
        labels = y if classes and y is not None and y.ndim == 1 else None
        g = deployed(counter.gates, used)
        total = torch.full((samples,), counter.gate + counter.other, dtype=torch.float64, device=out.device)
        skipping = total.sum() - counter.gate * samples
        for layer in counter.parts:
            macs = layer.executed(g).double().to(out.device)
            macs = macs.reshape(samples, -1).sum(1) if macs.ndim else (macs * layer.rows).expand(samples)
            self.layer_macs[layer.name] = self.layer_macs.get(layer.name, 0.0) + float(macs.sum())
            total = total + macs
            if layer.written.closes:
                units = float(torch.as_tensor(layer.written.open_units(g)).sum(dtype=torch.float64))
                self.open_units[layer.name] = self.open_units.get(layer.name, 0.0) + units
            if not isinstance(layer, LayerMacs):  # which skip no zeros
                skipping = skipping + macs.sum()
                continue
            skipping = skipping + zero_skipping(layer, g, nonzero[layer.name])
            for name, gate in counter.gates.items():
                if counter.sites[name].source == layer.name and not gate.site.channels:
                    live = nonzero[layer.name]
                    if layer.read.gate is not gate and (open_BI := layer.read.per_unit(g)) is not None:
                        live = live * open_BI  # it reads h^(l-1) as gated
                    skipping = skipping + gate_zero_skipping(gate, live)
        skipping = skipping + counter.gate_on_channels * samples  # which read means, and hardly ever zeros
        if (deciding := counter.deciding(g)) is not None:
            macs = deciding.double().to(out.device).reshape(samples, -1).sum(1)
            total, skipping = total + macs, skipping + macs.sum()
            self.deciding += float(macs.sum())
        if used.stages is not None:
            self.stages.add(counter, used.stages, g, labels)
        self.samples[counter] = self.samples.get(counter, 0) + samples
        self.per_sample.append(total.cpu())
        self.relative.append(total.cpu() / counter.dense)
        self.zero_skip += float(skipping)
        for name, decision in used.items():
            self.openness[name].add(decision.p, g[name], labels)

    def _answered(self, out: Tensor, y: Tensor) -> Tensor:
        """Take the answers in, and return the targets as their task reads them."""
        self.task = self.task or infer_task(out, y)
        self.quality = self.quality or Quality(self.task, self.metrics)
        y = check_answers(self.task, out, y.to(out.device), "data")
        self.not_numbers += int(out.reshape(len(out), -1).isnan().any(dim=1).sum())
        self.quality.add(out, y)
        return y

    def _mean_counter(self) -> MacCounter:
        """The counter of the mean sample: the only one, unless batches had several shapes."""
        if len(self.samples) == 1:
            return next(iter(self.samples))
        count = sum(self.samples.values())
        other = sum(counter.other * samples for counter, samples in self.samples.items()) / count
        rows, attention, positions = (
            _weighted_mean([(getattr(counter, name), samples / count) for counter, samples in self.samples.items()])
            for name in ("rows", "attention_macs", "positions")
        )
        return MacCounter(self.model, rows=rows, other=other, attention=attention, positions=positions)

    def result(self, params: int) -> Measurement:
        counter, per_sample, relative = self._mean_counter(), torch.cat(self.per_sample), torch.cat(self.relative)
        count, dense = len(per_sample), counter.dense
        layers = [self._layer_row(layer, count) for layer in counter.parts]
        existing, executed = (sum(row[key] for row in layers) for key in ("present", "macs"))
        stages, curve = self.stages.result(dense, torch.empty(0) if counter.stages is None else counter.stages.cut)
        p5, p50, p95 = torch.quantile(relative, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
        return Measurement(
            quality={} if self.quality is None else self.quality.result(),
            macs={
                "dense": dense,
                "executed": float(per_sample.mean()),
                "gate": counter.gate + self.deciding / count,
                "relative": float(per_sample.mean()) / dense,
                "relative_zero_skip": self.zero_skip / count / dense,
                "structure_saved": 1.0 - (existing + counter.other) / dense,
                "gate_saved": (existing - executed) / dense,
            },
            proxies=proxies(counter, self.openness),
            layers=layers,
            params=params,
            samples={"p5": p5, "p50": p50, "p95": p95},
            gates=[openness.to_dict() for openness in self.openness.values()],
            count=count,
            notes=where_products_mislead(counter, self.openness, {row["name"]: row["macs"] for row in layers}),
            stages=stages,
            curve=curve,
        )

    def _open_rate(self, layer: LayerMacs | AttentionMacs | ConvMacs) -> float:
        """The mean open rate of the units a layer writes."""
        sums = self.open_units.get(layer.name)
        return 1.0 if sums is None else sums / sum(self.samples.values()) / layer.rows / layer.written.units

    def _layer_row(self, layer: LayerMacs | AttentionMacs | ConvMacs, count: int) -> dict[str, Any]:
        return {
            "name": layer.name,
            "open": self._open_rate(layer),
            "density": layer.density,
            "macs": self.layer_macs[layer.name] / count,
            "present": layer.present * layer.rows,
            "product": product_of_means(layer, self.openness),
        }


def _weighted_mean(values: list[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """The mean for each name; a name that is not in all of them counts as 0 in the others."""
    found: dict[str, float] = {}
    for value, weight in values:
        for name, number in value.items():
            found[name] = found.get(name, 0.0) + number * weight
    return found


def _stage_lines(stages: dict[str, Any] | None) -> list[str]:
    if stages is None:
        return []
    accuracy = stages.get("accuracy", [None] * len(stages["open"]))
    rows = zip(stages["open"], stages["relative"], accuracy, strict=True)
    return [
        "",
        f"{'stage':<22}{'opened':>8}{'stop at':>9}{'accuracy':>10}",
        *(
            f"{k:<22}{opened:>8.3f}{macs:>9.4f}{'' if hits is None else f'{hits:.4f}':>10}"
            for k, (opened, macs, hits) in enumerate(rows, start=1)
        ),
    ]
