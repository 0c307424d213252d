"""Models and inputs that the tests of plans share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg


def quick(model: nn.Module, x: Tensor, **options: Any) -> dg.inference.CompiledModel:
    """`compile` that does not care which way is fastest."""
    return dg.compile(model, x, **{"seconds": 0.01, "batches": (1, 16), **options})


def gated(config: dg.GateConfig, sizes: tuple[int, ...] = (20, 48, 33, 5), **options: Any) -> dg.nn.GatedMLP:
    """An MLP whose gates are open for some inputs and closed for others."""
    model = dg.nn.GatedMLP(sizes, config, **options)
    scatter(model)
    return model.eval()


def scatter(model: nn.Module) -> None:
    """Gate logits around their threshold, biases away from zero."""
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            for name, parameter in gate.net.named_parameters():
                parameter.copy_(torch.randn_like(parameter) * (0.7 if name.endswith("bias") else 0.4))


def undecided(model: nn.Module, x: Tensor) -> Tensor:
    """Rows that have a logit at its threshold, or ranked so closely that rounding may decide."""
    tied = torch.zeros(len(x), dtype=torch.bool)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        for name, gate in dg.named_gates(model).items():
            z = used[name].logits.reshape(len(x), -1, gate.blocks)
            gaps = z.sort(-1).values.diff(dim=-1)
            tied |= ((z - gate.logit_threshold).abs() < 1e-4).any(-1).any(-1) | (gaps < 1e-5).any(-1).any(-1)
    return tied


def assert_same(fast: dg.inference.CompiledModel, model: nn.Module, x: Tensor, tied: Tensor | None = None) -> None:
    """The compiled model's outputs are the hard model's, up to float32."""
    with torch.no_grad():
        y, want = fast(x), model.eval()(x)
    assert y.shape == want.shape
    keep = slice(None) if tied is None else ~tied
    torch.testing.assert_close(y[keep], want[keep], rtol=1e-4, atol=1e-4)


class Residual(nn.Module):
    """x + down(act(up(x))): the ends are shared, the middle is a chain."""

    def __init__(self, features: int = 20, hidden: int = 48, outputs: int = 5) -> None:
        super().__init__()
        self.up, self.down, self.head = (
            nn.Linear(features, hidden),
            nn.Linear(hidden, features),
            nn.Linear(features, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(torch.relu(self.up(x))))


class Branching(nn.Module):
    """A forward pass that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(20, 48), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x).relu()
        return self.down(h) if float(x.sum()) > 1e9 else -self.down(h)


class Block(nn.Module):
    """Attention and a gated MLP, each behind a layer norm and around a residual path."""

    def __init__(self, features: int = 16) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(features, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
        self.mlp = nn.Sequential(nn.Linear(features, 64), nn.GELU(), nn.Linear(64, features))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        x = x + self.attention(h, h, h)[0]
        return x + self.mlp(self.second(x))
