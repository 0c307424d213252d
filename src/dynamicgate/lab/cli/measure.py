"""`dynamicgate measure`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dynamicgate.accounting.full_width import relative_to
from dynamicgate.accounting.measurement import measure
from dynamicgate.files import environment, write_text
from dynamicgate.io.model_file import load as load_model
from dynamicgate.lab.cli.options import DataDir, LoaderOptions, Target, loader_options, this_command, trained_on
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods.dense_reference import reference_of


@dataclass(frozen=True)
class Measure:
    """Measure a saved model: quality, executed MACs of each layer, and how gates depend on the input.

    For example:
      dynamicgate measure runs/first/model.safetensors --out measurement.json

    By default on the dataset and with the loader options it was trained with; give --data-dir again if you used it. A
    model of your own files needs --data: a model file never chooses which files are read or written.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`."""
    data: Annotated[str | None, arg(metavar="NAME|PATH", help_behavior_hint="")] = None
    """Dataset to measure on; by default the one the model was trained on."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    part: Literal["test", "valid", "train"] = "test"
    """Part of the dataset to measure on."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write the measurement to this file, as JSON."""

    def run(self) -> int:
        """Measure and print."""
        name, of_file, seed = trained_on(self.model, self.data)
        if name is None:
            raise ValueError(f"{self.model} does not say which dataset it was trained on: give one with --data")
        model = load_model(self.model)
        options = loader_options(self.data_option, self.target, "--data-option") or of_file
        splits = load_dataset(name, data_dir=self.data_dir, seed=seed, options=dict(options)).flat()
        try:
            found = measure(model, getattr(splits, self.part))
        except RuntimeError as error:
            raise ValueError(
                f"{self.model} cannot read the {splits.train.features} features of {name}: {error}"
            ) from error
        dense = reference_of(self.model)
        if dense is not None:  # the same number as `train` printed, whatever the model's own width
            found = relative_to(found, dense.macs)
        print(found)
        if self.out is not None:
            write_text(self.out, json.dumps({"meta": environment(this_command()), **found.to_dict()}, indent=1))
            print(f"\nwrote {self.out}")
        return 0
