"""`dynamicgate train`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from dynamicgate.files import read_json, write_text
from dynamicgate.lab.cli.options import Training

LOCK = ".train.lock"
MODEL_HELP = (
    "dense, small (a dense network with the MACs of the budget), dropout, static, random, gate, pruned, static-sparse, "
    "set, rigl, gate+rigl, switch, staged (easy inputs stop early), cascade, staged-random, or sparsify (tries the "
    "recipes of sparsify_, small, set and pruned for a short while, and trains what held-out rows prefer)."
)


@dataclass(frozen=True)
class Train:
    """Train one model and measure it on the test data.

    For example:
      dynamicgate train --data digits --budget 0.3 --out runs/first
      dynamicgate train --data digits --log csv,tensorboard --out runs/logged
      dynamicgate train --data houses.csv --target price --task regression --out runs/houses
      torchrun --nproc-per-node 2 -m dynamicgate train --data mnist --out runs/mnist

    Run the same command again to continue after Ctrl-C, a kill or a crash.
    """

    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder for model.safetensors, log.jsonl, checkpoints and run.json."""
    model: Annotated[str, arg(metavar="NAME", help=MODEL_HELP)] = "gate"
    seed: int = 0
    """Seed of the initial weights, the order of the data and the validation split."""
    device: Annotated[str, arg(metavar="DEVICE")] = "auto"
    """auto, cpu or cuda."""
    log: Annotated[str, arg(metavar="NAMES")] = ""
    """Where else to log, separated by commas: csv (log.csv), tensorboard (a folder of that name), mlflow (the server in
    MLFLOW_TRACKING_URI)."""
    training: OmitArgPrefixes[Training] = field(default_factory=Training)

    def run(self) -> int:
        """Train, measure, print."""
        from dynamicgate import distributed
        from dynamicgate.integrations.loggers import loggers_for
        from dynamicgate.lab.datasets.loading import load_dataset
        from dynamicgate.lab.methods import run_one, settings_hash
        from dynamicgate.training.folder_lock import only_process

        device = distributed.choose_device(self.device)
        distributed.start(device)
        try:
            settings = self.training.settings([self.model], model=self.model, seed=self.seed)
            options = dict(settings.data_options)
            splits = load_dataset(
                settings.data, data_dir=self.training.data_dir, seed=self.seed, options=options
            ).flat()
            settings = settings.resolved(splits)
            loggers = loggers_for([name.strip() for name in self.log.split(",") if name.strip()], self.out)
            with only_process(self.out, LOCK, device):  # from the mark of its settings to the result
                asked = settings_hash(settings, splits), settings.to_json()
                _claim_folder(self.out, *asked, mark=distributed.rank() == 0)
                found = run_one(settings, splits, self.out, device=str(device), callbacks=loggers)
            if distributed.rank() == 0:
                macs, quality = found["macs"], found["quality"]
                print(quality_line(quality))
                print(
                    f"executed MACs {macs['executed']:,.0f} of {macs['dense']:,.0f} in the dense network asked for "
                    f"= {macs['relative']:.4f}"
                )
                print("".join(f"{line}\n" for line in (*choice_lines(found), *stage_lines(found))), end="")
                saved = sorted(self.out.glob("net-*/model.safetensors")) or [self.out / "model.safetensors"]
                gone = [str(path) for path in saved if not path.exists()]
                if gone:
                    raise ValueError(
                        f"the run is finished, but {', '.join(gone)} is gone: delete {self.out} and run this command "
                        "again to train the model anew"
                    )
                print(f"saved {', '.join(map(str, saved))}")
        finally:
            distributed.stop()
        return 0


def quality_line(quality: dict[str, float]) -> str:
    """How good the answers for the test data are."""
    if "accuracy" in quality:
        return f"test accuracy {quality['accuracy']:.4f}, macro-F1 {quality['macro_f1']:.4f}"
    return f"test RMSE {quality['rmse']:.6g}, MAE {quality['mae']:.6g}, R2 {quality['r2']:.4f}"


def choice_lines(run: dict[str, Any]) -> list[str]:
    """For a model that chose its recipe what it chose, why, and what that took."""
    from dynamicgate.lab.methods.pilots import choice_note

    return [f"chose {choice_note(run['choice'])}"] if run.get("choice") else []


def stage_lines(run: dict[str, Any]) -> list[str]:
    """For a model in stages what each stage did, one line each."""
    stages = run.get("stages")
    if not stages:
        return []
    each = zip(stages["open"], stages["relative"], stages["accuracy"], strict=True)
    return [
        *(
            f"stage {k}: opened by {opened:.1%} of the samples; {cost:.4f} of the dense MACs and accuracy "
            f"{accuracy:.4f} if all stopped after it"
            for k, (opened, cost, accuracy) in enumerate(each, start=1)
        ),
        f"with the same stops dealt at random the accuracy would be {stages['random']:.4f}",
    ]


def _claim_folder(out: Path, fingerprint: str, settings: Mapping[str, Any], *, mark: bool) -> None:
    """Mark the folder with the settings of this run (`mark`: of several processes one does); refuse it if it already
    has a run with other settings."""
    marker, asked = out / "settings.hash", out / "settings.json"
    # a refused attempt leaves neither; those of a cascade are in folders below
    has_run = any(found for name in ("last.safetensors", "run.json") for found in out.rglob(name))
    if has_run and marker.exists() and marker.read_text(encoding="utf-8", errors="replace") != fingerprint:
        raise ValueError(
            f"{out} has a run with other settings{_differences(asked, settings)}: choose another --out, or delete that "
            "folder"
        )
    # A run that lost its mark is compared by what it has itself; a request that is then refused must not mark it.
    if mark and not has_run:
        write_text(marker, fingerprint)
        write_text(asked, json.dumps(settings, indent=1) + "\n")


def _differences(path: Path, now: Mapping[str, Any]) -> str:
    """Which settings differ from those that a run was started with, in brackets; nothing where they are not known, or
    where the data differ and not the settings."""
    if not path.is_file():
        return ""
    then = read_json(path)
    differ = [name for name in now if then.get(name) != now[name]]
    return f" ({'; '.join(f'{name} {then.get(name)}, now {now[name]}' for name in differ)})" if differ else ""
