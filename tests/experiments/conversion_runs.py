"""What tests of converted models share: a small dense model, inputs, texts, and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from experiments.conversion import language
from experiments.conversion.models import language_model
from experiments.conversion.students import Arm, Samples, make_student
from experiments.conversion.texts import TESTED_ON, Texts
from experiments.conversion.training import DistillationRun, Training
from torch import Tensor, nn

from dynamicgate.lab.language.text import PARTS, Text
from dynamicgate.lab.language.tokenizers import Bytes

CPU = torch.device("cpu")
FEATURES, WIDTH, LAYERS, VOCABULARY, CONTEXT = 32, 128, 2, 256, 16
ASKED = {"batch": 4, "context": CONTEXT, "windows": 4}


def ids(rows: int, seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, CONTEXT), generator=torch.Generator().manual_seed(seed))


def dense_model() -> nn.Module:
    """With larger weights than a random Llama has, so that its units differ."""
    model = language_model(None).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(8.0)
    return model


def inputs_to_look_at(device: torch.device = CPU) -> Samples:
    def on(*seeds: int) -> list[dict[str, Tensor]]:
        return [{"input_ids": ids(8, seed).to(device)} for seed in seeds]

    return Samples(on(0, 1), on(9))


def drawn_texts() -> Texts:
    """The same words whatever the files of this repository say."""
    words = [bytes(w) for w in np.random.default_rng(0).integers(97, 123, (400, 5), dtype=np.uint8)]
    found = {}
    for number, name in enumerate(TESTED_ON):
        draw = np.random.default_rng(number + 1)
        raw = {part: b" ".join(words[i] for i in draw.zipf(1.3, 4000) % 400) for part in PARTS}
        tokens = {part: Bytes().encode(text) for part, text in raw.items()}
        found[name] = Text(name, "bytes", Bytes.size, tokens, {part: len(text) for part, text in raw.items()}, {})
    return Texts(found, None)


def run_of(
    arm: Arm, dense: nn.Module, samples: Samples, texts: Texts, folder: Path, device: torch.device = CPU
) -> DistillationRun:
    torch.manual_seed(0)
    student = make_student(arm, dense, samples)
    student.model.requires_grad_(True)
    task = language.NextTokens(dense, texts, ASKED, device)
    training = Training(steps=8, lr=1e-3)
    return DistillationRun(
        student.model, student.budget, task, training, settings={"ffn": arm.ffn}, device=device, folder=folder
    )
