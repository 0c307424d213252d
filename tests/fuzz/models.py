"""Random models, compiled, against float64: the model itself, converted and run by torch, hooks and replaced forwards
included. NaN and infinite inputs, and the same bits on 1, 2 and 8 threads.
`python -m tests.fuzz.models --count 3000 --seed 0`"""

from __future__ import annotations

import copy
import random
import types
import warnings
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import dynamicgate as dg
from dynamicgate.inference.cpu.chain import Chain
from tests.fuzz.running import fuzz

THREADS = (1, 2, 8)
ODD = (torch.nan, torch.inf, -torch.inf)
WIDTHS = (1, 2, 5, 15, 16, 17, 32, 33, 64, 100, 130)
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.Sigmoid, nn.LeakyReLU)
TOLERANCE = 2e-4


def check(seed: int) -> str | None:
    """What is wrong with the plan of the model of this seed, if anything is."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model, inputs = _model(rng)
    changes = _change_(model, rng)
    example = torch.randn(rng.choice((8, 40, 200)), inputs)
    if rng.random() < 0.4:
        example = example * (torch.rand_like(example) < 0.5)
    batches = rng.choice(((1, 16, 256), (4,), (1, 64)))
    same_bits = rng.random() < 0.6  # otherwise dense candidates are tried too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old way to normalise weights
        reference, in_float32 = copy.deepcopy(model).double().eval(), copy.deepcopy(model).eval()
        fast = dg.compile(model, example, seconds=0.02, batches=batches, same_bits=same_bits)
    promised = same_bits and isinstance(fast.body, Chain)
    if rng.random() < 0.2:
        fast = copy.deepcopy(fast)
    if rng.random() < 0.2:  # the plan must not follow the model
        for parameter in model.parameters():
            parameter.data.mul_(3)
    for rows in (0, 1, rng.choice((2, 5, 17)), rng.choice((100, 257))):
        x = torch.randn(rows, inputs) * rng.choice((1, 1, 0.01, 5))
        odd = _spoil_(x, rng)
        if problem := _compare(fast, reference, in_float32, x, odd, promised):
            chosen = [regime.chosen for chain in fast.plan.chains for regime in chain]
            return f"{problem}; {rows} rows, {changes}, {chosen}, notes {fast.plan.notes}, {model}"
    return None


def _model(rng: random.Random) -> tuple[nn.Module, int]:
    sizes = [rng.choice(WIDTHS) for _ in range(rng.randint(2, 5))]
    layers: list[nn.Module] = []
    if rng.random() < 0.3:
        layers.append(dg.nn.Normalize(torch.randn(sizes[0]), torch.rand(sizes[0]) + 0.5))
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        if rng.random() < 0.1 and inputs > 1:
            layers.append(nn.LayerNorm(inputs))
        layers.append(nn.Linear(inputs, outputs, bias=rng.random() < 0.75))
        if i + 2 < len(sizes) or rng.random() < 0.2:
            if rng.random() < 0.2:
                layers.append(_batch_norm(outputs))
            layers += [rng.choice(ACTIVATIONS)()] + ([nn.Dropout(0.3)] if rng.random() < 0.2 else [])
    return nn.Sequential(*layers), sizes[0]


def _batch_norm(width: int) -> nn.Module:
    norm = nn.BatchNorm1d(width)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


def _change_(model: nn.Module, rng: random.Random) -> list[str]:
    """Gates, masks and what other libraries do to a model; says what was done."""
    done = []
    for site in dg.find_sites(model):
        if rng.random() < (0.08 if site.is_input else 0.6):
            config = _config(rng, site.width)
            try:
                dg.gate_(model, config, where=[site])
                done.append(f"{site.name}: {config}")
            except ValueError:  # some kinds do not fit some sites
                continue
    for gate in dg.named_gates(model).values():
        for parameter in gate.net.parameters():
            nn.init.normal_(parameter, std=1.0 if parameter.ndim == 1 else 1.5 / parameter.shape[-1] ** 0.5)
    if rng.random() < 0.5:
        pattern = rng.choice(("unstructured", "fan-in", "16x1", "4x4"))
        try:
            dg.sparsity.Static(model, density=rng.choice((0.1, 0.3, 0.6)), pattern=pattern)
            done.append(pattern)
        except ValueError:
            pass
    if rng.random() < 0.3:
        done.append(_patch_(rng.choice([m for m in model if isinstance(m, nn.Linear)]), rng))  # type: ignore[union-attr]
    model.train(rng.random() < 0.3)
    return done


def _patch_(linear: nn.Linear, rng: random.Random) -> str:
    """What other libraries do to a layer. Every change must show in the outputs."""
    kind = rng.choice(("forward", "forward hook", "pre-hook", "subclass", "weight norm"))
    if kind == "forward":
        plain = nn.Linear.forward
        linear.forward = types.MethodType(lambda self, x: 2.0 * plain(self, x) + 0.5, linear)  # type: ignore[method-assign]
    elif kind == "forward hook":
        linear.register_forward_hook(lambda _module, _args, out: out * 1.5 - 0.25)
    elif kind == "pre-hook":
        linear.register_forward_pre_hook(lambda _module, args: (args[0] * 0.5 + 0.125,))
    elif kind == "subclass":
        linear.__class__ = Doubled
    elif not hasattr(linear, "mask"):
        parametrizations.weight_norm(linear)
    return kind


class Doubled(nn.Linear):
    """Not what a Linear computes."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice as much."""
        return 2.0 * super().forward(x)


