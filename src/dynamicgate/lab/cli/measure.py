"""`dynamicgate measure`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseAppendAction

from dynamicgate.accounting.measurement import measure
from dynamicgate.files import environment, write_text
from dynamicgate.io.model_file import load as load_model
from dynamicgate.io.model_file import read_notes
from dynamicgate.lab.cli.options import loader_options, this_command
from dynamicgate.lab.datasets.loading import load_dataset


@dataclass(frozen=True)
class Measure:
    """Measure a saved model: quality, executed MACs per layer, proxies, evidence of input dependence.

    For example:

      dynamicgate measure runs/first/model.safetensors --out measurement.json
    """

    model: Positional[Path]
    """A model.safetensors."""
    data: str | None = None
    """What to measure on; by default the data set the model was trained on."""
    data_dir: Path | None = None
    """Folder with the data files."""
    data_option: UseAppendAction[tuple[str, ...]] = ()
    """An option of the loader as KEY=VALUE; by default as in training, unless --data names other data."""
    target: str | None = None
    """Column that holds the classes, in a .csv, .parquet or .h5ad file."""
    part: Literal["test", "valid", "train"] = "test"
    """Which part of it."""
    out: Path | None = None
    """Write the measurement as JSON."""

    def run(self) -> int:
        """Measure and print."""
        notes = read_notes(self.model)
        trained = notes.get("settings", {})
        name = self.data or trained.get("data")
        if name is None:
            raise ValueError(f"{self.model} does not say what it was trained on: pass --data")
        model = load_model(self.model)
        options = loader_options(self.data_option, self.target, "--data-option")
        if not options and name == trained.get("data"):
            options = trained.get("data_options", ())
        splits = load_dataset(name, data_dir=self.data_dir, seed=trained.get("seed", 0), options=dict(options)).flat()
        try:
            found = measure(model, getattr(splits, self.part))
        except RuntimeError as error:
            raise ValueError(
                f"{self.model} cannot read the {splits.train.features} features of {name}: {error}"
            ) from error
        print(found)
        if self.out is not None:
            write_text(self.out, json.dumps({"meta": environment(this_command()), **found.to_dict()}, indent=1))
            print(f"\nwrote {self.out}")
        return 0
