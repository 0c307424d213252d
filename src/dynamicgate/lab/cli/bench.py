"""`dynamicgate bench`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tyro.conf import Positional, UseAppendAction

from dynamicgate.files import environment, write_text
from dynamicgate.gating.attach import ungate_
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference import compile
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.timing import batches_of
from dynamicgate.io.model_file import load as load_model
from dynamicgate.io.model_file import read_notes
from dynamicgate.lab.cli.options import integers, loader_options, this_command
from dynamicgate.lab.datasets.loading import load_dataset

MOST_ROWS = 2048


@dataclass(frozen=True)
class Bench:
    """Time a saved model on this machine: dense, dense under torch.compile, with its gates in torch, and as compiled.

    For example:

      dynamicgate bench runs/first/model.safetensors --batches 1,16,256
    """

    model: Positional[Path]
    """A model.safetensors."""
    data: str | None = None
    """What to time on: which units are open decides. By default what it was trained on; `random` for noise."""
    data_dir: Path | None = None
    """Folder with the data files."""
    data_option: UseAppendAction[tuple[str, ...]] = ()
    """An option of the loader as KEY=VALUE; by default as in training, unless --data names other data."""
    batches: str = "1,16,256"
    """Rows of a call."""
    seconds: float = 4.0
    """About how long to time each batch size."""
    torch_compile: bool = True
    """Time the dense network under torch.compile too; it takes a while to compile."""
    out: Path | None = None
    """Where to write the times; by default timing.json beside the model."""

    def run(self) -> int:
        """Compile, time, print."""
        model, rows = load_model(self.model), self._rows()
        batches = sorted(set(integers(self.batches, "batches")))
        fast = compile(model, rows, batches=batches, seconds=self.seconds * len(batches))
        print(fast.plan, end="\n\n")
        rivals: dict[str, Callable[[Tensor], Tensor]] = {"dense": ungate_(load_model(self.model))}
        if self.torch_compile:
            rivals["compiled"] = torch.compile(rivals["dense"], dynamic=False)
        if named_gates(model):
            rivals["gates in torch"] = model
        rivals["ours"] = fast
        table = [_timed(rivals, rows, batch, self.seconds) for batch in batches]
        print(_shown(list(rivals), table))
        path = self.out or self.model.with_name("timing.json")
        found = {"meta": environment(this_command()), "rows": table, "plan": fast.plan.to_dict()}
        write_text(path, json.dumps(found, indent=1))
        print(f"\nwrote {path}")
        return 0

    def _rows(self) -> Tensor:
        trained = read_notes(self.model).get("settings", {})
        name = self.data or trained.get("data") or "random"
        if name == "random":
            first = next(m for m in load_model(self.model).modules() if isinstance(m, nn.Linear))
            return torch.randn(MOST_ROWS, first.in_features, generator=torch.Generator().manual_seed(0))
        options = loader_options(self.data_option, None, "--data-option")
        if not options and name == trained.get("data"):
            options = trained.get("data_options", ())
        splits = load_dataset(name, data_dir=self.data_dir, seed=trained.get("seed", 0), options=dict(options)).flat()
        return next(iter(splits.test.batches(MOST_ROWS)))[0]


def _timed(rivals: dict[str, Callable[[Tensor], Tensor]], rows: Tensor, batch: int, seconds: float) -> dict[str, float]:
    with torch.inference_mode():
        xs = batches_of(rows, batch)
        for call in rivals.values():
            call(xs[0])  # torch.compile compiles here
        return {"batch": batch, **time_calls(rivals, xs, seconds)}


def _shown(names: Sequence[str], table: Sequence[dict[str, float]]) -> str:
    head = f"{'batch':>8}" + "".join(f"{name + ' us':>20}" for name in names) + f"{'ours over dense':>20}"
    lines = [
        f"{row['batch']:>8}"
        + "".join(f"{row[name]:>20,.1f}" for name in names)
        + f"{row['dense'] / row['ours']:>18.2f} x"
        for row in table
    ]
    return "\n".join([head, *lines])
