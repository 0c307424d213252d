"""`dynamicgate bench`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from tyro.conf import Positional, arg

from dynamicgate.files import environment, write_text
from dynamicgate.gating.attach import ungate_
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference import compile
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.timing import batches_of
from dynamicgate.io.model_file import load as load_model
from dynamicgate.lab.cli.options import DataDir, LoaderOptions, integers, loader_options, this_command, trained_on
from dynamicgate.lab.datasets.loading import load_dataset

MAX_ROWS = 2048


@dataclass(frozen=True)
class Bench:
    """Time a saved model on this machine, uncompiled and compiled, against the dense network.

    For example:
      dynamicgate bench runs/first/model.safetensors --batches 1,16,256

    Columns: `dense` is the network without gates, `compiled` the same under torch.compile, `gates in torch` the gated
    model in plain PyTorch, `ours` the gated model as compiled by DynamicGate.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`."""
    data: Annotated[str | None, arg(metavar="NAME|PATH", help_behavior_hint="")] = None
    """Dataset to time on, because the time depends on which units are open; by default the one the model was trained
    on. `random` uses random inputs."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    batches: Annotated[str, arg(metavar="SIZES")] = "1,16,256"
    """Batch sizes to time, separated by commas."""
    seconds: float = 4.0
    """About how long to time each batch size."""
    torch_compile: bool = True
    """Also time the dense network under torch.compile, which takes a while to compile."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Where to write the times, as JSON; by default timing.json beside the model."""

    def run(self) -> int:
        """Compile, time, print."""
        model, rows = load_model(self.model), self._rows()
        batches = sorted(set(integers(self.batches, "batches")))
        compiled_model = compile(model, rows, batches=batches, seconds=self.seconds * len(batches))
        print(compiled_model.plan, end="\n\n")
        candidates: dict[str, Callable[[Tensor], Tensor]] = {"dense": ungate_(load_model(self.model))}
        if self.torch_compile:
            candidates["compiled"] = torch.compile(candidates["dense"], dynamic=False)
        if named_gates(model):
            candidates["gates in torch"] = model
        candidates["ours"] = compiled_model
        times = [_time(candidates, rows, batch, self.seconds) for batch in batches]
        print(_table(list(candidates), times))
        path = self.out or self.model.with_name("timing.json")
        found = {"meta": environment(this_command()), "rows": times, "plan": compiled_model.plan.to_dict()}
        write_text(path, json.dumps(found, indent=1))
        print(f"\nwrote {path}")
        return 0

    def _rows(self) -> Tensor:
        if self.data == "random":
            return self._random_rows()
        name, of_file, seed = trained_on(self.model, self.data)
        if name is None:
            return self._random_rows()
        options = loader_options(self.data_option, None, "--data-option") or of_file
        splits = load_dataset(name, data_dir=self.data_dir, seed=seed, options=dict(options)).flat()
        return next(iter(splits.test.batches(MAX_ROWS)))[0]

    def _random_rows(self) -> Tensor:
        first = next(m for m in load_model(self.model).modules() if isinstance(m, nn.Linear))
        return torch.randn(MAX_ROWS, first.in_features, generator=torch.Generator().manual_seed(0))


def _time(
    candidates: dict[str, Callable[[Tensor], Tensor]], rows: Tensor, batch: int, seconds: float
) -> dict[str, float]:
    with torch.inference_mode():
        xs = batches_of(rows, batch)
        for call in candidates.values():
            call(xs[0])  # torch.compile compiles here
        return {"batch": batch, **time_calls(candidates, xs, seconds)}


def _table(names: Sequence[str], times: Sequence[dict[str, float]]) -> str:
    head = f"{'batch':>8}" + "".join(f"{name + ' us':>20}" for name in names) + f"{'speedup over dense':>20}"
    lines = [
        f"{row['batch']:>8}"
        + "".join(f"{row[name]:>20,.1f}" for name in names)
        + f"{row['dense'] / row['ours']:>18.2f} x"
        for row in times
    ]
    return "\n".join([head, *lines])
