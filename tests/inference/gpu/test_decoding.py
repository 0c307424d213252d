"""Steps with a cache that stays where it is give what the model gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference.decoder_parts import parts_of
from dynamicgate.inference.gpu import choose_decoding as choosing
from dynamicgate.inference.gpu import decoding
from dynamicgate.inference.gpu.choose_decoding import CompiledStep, PlainFFN, choose_decoding, parts_for_cache
from dynamicgate.inference.gpu.decoding import CachedDecoder, OneToken, Pairs
from dynamicgate.inference.gpu.whole_model import CAPTURED, LAYERS, ONE_GRAPH, WholeModel
from dynamicgate.lab.language.gpt import GPT, GPTConfig


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=50, features=32, layers=3, heads=4, width=64, context=64)).double().eval()


def uncaptured(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return call


def one_token(gpt: GPT) -> OneToken:
    parts = parts_of(gpt)
    return OneToken(parts, [PlainFFN(block) for block in parts.blocks])


def decoder_of(gpt: GPT) -> CachedDecoder:
    step = one_token(gpt)
    return CachedDecoder(step, step.cache, uncaptured)


def prompt(gpt: GPT, length: int, seed: int = 0, sequences: int = 2) -> tuple[Tensor, Pairs]:
    ids = torch.randint(50, (sequences, length), generator=torch.Generator().manual_seed(seed))
    pairs: Pairs = []
    with torch.no_grad():
        gpt(ids, cache=pairs)
    return ids, pairs


@torch.no_grad()
def follow(gpt: GPT, decoder: CachedDecoder, pairs: Pairs, mine: Pairs, tokens: int, seed: int = 1) -> None:
    """Both read the same random tokens and must give the same scores."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(tokens):
        ids = torch.randint(50, (len(pairs[0][0]), 1), generator=random)
        torch.testing.assert_close(decoder.step(ids, mine), gpt(ids, cache=pairs), rtol=1e-9, atol=1e-9)
        for one, other in zip(mine, pairs, strict=True):
            torch.testing.assert_close(one[0], other[0], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(one[1], other[1], rtol=1e-9, atol=1e-9)


def test_steps_give_what_the_model_gives_beyond_the_room_of_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ROOM", 8)
    gpt = model()
    _, pairs = prompt(gpt, 5)
    decoder = decoder_of(gpt)
    follow(gpt, decoder, pairs, list(pairs), tokens=30)
    assert len(decoder.slots) > 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_a_compiled_step_is_compiled_for_any_number_of_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ROOM", 2)
    gpt, compiled = model(), 0

    def count(graph: Any, _inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph

    step = one_token(gpt)
    decoder = CachedDecoder(CompiledStep(step, backend=count), step.cache, uncaptured)
    _, pairs = prompt(gpt, 3)
    follow(gpt, decoder, pairs, list(pairs), tokens=24)
    assert compiled > torch._dynamo.config.recompile_limit
    before = compiled
    _, pairs = prompt(gpt, 3, seed=1)
    follow(gpt, decoder, pairs, list(pairs), tokens=24)
    assert compiled == before, "a second conversation finds all of them"


def choose_by(
    monkeypatch: pytest.MonkeyPatch, gpt: GPT, fastest: dict[int, str], decoders: dict[str, CachedDecoder]
) -> tuple[WholeModel, list[tuple[int, str]], list[str]]:
    """A model that decodes by what is fastest for each number of sequences; what the plan and its notes say."""

    def invented(calls: Any, xs: Any, seconds: float, **_: Any) -> dict[str, float]:
        return {name: 1.0 if name == fastest[len(xs[0])] else 3.0 for name in calls}

    monkeypatch.setattr(choosing, "time_calls", invented)
    monkeypatch.setattr(choosing, "captured_decoders", lambda model: decoders)
    whole, ids = WholeModel(gpt), torch.randint(50, (16, 4))
    with torch.no_grad():
        regimes, notes = choose_decoding(whole, parts_of(gpt), {}, ids, list(fastest), seconds=1.0, tolerance=1e-6)
    return whole, [(regime.tokens, regime.chosen) for regime in regimes], notes


def test_each_number_of_sequences_decodes_by_what_was_fastest_for_the_nearest_measured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpt, ran = model(), list[str]()

    class Named(CachedDecoder):
        def step(self, ids_B1: Tensor, cache: Pairs) -> Tensor:
            ran.append(next(name for name, decoder in decoders.items() if decoder is self))
            return super().step(ids_B1, cache)

    graph, layers = f"{ONE_GRAPH}{CAPTURED}", f"{LAYERS}{CAPTURED}"
    step = one_token(gpt)
    decoders = {name: Named(step, step.cache, uncaptured) for name in (graph, layers)}
    fastest = {1: graph, 4: LAYERS, 16: layers}
    whole, planned, _ = choose_by(monkeypatch, gpt, fastest, decoders)
    assert planned == list(fastest.items()), "the plan says so"
    for sequences, expected in {1: [graph], 3: [], 4: [], 7: [], 9: [layers], 16: [layers], 50: [layers]}.items():
        _, pairs = prompt(gpt, 5, sequences=sequences)
        mine, ids = list(pairs), torch.randint(50, (sequences, 1))
        ran.clear()
        with torch.no_grad():
            torch.testing.assert_close(whole(ids, cache=mine), gpt(ids, cache=pairs), rtol=1e-9, atol=1e-9)
        assert ran == expected, sequences


def test_a_step_that_cannot_be_captured_is_not_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_call: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    gpt, graph, layers = model(), f"{ONE_GRAPH}{CAPTURED}", f"{LAYERS}{CAPTURED}"
    step = one_token(gpt)
    decoders = {layers: decoder_of(gpt), graph: CachedDecoder(step, step.cache, fails)}
    whole, planned, notes = choose_by(monkeypatch, gpt, {2: layers}, decoders)
    assert planned == [(2, layers)]
    assert notes == [f"{graph} does not run at 2 sequences with a cache: OutOfMemoryError: CUDA out of memory"]
    assert whole.decoders == {2: decoders[layers]}


def test_two_conversations_at_once_do_not_write_into_each_other() -> None:
    gpt = model()
    decoder = decoder_of(gpt)
    (_, first), (_, second) = prompt(gpt, 6), prompt(gpt, 9, seed=3)
    mine_first, mine_second = list(first), list(second)
    for turn in range(4):
        follow(gpt, decoder, first, mine_first, tokens=2, seed=turn)
        follow(gpt, decoder, second, mine_second, tokens=3, seed=10 + turn)


def test_an_old_state_can_be_continued_again() -> None:
    gpt = model()
    decoder = decoder_of(gpt)
    _, pairs = prompt(gpt, 6)
    mine = list(pairs)
    follow(gpt, decoder, pairs, mine, tokens=3)
    kept, kept_pairs = list(mine), [(k.clone(), v.clone()) for k, v in pairs]
    follow(gpt, decoder, pairs, mine, tokens=5, seed=2)
    follow(gpt, decoder, kept_pairs, kept, tokens=5, seed=4)
    follow(gpt, decoder, pairs, mine, tokens=2, seed=5)


def test_memory_is_used_again_only_when_nobody_looks_at_it() -> None:
    gpt = model()
    decoder = decoder_of(gpt)
    _, pairs = prompt(gpt, 6)
    mine = list(pairs)
    follow(gpt, decoder, pairs, mine, tokens=1)
    piece, expected = mine[0][0][:, :1, :4], pairs[0][0][:, :1, :4].clone()
    del mine
    _, other = prompt(gpt, 7, seed=5)
    follow(gpt, decoder, other, list(other), tokens=2)
    assert torch.equal(piece, expected)
    assert sum(map(len, decoder.slots.values())) == 2
    del piece
    _, third = prompt(gpt, 5, seed=6)
    follow(gpt, decoder, third, list(third), tokens=1)
    assert sum(map(len, decoder.slots.values())) == 2


class Stream:
    """Stands for a stream of a GPU."""

    def __init__(self) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


def test_memory_is_used_again_after_the_stream_whose_caller_held_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Stream(), Stream()
    now = one
    monkeypatch.setattr(decoding, "current_stream", lambda device: now)
    gpt = model()
    decoder = decoder_of(gpt)
    (_, first), (_, second), (_, third) = (prompt(gpt, length, seed=length) for length in (5, 6, 7))
    mine = list(first)
    follow(gpt, decoder, first, mine, tokens=2)
    now = other
    follow(gpt, decoder, second, list(second), tokens=2)
    assert other.waited_for == [one], "steps work one after the other"
    del mine  # which stream `one` may not have read yet
    follow(gpt, decoder, third, list(third), tokens=2)
    assert sum(map(len, decoder.slots.values())) == 2
    assert other.waited_for == [one, one]


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "GPT2", "OPT"])
def test_grouped_heads_norms_of_heads_and_learned_positions(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }  # fmt: skip
    of_kind = {
        "Llama": {"intermediate_size": 64, "num_key_value_heads": 2},
        "Qwen3": {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8},
        "GPT2": {}, "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes, **of_kind[kind])
    torch.manual_seed(0)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    llama = getattr(transformers, name)(config).double().eval()
    parts = parts_of(llama)
    step = OneToken(parts, [PlainFFN(block) for block in parts.blocks]).double()
    ids = torch.randint(50, (2, 7))
    memory = step.cache(2, 8)
    with torch.no_grad():
        scores = [step(ids[:, i : i + 1], torch.tensor([i]), memory) for i in range(7)]
        torch.testing.assert_close(torch.cat(scores, 1), llama(ids).logits, rtol=1e-6, atol=1e-6)


def test_only_models_with_a_list_as_cache() -> None:
    assert parts_for_cache(model()) is not None
    assert parts_for_cache(nn.Linear(3, 3)) is None


pytestmark_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.gpu
@pytestmark_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own, when it is first imported
@pytest.mark.parametrize("sequences", [1, 5])
def test_a_compiled_model_decodes_on_a_gpu(sequences: int) -> None:
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=200, features=128, layers=2, heads=4, width=512, context=64)
    gpt = GPT(config)
    dg.gate_(gpt, dg.GateConfig(block=64, net="linear", scale="softmax", always_open=1))
    gpt = gpt.cuda().to(torch.bfloat16).eval()
    ids = torch.randint(200, (sequences, 20), device="cuda")
    fast = dg.compile(gpt, ids, batches=(1, 5), seconds=1.0)
    assert any(regime.cached for regime in fast.plan.whole)
    mine: Pairs = []
    theirs: Pairs = []
    fast(ids, cache=mine)
    gpt(ids, cache=theirs)
    errors = []
    with torch.no_grad():
        for step in range(12):
            new = torch.randint(200, (sequences, 1), device="cuda")
            a, b = fast(new, cache=mine), gpt(new, cache=theirs)
            assert mine[0][0].shape[2] == 21 + step
            errors.append(float((a - b).float().norm() / b.float().norm()))
    assert sorted(errors)[len(errors) // 2] < 3e-2
