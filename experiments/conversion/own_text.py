"""Text that the dense model writes itself: what it learned, where the texts at hand are another kind.

Students that see books and Python source alone forget the rest. Text drawn from the model, from the token that begins a
document, has all that it knows, and the control with the same tokens has it too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from dynamicgate.files import write_atomically, write_text
from dynamicgate.lab.language.text import Text, read_tokens
from dynamicgate.training.progress import Progress
from experiments.conversion.texts import OWN_TEXT, model_folder

START = "<|endoftext|>"  # between the documents that SmolLM2 was trained on
LENGTH = 1024  # tokens that are drawn in one go
VALID = 32  # sequences of a batch that are for validation: budgets and thresholds are put by them
KIND = np.uint16
UNUSED = 2  # for padding, of which there is none: no sequence ends early


@torch.no_grad()
def write_own_text(
    model: str, out: Path, tokens: int, batch: int, device: torch.device, *, length: int = LENGTH, seed: int = 0
) -> Text:
    """At least `tokens` tokens to train on, drawn at temperature 1 in batches of `batch` sequences."""
    if batch <= VALID:
        raise ValueError(
            f"{VALID} sequences of each batch are for validation: expected more than that, received {batch}"
        )
    folder = model_folder(model)
    dense: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    dense.to(device).eval()
    start = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(START)
    if start is None:
        raise ValueError(f"the tokenizer in {folder} has no token {START}, with which documents begin")
    torch.manual_seed(seed)
    found: dict[str, list[np.ndarray]] = {"train": [], "valid": []}
    rounds = -(-tokens // ((batch - VALID) * length))
    with Progress("drawing text") as progress:
        for done in range(1, rounds + 1):
            begin = torch.full((batch, 1), start, device=device)
            ids = dense.generate(
                begin, attention_mask=torch.ones_like(begin), max_new_tokens=length - 1, do_sample=True, top_k=0,
                top_p=1.0, temperature=1.0, eos_token_id=None, pad_token_id=UNUSED,
            )  # fmt: skip
            rows = ids.cpu().numpy().astype(KIND)
            found["valid"].append(rows[:VALID].reshape(-1))
            found["train"].append(rows[VALID:].reshape(-1))
            progress.update(done / rounds, f"{done} of {rounds} batches")
    return _written(
        model, out / "language", {part: np.concatenate(rows) for part, rows in found.items()}, len_of(dense)
    )


def len_of(model: torch.nn.Module) -> int:
    """The entries of its vocabulary."""
    return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


def _written(model: str, folder: Path, tokens: dict[str, np.ndarray], vocabulary: int) -> Text:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{OWN_TEXT}-{model}"
    for part, ids in tokens.items():
        write_atomically(folder / f"{stem}-{part}.bin", lambda path, ids=ids: ids.tofile(path))  # type: ignore[misc]
    digests = {part: hashlib.sha256(ids.tobytes()).hexdigest() for part, ids in tokens.items()}
    about = {"vocabulary": vocabulary, "sha256": digests}
    write_text(folder / f"{stem}.json", json.dumps(about, indent=1) + "\n")
    return read_own_text(model, folder.parent)


def read_own_text(model: str, data_dir: Path) -> Text:
    """What `write_own_text` left in a data folder."""
    folder, stem = data_dir / "language", f"{OWN_TEXT}-{model}"
    if not (folder / f"{stem}.json").is_file():
        raise ValueError(
            f"there is no text of {model} itself in {folder}: run python -m experiments.conversion draw "
            f"--out {data_dir}"
        )
    about = json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
    tokens: dict[str, np.ndarray] = {
        part: read_tokens(folder / f"{stem}-{part}.bin", np.dtype(KIND).name) for part in ("train", "valid")
    }
    sizes = {part: ids.nbytes for part, ids in tokens.items()}
    return Text(OWN_TEXT, model, about["vocabulary"], tokens, sizes, about["sha256"])