def _config(rng: random.Random, width: int) -> dg.GateConfig:
    kind = rng.choice(("dynamic", "dynamic", "dynamic", "static", "router"))
    block = rng.choice((1, 1, 3, 8, 16, 17, 32, max(1, width // 2)))
    chosen: dict[str, Any] = {"kind": kind, "block": block, "tau": rng.choice((0.5, 1.0, 2.0))}
    if kind != "static":
        chosen |= {"net": rng.choice(("linear", "low-rank", "two-layer")), "rank": rng.choice((1, 3, 8))}
        if chosen["net"] == "linear":
            del chosen["rank"]
    if kind == "router":
        return dg.GateConfig(**chosen, top_k=rng.choice((1, 2, 0.5)))
    rule = rng.random()
    if rule < 0.15:
        return dg.GateConfig(**chosen, top_k=rng.choice((1, 3, 0.4)))
    chosen |= {"theta": rng.choice((0.3, 0.5, 0.7)), "open": rng.choice((0.3, 0.5, 0.8))}
    if rule < 0.3:
        chosen |= {"always_open": rng.choice((1, 0.3))}
    elif rule < 0.45:
        chosen |= {"soft_width": rng.choice((0.5, 2.0))}
    elif rule < 0.6:
        chosen |= {"scale": True}
    return dg.GateConfig(**chosen)


def _spoil_(x: Tensor, rng: random.Random) -> Tensor:
    """Put NaN and infinities into some rows; says which."""
    odd = torch.zeros(len(x), dtype=torch.bool)
    for row in range(len(x)) if rng.random() < 0.6 else ():
        if rng.random() < 0.2:
            odd[row] = True
            for _ in range(rng.choice((1, 1, 2))):
                x[row, rng.randrange(x.shape[1])] = rng.choice(ODD)
    return odd


@torch.no_grad()
def _compare(
    fast: nn.Module, reference: nn.Module, in_float32: nn.Module, x: Tensor, odd: Tensor, promised: bool
) -> str | None:
    """promised: nothing runs in torch, so that bits do not depend on the number of threads."""
    with dg.usage(reference) as used:
        expected = reference(x.double())
    near = _near(reference, used, odd) if len(x) else odd
    first: Tensor | None = None
    before = torch.get_num_threads()
    try:
        for count in THREADS:
            torch.set_num_threads(count)
            y = fast(x)
            if first is None:
                first = y
            elif promised and not torch.equal(first.view(torch.int32), y.view(torch.int32)):
                return f"other bits on {count} threads than on 1"
    finally:
        torch.set_num_threads(before)
    assert first is not None
    if first.shape != expected.shape:
        return f"shape {tuple(first.shape)}, expected {tuple(expected.shape)}"
    plain = ~odd & ~near
    scale = max(float(expected[~odd].abs().max()) if bool((~odd).any()) else 0.0, 1e-3)
    if bool(plain.any()) and not float((first.double() - expected)[plain].abs().max()) <= TOLERANCE * scale:
        return f"wrong by {float((first.double() - expected)[plain].abs().max()) / scale:.3g}"
    # What torch does with NaN depends on the op and the instruction set: some float32 activations lose it.
    of_torch = in_float32(x).double()
    has_nan = x.isnan().any(1)
    if bool((expected.isnan() & of_torch.isnan() & ~first.isnan())[has_nan].any()):
        return "NaN in a row does not reach its outputs"
    endless = odd & ~has_nan & ~near
    if _says_otherwise(fast) or not bool(endless.any()):
        return None
    agrees = _agrees(first[endless].double(), expected[endless], scale)
    agrees |= _agrees(first[endless].double(), of_torch[endless], scale)
    return None if bool(agrees.all()) else "an infinite input does not give what the model gives"


def _agrees(y: Tensor, want: Tensor, scale: float) -> Tensor:
    """By row, whether numbers are close, and NaN and infinities where they should be."""
    close = (y == want) | ((y - want).abs() <= TOLERANCE * want.abs().clamp(min=scale)) | (y.isnan() & want.isnan())
    return close.all(1)


def _says_otherwise(fast: nn.Module) -> bool:
    """Whether the plan says that it does not promise what infinities give."""
    return any("infinite" in note for note in fast.plan.notes)  # type: ignore[union-attr]


def _near(model: nn.Module, used: dg.gating.Usage, odd: Tensor) -> Tensor:
    """The rows in which rounding could change a decision."""
    found = [torch.zeros_like(odd)]
    for name, gate in dg.named_gates(model).items():
        z, config = used[name].logits.double(), gate.config
        if config.kind == "static" or config.evaluate == "soft":
            continue
        close = ((z - gate.logit_threshold).abs() <= 1e-4 * (1 + z.abs())).any(-1)
        best = z.sort(dim=-1, descending=True).values
        gaps = (best[..., :-1] - best[..., 1:]).abs() <= 1e-4 * (1 + best[..., 1:].abs())
        p = used[name].p.sort(dim=-1, descending=True).values
        gaps = gaps | (p[..., :-1] == p[..., 1:])  # saturated in float32, p cannot rank what the logits can
        ranked = config.top_k is not None or config.always_open or config.kind == "router"
        found.append(gaps.any(-1) if ranked and config.top_k is not None else close | (gaps.any(-1) & bool(ranked)))
    return torch.stack(found).any(0)


if __name__ == "__main__":
    fuzz("models", check)
