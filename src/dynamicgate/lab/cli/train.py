"""`dynamicgate train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import OmitArgPrefixes

from dynamicgate import distributed
from dynamicgate.files import write_text
from dynamicgate.lab.cli.options import Training
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods import run_one, settings_hash


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
    """dense, small (a dense net of equal MACs), dropout, static, random, gate, pruned, static-sparse, set, rigl,
    gate+rigl or switch."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and the validation split."""
    device: str = "auto"
    """auto, cpu or cuda."""
    training: OmitArgPrefixes[Training] = field(default_factory=Training)

    def run(self) -> int:
        """Train, measure, print."""
        device = distributed.choose_device(self.device)
        distributed.start(device)
        try:
            settings = self.training.settings(model=self.model, seed=self.seed)
            options = dict(settings.data_options)
            splits = load_dataset(
                settings.data, data_dir=self.training.data_dir, seed=self.seed, options=options
            ).flat()
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


def _same_settings(out: Path, fingerprint: str) -> None:
    """A folder belongs to one set of settings: a finished run of others must not be taken for this one."""
    marker = out / "settings.hash"
    begun = any((out / name).exists() for name in ("last.safetensors", "run.json"))  # not: an attempt that was refused
    if begun and marker.exists() and marker.read_text(encoding="utf-8") != fingerprint:
        raise ValueError(f"{out} holds a run with other settings: choose another --out, or delete that folder")
    if distributed.rank() == 0:
        write_text(marker, fingerprint)
