"""The command line: train, compare, measure, report."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, subcommand

from dynamicgate import __version__
from dynamicgate.compare import Settings, compare, run_one, settings_hash
from dynamicgate.data import load as load_data
from dynamicgate.files import write_text
from dynamicgate.fit import distributed
from dynamicgate.gate import Policy
from dynamicgate.measure import measure
from dynamicgate.provenance import environment
from dynamicgate.report import render_table, write_report
from dynamicgate.save import load as load_model
from dynamicgate.save import read_notes


@dataclass(frozen=True)
class Training:
    """Options of training."""

    data: str = "digits"
    """digits (ships with scikit-learn), mnist (idx files), or the path of an .npz with x and y."""
    data_dir: Path | None = None
    """Folder with the data files; by default the variable DYNAMICGATE_DATA, else the cache folder of the platform."""
    budget: float = 0.3
    """Executed MACs relative to the dense network: hard gates, gate networks and output layer included."""
    hidden: str = ""
    """Widths of the hidden layers, e.g. 256 or 1024,512. By default 128 for digits and 256 elsewhere."""
    epochs: int = 0
    """Passes over the training data; 0 is the default of the data set."""
    batch: int = 0
    """Rows per optimizer step, over all processes; 0 is the default of the data set."""
    lr: float = 0.0
    """Peak learning rate of AdamW, with warm-up and a cosine to zero; 0 is the default of the data set."""
    weight_decay: float = 0.05
    """Decay of weight matrices."""
    dropout: float = 0.1
    """Dropout of the models that use it: dropout, static, gate."""
    block: int = 1
    """Units that open and close together."""
    net: Literal["linear", "low-rank", "two-layer"] = "low-rank"
    """Shape of the gate network."""
    rank: int = 0
    """Inner width of the gate network; 0 takes what 28 % of the budget pays for."""
    policy: Policy = "gumbel"
    """What multiplies units in training: hard, soft, bernoulli, concrete, gumbel (hard with noise, so that closed gates
    are tried again). At test time gates are hard."""
    tau: float = 1.0
    """Temperature of the gates."""
    theta: float = 0.5
    """Threshold of the gates."""
    scale: bool = False
    """Multiply open units by their gate's probability."""
    accumulate: int = 1
    """Work a batch off in this many pieces."""
    clip: float | None = None
    """Largest gradient norm."""
    bf16: bool = False
    """Train under bfloat16 autocast."""
    balanced: bool = False
    """Weight classes by inverse frequency."""
    patience: int | None = None
    """Stop after this many epochs without a better validation accuracy, and keep the best."""

    def settings(self, **chosen: Any) -> Settings:
        """The same as the library's `Settings`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["hidden"] = _integers(self.hidden, "hidden") if self.hidden else ()
        del values["data_dir"]  # where the files are does not decide the result
        return Settings(**{**values, **chosen})


@dataclass(frozen=True)
class Train:
    """Train one model and measure it on the test data.

    For example:

      dynamicgate train --data digits --budget 0.3 --out runs/first
      torchrun --nproc-per-node 2 -m dynamicgate train --data mnist --out runs/mnist

    Stop it with Ctrl-C, or kill it: the same command continues where it was.
    """

    out: Path
    """Folder for model.safetensors, log.jsonl, checkpoints and run.json."""
    model: str = "gate"
    """dense, small (a dense net of equal MACs), dropout, static or gate."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and the validation split."""
    device: str = "auto"
    """auto, cpu or cuda."""
    training: OmitArgPrefixes[Training] = Training()

    def run(self) -> int:
        """Train, measure, print."""
        device = distributed.choose_device(self.device)
        distributed.start(device)
        try:
            settings = self.training.settings(model=self.model, seed=self.seed)
            splits = load_data(self.training.data, data_dir=self.training.data_dir, seed=self.seed)
            settings = settings.resolved(splits)
            _same_settings(self.out, settings_hash(settings, splits))
            found = run_one(settings, splits, self.out, device=str(device))
            if distributed.rank() == 0:
                macs, quality = found["macs"], found["quality"]
                print(f"test accuracy {quality['accuracy']:.4f}, macro-F1 {quality['macro_f1']:.4f}")
                print(f"executed MACs {macs['executed']:,.0f} of {macs['dense']:,.0f} = {macs['relative']:.4f}")
                print(f"saved {self.out / 'model.safetensors'}")
        finally:
            distributed.stop()
        return 0


