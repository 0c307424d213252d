"""One run of a language model: a student, trained or not, measured on validation text and once on each test text.

Shapes in names: N predictions, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.distributed import choose_device
from dynamicgate.hf import kl_divergence
from dynamicgate.lab.language.resumable import DivergenceError, autocast, diverged_run
from dynamicgate.lab.runner import Job
from experiments.conversion.measuring import measure_student, parameters
from experiments.conversion.models import language_model
from experiments.conversion.students import TRAINED, Arm, Samples, Student, make_student
from experiments.conversion.texts import TESTED_ON, TRAINED_ON, Texts, Windows, measured_batches
from experiments.conversion.training import DistillationRun, Training, rate_of

CROSS_ENTROPY = 0.1  # beside a weight of 1 for the divergence from the dense model
RANKED = 1024  # samples by which units are ranked
CALIBRATED = 64  # windows of validation text on which budgets and thresholds are put
AT_ONCE = 32  # windows, where nothing is trained
ARM = ("method", "ffn", "block", "rank", "experts", "ramp", "factors")


class NextTokens:
    """The predictions of the dense model, at temperature 1, and a little of the text itself."""

    one_shape = True

    def __init__(self, dense: nn.Module, texts: Texts, asked: Mapping[str, Any], device: torch.device) -> None:
        """Windows of all texts, as many of each."""
        self.dense, self.device, self.batch = dense, device, asked["batch"]
        self.train = Windows(texts, "train", asked["context"], device)
        self.valid = Windows(texts, "valid", asked["context"], device)

    def draw(self, places: torch.Generator) -> dict[str, Tensor]:
        """A batch of windows."""
        return {"input_ids": self.train.draw(self.batch, places)}

    def loss(self, student: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """KL(dense || student) + 0.1 cross entropy, in nats a token."""
        ids = inputs["input_ids"]
        with autocast(self.device):
            with torch.no_grad():
                wanted_NV = self.dense(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
            found_NV = student(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        text = F.cross_entropy(found_NV.float(), ids[:, 1:].flatten())
        return kl_divergence(found_NV, wanted_NV).mean() + CROSS_ENTROPY * text

    def calibration(self) -> Iterable[Mapping[str, Tensor]]:
        """Windows of validation text."""
        return [{"input_ids": ids} for ids in self.valid.fixed(CALIBRATED, AT_ONCE)]

    def samples(self) -> Samples:
        """What conversions look at: windows spread over the training text, and those of validation text."""
        ranked = self.train.fixed(RANKED, AT_ONCE)
        return Samples([{"input_ids": ids} for ids in ranked], list(self.calibration()))  # type: ignore[arg-type]


def train(job: Job, texts: Texts) -> dict[str, Any]:
    """Make the student, train it where its method is trained, and measure it."""
    torch.set_float32_matmul_precision("high")
    asked, device = job.settings, choose_device(job.device)
    torch.manual_seed(job.seed)
    arm = Arm(**{name: asked[name] for name in ARM if name in asked})
    dense = language_model(texts.folder).to(device).requires_grad_(False)
    task = NextTokens(dense, texts, asked, device)
    student = make_student(arm, dense, task.samples())
    student.model.requires_grad_(True)
    about = {"model": job.model, "seed": job.seed, "settings": asked}
    trained: dict[str, Any] = {"tokens": 0, "seconds": 0.0, "curve": []}
    if arm.method in TRAINED:
        steps = max(1, asked["tokens"] // (asked["batch"] * asked["context"]))
        training = Training(steps=steps, seed=job.seed, at_once=asked.get("at_once"), **rate_of(asked))
        run = DistillationRun(
            student.model, student.budget, task, training, settings=asked, device=device, folder=job.folder
        )
        try:
            run.train()
        except DivergenceError as error:
            return {**about, **diverged_run(error, run, "bits_per_byte"), "tokens": run.tokens}
        curve = [[round(x, 4) for x in point] for point in run.curve]
        trained = {"tokens": run.tokens, "seconds": round(run.seconds, 1), "curve": curve}
    student.model.eval()
    found = measure(student, dense, texts, asked)
    budget = student.budget
    found["macs"]["target"] = None if budget is None else budget.target
    collapses = [] if budget is None else [vars(one) for one in budget.collapses]
    return {**about, **found, **trained, "params": parameters(student.model), "collapses": collapses}


def measure(student: Student, dense: nn.Module, texts: Texts, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Validation text of what was trained on, and the test text of everything."""
    parts: dict[str, dict[str, Any]] = {"valid": {}, "test": {}}
    for part, name in [*(("valid", name) for name in TRAINED_ON), *(("test", name) for name in TESTED_ON)]:
        text, context = texts.texts[name], asked["context"]
        batches = list(measured_batches(text, part, context, asked["windows"], AT_ONCE))
        predicted = sum(batch["input_ids"][:, 1:].numel() for batch in batches)
        text_bytes = round(predicted * text.bytes_a_token(part))
        parts[part][name] = measure_student(student, dense, batches, text_bytes)
    tests = parts["test"].values()
    mean = {name: fmean(found["macs"][name] for found in tests) for name in ("dense", "executed", "relative", "ffn")}
    return {"quality": {"bits_per_byte": fmean(found["bits_per_byte"] for found in tests), **parts}, "macs": mean}
