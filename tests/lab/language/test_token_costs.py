"""Which tokens cost more."""

from __future__ import annotations

import numpy as np
import torch

import dynamicgate as dg
from dynamicgate.lab.language.gpt import GPT, GPTConfig, ffn_sites
from dynamicgate.lab.language.text import Text
from dynamicgate.lab.language.token_costs import KINDS, in_words, kinds_of, token_costs
from dynamicgate.lab.language.tokenizers import Bytes

SENTENCE = b"def f2(x): return 3 * x_1\n"


def test_letters_begin_a_word_after_a_space_or_a_mark() -> None:
    kinds = in_words(torch.from_numpy(kinds_of(Bytes(), 256))[torch.tensor([list(SENTENCE)])])[0]
    named = [KINDS[number] for number in kinds]
    at = SENTENCE.index
    assert named[at(b"def")] == "first letter"
    assert named[at(b"ef")] == "later letter"
    assert named[at(b"f2")] == "first letter"
    assert named[at(b"2(")] == "digit"
    assert named[at(b"x)")] == "first letter"
    assert named[at(b"(")] == named[at(b"*")] == "mark"
    assert named[at(b"_1")] == "later letter"
    assert named[at(b"\n")] == named[3] == "space"


def test_costs_by_kind_add_up_to_the_mean_and_follow_the_gate() -> None:
    torch.manual_seed(0)
    tokens = np.frombuffer(SENTENCE * 40, dtype=np.uint8)
    text = Text("t", "bytes", 256, {"test": tokens}, {"test": len(tokens)}, {"test": ""})
    model = GPT(GPTConfig(vocabulary=256, features=16, layers=2, heads=2, width=64, context=26))
    assert token_costs(model, text, "test", torch.device("cpu")) is None
    dg.gate_(model, dg.GateConfig(block=8, open=0.5), where=ffn_sites(model))
    found = token_costs(model, text, "test", torch.device("cpu"))
    assert found is not None
    kinds = found["kinds"].values()
    assert abs(sum(kind["tokens"] for kind in kinds) - 1.0) < 1e-6
    assert abs(sum(kind["tokens"] * kind["open"] for kind in kinds) - found["mean"]) < 1e-5
    assert len(found["by_loss"]) == 10
    assert abs(np.mean(found["by_position"]) - found["mean"]) < 0.02
    assert 0.0 < found["mean"] < 1.0
    assert found["spread"] > 0.0
