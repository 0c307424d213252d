"""`dynamicgate bench`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from tyro.conf import Positional, arg

from dynamicgate.data.schema import schema_of
from dynamicgate.files import environment, write_text
from dynamicgate.gating.attach import ungate_
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference import compile
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.timing import batches_of
from dynamicgate.io.model_file import load as load_model
from dynamicgate.lab.cli.bench_language import bench_language
from dynamicgate.lab.cli.options import (
    DataDir,
    LoaderOptions,
    Target,
    integers,
    loader_options,
    this_command,
    trained_on,
)
from dynamicgate.lab.cli.other_data import Allow, allowed, options_for
from dynamicgate.lab.datasets.aligned import load_aligned
from dynamicgate.lab.methods.dense_reference import reference_of
from dynamicgate.masks import connections

MAX_ROWS = 2048
REPEATS = 3


@dataclass(frozen=True)
class Bench:
    """Time a saved model on this machine, compiled, against the compiled dense network asked for.

    For example:
      dynamicgate bench runs/first/model.safetensors --batches 1,16,256
      dynamicgate bench gpt.safetensors --prompt-tokens 256 --new-tokens 64

    Columns: `dense` is the dense network in eager PyTorch, also under torch.compile and as compiled by DynamicGate;
    `gates in torch` the model in eager PyTorch, `ours` the model as compiled by DynamicGate. The kernel gain is eager
    dense over the fastest dense, the gate gain the fastest dense over ours: what gates and sparsity gain on top.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`; a language model, or the folder
    of a Hugging Face model, with --prompt-tokens and --new-tokens."""
    data: Annotated[str | None, arg(metavar="NAME|PATH", help_behavior_hint="")] = None
    """Dataset to time on, because the time depends on which units are open; by default the one the model was trained
    on. Columns and classes of other data are found by name. `random` uses random inputs."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    allow: Allow = ()
    batches: Annotated[str, arg(metavar="SIZES")] = "1,16,256"
    """Batch sizes to time, separated by commas."""
    seconds: float = 4.0
    """About how long to time each batch size."""
    torch_compile: bool = True
    """Also time the dense network under torch.compile, which takes a while to compile."""
    dense: Annotated[Path | None, arg(metavar="MODEL", help_behavior_hint="")] = None
    """A trained dense model to time against; by default one of the width asked for with fresh weights, or for a model
    file that does not say which that was, the model's own layers without gates and masks."""
    prompt_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """For a language model: tokens of the prompt, by default 256."""
    new_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """For a language model: tokens to generate after it, one by one, by default 64."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Where to write the times, as JSON; by default timing.json beside the model."""

    def run(self) -> int:
        """Compile, time, print."""
        if self.prompt_tokens is not None or self.new_tokens is not None or self.model.is_dir():
            return self._language()
        model = load_model(self.model)
        rows = self._rows(model)
        batches = sorted(set(integers(self.batches, "batches")))
        in_all = self.seconds * len(batches)
        compiled_model = compile(model, rows, batches=batches, seconds=in_all)
        print(compiled_model.plan, end="\n\n")
        dense, described = self._dense(model)
        candidates: dict[str, Callable[[Tensor], Tensor]] = {"dense": dense}
        if self.torch_compile:
            candidates["dense, torch.compile"] = torch.compile(dense, dynamic=False)
        candidates["dense, compiled"] = compile(dense, rows, batches=batches, seconds=in_all)
        if named_gates(model):
            candidates["gates in torch"] = model
        candidates["ours"] = compiled_model
        times = [_time(candidates, rows, batch, self.seconds) for batch in batches]
        print(_table(list(candidates), times))
        print(f"\ndense: {described}\ngains: median and range of {REPEATS} timings")
        path = self.out or self.model.with_name("timing.json")
        found = {
            "meta": environment(this_command()),
            "dense": described,
            "dense_as_asked_for": self.dense is not None or reference_of(self.model) is not None,
            "rows": times,
            "plan": compiled_model.plan.to_dict(),
        }
        write_text(path, json.dumps(found, indent=1))
        print(f"\nwrote {path}")
        return 0

    def _language(self) -> int:
        """A language model: its prompt, and the tokens after it."""
        self._refuse("a language model, which is timed on tokens", {"--data": self.data, "--dense": self.dense})
        return bench_language(
            self.model,
            prompt_tokens=256 if self.prompt_tokens is None else self.prompt_tokens,
            new_tokens=64 if self.new_tokens is None else self.new_tokens,
            seconds=self.seconds,
            out=self.out,
            command=this_command(),
        )

    def _dense(self, model: nn.Module) -> tuple[nn.Module, str]:
        """The dense network that the model has to beat, and which that is."""
        if self.dense is not None:
            return ungate_(load_model(self.dense)), f"the model in {self.dense.name}"
        reference = reference_of(self.model)
        if reference is not None:
            return reference.build(model), f"{'-'.join(map(str, reference.sizes))}, as asked for, with fresh weights"
        return without_masks_(ungate_(load_model(self.model))), "the model's own layers, without gates and masks"

    def _rows(self, model: nn.Module) -> Tensor:
        name, of_file, seed = (None, (), 0) if self.data == "random" else trained_on(self.model, self.data)
        if name is None:
            self._refuse("random inputs", {})
            first = next(m for m in model.modules() if isinstance(m, nn.Linear))
            return torch.randn(MAX_ROWS, first.in_features, generator=torch.Generator().manual_seed(0))
        schema = schema_of(model)
        given = dict(loader_options(self.data_option, self.target, "--data-option"))
        data = load_aligned(
            name,
            schema,
            data_dir=self.data_dir,
            seed=seed,
            options=options_for(name, schema, given, dict(of_file)),
            allow=allowed(self.allow),
        )
        print(*data.notes, sep="\n", end="\n\n" if data.notes else "")
        return next(iter(data.rows.batches(MAX_ROWS)))[0]

    def _refuse(self, what: str, given: dict[str, Any]) -> None:
        """Raise if options are given that say how to read a dataset, or others that mean nothing for `what`."""
        options = {"--data-option": self.data_option, "--target": self.target, "--allow": self.allow}
        if wrong := [name for name, value in {**given, **options}.items() if value]:
            raise ValueError(f"{', '.join(wrong)} means nothing for {what}")


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
