"""Batches of different lengths: counted each with its own, whatever comes first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg

D, N, CLASSES = 16, 32, 3


class Block(nn.Module):
    """A hand-written transformer layer with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down, self.head = nn.Linear(D, N), nn.Linear(N, D), nn.Linear(D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).split(D, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v)[:, 0])
        x = x + self.down(F.relu(self.up(x)))
        return self.head(x.mean(1))


def dense_macs(length: int) -> int:
    linear = length * (3 * D * D + D * D + 2 * D * N)
    return linear + 2 * length * length * D + D * CLASSES


@pytest.mark.parametrize("lengths", [(12, 24), (24, 12), (12, 24, 12, 5)])
def test_the_mean_is_exact_in_any_order(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = dg.gate_(Block(), dg.GateConfig(block=8, kind="static"), where=[dg.Site("down", ("up",), "up", N)])
    with torch.no_grad():
        dg.named_gates(model)["down"].bias[:2] = -9.0  # half of the units
    batches = [torch.randn(4, length, D) for length in lengths]
    found = dg.measure(model, batches)
    want = sum(map(dense_macs, lengths)) / len(lengths)
    saved = sum(length * D * N for length in lengths) / len(lengths)
    assert found.macs["dense"] == want
    assert found.macs["executed"] == want - saved
    assert found.relative == pytest.approx((want - saved) / want, rel=1e-12)
    assert found.notes == []