@dataclass(frozen=True)
class Compare:
    """Train models and their controls over seeds, print the table and write the report.

    For example:

      dynamicgate compare --data digits --budget 0.3 --seeds 5 --out runs/digits
      dynamicgate compare --data mnist --data-dir DATA --models small,gate --budget 0.25 --seeds 3 --out runs/mnist

    Finished runs are not repeated, interrupted ones continue.
    """

    out: Path
    """Folder for results.json, report.html and one folder for each run."""
    models: str = "dense,small,dropout,static,gate"
    """Which models, separated by commas."""
    seeds: int = 5
    """How many seeds, paired over the models."""
    training: OmitArgPrefixes[Training] = Training()

    def run(self) -> int:
        """Train all, print the table, write the page."""
        names = [name.strip() for name in self.models.split(",") if name.strip()]
        if self.seeds < 1:
            raise ValueError(f"at least one seed is needed, received {self.seeds}")
        settings, folder = self.training.settings(), self.training.data_dir
        results = compare(settings, names, range(self.seeds), self.out, data_dir=folder, command=_this_command())
        print(render_table(results))
        print(f"\nreport: {write_report(self.out)}")
        return 0


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
        splits = load_data(name, data_dir=self.data_dir, seed=trained.get("seed", 0))
        try:
            found = measure(model, getattr(splits, self.part))
        except RuntimeError as error:
            raise ValueError(
                f"{self.model} cannot read the {splits.train.features} features of {name}: {error}"
            ) from error
        print(found)
        if self.out is not None:
            write_text(self.out, json.dumps({"meta": environment(_this_command()), **found.to_dict()}, indent=1))
            print(f"\nwrote {self.out}")
        return 0


@dataclass(frozen=True)
class Report:
    """Make report.html again from a folder with results.json.

    For example:

      dynamicgate report runs/digits
    """

    folder: Positional[Path]
    """A folder that `dynamicgate compare` wrote."""

    def run(self) -> int:
        """Write the page and print the table."""
        path = write_report(self.folder)
        print(render_table(json.loads((self.folder / "results.json").read_text(encoding="utf-8"))))
        print(f"\nreport: {path}")
        return 0


Command = (
    Annotated[Train, subcommand("train")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Measure, subcommand("measure")]
    | Annotated[Report, subcommand("report")]
)


def main(arguments: Sequence[str]) -> int:
    """Parse and run one command; mistakes get a sentence, not a traceback (`--traceback` shows it)."""
    arguments = list(arguments)
    if arguments == ["--version"]:
        print(f"dynamicgate {__version__}")
        return 0
    show_traceback = "--traceback" in arguments
    arguments = [a for a in arguments if a != "--traceback"]
    description = "Conditional computation that pays: learned gates whose report and whose clock agree."
    command: Any = tyro.cli(Command, prog="dynamicgate", args=arguments, description=description)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill saves too
    try:
        return int(command.run())
    except KeyboardInterrupt:
        print("\ndynamicgate: stopped; the same command continues where it was", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        if show_traceback:
            traceback.print_exc()
        print(f"dynamicgate: {error}", file=sys.stderr)
        return 2


def _this_command() -> str:
    """What was typed, with folders of this machine shortened to their names: the line goes into results."""
    return shlex.join(["dynamicgate", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:])])


def _integers(text: str, what: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--{what} takes whole numbers separated by commas, received {text!r}") from error


def _same_settings(out: Path, fingerprint: str) -> None:
    """A folder belongs to one set of settings: a finished run of others must not be taken for this one."""
    marker = out / "settings.hash"
    begun = any((out / name).exists() for name in ("last.safetensors", "run.json"))  # not: an attempt that was refused
    if begun and marker.exists() and marker.read_text(encoding="utf-8") != fingerprint:
        raise ValueError(f"{out} holds a run with other settings: choose another --out, or delete that folder")
    if distributed.rank() == 0:
        write_text(marker, fingerprint)
