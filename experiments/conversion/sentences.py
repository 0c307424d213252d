"""One run of a sentence encoder: a student learns the embeddings of the dense model, and is measured by their cosine.

Shapes in names: L layers, B sentences, T tokens, D features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.distributed import choose_device
from dynamicgate.lab.language.resumable import DivergenceError, autocast, diverged_run
from dynamicgate.lab.runner import Job
from experiments.conversion.measuring import measure_student, on, parameters
from experiments.conversion.models import sentence_encoder
from experiments.conversion.students import TRAINED, Arm, Samples, make_student, without_dropout_
from experiments.conversion.texts import Texts
from experiments.conversion.training import DistillationRun, Training, rate_of

SHORTEST, LONGEST = 4, 126  # tokens of a sentence, without those that mark its ends
CALIBRATED, RANKED = 512, 1024  # sentences
AT_ONCE = 128  # sentences, where nothing is trained
ALIKE = 16  # batches that are drawn to find sentences of about one length
ENDS = (".", "!", "?")
ARM = ("method", "ffn", "block", "rank", "ramp")


class Sentences:
    """The sentences of a part of the books: what lies between two tokens that end one."""

    def __init__(self, texts: Texts, part: str) -> None:
        """Found in the tokens of the books; longer ones are cut."""
        self.tokens = texts.texts["books"].tokens[part]
        self.first, self.last, ends = special_tokens(texts)
        ending = np.flatnonzero(np.isin(self.tokens, ends))
        starts = np.concatenate([[0], ending[:-1] + 1])
        lengths = np.minimum(ending + 1 - starts, LONGEST)
        wanted = lengths >= SHORTEST
        self.starts, self.lengths = starts[wanted], lengths[wanted]
        if not len(self.starts):
            raise ValueError(f"the books have no sentence in their part {part}: expected a longer text")

    @property
    def mean_length(self) -> float:
        """Tokens of a sentence, with the two that mark its ends."""
        return float(self.lengths.mean()) + 2.0

    def batch(self, rows: Any) -> dict[str, Tensor]:
        """These sentences, padded to the longest."""
        lengths = self.lengths[rows]
        ids = torch.zeros(len(rows), int(lengths.max()) + 2, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, (start, length) in enumerate(zip(self.starts[rows], lengths, strict=True)):
            ids[i, 0], ids[i, length + 1] = self.first, self.last
            ids[i, 1 : length + 1] = torch.from_numpy(self.tokens[start : start + length].astype(np.int64))
            mask[i, : length + 2] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def fixed(self, count: int, batch: int) -> list[dict[str, Tensor]]:
        """`count` sentences, spread evenly, in batches."""
        rows = np.unique(np.arange(count) * len(self.starts) // count)
        return [self.batch(rows[start : start + batch]) for start in range(0, len(rows), batch)]


def special_tokens(texts: Texts) -> tuple[int, int, list[int]]:
    """The tokens before and after a sentence, and those that end one."""
    if texts.folder is None:
        return 1, 2, [ord(end) for end in ENDS]
    tokenizer = Tokenizer.from_file(str(texts.folder / "tokenizer.json"))
    ids = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", *ENDS)]
    known = [token for token in ids if token is not None]
    if len(known) < len(ids):
        raise ValueError(
            f"the tokenizer in {texts.folder} lacks [CLS], [SEP] or one of {' '.join(ENDS)}: expected BERT's"
        )
    return known[0], known[1], known[2:]


class Embeddings:
    """Targets: the embeddings of the dense model and, with weight `of_tokens`, the outputs of all layers."""

    one_shape = False

    def __init__(self, dense: nn.Module, texts: Texts, asked: Mapping[str, Any], device: torch.device) -> None:
        """Sentences of books."""
        self.dense, self.device, self.size, self.of_tokens = dense, device, asked["batch"], asked.get("of_tokens", 0.0)
        self.train, self.valid = Sentences(texts, "train"), Sentences(texts, "valid")

    def draw(self, places: torch.Generator) -> dict[str, Tensor]:
        """A batch of sentences of about one length."""
        return on(self.device, [self.train.batch(alike(self.train.lengths, self.size, places))])[0]

    def loss(self, student: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """One minus the mean cosine of both."""
        mask_BT = inputs["attention_mask"]
        with autocast(self.device):
            if not self.of_tokens:
                with torch.no_grad():
                    wanted = embed(self.dense, inputs)
                return 1.0 - (embed(student, inputs) * wanted).sum(-1).mean()
            with torch.no_grad():
                wanted_LBTD = states(self.dense, inputs)
            found_LBTD = states(student, inputs)
            cosine = (pooled(found_LBTD[-1], mask_BT) * pooled(wanted_LBTD[-1], mask_BT)).sum(-1).mean()
            cosine_LBT = F.cosine_similarity(found_LBTD.float(), wanted_LBTD.float(), dim=-1)
            of_tokens = (cosine_LBT * mask_BT).sum() / (mask_BT.sum() * len(cosine_LBT))
            return 1.0 - cosine + self.of_tokens * (1.0 - of_tokens)

    def calibration(self) -> Iterable[Mapping[str, Tensor]]:
        """Sentences of validation books."""
        return on(self.device, self.valid.fixed(CALIBRATED, AT_ONCE))

    def samples(self) -> Samples:
        """What conversions look at."""
        return Samples(on(self.device, self.train.fixed(RANKED, AT_ONCE)), list(self.calibration()))  # type: ignore[arg-type]


def alike(lengths: np.ndarray, size: int, places: torch.Generator) -> np.ndarray:
    """Rows of about one length, each as likely as any other: one part of several batches in order of length. Of rows of
    all lengths four fifths of a batch would be padding."""
    rows = torch.randint(0, len(lengths), (ALIKE * size,), generator=places).numpy()
    part = int(torch.randint(ALIKE, (), generator=places))
    in_order: np.ndarray = rows[np.argsort(lengths[rows], kind="stable")]
    return in_order[part * size : (part + 1) * size]


def embed(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The mean over the tokens of each sentence, of length 1."""
    return pooled(model(**inputs).last_hidden_state, inputs["attention_mask"])


