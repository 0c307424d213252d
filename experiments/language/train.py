"""One run: a GPT trained on a text, its bits per byte on held-out text, and what it executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynamicgate.budget import Budget
from dynamicgate.distributed import choose_device
from dynamicgate.lab.language.costs import model_costs
from dynamicgate.lab.language.evaluation import WINDOWS, evaluate_text
from dynamicgate.lab.language.ffn_methods import FFNSettings
from dynamicgate.lab.language.gpt import GPTConfig
from dynamicgate.lab.language.model_file import save_gpt
from dynamicgate.lab.language.resumable import DivergenceError, diverged_run
from dynamicgate.lab.language.text import PARTS, Text
from dynamicgate.lab.language.token_costs import token_costs
from dynamicgate.lab.language.training import LanguageRun, Training
from dynamicgate.lab.runner import Job

SIZES = ("features", "layers", "heads", "context")
TRAINING = ("steps", "batch", "lr", "weight_decay", "compiled")
MODEL = "model.safetensors"
DRAWN_BY_GPU = 1024  # features from which one thread of a CPU would take minutes to draw the weights
QUICK = {"block": 16, "gate_gradient": "dense", "kernels": "auto"}  # layers are narrow, and nothing may need a GPU


def train(job: Job, text: Text) -> dict[str, Any]:
    """Train, then measure validation text, and test text once where the table is a result and no choice."""
    torch.set_float32_matmul_precision("high")
    asked = job.settings
    sizes = GPTConfig(vocabulary=text.vocabulary, width=0, **{name: asked[name] for name in SIZES})
    training = Training(seed=job.seed, **{name: asked[name] for name in TRAINING if name in asked})
    ffn = FFNSettings(**{**asked["ffn"], **(quick_layers(asked["ffn"], sizes.layers) if job.quick else {})})
    device = choose_device(job.device)
    drawn_on = device if sizes.features >= DRAWN_BY_GPU else None
    run = LanguageRun(ffn, sizes, training, text, device=device, folder=job.folder, drawn_on=drawn_on)
    about = {"model": job.model, "seed": job.seed, "settings": asked}
    try:
        run.train()
    except DivergenceError as error:
        tokens = run.step * training.batch * sizes.context
        return {**about, **diverged_run(error, run, "bits_per_byte"), "tokens": tokens, "token_costs": None}
    save_gpt(run.model, text.make_tokenizer(), job.folder / MODEL, notes={"text": text.name, "seed": job.seed})
    parts = ("valid", "test") if asked.get("test", True) else ("valid",)
    found = measure(run, text, parts, asked.get("windows", WINDOWS))
    costs = token_costs(run.model, text, parts[-1], run.device)
    return {**about, **found, "token_costs": costs}


def quick_layers(asked: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """What changes where layers are narrow and few: few blocks, of which one is enough to be open always, and rates of
    the first layers alone."""
    always = {"always_open": 1} if asked.get("always_open") else {}
    return {**QUICK, **always, **({"rates": asked["rates"][:layers]} if "rates" in asked else {})}


def measure(run: LanguageRun, text: Text, names: Sequence[str], windows: int) -> dict[str, Any]:
    """What a trained model reaches, and what it costs for a token: in inference, and in all of training."""
    others = [part for part in text.tokens if part not in PARTS and "test" in names]
    parts = {part: evaluate_text(run.costs, text, part, run.device, windows) for part in (*names, *others)}
    last = parts[names[-1]]
    tokens = run.step * run.training.batch * run.model.config.context
    budget = run.prepared.budget
    return {
        "quality": {"bits_per_byte": last["bits_per_byte"], **parts},
        "macs": {
            **model_costs(run.costs, last["executed"]),
            "target": budget.target if isinstance(budget, Budget) else None,
            "training": run.spent.total,
        },
        "tokens": tokens,
        "seconds": round(run.seconds, 1),
        "params": sum(p.numel() for p in run.model.parameters()),
        "curve": [[round(x, 4) for x in point] for point in run.curve],
        "collapses": [vars(found) for found in budget.collapses] if isinstance(budget, Budget) else [],
    }
