"""MACs of Hugging Face models, token by token and pair by pair, against loops in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
    StaticCache,
    XLNetConfig,
    XLNetLMHeadModel,
)

import dynamicgate as dg
from dynamicgate import hf
from tests.hf.models import tiny
from tests.hf.tiny import FAMILIES, PAD, VOCAB, gated, padded, tiny_llama, tokens

HIDDEN, FFN, HEADS, BLOCK = 32, 64, 4, 8
LENGTHS = (7, 3, 1, 5)
PADDINGS = ("none", "right", "left")


def ragged(lengths: Sequence[int], padding: str, *, more: int = 2, seed: int = 0) -> list[dict[str, Tensor]]:
    """The same sequences in one batch that is padded left or right, or one by one."""
    rows = [tokens(1, length, seed=seed + i) for i, length in enumerate(lengths)]
    if padding == "none":
        return [{"input_ids": ids} for ids in rows]
    longest = max(lengths) + more
    parts = [padded(ids, longest - ids.shape[1], left=padding == "left") for ids in rows]
    batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if padding == "left":  # the tokens keep their positions
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return [batch]


def by_hand(model: PreTrainedModel, lengths: Sequence[int], used: Any, *, causal: bool) -> tuple[float, float]:
    """Dense and executed MACs of these sequences, one token and one pair at a time; gates on the feed-forward layers or
    on the heads of a Llama or a BERT."""
    config, gates = model.config, dg.named_gates(model)
    layers = config.num_hidden_layers
    matrices = 3 if causal else 2
    kv = HIDDEN * config.num_key_value_heads // HEADS if causal else HIDDEN
    head = HIDDEN * VOCAB + (0 if causal else HIDDEN * HIDDEN)  # BERT has one more layer in front of it
    dense = executed = 0.0
    row = 0
    for length in lengths:
        for position in range(length):
            keys = sum(1 for key in range(length) if key <= position or not causal)
            for layer in range(layers):
                opened = {site: used[site].open.flatten(0, -2)[row].double() for site in gates if f".{layer}." in site}
                fractions = {gates[site].site.is_heads: float(g.mean()) for site, g in opened.items()}
                heads, units = fractions.get(True, 1.0), fractions.get(False, 1.0)
                per_head, always = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * keys, 2 * HIDDEN * kv
                dense += per_head + always + matrices * HIDDEN * FFN
                executed += heads * per_head + always + units * matrices * HIDDEN * FFN
                executed += sum(gates[site].macs for site in opened)
            dense, executed, row = dense + head, executed + head, row + 1
    return dense, executed


def spread_heads(model: PreTrainedModel) -> PreTrainedModel:
    dg.gate_(model, dg.GateConfig(open=0.6), where="heads")
    for number, gate in enumerate(dg.named_gates(model).values()):
        with torch.no_grad():
            gate.bias.add_(torch.linspace(-1.0, 1.0, gate.blocks).roll(number))
            for parameter in gate.net.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model.eval()


def build(family: str, kind: str) -> PreTrainedModel:
    model = FAMILIES[family]()
    if kind == "heads":
        return spread_heads(model)
    gated(model)
    if kind == "open":
        for gate in dg.named_gates(model).values():
            torch.nn.init.constant_(gate.bias, 50.0)
    return model.eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["open", "half", "heads"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_and_every_pair_is_counted_however_a_batch_is_padded(
    family: str, kind: str, attention: str
) -> None:
    model, causal = build(family, kind), family == "llama"
    model.set_attn_implementation(attention)
    with torch.no_grad(), dg.usage(model) as used:
        for batch in ragged(LENGTHS, "none"):
            model(**batch)
    dense, executed = by_hand(model, LENGTHS, used, causal=causal)
    assert executed < dense or kind == "open"
    for padding in PADDINGS:
        batches = ragged(LENGTHS, padding)
        found = hf.measure(model, batches)
        assert found.counts == {"tokens": 16}
        assert found.macs["dense"] == pytest.approx(dense / 16, rel=1e-12)
        assert found.macs["executed"] == pytest.approx(executed / 16, rel=1e-6)
        if padding != "none":
            counter = dg.count_macs(model, batches[0])
            assert counter.dense == pytest.approx(dense / len(LENGTHS), rel=1e-12)
            with torch.no_grad(), dg.usage(model) as used:
                model(**batches[0])
            now = {site: used[site].open for site in used}
            assert float(counter.executed(now)) == pytest.approx(executed / len(LENGTHS), rel=1e-6)


@pytest.mark.parametrize("kind", ["half", "heads"])
def test_one_counter_is_right_for_batches_of_all_lengths(kind: str) -> None:
    model = build("llama", kind)
    counter = dg.count_macs(model, {"input_ids": tokens(2, 4)})
    for lengths in ((9,), (3, 11), (1, 1, 1)):
        (batch,) = ragged(lengths, "right")
        with torch.no_grad(), dg.usage(model) as used:
            model(**batch)
        dense, executed = by_hand(model, lengths, used, causal=True)
        now = counter.at(used.work)
        assert now.dense == pytest.approx(dense / len(lengths), rel=1e-12)
        assert float(now.executed({site: used[site].open for site in used})) == pytest.approx(
            executed / len(lengths), rel=1e-6
        )
        expected = 1.0 + now.gate / now.dense
        assert now.all_open == pytest.approx(expected, rel=1e-12) == now.relative_at(1.0)


def pairs(used: Any) -> set[int]:
    return {int(keys.sum()) for keys in used.work.keys.values()}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("left", [False, True])
def test_with_a_cache_new_tokens_look_at_tokens_and_never_at_padding(
    cache: str | None, left: bool, attention: str
) -> None:
    model, lengths, new = gated(tiny_llama()).eval(), ((5, 2) if left else (5, 5)), 4
    model.set_attn_implementation(attention)
    (batch,) = ragged(lengths, "left", more=3 if left else 0)
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "cache_implementation": cache}
    with dg.usage(model) as used:
        prompt = {name: batch[name] for name in ("input_ids", "attention_mask")}
        model.generate(**prompt, disable_compile=True, **options)
    # the last new token is not read again
    seen = [length + new - 1 for length in lengths]
    assert {len(decision.open.flatten(0, -2)) for decision in used.values()} == {sum(seen)}
    assert pairs(used) == {sum(n * (n + 1) // 2 for n in seen)}
    assert used.work.tokens["model"] == sum(seen)
    assert used.work.tokens[""] == len(lengths) * new, "the output layer runs for the last token of the prompt"


def test_a_static_cache_in_your_own_loop() -> None:
    model = gated(tiny_llama()).eval()
    (batch,) = ragged((5, 2), "left", more=3)
    cache, mask = StaticCache(config=model.config, max_cache_len=16), batch["attention_mask"]
    with torch.no_grad(), dg.usage(model) as used:
        model(**batch, past_key_values=cache)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
        positions = batch["position_ids"][:, -1:] + 1
        model(input_ids=tokens(2, 1), attention_mask=mask, position_ids=positions, past_key_values=cache)
    assert {len(decision.open) for decision in used.values()} == {5 + 2 + 2}
    assert pairs(used) == {15 + 3 + 6 + 3}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_sequences_do_not_look_at_each_other(attention: str) -> None:
    model = gated(tiny_llama()).eval()
    model.set_attn_implementation(attention)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    with torch.no_grad(), dg.usage(model) as used:
        model(input_ids=tokens(1, 8), position_ids=positions, use_cache=False)  # Transformers: with a cache they do
    assert pairs(used) == {6 + 15}
    assert used.work.tokens["model"] == 8


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("name", "options"), [("mistral", {"sliding_window": 4}), ("gemma3", {})])
def test_windows_hide_keys(name: str, options: dict[str, Any], attention: str) -> None:
    layer_types = {"layer_types": ["sliding_attention", "full_attention"]} if name == "gemma3" else {}
    model = dg.gate_(tiny(name, **options, **layer_types), dg.GateConfig(block=8), where="mlp")
    model.set_attn_implementation(attention)
    (batch,) = ragged((7, 2), "right")
    with torch.no_grad(), dg.usage(model) as used:
        model(**batch)
    windowed = sum(min(n, 4) for n in range(1, 8)) + 3
    assert pairs(used) == ({windowed, 28 + 3} if name == "gemma3" else {windowed})


def test_one_token_looks_at_itself() -> None:
    model = gated(tiny_llama()).eval()
    with torch.no_grad(), dg.usage(model) as used:
        model(input_ids=torch.tensor([[PAD + 5]]))
    assert pairs(used) == {1}
    dense, executed = by_hand(model, [1], used, causal=True)
    found = hf.measure(model, torch.tensor([[PAD + 5]]))
    assert (found.macs["dense"], found.tokens) == (dense, 1)
    assert found.macs["executed"] == pytest.approx(executed, rel=1e-6)


def test_gradient_checkpointing_counts_pairs_once() -> None:
    model = gated(tiny_llama()).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with dg.usage(model) as used:
        model(input_ids=tokens(2, 6), labels=tokens(2, 6)).loss.backward()
    assert pairs(used) == {2 * 21}


def odd_model(name: str) -> PreTrainedModel:
    """Models whose attention is not what it is elsewhere."""
    torch.manual_seed(0)
    common = {"vocab_size": VOCAB, "pad_token_id": PAD}
    match name:
        case "mpt":  # says which keys are hidden, not which are seen
            return MptForCausalLM(MptConfig(d_model=32, n_heads=4, n_layers=1, max_seq_len=64, **common)).eval()
        case "xlnet":
            return XLNetLMHeadModel(XLNetConfig(d_model=32, n_layer=1, n_head=4, d_inner=48, **common)).eval()
        case _:
            return MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=1, state_size=4, **common)).eval()


def test_a_mask_may_say_which_keys_are_hidden() -> None:
    model = odd_model("mpt")
    expected = 7 * (4 * 32**2 + 2 * 32 * 128 + 32 * VOCAB) + 2 * 32 * 28
    assert dg.count_macs(model, {"input_ids": tokens(2, 7)}).dense == expected
    assert dg.count_macs(model, padded(tokens(2, 7), 4)).dense == expected


@pytest.mark.parametrize("name", ["mpt", "xlnet", "mamba"])
def test_what_one_length_does_not_show_is_counted_for_each(name: str) -> None:
    model, batches = odd_model(name), [{"input_ids": tokens(2, length)} for length in (9, 4)]
    alone = [dg.count_macs(model, batch).dense for batch in batches]
    found = hf.measure(model, batches)
    assert found.macs["dense"] * found.tokens == pytest.approx(2 * sum(alone), rel=1e-12)
