"""Which tokens a gated GPT spends its blocks on: by kind of token, by how hard the next one is, and by position.

Shapes in names: B windows, T positions, L layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynamicgate.gating.recording import usage
from dynamicgate.lab.language.evaluation import BATCH, token_losses
from dynamicgate.lab.language.gpt import GPT
from dynamicgate.lab.language.text import Text, fixed_windows, on_device
from dynamicgate.lab.language.tokenizers import Tokenizer
from dynamicgate.modules import evaluating

KINDS = ("space", "first letter", "later letter", "digit", "mark")
WINDOWS, PARTS = 256, 10
SPACE, FIRST, LATER, DIGIT, MARK = range(len(KINDS))


@torch.no_grad()
def token_costs(model: GPT, text: Text, part: str, device: torch.device, most: int = WINDOWS) -> dict[str, Any] | None:
    """Open blocks of a token, as a fraction of all: for each kind of token that the model reads, in equal parts of the
    tokens from the most to the least expected next one, and along the window. None where nothing is gated."""
    kind_V = torch.from_numpy(kinds_of(text.make_tokenizer(), text.vocabulary)).to(device)
    opened: list[Tensor] = []
    losses: list[Tensor] = []
    kinds: list[Tensor] = []
    with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        tokens = on_device(text.tokens[part], device)
        for ids, targets in fixed_windows(tokens, min(BATCH, most), model.config.context, most):
            with usage(model) as used:
                losses.append(token_losses(model, ids, targets))
            if not len(used):
                return None
            opened.append(torch.stack([decision.open.mean(-1).view_as(ids) for decision in used.values()]))
            kinds.append(in_words(kind_V[ids]))
    open_LBT, loss_BT, kind_BT = torch.cat(opened, dim=1).float(), torch.cat(losses), torch.cat(kinds)
    open_BT = open_LBT.mean(0)
    return {
        "mean": float(open_BT.mean()),
        "spread": float(open_BT.std()),
        "correlation_with_loss": float(torch.corrcoef(torch.stack([open_BT.flatten(), loss_BT.flatten()]))[0, 1]),
        "kinds": {
            name: {
                "tokens": float((kind_BT == number).float().mean()),
                "open": float(open_BT[kind_BT == number].mean()),
                "loss": float(loss_BT[kind_BT == number].mean()),
                "layers": [round(float(layer_BT[kind_BT == number].mean()), 5) for layer_BT in open_LBT],
            }
            for number, name in enumerate(KINDS)
            if bool((kind_BT == number).any())
        },
        "by_loss": _in_parts(open_BT.flatten()[loss_BT.flatten().argsort()]),
        "by_position": _in_parts(open_BT.mean(0)),
    }


def kinds_of(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """The kind of every token of a vocabulary by its first character that is no space. Letters are the first of a word
    where a space comes with them, else `in_words` decides."""
    found = np.full(size, MARK, dtype=np.int64)
    for number in range(size):
        text = tokenizer.decode([number]).decode("utf-8", "replace")
        start = text.lstrip()
        if not start:
            found[number] = SPACE
        elif start[0].isdigit():
            found[number] = DIGIT
        elif start[0].isalpha() or start[0] == "_":
            found[number] = FIRST if len(start) < len(text) else LATER
    return found


def in_words(kind_BT: Tensor) -> Tensor:
    """A letter begins a word where no letter or digit is before it."""
    before_BT = torch.cat([torch.full_like(kind_BT[:, :1], SPACE), kind_BT[:, :-1]], dim=1)
    apart_BT = (before_BT == SPACE) | (before_BT == MARK)
    return torch.where((kind_BT == LATER) & apart_BT, FIRST, kind_BT)


def _in_parts(values: Tensor) -> list[float]:
    return [round(float(part.mean()), 5) for part in values.tensor_split(min(PARTS, len(values)))]
