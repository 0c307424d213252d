"""The sizes that cases choose from. Triton compiles for each of them, which takes seconds, so there are few, and they
do not depend on the seed; tokens, values, patterns and gates do."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {BF16: 1e-2, F16: 1e-3, F32: 1e-5}  # of the norm, as in tests/ops/ffn/test_*_gpu.py
CLOSE = {BF16: 2e-2, F16: 5e-3, F32: 1e-4}  # of the norm, as in tests/nn/test_ffn_gpu.py; gradients 3 times that
WHOLE = {BF16: 5e-2, F16: 1e-2, F32: 1e-4}  # of the norm of a row, as in tests/inference/gpu/test_on_gpu.py
ODD = (torch.nan, torch.inf, -torch.inf)


class Layer(NamedTuple):
    """What Triton compiles for."""

    features: int
    units: int
    outputs: int
    block: int
    dtype: torch.dtype
    activation: str = "relu"
    value: bool = False
    bias: bool = True
    tokens: tuple[int, int] = (1, 300)
    """From, to."""

    @property
    def options(self) -> dict[str, Any]:
        """Of a random layer, as tests/ops/ffn takes them."""
        return {"value": self.value, "bias": self.bias, "dtype": self.dtype}


GROUPED = (
    Layer(64, 256, 64, 64, F32),
    Layer(40, 200, 33, 32, F32, "gelu"),
    Layer(17, 77, 19, 16, F32, "silu", value=True),
    Layer(20, 34, 30, 3, F32, "relu2", bias=False),
    Layer(128, 512, 96, 128, BF16),
    Layer(130, 777, 100, 96, BF16, "silu", value=True),
    Layer(50, 96, 50, 8, BF16, "quick_gelu"),
    Layer(64, 64, 64, 64, BF16, "identity", bias=False),
    Layer(64, 256, 64, 64, F16, "silu", value=True),
    Layer(33, 130, 17, 40, F16, "relu"),
    Layer(72, 384, 40, 128, F16, "gelu_tanh", bias=False),
    Layer(256, 1024, 128, 256, BF16, "gelu", tokens=(1024, 1500)),  # by atomics
    Layer(64, 512, 64, 64, BF16, "silu", value=True, tokens=(8192, 9000)),  # tiles that share a pattern
)
DECODED = (
    Layer(64, 256, 64, 32, F32, tokens=(1, 1)),
    Layer(64, 256, 64, 32, F32, "gelu", tokens=(5, 8)),
    Layer(33, 77, 19, 16, F32, "silu", value=True, tokens=(2, 2)),
    Layer(130, 333, 70, 96, BF16, "silu", value=True, tokens=(1, 1)),
    Layer(130, 333, 70, 96, BF16, "silu", value=True, tokens=(9, 15)),
    Layer(96, 130, 50, 1, BF16, bias=False, tokens=(3, 4)),
    Layer(96, 130, 50, 1, BF16, bias=False, tokens=(1, 1)),
    Layer(128, 512, 128, 128, F16, "relu2", tokens=(16, 16)),
    Layer(40, 200, 33, 20, F16, "quick_gelu", tokens=(1, 1)),
)
GIVEN = (
    Layer(64, 256, 64, 32, F32, tokens=(1, 1)),
    Layer(33, 77, 19, 16, F32, "gelu", tokens=(2, 15)),
    Layer(130, 333, 70, 96, BF16, "silu", value=True, tokens=(17, 31)),
    Layer(96, 130, 50, 8, BF16, "gelu_tanh", tokens=(33, 63)),
    Layer(128, 512, 128, 128, F16, tokens=(64, 64)),
    Layer(40, 200, 33, 3, F16, "quick_gelu", bias=False, tokens=(1, 1)),
)
FUSED = (
    Layer(0, 256, 0, 64, F32, "gelu", value=True),
    Layer(0, 77, 0, 16, F16, "silu"),
    Layer(0, 4100, 0, 200, BF16, "relu2", value=True),
    Layer(0, 33, 0, 1, BF16, "relu"),
)
MODULES = tuple(GROUPED[i] for i in (0, 1, 4, 5, 8))  # blocks of 32 units or more, which `FFN` takes the kernels for
PLANNED = (
    Layer(20, 96, 24, 32, F32, "relu", tokens=(1, 1)),
    Layer(20, 96, 24, 32, F32, "gelu", tokens=(5, 8)),
    Layer(64, 256, 64, 64, BF16, "silu", value=True, tokens=(17, 31)),
    Layer(48, 130, 48, 40, F16, "gelu", bias=False, tokens=(33, 63)),
    Layer(32, 96, 32, 1, BF16, "relu", tokens=(2, 2)),
    Layer(64, 256, 64, 64, BF16, "silu", value=True, tokens=(64, 64)),
)
MENU = {
    "grouped": GROUPED,
    "decode": DECODED,
    "given": GIVEN,
    "fused": FUSED,
    "module": MODULES,
    "plan": PLANNED,
    "torch.compile": PLANNED[1:3],
}
WEIGHTS = {"grouped": 40, "decode": 20, "given": 12, "fused": 6, "module": 8, "plan": 14}
COMPILED_EVERY = 500  # cases: torch.compile takes many seconds
SMALL = {
    "grouped": (
        Layer(16, 40, 12, 8, F32, "silu", value=True, tokens=(1, 20)),
        Layer(20, 32, 19, 16, F16, tokens=(1, 20)),
    ),
    "decode": (
        Layer(24, 40, 19, 16, F32, "gelu", tokens=(1, 5)),
        Layer(24, 20, 16, 3, F16, value=True, tokens=(1, 3)),
    ),
    "given": (Layer(24, 40, 19, 16, F32, "silu", value=True, tokens=(1, 20)),),
    "fused": (
        Layer(0, 40, 0, 16, F32, "gelu", value=True, tokens=(1, 5)),
        Layer(0, 20, 0, 1, F16, tokens=(1, 5)),
    ),
    "plan": (
        Layer(20, 70, 24, 32, F32, "relu", tokens=(1, 5)),
        Layer(20, 64, 24, 32, F16, "silu", value=True, tokens=(1, 3)),
    ),
}
"""Instead of all that, where Triton interprets its kernels on the CPU."""


class Case(NamedTuple):
    """Which layer the case of a seed tests."""

    kind: str
    number: int
    """Of the layer in the menu."""
    layer: Layer


def draw(seed: int, device: str, kinds: tuple[str, ...] = ()) -> Case:
    """The case of a seed. kinds: of which it is one; all of them by default."""
    rng = random.Random(f"case {seed}")
    menu = MENU if device == "cuda" else SMALL
    if device == "cuda" and seed % COMPILED_EVERY == COMPILED_EVERY // 2 and not kinds:
        kind = "torch.compile"
    else:
        possible = [kind for kind in WEIGHTS if kind in menu and (not kinds or kind in kinds)]
        (kind,) = rng.choices(possible, [WEIGHTS[kind] for kind in possible])
    number = rng.randrange(len(menu[kind]))
    return Case(kind, number, menu[kind][number])
