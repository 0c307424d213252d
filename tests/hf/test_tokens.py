"""Padding never counts, and a forward pass that runs again for its gradients is recorded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import dynamicgate as dg
from dynamicgate.gating.recomputation import PastDecisions
from tests.hf.tiny import FAMILIES, PAD, VOCAB, gated, padded, tiny_llama, tokens

Recorded = dict[str, Tensor]


def recorded(model: PreTrainedModel, **inputs: object) -> Recorded:
    with torch.no_grad(), dg.usage(model) as used:
        model(**inputs)
    return {site: decision.open.flatten(0, -2) for site, decision in used.items()}


def same(a: Recorded, b: Recorded) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[site], b[site]) for site in a)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("left", [False, True])
def test_padding_changes_no_decision_that_is_recorded(family: str, left: bool) -> None:
    model, ids = gated(FAMILIES[family]()).eval(), tokens(3, 6)
    alone = recorded(model, input_ids=ids, attention_mask=torch.ones_like(ids))
    positions = None
    if left:  # the tokens keep their positions
        positions = (torch.arange(11) - 5).clamp(min=0).expand(3, -1)
    with_pads = recorded(model, **padded(ids, 5, left=left), position_ids=positions)
    assert same(alone, with_pads)
    assert all(len(rows) == 18 for rows in with_pads.values())
    assert 0.0 < float(next(iter(alone.values())).mean()) < 1.0


def test_a_mask_that_is_passed_by_position_is_seen() -> None:
    model, ids = gated(tiny_llama()).eval(), tokens(3, 6)
    batch = padded(ids, 5)
    with torch.no_grad(), dg.usage(model) as used:
        model.model(batch["input_ids"], batch["attention_mask"])
    assert all(decision.open.shape[0] == 18 for decision in used.values())


def test_rows_of_different_lengths_and_several_passes_are_joined() -> None:
    model = gated(tiny_llama()).eval()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with torch.no_grad(), dg.usage(model) as used:
        model(input_ids=tokens(2, 4), attention_mask=mask)
        model(input_ids=tokens(2, 5))
    assert all(len(decision.open) == 6 + 10 for decision in used.values())


def test_with_a_cache_the_mask_of_the_new_positions_counts() -> None:
    model, batch = gated(tiny_llama()).eval(), padded(tokens(2, 5), 3, left=True)
    with torch.no_grad():
        past = model(**batch, use_cache=True).past_key_values
        new, mask = tokens(2, 2, seed=1), torch.cat([batch["attention_mask"], torch.ones(2, 2, dtype=torch.long)], 1)
        mask[0, -1] = 0
        with dg.usage(model) as used:
            model(input_ids=new, attention_mask=mask, past_key_values=past)
    assert all(len(decision.open) == 3 for decision in used.values())


def test_generation_records_the_tokens_of_the_prompt_and_the_new_ones() -> None:
    model, batch = gated(tiny_llama()).eval(), padded(tokens(2, 5), 3, left=True)
    for beams in (1, 2):
        with dg.usage(model) as used:
            model.generate(**batch, max_new_tokens=4, min_new_tokens=4, num_beams=beams, do_sample=False)
        assert all(len(decision.open) == beams * 2 * (5 + 3) for decision in used.values())


def test_encoder_and_decoder_have_masks_of_their_own() -> None:
    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=VOCAB, pad_token_id=PAD,
        decoder_start_token_id=PAD,
    )  # fmt: skip
    model = dg.gate_(T5ForConditionalGeneration(config), dg.GateConfig(block=8)).eval()
    read, written = padded(tokens(2, 6), 3), padded(tokens(2, 4, seed=1), 2)
    decoder = {f"decoder_{name}": value for name, value in written.items()}
    found = recorded(model, **read, **decoder)
    assert {site.split(".")[0]: len(rows) for site, rows in found.items()} == {"encoder": 12, "decoder": 8}
    trained = recorded(model, **read, labels=tokens(2, 4))  # whose first token is that of padding
    assert {site.split(".")[0]: len(rows) for site, rows in trained.items()} == {"encoder": 12, "decoder": 8}


def test_a_padded_batch_without_a_mask_is_refused() -> None:
    model = gated(tiny_llama())
    ids = padded(tokens(2, 4), 2)["input_ids"]
    with pytest.raises(ValueError, match=r"has padding .* no attention_mask"):
        recorded(model, input_ids=ids)
    model(input_ids=ids)  # nothing is counted, so that nothing is wrong


def test_a_config_may_name_several_tokens_that_end_a_text() -> None:
    for end, batch, rows in [([2, 5], tokens(2, 4), 8), ([2, PAD], padded(tokens(2, 4), 2)["input_ids"], 12)]:
        model = tiny_llama()
        model.config.eos_token_id = end  # with that of padding among them, no batch can be said to be padded
        assert all(len(found) == rows for found in recorded(gated(model), input_ids=batch).values())


def test_packed_batches_count_everything() -> None:
    model = gated(tiny_llama()).eval()
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    found = recorded(model, input_ids=tokens(1, 8), position_ids=positions)
    assert all(len(rows) == 8 for rows in found.values())


def test_a_budget_sees_tokens_only() -> None:
    model, ids = gated(tiny_llama()), tokens(3, 6)
    counter = dg.count_macs(model, {"input_ids": ids})
    seen = []
    for batch in ({"input_ids": ids}, padded(ids, 5)):
        budget = dg.Budget(target=0.9, counter=counter)
        budget.apply_(model, 0.0)
        with dg.usage(model) as used:
            model(**batch)
        budget.step(used, 0.0)
        seen.append(budget.relative)
    assert seen[0] == pytest.approx(seen[1], abs=1e-6)


def checkpointed(model: PreTrainedModel) -> PreTrainedModel:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def gradients(model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Recorded]:
    model.zero_grad()
    with dg.usage(model) as used:
        loss = model(**batch, labels=batch["input_ids"]).loss
        (loss + sum(used.mean_p().values())).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found, {site: decision.open for site, decision in used.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "config",
    [
        {"train": "hard"}, {"train": "bernoulli"}, {"train": "gumbel"}, {"train": "concrete"}, {"soft_width": 1.0},
        {"scale": True}, {"kind": "router", "open": 0.8, "top_k": 2, "capacity": 1.0, "drop_policy": "random"},
    ],
    ids=str,
)  # fmt: skip
def test_gradient_checkpointing_records_once_and_changes_no_gradient(family: str, config: dict[str, Any]) -> None:
    batch = {"input_ids": tokens(2, 6)}
    plain, again = (gated(FAMILIES[family](), **config).train() for _ in range(2))
    torch.manual_seed(3)
    expected, seen = gradients(plain, batch)
    torch.manual_seed(3)
    found, recorded_once = gradients(checkpointed(again), batch)
    assert same(seen, recorded_once)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_a_recomputation_decides_as_the_forward_pass_did() -> None:
    """A logit at the threshold comes out on the other side, as other kernels might do it."""
    batch = {"input_ids": tokens(2, 6)}
    expected, _ = gradients(gated(tiny_llama()).train(), batch)
    model = checkpointed(gated(tiny_llama()))
    gates = list(dg.named_gates(model).values())
    with dg.usage(model) as used:
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss = loss + sum(used.mean_p().values())
    for gate in gates:
        gate.theta.fill_(0.999)  # now every block is closed
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected.get(name), msg=name)


def test_micro_batches_that_go_back_together_keep_their_own_decisions() -> None:
    batches = [{"input_ids": tokens(2, 6, seed=seed)} for seed in (1, 2)]
    results = []
    for model in (gated(tiny_llama()).train(), checkpointed(gated(tiny_llama()))):
        losses = [model(**batch, labels=batch["input_ids"]).loss for batch in batches]
        sum(losses).backward()  # type: ignore[union-attr]
        results.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in results[1].items():
        torch.testing.assert_close(gradient, results[0][name], msg=name)


def test_recording_survives_a_compiled_forward_pass() -> None:
    model, batch = gated(tiny_llama(layers=1)).eval(), padded(tokens(3, 6), 5)
    expected = recorded(model, **batch)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad(), dg.usage(model) as used:
        compiled(**batch)
    assert same(expected, {site: decision.open for site, decision in used.items()})


def test_a_budget_refuses_decisions_without_gradients() -> None:
    model, batch = gated(tiny_llama()), {"input_ids": tokens(2, 6)}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    model.train()
    budget = dg.Budget(target=0.9)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(**batch)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        budget.step(used, 0.0)


def test_decisions_are_kept_no_longer_than_their_graph() -> None:
    past, x = PastDecisions(), torch.ones(3, requires_grad=True)
    first, second = torch.zeros(3), torch.ones(3)
    y = x * first
    past.keep(first, y)
    past.keep(second, x * second)  # whose graph is gone at once
    del first, second
    assert [held() is not None for held in past._alive] == [True, False]
    del y
    assert all(held() is None for held in past._alive)
