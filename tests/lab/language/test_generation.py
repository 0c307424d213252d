"""Generation: what is written, what each token cost, and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.accounting.counter import deployed
from dynamicgate.lab.language.generation import choose_token, generate
from dynamicgate.lab.language.gpt import GPT, ffn_sites
from dynamicgate.lab.language.model_file import load_gpt, save_gpt
from dynamicgate.lab.language.tokenizers import Bytes, make_tokenizer
from tests import forked
from tests.lab.language.conftest import SIZES


def gated() -> GPT:
    torch.manual_seed(1)
    model = GPT(replace(SIZES, width=96))
    dg.gate_(model, dg.GateConfig(block=16, net="linear", open=0.52), where=ffn_sites(model))
    for gate in dg.named_gates(model).values():
        torch.nn.init.normal_(gate.net.weight)
    return model.eval()


def test_the_most_likely_token_each_time_is_that_of_the_whole_window() -> None:
    model, prompt = gated(), [5, 80, 7]
    made = [token.number for token in generate(model, prompt, 9, temperature=0.0)]
    for length in range(9):
        ids = torch.tensor([prompt + made[:length]])
        assert int(model(ids)[0, -1].argmax()) == made[length]


def test_costs_are_those_of_the_whole_window_counted_at_once() -> None:
    model, prompt = gated(), [5, 80, 7, 9]
    made = list(generate(model, prompt, 6))
    ids = torch.tensor([prompt + [token.number for token in made[:-1]]])
    counter = dg.count_macs(model, ids)
    with dg.usage(model) as used:
        model(ids)
    whole = ids.shape[1]
    scores = 2 * SIZES.features * SIZES.layers  # a query and a key; only those that exist are counted here
    unseen = scores * (whole * whole - whole * (whole + 1) // 2)
    assert sum(token.dense for token in made) == counter.dense - unseen
    executed = float(counter.executed(deployed(counter.gates, used))) - unseen
    assert sum(token.macs for token in made) == pytest.approx(executed, rel=1e-6)
    assert made[1].macs < made[1].dense


def test_more_tokens_than_the_context() -> None:
    assert len(list(generate(gated(), [1] * 40, 30))) == 30


def test_draws_come_from_the_likely_tokens() -> None:
    scores = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    draw = torch.Generator().manual_seed(0)
    assert {choose_token(scores, 1.0, 0.75, draw) for _ in range(100)} == {0, 1}
    assert {choose_token(scores, 1.0, 1.0, draw) for _ in range(300)} == {0, 1, 2, 3}
    assert {choose_token(scores, 1.0, 0.01, draw) for _ in range(20)} == {0}


def test_bad_requests_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        next(generate(gated(), [], 1))
    with pytest.raises(ValueError, match="expected temperature >= 0"):
        next(generate(gated(), [1], 1, temperature=-1.0))


def test_a_file_holds_the_model_and_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("bpe300", b"It was a dark night. " * 500, tmp_path / "merges.json")
    model = GPT(replace(SIZES, width=96, vocabulary=tokenizer.size)).eval()
    save_gpt(model, tokenizer, tmp_path / "gpt.safetensors", notes={"text": "none"})
    loaded, again, notes = load_gpt(tmp_path / "gpt.safetensors")
    ids = tokenizer.encode(b"a dark night")
    assert again.encode(b"a dark night").tolist() == ids.tolist()
    assert torch.equal(loaded(torch.tensor([ids.tolist()])), model(torch.tensor([ids.tolist()])))
    assert notes["text"] == "none"
    dg.save(torch.nn.Linear(2, 2), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no language model"):
        load_gpt(tmp_path / "other.safetensors")


def test_the_command_writes_text_and_what_it_cost(tmp_path: Path) -> None:
    save_gpt(gated(), Bytes(), tmp_path / "gpt.safetensors")
    words = ["generate", "--model", str(tmp_path / "gpt.safetensors"), "--prompt", "Hé", "--tokens", "12"]
    done = forked.run(["-m", "dynamicgate", *words, "--device", "cpu"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hé")
    assert "12 tokens" in done.stderr
    assert "of dense" in done.stderr
