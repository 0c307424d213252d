"""`dynamicgate measure`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dynamicgate.files import environment, write_text
from dynamicgate.lab.cli.options import DataDir, LoaderOptions, Target, loader_options, this_command, trained_on
from dynamicgate.lab.cli.other_data import Allow, allowed, options_for


@dataclass(frozen=True)
class Measure:
    """Measure a saved model: quality, executed MACs of each layer, and how gates depend on the input.

    For example:
      dynamicgate measure runs/first/model.safetensors --out measurement.json
      dynamicgate measure runs/table/model.safetensors --data new.csv --part all

    By default on the dataset and with the loader options it was trained with; give --data-dir again if you used it. A
    model of your own files needs --data: a model file never chooses which files are read or written. In other data
    columns, categories and classes are found by name, and encoded as in training.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A model.safetensors written by `dynamicgate train` or `dynamicgate compare`."""
    data: Annotated[str | None, arg(metavar="NAME|PATH", help_behavior_hint="")] = None
    """Dataset to measure on; by default the one the model was trained on."""
    data_dir: DataDir = None
    data_option: LoaderOptions = ()
    target: Target = None
    part: Literal["test", "valid", "train", "all"] = "test"
    """Part of the dataset to measure on; `all` for data that the model was not trained on."""
    allow: Allow = ()
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write the measurement to this file, as JSON."""

    def run(self) -> int:
        """Measure and print."""
        from dynamicgate.accounting.full_width import relative_to
        from dynamicgate.accounting.measurement import measure
        from dynamicgate.data.schema import schema_of
        from dynamicgate.io.model_file import load as load_model
        from dynamicgate.lab.datasets.aligned import load_aligned
        from dynamicgate.lab.methods.dense_reference import reference_of

        name, of_file, seed = trained_on(self.model, self.data)
        if name is None:
            raise ValueError(f"{self.model} does not say which dataset it was trained on: give one with --data")
        model = load_model(self.model)
        schema = schema_of(model)
        given = loader_options(self.data_option, self.target, "--data-option")
        data = load_aligned(
            name,
            schema,
            part=self.part,
            data_dir=self.data_dir,
            seed=seed,
            options=options_for(name, schema, dict(given), dict(of_file)),
            allow=allowed(self.allow),
        )
        try:
            found = measure(model, data.rows)
        except RuntimeError as error:
            raise ValueError(
                f"{self.model} cannot read the {data.rows.features} features of {name}: {error}"
            ) from error
        dense = reference_of(self.model)
        if dense is not None:  # the same number as `train` printed, whatever the model's own width
            found = relative_to(found, dense.macs)
        print(*data.notes, *([""] if data.notes else []), found, sep="\n")
        if self.out is not None:
            meta = {"meta": environment(this_command()), "part": self.part, "notes_on_data": list(data.notes)}
            write_text(self.out, json.dumps({**meta, **found.to_dict()}, indent=1))
            print(f"\nwrote {self.out}")
        return 0
