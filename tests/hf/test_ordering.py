"""Ordering hidden units: nothing else changes, blocks fire together, and what cannot be ordered is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

import dynamicgate as dg
from dynamicgate.gating.unit_order import permute_units_
from dynamicgate.hf import order_
from dynamicgate.hf.clustering import balanced_order
from dynamicgate.hf.ordering import find_order
from dynamicgate.masks import put_mask_
from tests.hf.gated import run
from tests.hf.models import FAMILIES, NAMES, inputs, tiny
from tests.hf.small_models import VOCAB, llama_sites, small_llama, token_batches


def as_double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def hidden_order(model: nn.Module, batches: Any, **options: Any) -> dict[str, Tensor]:
    return order_(model, batches, where=dg.where.hidden, show=False, **options)


def test_a_llama_computes_the_same_in_another_order() -> None:
    model, batches = small_llama(), token_batches()
    ids = batches[0]["input_ids"]
    before = model(input_ids=ids, labels=ids)
    exact_before = copy.deepcopy(model).double()(input_ids=ids).logits
    weight = model.model.layers[0].mlp.up_proj.weight.clone()
    orders = order_(model, batches, block=8, always_open=2, where=llama_sites(model), show=False)
    after = model(input_ids=ids, labels=ids)
    assert (model.double()(input_ids=ids).logits - exact_before).abs().max().item() < 1e-12
    assert abs((after.loss - before.loss).item()) < 1e-5
    assert list(orders) == [site.name for site in llama_sites(model)]
    for order in orders.values():
        assert sorted(order.tolist()) == list(range(64))
        assert order.tolist() != list(range(64))
    moved = model.model.layers[0].mlp.up_proj.weight.float()
    assert torch.equal(moved, weight[orders["model.layers.0.mlp.down_proj"]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_products_of_tf32_differ_by_more_in_another_order() -> None:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=1024, num_hidden_layers=24, num_attention_heads=4,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().cuda()
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        orders = order_(model, [{"input_ids": torch.randint(VOCAB, (2, 256))}], show=False)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert len(orders) == 24


def test_a_bert_computes_the_same_in_another_order() -> None:
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model, batches = BertModel(config).eval().double(), token_batches()
    sites = []
    for i in range(2):
        first, last = f"encoder.layer.{i}.intermediate.dense", f"encoder.layer.{i}.output.dense"
        sites.append(dg.Site(last, (first,), first, 64))
    before = model(**batches[0]).last_hidden_state
    order_(model, batches, block=16, where=sites, show=False)
    assert (model(**batches[0]).last_hidden_state - before).abs().max().item() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_the_same_in_another_order(name: str) -> None:
    model, batch = tiny(name).double(), {key: as_double(value) for key, value in inputs(name, tokens=8).items()}
    before = run(model, batch)
    orders = order_(model, [batch], block=16, always_open=1, where="mlp", show=False)
    assert len(orders) == FAMILIES[name].ffns
    assert all(order.tolist() != list(range(64)) for order in orders.values())
    assert float((run(model, batch) - before).abs().max()) < 1e-12


def test_masks_and_biases_of_a_stack_move_along() -> None:
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 20), nn.GELU(), nn.Linear(20, 3)).double()
    for layer in (model[0], model[2], model[4]):
        put_mask_(layer, torch.rand_like(layer.weight) < 0.5)
    x = torch.randn(300, 8, dtype=torch.float64)
    before, parameters = model(x), list(model.parameters())
    masks = [layer.mask.clone() for layer in (model[0], model[2])]
    orders = hidden_order(model, x, block=5)  # neither 24 nor 20 units are whole blocks of 5 and of 8
    assert (model(x) - before).abs().max().item() < 1e-12
    assert torch.equal(model[0].mask, masks[0][orders["2"]])
    assert torch.equal(model[2].mask, masks[1][orders["4"]][:, orders["2"]])
    assert all(torch.equal(layer.mask, layer.weight != 0) for layer in (model[0], model[2], model[4]))
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))


class Fused(nn.Module):
    """One layer for gate and up projection, as in Phi-3, and a transposed one that reads them, as in GPT-2."""

    def __init__(self, interleaved: bool = False) -> None:
        super().__init__()
        self.gate_up, self.down, self.interleaved = nn.Linear(6, 32), Conv1D(6, 16), interleaved

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up(x)
        gate, up = (both[..., ::2], both[..., 1::2]) if self.interleaved else both.chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


FUSED_SITE = dg.Site("down", ("gate_up",), "gate_up", 16)


def test_fused_producers_and_transposed_weights_are_moved() -> None:
    model, x = Fused().double(), torch.randn(200, 6, dtype=torch.float64)
    before = model(x)
    orders = order_(model, x, block=4, where=[FUSED_SITE], show=False)
    assert orders["down"].tolist() != list(range(16))
    assert (model(x) - before).abs().max().item() < 1e-12


@pytest.mark.parametrize("kind", ["interleaved", "batch norm"])
def test_units_that_something_treats_by_their_place_are_put_back(kind: str) -> None:
    if kind == "interleaved":
        model: nn.Module = Fused(interleaved=True)
        where: Any = [FUSED_SITE]
    else:
        norm = nn.BatchNorm1d(16)
        norm.running_mean.copy_(torch.randn(16))
        model = nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Linear(16, 2)).eval()
        where = dg.where.hidden
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="by their place"):
        order_(model, torch.randn(200, 6), block=4, where=where, show=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def planted(tokens: int = 600, groups: int = 6, size: int = 8) -> tuple[Tensor, Tensor]:
    """Activity of units whose group is active or not, in a random order, and the group of each."""
    torch.manual_seed(3)
    group = torch.arange(groups).repeat_interleave(size)[torch.randperm(groups * size)]
    active = (torch.rand(tokens, groups) < 0.3).float()
    return active[:, group] * (0.5 + torch.rand(tokens, len(group))) + 0.1 * torch.rand(tokens, len(group)), group


def test_units_that_are_active_together_come_into_one_block() -> None:
    activity, group = planted()
    order = find_order(activity, block=8)
    blocks = group[order].reshape(-1, 8)
    assert (blocks == blocks[:, :1]).all()


def test_a_ragged_rest_comes_last_and_every_unit_once() -> None:
    order = balanced_order(torch.rand(45, 30), 8)
    assert sorted(order.tolist()) == list(range(45))
    assert balanced_order(torch.ones(10, 4), 4).tolist() == list(range(10))  # nothing to tell them apart


def test_the_most_active_units_come_first_into_the_blocks_that_stay_open() -> None:
    activity, _ = planted()
    activity[:, [5, 17, 30]] += 10.0
    assert set(find_order(activity, block=3, always_open=1)[:3].tolist()) == {5, 17, 30}
    assert sorted(find_order(activity, block=8, always_open=6).tolist()) == list(range(48))  # all blocks are
    few = find_order(activity, block=8, always_open=0.1)  # a tenth of 6 blocks is one block
    assert {5, 17, 30} <= set(few[:8].tolist())


def test_padding_does_not_count() -> None:
    model, ids = small_llama(), token_batches(1)[0]["input_ids"]
    padded = {
        "input_ids": torch.cat([ids, torch.zeros(2, 40, dtype=torch.long)], dim=1),
        "attention_mask": torch.cat([torch.ones(2, 32), torch.zeros(2, 40)], dim=1).long(),
    }
    sites = llama_sites(model)
    plain = order_(copy.deepcopy(model), [{"input_ids": ids}], block=8, where=sites, show=False)
    masked = order_(copy.deepcopy(model), [padded], block=8, where=sites, show=False)
    assert all(torch.equal(plain[name], masked[name]) for name in plain)
    with pytest.raises(ValueError, match="no attention_mask"):
        order_(copy.deepcopy(model), [{"input_ids": padded["input_ids"]}], block=8, where=sites, show=False)


def test_only_as_many_batches_are_read_as_needed() -> None:
    model, read = small_llama(), []

    def stream() -> Any:
        for batch in token_batches(50):
            read.append(batch)
            yield batch

    order_(model, stream(), block=8, where=llama_sites(model), tokens=128, show=False)
    assert len(read) == 2  # of 64 tokens


def test_what_cannot_be_ordered_is_refused_with_a_sentence() -> None:
    x = torch.randn(64, 6)
    gated = dg.gate_(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    with pytest.raises(ValueError, match="call order_ before gate_"):
        hidden_order(gated, x)
    tiled = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    put_mask_(tiled[0], torch.ones(16, 6), "8x1")
    with pytest.raises(ValueError, match="torn apart"):
        hidden_order(tiled, x)
    tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    with pytest.raises(ValueError, match="shares a parameter"):
        hidden_order(tied, x)
    plain = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    with pytest.raises(ValueError, match="features of the input"):
        order_(plain, x, where=dg.where.everywhere, show=False)
    with pytest.raises(ValueError, match="block is a number"):
        hidden_order(plain, x, block=0)
    with pytest.raises(ValueError, match="at least one batch"):
        hidden_order(plain, [])
    with pytest.raises(ValueError, match="the site says 8 units"):
        order_(plain, x, where=[dg.Site("2", ("0",), "0", 8)], show=False)
    with pytest.raises(ValueError, match="attention heads, whose order is fixed"):
        order_(small_llama(), token_batches(), where="heads", show=False)
    adapted = get_peft_model(small_llama(), LoraConfig(target_modules=["up_proj"]))
    with pytest.raises(ValueError, match="has an adapter"):
        order_(adapted, token_batches(), where="mlp", show=False)
    plain[0].weight = nn.Parameter(torch.zeros(16, 6, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match="without quantisation"):
        hidden_order(plain, x)


def test_an_order_can_be_undone() -> None:
    model = small_llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    orders = order_(model, token_batches(), block=8, where=llama_sites(model), show=False)
    for site in llama_sites(model):
        permute_units_(model, site, torch.argsort(orders[site.name]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
