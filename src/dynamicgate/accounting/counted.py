"""Models that count what each of their rows executes themselves, such as compiled ones: `measure` adds it up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from dynamicgate.accounting.quality import Quality, check_answers, infer_task
from dynamicgate.data.contract import Inputs
from dynamicgate.data.tasks import Metric, Task


class LayerWork(NamedTuple):
    """What every row of a batch executes in one layer, [B] each, and what does not depend on the row."""

    executed_B: Tensor
    zero_skip_B: Tensor
    """With inputs that are zero skipped, and with the gate network."""
    gate_B: Tensor
    open_B: Tensor
    """The fraction of its units that are open."""
    present: int
    """Connections that exist."""
    params: int


class DenseLayer(NamedTuple):
    """The name of a layer, and its MACs without gates and masks."""

    name: str
    macs: int


@runtime_checkable
class CountsRows(Protocol):
    """A model that knows what each of its rows executes."""

    def dense_layers(self) -> Sequence[DenseLayer]:
        """Its layers, in the order of `row_work`."""

    def row_work(self, x: Tensor) -> Sequence[LayerWork]:
        """What each row of `x` executes, by layer."""


@torch.no_grad()
def measure_rows(
    model: Any,
    batches: Iterable[tuple[Inputs, Tensor | None]],
    *,
    task: Task | None,
    metrics: Mapping[str, Metric],
    watch: Callable[[Tensor, Tensor], None] | None,
) -> dict[str, Any]:
    """The fields of a `Measurement`. There is nothing about single gates in it: their decisions are not recorded."""
    layers, dense = model.dense_layers(), float(sum(layer.macs for layer in model.dense_layers()))
    totals: list[Tensor] = []
    quality: Quality | None = None
    sums: list[LayerWork] = []
    for inputs, y in batches:
        if not isinstance(inputs, Tensor) or inputs.ndim != 2:
            raise ValueError("a compiled model is measured on rows of features, one tensor [rows, features]")
        out, work = model(inputs), model.row_work(inputs)
        if y is not None:
            task = task or infer_task(out, y)
            quality = quality or Quality(task, metrics)
            quality.add(out, check_answers(task, out, y, "data"))
        totals.append(torch.stack([each.executed_B + each.gate_B for each in work]).sum(0))
        here = [_summed(each) for each in work]
        sums = [_added(*pair) for pair in zip(sums, here, strict=True)] if sums else here
        if watch is not None:
            watch(out, totals[-1])
    if not totals:
        raise ValueError("nothing to measure: the dataset is empty")
    total_N = torch.cat(totals)
    count, present = len(total_N), sum(each.present for each in sums)
    executed = sum(float(each.executed_B) for each in sums) / count
    gate = sum(float(each.gate_B) for each in sums) / count
    skipping = sum(float(each.zero_skip_B) for each in sums) / count
    p5, p50, p95 = torch.quantile(total_N / dense, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return {
        "quality": {} if quality is None else quality.result(),
        "macs": {
            "dense": dense,
            "executed": executed + gate,
            "gate": gate,
            "relative": (executed + gate) / dense,
            "relative_zero_skip": skipping / dense,
            "structure_saved": 1.0 - present / dense,
            "gate_saved": (present - executed) / dense,
        },
        "proxies": {},
        "layers": [
            {
                "name": layer.name,
                "open": float(each.open_B) / count,
                "density": each.present / layer.macs,
                "macs": float(each.executed_B) / count,
                "present": float(each.present),
            }
            for layer, each in zip(layers, sums, strict=True)
        ],
        "params": sum(each.params for each in sums),
        "samples": {"p5": p5, "p50": p50, "p95": p95},
        "gates": [],
        "count": count,
    }


def _summed(work: LayerWork) -> LayerWork:
    """Over the rows of a batch."""
    executed, zero_skip, gate, opened, present, params = work
    return LayerWork(executed.sum(), zero_skip.sum(), gate.sum(), opened.sum(), present, params)


def _added(a: LayerWork, b: LayerWork) -> LayerWork:
    return LayerWork(
        a.executed_B + b.executed_B, a.zero_skip_B + b.zero_skip_B, a.gate_B + b.gate_B, a.open_B + b.open_B,
        b.present, b.params,
    )  # fmt: skip
