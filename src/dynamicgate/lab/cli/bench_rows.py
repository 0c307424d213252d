"""`dynamicgate bench` for models that read rows of features: compile, time against the dense network, print, write."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.files import environment, write_text
from dynamicgate.gating.attach import ungate_
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference import compile
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.timing import batches_of
from dynamicgate.io.model_file import load as load_model
from dynamicgate.lab.methods.dense_reference import reference_of
from dynamicgate.masks import connections

REPEATS = 3


def bench_rows(
    path: Path,
    model: nn.Module,
    rows: Tensor,
    *,
    batches: Sequence[int],
    seconds: float,
    torch_compile: bool,
    trained_dense: Path | None,
    out: Path | None,
    command: str,
) -> int:
    """Time the model in the file at `path`; see `dynamicgate.lab.cli.bench` for the rest."""
    in_all = seconds * len(batches)
    compiled_model = compile(model, rows, batches=batches, seconds=in_all)
    print(compiled_model.plan, end="\n\n")
    dense, described = _dense(path, model, trained_dense)
    candidates: dict[str, Callable[[Tensor], Tensor]] = {"dense": dense}
    if torch_compile:
        candidates["dense, torch.compile"] = torch.compile(dense, dynamic=False)
    candidates["dense, compiled"] = compile(dense, rows, batches=batches, seconds=in_all)
    if named_gates(model):
        candidates["gates in torch"] = model
    candidates["ours"] = compiled_model
    times = [_time(candidates, rows, batch, seconds) for batch in batches]
    print(_table(list(candidates), times))
    print(f"\ndense: {described}\ngains: median and range of {REPEATS} timings{_verdict(times)}")
    out = out or path.with_name("timing.json")
    found = {
        "meta": environment(command),
        "dense": described,
        "dense_as_asked_for": trained_dense is not None or reference_of(path) is not None,
        "rows": times,
        "plan": compiled_model.plan.to_dict(),
    }
    write_text(out, json.dumps(found, indent=1))
    print(f"\nwrote {out}")
    return 0


def _dense(path: Path, model: nn.Module, trained: Path | None) -> tuple[nn.Module, str]:
    """The dense network that the model has to beat, and which that is."""
    if trained is not None:
        return ungate_(load_model(trained)), f"the model in {trained.name}"
    reference = reference_of(path)
    if reference is not None:
        return reference.build(model), f"{'-'.join(map(str, reference.sizes))}, as asked for, with fresh weights"
    return without_masks_(ungate_(load_model(path))), "the model's own layers, without gates and masks"


def without_masks_(model: nn.Module) -> nn.Module:
    """Take the masks off and fill the weights that they left out, so that nothing can skip them; in place."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and connections(module) is not None:
            del module.mask
            module.reset_parameters()
    return model


def _time(
    candidates: dict[str, Callable[[Tensor], Tensor]], rows: Tensor, batch: int, seconds: float
) -> dict[str, Any]:
    """Microseconds of each candidate, and the two gains as lowest, median and highest: a busy machine shows here."""
    with torch.inference_mode():
        xs = batches_of(rows, batch)
        for call in candidates.values():
            call(xs[0])  # torch.compile compiles here
        repeats = [time_calls(candidates, xs, seconds / REPEATS) for _ in range(REPEATS)]
    return {
        "batch": batch,
        **{name: statistics.median(each[name] for each in repeats) for name in candidates},
        "kernel_gain": _low_mid_high([each["dense"] / fastest_dense(each) for each in repeats]),
        "gate_gain": _low_mid_high([fastest_dense(each) / each["ours"] for each in repeats]),
    }


def fastest_dense(times: Mapping[str, float]) -> float:
    """The time of the dense network at its best: eager, under torch.compile, or in our kernels."""
    return min(time for name, time in times.items() if name.startswith("dense"))


def _verdict(times: Sequence[Mapping[str, Any]]) -> str:
    """What to do where the dense network is faster in every timing; nothing where it is not."""
    slower = [str(row["batch"]) for row in times if row["gate_gain"][-1] < 1.0]
    if not slower:
        return ""
    return (
        f"\nslower than the dense network at its best at batch {', '.join(slower)}: run that one there, or train "
        "larger blocks (--block 16), sparse layers (--model rigl) or what pays here (--model sparsify --clock)"
    )


def _low_mid_high(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]


def _table(names: Sequence[str], times: Sequence[dict[str, Any]]) -> str:
    columns = ["batch", *(f"{name} us" for name in names), "kernel gain", "gate gain"]
    lines = [
        [
            f"{row['batch']}",
            *(f"{row[name]:,.1f}" for name in names),
            *map(_gain, (row["kernel_gain"], row["gate_gain"])),
        ]
        for row in times
    ]
    widths = [max(len(line[i]) for line in (columns, *lines)) for i in range(len(columns))]
    return "\n".join(
        "  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)) for line in (columns, *lines)
    )


def _gain(low_mid_high: Sequence[float]) -> str:
    low, middle, high = low_mid_high
    return f"{middle:.2f} x ({low:.2f} to {high:.2f})"
