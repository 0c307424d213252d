"""Models and inputs that the tests of compiled models share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference.cpu.candidates import DENSE, OWN_DENSE, Candidates, LayerLayout, packed
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import find_chains
from dynamicgate.inference.cpu.lower import Lowered, lower_chain
from dynamicgate.inference.graph import trace


def compile_quickly(model: nn.Module, x: Any, **options: Any) -> dg.inference.CompiledModel:
    """`compile` for tests that do not care which candidate is fastest."""
    return dg.compile(model, x, **{"seconds": 0.01, "batches": (1, 16), **options})


def lower_only_chain(model: nn.Module, x: Tensor) -> Lowered:
    """The one chain of `model`, lowered."""
    gates = dg.named_gates(model)
    (chain,), _ = find_chains(model, trace(model), gates, x)
    return lower_chain(chain, gates)


def with_three_implementations(model: nn.Module, x: Tensor) -> dg.inference.CompiledModel:
    """A compiled model that uses another implementation for each of three batch sizes, whatever is fastest here."""
    compiled = compile_quickly(model, x)
    candidates = Candidates(lower_only_chain(model, x))
    panels = packed([LayerLayout("panels")] * len(candidates.lowered.stages))
    implementations = [candidates.build(candidate) for candidate in (DENSE, OWN_DENSE, panels)]
    chain = Chain(implementations, [2, 1, 0], [1, 16, 256], 20)
    return dg.inference.CompiledModel(chain, compiled.plan, compiled.nodes)


def gated_mlp(config: dg.GateConfig, sizes: tuple[int, ...] = (20, 48, 33, 5), **options: Any) -> dg.nn.GatedMLP:
    """An MLP whose gates are open for some inputs and closed for others."""
    model = dg.nn.GatedMLP(sizes, config, **options)
    spread_logits_(model)
    return model.eval()


def spread_logits_(model: nn.Module) -> None:
    """Spread the gate logits around their threshold, with biases away from zero."""
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            for name, parameter in gate.net.named_parameters():
                parameter.copy_(torch.randn_like(parameter) * (0.7 if name.endswith("bias") else 0.4))


def rows_near_threshold(model: nn.Module, x: Tensor) -> Tensor:
    """Rows that have a logit at its threshold, or ranked so closely that rounding may decide."""
    near = torch.zeros(len(x), dtype=torch.bool)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        for name, gate in dg.named_gates(model).items():
            z = used[name].logits.reshape(len(x), -1, gate.blocks)
            gaps = z.sort(-1).values.diff(dim=-1)
            near |= ((z - gate.logit_threshold).abs() < 1e-4).any(-1).any(-1) | (gaps < 1e-5).any(-1).any(-1)
    return near


def assert_same_outputs(
    compiled: dg.inference.CompiledModel, model: nn.Module, x: Tensor, near: Tensor | None = None
) -> None:
    """The compiled model's outputs are the model's, up to float32; rows that are `near` a threshold are left out."""
    with torch.no_grad():
        y, want = compiled(x), model.eval()(x)
    assert y.shape == want.shape
    compared = slice(None) if near is None else ~near
    torch.testing.assert_close(y[compared], want[compared], rtol=1e-4, atol=1e-4)


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
    """Attention and a gated MLP, each after a layer norm and inside a residual connection."""

    def __init__(self, features: int = 16) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(features, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
        self.mlp = nn.Sequential(nn.Linear(features, 64), nn.GELU(), nn.Linear(64, features))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        x = x + self.attention(h, h, h)[0]
        return x + self.mlp(self.second(x))
