"""One trained model as one file, to try with `dynamicgate generate`."""

from __future__ import annotations

import shutil
from pathlib import Path

from dynamicgate.lab.language.gpt import GPT
from dynamicgate.lab.language.model_file import load_gpt, save_gpt
from dynamicgate.lab.runner import Experiment
from experiments.language.tables import load
from experiments.language.train import MODEL, train


def save_model(
    experiment: Experiment, table: str, model: str, out: Path, *, device: str, data_dir: Path | None, half: bool = False
) -> None:
    """Write the model of the first seed to `out`; it is trained, or its training continued, where that is missing.

    half: in half of the bytes, see `halved_`.
    """
    jobs = experiment.jobs([experiment.table(table)], seeds=1, device=device)
    job = next((job for job in jobs if job.model == model), None)
    if job is None:
        raise ValueError(f"unknown model {model!r} in {table}: there are {', '.join(job.model for job in jobs)}")
    trained = job.folder / MODEL
    if not trained.is_file():
        job.folder.mkdir(parents=True, exist_ok=True)
        run = train(job, load(job, data_dir))
        if "diverged" in run:
            raise ValueError(f"{model} on {table} is nothing to try: {run['diverged']}")
        print(f"{model} on {table}: {run['quality']['bits_per_byte']:.4f} bits per byte")
    out.parent.mkdir(parents=True, exist_ok=True)
    if half:
        loaded, tokenizer, notes = load_gpt(trained)
        save_gpt(halved_(loaded), tokenizer, out, notes=notes)
    else:
        shutil.copyfile(trained, out)
    print(f"wrote {out}; try: dynamicgate generate --model {out} --prompt 'import '")


def halved_(model: GPT) -> GPT:
    """The same model with matrices in bfloat16. Gate networks and routers stay: rounded, they would open other blocks
    than those that the budget was met with."""
    deciding = ("gate", "router")
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and not any(part in deciding for part in name.split(".")):
            parameter.data = parameter.data.bfloat16()
    return model
