"""Small models for the tests of conversion, and a trained one."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import dynamicgate as dg

VOCAB = 64


def small_llama(layers: int = 2) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, mlp_bias=True, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
    return model


def llama_sites(model: LlamaForCausalLM) -> list[dg.Site]:
    found = []
    for i, layer in enumerate(model.model.layers):
        mlp = f"model.layers.{i}.mlp"
        producers = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
        found.append(dg.Site(f"{mlp}.down_proj", producers, producers[0], layer.mlp.down_proj.in_features))
    return found


def token_batches(count: int = 4, seed: int = 1) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(1, VOCAB, (2, 32), generator=generator)} for _ in range(count)]


def regimes(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features and a one-hot regime; the target is a nonlinear function that each regime has for itself."""
    first, second = (torch.randn(4, 12, 12, generator=torch.Generator().manual_seed(s)) / 12**0.5 for s in (0, 1))
    generator = torch.Generator().manual_seed(seed)
    x, regime = torch.randn(rows, 12, generator=generator), torch.randint(4, (rows,), generator=generator)
    y = torch.einsum("bji,bj->bi", second[regime], torch.tanh(2.0 * torch.einsum("bji,bj->bi", first[regime], x)))
    return torch.cat([x, 2.0 * F.one_hot(regime, 4)], dim=1), y


@functools.cache
def _trained_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = _network()
    x, y = regimes(4096, seed=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(600):
        rows = torch.randint(len(x), (128,))
        loss = F.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 12))


def trained_network() -> nn.Sequential:
    """A two-layer network trained on `regimes`, a fresh copy."""
    model = _network()
    model.load_state_dict(_trained_state())
    return model.eval()