def pooled(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean of a layer's outputs over the tokens of each sentence, of length 1."""
    mask_BT1 = mask_BT[..., None]
    return F.normalize((hidden_BTD.float() * mask_BT1).sum(1) / mask_BT1.sum(1), dim=-1)


def states(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The outputs of all layers."""
    return torch.stack(model(**inputs, output_hidden_states=True).hidden_states[1:])


def train(job: Job, texts: Texts) -> dict[str, Any]:
    """Make the student, train it where its method is trained, and measure it on held-out sentences."""
    torch.set_float32_matmul_precision("high")
    asked, device = job.settings, choose_device(job.device)
    torch.manual_seed(job.seed)
    arm = Arm(**{name: asked[name] for name in ARM if name in asked})
    dense = sentence_encoder(texts.folder).to(device).requires_grad_(False)
    task = Embeddings(dense, texts, asked, device)
    student = make_student(arm, dense, task.samples())
    student.model.requires_grad_(True)
    if not asked.get("dropout", True):
        without_dropout_(student.model)
    about = {"model": job.model, "seed": job.seed, "settings": asked}
    trained: dict[str, Any] = {"tokens": 0, "seconds": 0.0, "curve": []}
    if arm.method in TRAINED:
        steps = max(1, round(asked["tokens"] / (asked["batch"] * task.train.mean_length)))
        training = Training(steps=steps, seed=job.seed, **rate_of(asked))
        run = DistillationRun(
            student.model, student.budget, task, training, settings=asked, device=device, folder=job.folder
        )
        try:
            run.train()
        except DivergenceError as error:
            return {**about, **diverged_run(error, run, "cosine"), "tokens": run.tokens}
        curve = [[round(x, 5) for x in point] for point in run.curve]
        trained = {"tokens": run.tokens, "seconds": round(run.seconds, 1), "curve": curve}
    student.model.eval()
    batches = on(device, Sentences(texts, "test").fixed(asked["sentences"], AT_ONCE))
    found = measure_student(student, dense, batches)
    cosines = cosine(student.model, dense, batches, device)
    budget = student.budget
    return {
        **about,
        "quality": {"cosine": float(cosines.mean()), "least": float(cosines.min()), "sentences": len(cosines)},
        "macs": {**found["macs"], "target": None if budget is None else budget.target},
        "open": found["open"], **trained, "params": parameters(student.model),
        "collapses": [] if budget is None else [vars(one) for one in budget.collapses],
    }  # fmt: skip


@torch.no_grad()
def cosine(
    student: nn.Module, dense: nn.Module, batches: Iterable[Mapping[str, Tensor]], device: torch.device
) -> Tensor:
    """Between the embeddings of both, of each sentence."""
    with autocast(device):
        return torch.cat([(embed(student, batch) * embed(dense, batch)).sum(-1).cpu() for batch in batches])
