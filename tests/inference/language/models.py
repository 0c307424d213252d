"""Small language models for the tests, compiled and compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.lab.language.gpt import GPT, GPTConfig, ffn_sites


def gpt(
    *, seed: int = 0, bias: float | None = 0.0, block: int = 16, gates: bool = True, net: str = "linear", **sizes: Any
) -> GPT:
    """A GPT whose gates open about half of their blocks; `bias` moves their logits."""
    torch.manual_seed(seed)
    config = {"vocabulary": 50, "features": 32, "layers": 2, "heads": 4, "width": 80, "context": 128}
    model = GPT(GPTConfig(**{**config, **sizes})).eval()
    for parameter in model.parameters():  # larger than at the start of training, so that layers matter
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    if gates:
        dg.gate_(model, dg.GateConfig(block=block, net=net), where=ffn_sites(model))
        for gate in dg.named_gates(model).values():
            for name, parameter in gate.net.named_parameters():
                if bias is not None and name.endswith("bias"):
                    nn.init.constant_(parameter, bias)
    return model


def quickly(model: nn.Module, example: Any, **options: Any) -> CompiledModel:
    """Compiled with next to no timing."""
    return dg.compile(model, example, seconds=0.01, **options)


def close(got: Tensor, want: Tensor) -> bool:
    """Whether both agree but for the rounding of float32."""
    return float((got.double() - want.double()).abs().max()) <= 2e-5 * float(want.abs().max())
