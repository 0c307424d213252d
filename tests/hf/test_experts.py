"""Mixtures of experts cost the same however they are computed: routed tokens x the size of an expert."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel, Qwen2MoeConfig, Qwen2MoeForCausalLM

import dynamicgate as dg
from dynamicgate.accounting.grouped_matmul import grouped_formulas
from tests.hf.tiny import VOCAB, tokens

HIDDEN, EXPERTS, ROUTED, LAYERS = 32, 5, 2, 2
SIZES = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "num_experts_per_tok": ROUTED, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def mixtral() -> tuple[PreTrainedModel, int]:
    """A model, and by hand the MACs of a token in the feed-forward part of a layer."""
    model = MixtralForCausalLM(MixtralConfig(**SIZES, intermediate_size=24, num_local_experts=EXPERTS))
    return model, HIDDEN * EXPERTS + ROUTED * 3 * HIDDEN * 24


def qwen() -> tuple[PreTrainedModel, int]:
    """The same with an expert for every token, and a gate of Qwen's own on it."""
    sizes = {"num_experts": EXPERTS, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZES, **sizes))
    return model, HIDDEN * EXPERTS + ROUTED * 3 * HIDDEN * 20 + 3 * HIDDEN * 28 + HIDDEN


@pytest.mark.parametrize("build", [mixtral, qwen])
@pytest.mark.parametrize("experts", [None, "eager", "grouped_mm", "batched_mm"])
def test_experts_are_counted_however_they_are_computed(build, experts: str | None) -> None:
    torch.manual_seed(0)
    (model, ffn), length = build(), 7
    if experts is not None:
        model.set_experts_implementation(experts)
    attention = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 2
    pairs = length * (length + 1) // 2
    expected = length * (LAYERS * (attention + ffn) + HIDDEN * VOCAB) + LAYERS * pairs * 2 * HIDDEN
    assert dg.count_macs(model.eval(), {"input_ids": tokens(3, length)}).dense == expected


@pytest.mark.parametrize(
    ("left", "right", "ends", "macs"),
    [
        ((8, 16), (3, 16, 24), 8, 8 * 16 * 24),  # groups of rows
        ((3, 8, 16), (16, 24), 24, 8 * 16 * 24),  # groups of columns
        ((8, 48), (48, 16), 48, 8 * 48 * 16),  # groups of what is summed over
        ((3, 8, 16), (3, 16, 24), None, 3 * 8 * 16 * 24),
    ],
)
def test_grouped_products_are_counted_by_hand(left, right, ends, macs: int) -> None:
    groups = None if ends is None else torch.tensor([ends // 4, ends // 2, ends], dtype=torch.int32)
    with FlopCounterMode(display=False, custom_mapping=grouped_formulas()) as flops:
        torch._grouped_mm(torch.randn(left).bfloat16(), torch.randn(right).bfloat16(), offs=groups)
    assert flops.get_total_flops() == 2 * macs


class OpaqueExperts(nn.Module):
    """Experts whose kernel no counter knows."""

    def __init__(self) -> None:
        super().__init__()
        self.down_proj = nn.Parameter(torch.ones(3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.down_proj.mean()


def test_experts_that_cannot_be_counted_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), OpaqueExperts())
    with pytest.raises(ValueError, match=r"experts at '1' .*set_experts_implementation"):
        dg.count_macs(model, torch.randn(2, 4))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
