"""A random model with gated feed-forward layers, compiled for the GPU, against the untouched model in float64: every
strategy of every layer on the inputs that reach it, and the model as a whole.

Where Triton interprets its kernels there is nothing to time, and the strategies alone are tested.
"""

from __future__ import annotations

import copy
import random
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.inference.gpu.candidates import COMPILED, STRATEGIES, candidates_for
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import find_ffns
from dynamicgate.inference.gpu.lower import lower_ffn
from dynamicgate.inference.gpu.verify import LIMITS
from dynamicgate.inference.verify import near_threshold
from dynamicgate.ops.ffn import FFNWeights, reference_ffn
from tests.fuzz.gpu.compare import misplaced, poison, spoil_
from tests.fuzz.gpu.menu import WHOLE, Layer
from tests.inference.models import spread_logits_

EXAMPLE = 64  # rows
MEDIAN_OF = 8  # rows: of fewer, one decision that rounding moved in 16 bits would be the median
GATES: tuple[dict[str, Any], ...] = (
    {"net": "linear"},
    {"net": "low-rank", "rank": 3},
    {"net": "two-layer", "rank": 5},
    {"top_k": 2},
    {"always_open": 1, "theta": 0.7},
    {"scale": True, "tau": 0.6},
    {"theta": 0.8, "tau": 0.5},
    {"theta": 0.6, "tau": 0.5, "soft_width": 1.5},
    {"kind": "router", "top_k": 2},
    {"kind": "router", "top_k": 1},
    {"scale": "softmax", "tau": 0.7},
    {"scale": "relu", "tau": 0.7},
    {"kind": "static"},
)


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each after a layer norm and inside a residual connection."""

    def __init__(self, ffn: dg.nn.FFN, features: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.ffn = nn.Linear(features, 3 * features), ffn
        self.back = nn.Linear(ffn.down.out_features, features)

    def forward(self, x: Tensor) -> Tensor:
        """Of sequences, or of rows, which are a sequence too."""
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        x = x + torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v
        return x + self.back(F.relu(self.ffn(self.second(x))))


def check_plan(
    layer: Layer, rng: random.Random, seed: int, device: str, *, by_torch_compile: bool = False
) -> str | None:
    """What is wrong with the plan of a model of this seed, if anything is."""
    torch.manual_seed(seed)
    model, shape, config = _model(layer, rng)
    model = model.to(device, layer.dtype).eval()
    untouched = copy.deepcopy(model).double()
    stance: AbstractContextManager[Any] = (
        nullcontext() if by_torch_compile else torch.compiler.set_stance("force_eager")
    )
    with torch.no_grad(), warnings.catch_warnings(), stance:
        warnings.simplefilter("ignore")  # torch's about itself
        example = torch.randn(_shape(shape, EXAMPLE, layer.features), device=device).to(layer.dtype)
        compiled = None
        if device == "cuda":
            torch.use_deterministic_algorithms(False)  # it fills memory, which a capture does not see
            batches = sorted({layer.tokens[0], layer.tokens[1]})
            compiled = dg.compile(model, example, batches=batches, seconds=0.0)
            names = [chain[0].layers[0].name.rpartition(".")[0] for chain in compiled.plan.chains]
            body: Any = compiled.body
            layers = [_planned(body.body.get_submodule(name)) for name in names]
        else:
            modules, _ = find_ffns(model, dg.named_gates(model))
            found = [ffn for module in modules for ffn in module.ffns]
            names, layers = (
                [ffn.names[0].rpartition(".")[0] for ffn in found],
                [FeedForward(lower_ffn(f)) for f in found],
            )
        try:
            said = _compare(model, untouched, compiled, dict(zip(names, layers, strict=True)), layer, shape, rng)
        finally:
            torch.use_deterministic_algorithms(True)
            if by_torch_compile:
                torch.compiler.reset()
    notes = compiled.plan.notes if compiled is not None else []
    return said and f"{said}; {shape} of {config}, notes {notes}"


def _planned(module: nn.Module) -> FeedForward:
    (found,) = [m for m in module.modules() if isinstance(m, FeedForward)]
    return found


def _model(layer: Layer, rng: random.Random) -> tuple[nn.Module, str, dg.GateConfig]:
    options: dict[str, Any] = {"activation": layer.activation, "value": layer.value, "bias": layer.bias}
    shape = rng.choice(("rows", "rows", "sequences"))

    def ffn() -> dg.nn.FFN:
        return dg.nn.FFN(*layer[:3], **options)

    D, O = layer.features, layer.outputs  # noqa: E741
    if shape == "sequences":
        blocks: list[nn.Module] = [Block(ffn(), D) for _ in range(rng.choice((1, 2)))]
        where = "*.ffn.down"
    else:
        first = rng.choice((nn.Identity(), nn.LayerNorm(D), nn.Linear(D, D)))
        blocks, where = [first, ffn(), nn.ReLU()], "1.down"
    model = nn.Sequential(*blocks, nn.Linear(D if shape == "sequences" else O, 5))
    config = dg.GateConfig(block=layer.block, **rng.choice(GATES))
    dg.gate_(model, config, where=where)
    spread_logits_(model)
    return model, shape, config


def _shape(shape: str, tokens: int, features: int) -> tuple[int, ...]:
    """Sequences of up to 4, where they come out even."""
    length = next(n for n in (4, 3, 2, 1) if tokens % n == 0)
    return (tokens, features) if shape == "rows" else (tokens // length, length, features)


def _compare(
    model: nn.Module,
    untouched: nn.Module,
    compiled: nn.Module | None,
    layers: dict[str, FeedForward],
    sizes: Layer,
    shape: str,
    rng: random.Random,
) -> str | None:
    if not layers:
        return "no layer was replaced"
    tokens = rng.randint(*sizes.tokens)
    first = next(model.parameters())
    for often in (0.0, 1.0):
        x = torch.randn(tokens, sizes.features, device=first.device).to(sizes.dtype) * rng.choice((1.0, 1.0, 0.3))
        spoil_(x, rng, often)
        poison(x.device)
        x = x.reshape(_shape(shape, tokens, sizes.features))
        for name, rows in _inputs_of(model, layers, x).items():
            if said := _layer_is_wrong(layers[name], untouched.get_submodule(name), rows, sizes.dtype):
                return f"{name}, {tokens} tokens: {said}"
        if compiled is not None and (said := _whole_is_wrong(compiled, untouched, list(layers), x, sizes.dtype)):
            return f"the whole model, {tokens} tokens: {said}"
    return None


def _inputs_of(model: nn.Module, names: Any, x: Tensor) -> dict[str, Tensor]:
    """The rows that reach each layer of the model."""
    found: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: found.update({name: args[0].reshape(-1, args[0].shape[-1])})
        )
        for name in names
    ]
    model(x)
    for handle in handles:
        handle.remove()
    return found


def _layer_is_wrong(layer: FeedForward, untouched: nn.Module, rows: Tensor, dtype: torch.dtype) -> str | None:
    """Rows with finite inputs as compile's own check compares them; in the others NaN and infinities must be where the
    model has them, or where it would have them if closed blocks were not multiplied by zero but left out."""
    tolerance, margin = LIMITS[dtype]
    exact = rows.double()
    odd = ~rows.isfinite().all(1)
    gate: Any = untouched.down.gate  # type: ignore[union-attr]
    right, factor = untouched(exact), gate(exact).scale
    near = torch.zeros_like(odd)
    if bool((~odd).any()):
        near[~odd] = near_threshold(gate, gate(exact[~odd]), margin).any(-1)
    plain = ~odd & ~near
    skipped = reference_ffn(
        exact, _weights(untouched), factor.double(), block=gate.block, activation=layer.activation
    )  # fmt: skip
    largest = float(untouched(torch.randn(EXAMPLE, rows.shape[1], dtype=torch.float64, device=rows.device)).abs().max())
    names = [name for name in candidates_for(layer, len(rows)) if not name.endswith(COMPILED)]
    for name in (*names, "chosen"):
        y = layer(rows) if name == "chosen" else STRATEGIES[name](layer, rows)
        wrong = (y.double() - right)[plain].abs()
        size = max(largest, float(right[plain].abs().max())) if wrong.numel() else 1.0
        if wrong.numel() and not float(wrong.max()) <= tolerance * size:
            return f"{name} is wrong by {float(wrong.max()) / size:.3g} of the largest, expected {tolerance:g}"
        for row in odd.nonzero().flatten().tolist():
            said = misplaced(y[row], right[row])
            if said and misplaced(y[row], skipped[row]):
                return f"{name}, row {row}: {said}"
    return None


def _weights(ffn: Any) -> FFNWeights:
    value = ffn.value
    return FFNWeights(
        ffn.up.weight, ffn.down.weight, None if value is None else value.weight, ffn.up.bias, ffn.down.bias,
        None if value is None else value.bias,
    )  # fmt: skip


def _whole_is_wrong(
    compiled: nn.Module, untouched: nn.Module, names: list[str], x: Tensor, dtype: torch.dtype
) -> str | None:
    """As tests/inference/gpu/test_on_gpu.py compares: each row in float32; in 16 bits, where rounding moves what a gate
    reads, half of the rows. A row with a NaN must give NaN."""
    y, right = (t.reshape(-1, t.shape[-1]).double() for t in (compiled(x), untouched(x.double())))
    has_nan = x.isnan().any(-1).flatten()
    if bool((right.isnan() & ~y.isnan())[has_nan].any()):
        return "NaN in a row does not reach its outputs"
    near = torch.zeros_like(has_nan)
    for name, rows in _inputs_of(untouched, names, x.double()).items():
        gate: Any = untouched.get_submodule(name).down.gate  # type: ignore[union-attr]
        known = rows.isfinite().all(1)
        if bool(known.any()):
            near[known] |= near_threshold(gate, gate(rows[known]), 4 * LIMITS[dtype][1]).any(-1)
    if x.ndim == 3:  # rows of a sequence read each other
        near = near.reshape(x.shape[:-1]).any(-1, keepdim=True).expand(x.shape[:-1]).flatten()
    plain = right.isfinite().all(1) & x.isfinite().all(-1).flatten() & ~near
    wrong = ((y - right).norm(dim=1) / right.norm(dim=1))[plain]
    if dtype is torch.float32 and wrong.numel() and not float(wrong.max()) < WHOLE[dtype]:
        return f"wrong by {float(wrong.max()):.3g}, expected at most {WHOLE[dtype]:g}"
    if len(wrong) >= MEDIAN_OF and not float(wrong.median()) < WHOLE[dtype]:
        return f"wrong by {float(wrong.median()):.3g} in half of the rows, expected at most {WHOLE[dtype]:g}"
    return None
