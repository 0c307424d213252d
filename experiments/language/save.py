"""One trained model as one file, to try with `dynamicgate generate`."""

from __future__ import annotations

import shutil
from pathlib import Path

from dynamicgate.lab.runner import Experiment
from experiments.language.tables import load
from experiments.language.train import MODEL, train


def save_model(
    experiment: Experiment, table: str, model: str, out: Path, *, device: str, data_dir: Path | None
) -> None:
    """Write the model of the first seed to `out`; it is trained, or its training continued, where that is missing."""
    jobs = experiment.jobs([experiment.table(table)], seeds=1, device=device)
    job = next((job for job in jobs if job.model == model), None)
    if job is None:
        raise ValueError(f"unknown model {model!r} in {table}: there are {', '.join(job.model for job in jobs)}")
    trained = job.folder / MODEL
    if not trained.is_file():
        job.folder.mkdir(parents=True, exist_ok=True)
        run = train(job, load(job, data_dir))
        print(f"{model} on {table}: {run['quality']['bits_per_byte']:.4f} bits per byte")
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(trained, out)
    print(f"wrote {out}; try: dynamicgate generate --model {out} --prompt 'import '")
