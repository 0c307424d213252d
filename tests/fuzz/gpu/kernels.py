"""One random layer through one of the ops of `dynamicgate.ops.ffn`, or the module `FFN`, on the kernels."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference.gpu.verify import LIMITS
from dynamicgate.inference.verify import near_threshold
from dynamicgate.ops.ffn import decode_ffn, decode_given, fused_gate_activation, gated_ffn, reference_ffn
from dynamicgate.ops.gate_net import logits
from tests.fuzz.gpu.compare import Results, compare, misplaced, poison, spoil_
from tests.fuzz.gpu.menu import CLOSE, ODD, TOLERANCE, Layer
from tests.ops.ffn import decode_cases, fused_gate_cases
from tests.ops.ffn.cases import Tensors, call, in_float64, run, tensors, weights_of

OPENED = (0.0, 0.05, 0.3, 0.3, 0.6, 0.9, 1.0)
APART = 1e-4  # of a logit from its cut, so that no rounding moves it across
KINK = 1e-5  # of a unit from 0, where a relu has its kink
PER_UNIT = ("up", "value", "up_bias", "value_bias")


def other_signs(t: Tensor | None, number: int) -> Tensor | None:
    """The same with random signs; with those it has for number 0."""
    if t is None or number == 0:
        return t
    random_signs = torch.randint(2, t.shape, generator=torch.Generator().manual_seed(number)) * 2 - 1
    return t * random_signs.to(t)


def check_grouped(layer: Layer, rng: random.Random, seed: int, device: str) -> str | None:
    """`gated_ffn`: its result and gradients, or in inference the result alone."""
    T = rng.randint(*layer.tokens)
    training = T < 2000 and rng.random() < 0.7
    dense = training and rng.random() < 0.3
    given = tensors(
        T, *layer[:4], opened=rng.choice(OPENED), patterns=rng.choice((0, 0, 1, 3)), device=device, seed=seed,
        **layer.options,
    )  # fmt: skip
    x, factor = _tensor(given["x"]), _tensor(given["factor"])
    x *= rng.choice((1.0, 1.0, 0.3, 4.0))
    factor *= rng.choice((1.0, 1.0, 0.1, -1.0))
    if training and layer.activation == "relu":
        _off_kinks_(x, _tensor(given["up"]), given["up_bias"])
    odd = torch.zeros(T, dtype=torch.bool, device=device)
    if not dense:  # the reference multiplies by zero there
        odd |= spoil_(x, rng)
        if rng.random() < 0.1:
            row = rng.randrange(T)
            factor[row, rng.randrange(factor.shape[1])] = rng.choice(ODD)
            odd[row] = True
        if rng.random() < 0.5:
            _poison_closed_(given, layer.block)
    options = {"block": layer.block, "activation": layer.activation}
    deterministic = rng.random() < 0.5
    function: Any = partial(gated_ffn, deterministic=deterministic)
    if training:
        options["gate_gradient"] = "dense" if dense else "sparse"
    as_bool = not training and not bool(odd.any()) and rng.random() < 0.3
    if as_bool:
        given["factor"] = factor != 0
    by_atomics = not deterministic and rng.random() < 0.5
    dirty = _units_of(factor[odd] != 0, layer.block, layer.units)

    def once(number: int) -> tuple[Results, Results]:
        changed = {**given, **{name: other_signs(given[name], number) for name in ("down", "down_bias")}}
        if not training:
            with torch.no_grad():
                return {"y": call(function, changed, **options)}, {
                    "y": call(reference_ffn, in_float64(changed), **options)
                }
        found, right = run(function, changed, None, **options), run(reference_ffn, changed, torch.float64, **options)
        return tuple({name: _clean(name, t, odd, dirty) for name, t in each.items()} for each in (found, right))  # type: ignore[return-value]

    torch.use_deterministic_algorithms(not by_atomics)
    try:
        if by_atomics:
            poison(x.device)
        said = compare(once, TOLERANCE[layer.dtype], layer.dtype)
    finally:
        torch.use_deterministic_algorithms(True)
    how = f"{options}, {deterministic=}, {by_atomics=}, {as_bool=}, odd tokens {odd.nonzero().flatten().tolist()}"
    return said and f"{said}; {T} tokens, {float((factor != 0).float().mean()):.2f} open, {how}"


def _off_kinks_(x: Tensor, up: Tensor, bias: Tensor | None) -> None:
    """Draw tokens again that have a unit so near to 0 that rounding could switch the slope of its relu."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(100):
        z = nn.functional.linear(x.double(), up.double(), None if bias is None else bias.double())
        near = (z.abs() < KINK).any(1)
        if not bool(near.any()):
            return
        x[near] = torch.randn(int(near.sum()), x.shape[1], generator=draw).to(x)
    raise AssertionError("no tokens without a unit near 0")


def _poison_closed_(given: Tensors, block: int) -> None:
    """NaN into the weights of blocks that no token opens: nobody may read them."""
    closed = ~_tensor(given["factor"]).bool().any(0)
    units = closed.repeat_interleave(block)[: _tensor(given["up"]).shape[0]]
    for name in PER_UNIT:
        if given[name] is not None:
            _tensor(given[name])[units] = torch.nan
    _tensor(given["down"])[:, units] = torch.nan


def _units_of(opened_TG: Tensor, block: int, units: int) -> Tensor:
    return opened_TG.any(0).repeat_interleave(block)[:units]


def _clean(name: str, t: Tensor, odd: Tensor, dirty: Tensor) -> Tensor:
    """All of y. Of gradients what no odd token has a part in: what a gradient at NaN is, torch decides op by op."""
    if name in ("d x", "d factor"):
        return t[~odd]
    if name == "d down":
        return t[:, ~dirty]
    return t[~dirty] if name[2:] in PER_UNIT else t


def check_decode(layer: Layer, rng: random.Random, seed: int, device: str) -> str | None:
    """`decode_ffn`: the gate is part of the kernel."""
    tokens = rng.randint(*layer.tokens)
    rank, scale = rng.choice((0, 0, 5)), rng.choice(({}, {"tau": 0.7}, {"soft_width": 0.9}))
    more = {"rank": rank, "hidden": rng.choice(("identity", "relu")), "opened": rng.choice(OPENED), **scale}
    for number in range(100):
        given = decode_cases.made(
            tokens, sizes=layer[:3], block=layer.block, activation=layer.activation, device=device,
            seed=seed + number * 1_000_003, **layer.options, **more,
        )  # fmt: skip
        given, rule = _with_rule(given, rng, scale)
        if "tau" in scale and seed % 2:
            given, rule = decode_cases.with_gate(given, competes=True), f"{rule}, competing"
        if _far_from_cuts(given):
            break
    else:
        raise AssertionError("no layer without a logit near its cut")
    odd = spoil_(given["x_TD"], rng)

    def once(number: int) -> tuple[Results, Results]:
        weights = given["weights"]
        signs = {name: other_signs(getattr(weights, name), number) for name in ("down", "down_bias")}
        changed = decode_cases.with_weights(given, **signs)
        return {"y": decode_ffn(**changed)}, {"y": decode_cases.right(changed)}

    said = compare(once, TOLERANCE[layer.dtype], layer.dtype)
    return said and f"{said}; {tokens} tokens, {more}, {rule}, odd tokens {odd.nonzero().flatten().tolist()}"


def _with_rule(
    given: decode_cases.Given, rng: random.Random, scale: dict[str, float]
) -> tuple[decode_cases.Given, str]:
    """Another rule by which logits open blocks, in some cases."""
    gate = given["gate"]
    rule = rng.choice(("cut", "cut", "top k", "cuts", "open", "closed"))
    if rule == "top k" and "soft_width" not in scale:
        return decode_cases.with_gate(
            given, top_k=rng.randint(1, min(4, gate.blocks)), cut=rng.choice((gate.cut, torch.inf))
        ), rule
    if rule == "cuts":
        cuts = torch.full((gate.blocks,), gate.cut, device=given["x_TD"].device)
        cuts[rng.randrange(gate.blocks)] = -torch.inf if scale.keys() != {"soft_width"} else gate.cut
        return decode_cases.with_gate(given, cut=cuts), rule
    if rule in ("open", "closed") and "soft_width" not in scale:
        return decode_cases.with_gate(given, cut=torch.inf if rule == "closed" else -torch.inf), rule
    return given, "cut"


def _far_from_cuts(given: decode_cases.Given) -> bool:
    gate = given["gate"]
    z = logits(given["x_TD"].double(), gate)
    far = bool(((z - torch.as_tensor(gate.cut)).abs() > APART).all())
    if 0 < gate.top_k < gate.blocks:
        best = z.sort(dim=-1, descending=True).values
        far = far and bool((best[:, gate.top_k - 1] - best[:, gate.top_k] > APART).all())
    return far


def check_given(layer: Layer, rng: random.Random, seed: int, device: str) -> str | None:
    """`decode_given`: the gates have decided."""
    tokens = rng.randint(*layer.tokens)
    given = tensors(tokens, *layer[:4], opened=rng.choice(OPENED), device=device, seed=seed, **layer.options)
    x, factor = _tensor(given["x"]), _tensor(given["factor"])
    factor *= rng.choice((1.0, 1.0, 0.1, -1.0))
    odd = spoil_(x, rng)
    if rng.random() < 0.15:
        factor[rng.randrange(tokens), rng.randrange(factor.shape[1])] = rng.choice(ODD)
    if rng.random() < 0.5:
        _poison_closed_(given, layer.block)
    options: dict[str, Any] = {"block": layer.block, "activation": layer.activation}

    def once(number: int) -> tuple[Results, Results]:
        changed = {**given, **{name: other_signs(given[name], number) for name in ("down", "down_bias")}}
        found = decode_given(changed["x"], changed["factor"], weights_of(changed), **options)  # type: ignore[arg-type]
        return {"y": found}, {"y": call(reference_ffn, in_float64(changed), **options)}

    said = compare(once, TOLERANCE[layer.dtype], layer.dtype)
    opened = f"{float((factor != 0).float().mean()):.2f} open"
    return said and f"{said}; {tokens} tokens, {opened}, odd tokens {odd.nonzero().flatten().tolist()}"


def check_fused(layer: Layer, rng: random.Random, seed: int, device: str) -> str | None:
    """`fused_gate_activation`: all units, closed ones set to 0."""
    tokens, scale = rng.randint(*layer.tokens), rng.choice(fused_gate_cases.SCALES)
    given = fused_gate_cases.made(
        tokens, layer.units, layer.block, value=layer.value, activation=layer.activation, dtype=layer.dtype,
        device=device, **scale,
    )  # fmt: skip
    product = given["product_TM"]
    known = product.shape[1] - 3  # the columns after the logits are not read
    product[:, :known] = torch.randn(tokens, known, generator=torch.Generator().manual_seed(seed)).to(product)
    given["cut"] = rng.choice((0.1, 0.1, 1.0, -100.0, 100.0))
    near = (product[:, layer.units : known].double() - given["cut"]).abs() < APART
    product[:, layer.units : known][near] += 0.05
    odd = spoil_(product[:, :known], rng)
    exact = {k: v.double() if isinstance(v, Tensor) else v for k, v in given.items()}
    found, right = fused_gate_activation(**given), fused_gate_activation(**exact)
    said = misplaced(found, right)
    apart, most = (found.double() - right).abs(), fused_gate_cases.allowed(exact, right, layer.dtype)
    if said is None and bool((apart > most).any()):
        said = f"wrong by up to {float((apart / most)[apart > most].max()):.3g} times as much as rounding allows"
    odd_tokens = odd.nonzero().flatten().tolist()
    return said and f"{said}; {tokens} tokens, {scale}, cut {given['cut']}, odd tokens {odd_tokens}"


def check_module(layer: Layer, rng: random.Random, seed: int, device: str) -> str | None:
    """The module `FFN` on the kernels, against itself in float64, where it computes everything."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"activation": layer.activation, "value": layer.value, "bias": layer.bias}
    model = dg.nn.FFN(*layer[:3], kernels="always", **options)
    configs: tuple[dict[str, Any], ...] = (
        {},
        {"top_k": 1},
        {"kind": "router", "top_k": 1},
        {"scale": True},
        {"net": "low-rank", "rank": 3},
    )
    config = dg.GateConfig(block=layer.block, **rng.choice(configs))
    dg.gate_(model, config, where="down")
    gate: Any = model.down.gate
    for parameter in gate.net.parameters():
        nn.init.normal_(parameter, std=1.0 if parameter.ndim == 1 else 1.5 / parameter.shape[-1] ** 0.5)
    model = model.to(device, layer.dtype).train(rng.random() < 0.3)
    x = torch.randn(rng.randint(32, 300), layer.features, device=device).to(layer.dtype)
    if layer.activation == "relu":
        _off_kinks_(x, model.up.weight.detach(), None if model.up.bias is None else model.up.bias.detach())
    exact = copy.deepcopy(model).double()
    exact_gate: Any = exact.down.gate
    near = near_threshold(exact_gate, exact_gate(x.double()), 4 * LIMITS[layer.dtype][1]).any(-1)
    x = x[~near]
    if len(x) < 8:  # of a gate whose logits are all near
        return None
    if model._gate_for_kernels(x) is None:
        return f"the kernels do not run; {config}"

    def once(number: int) -> tuple[Results, Results]:
        dy = torch.randn(len(x), layer.outputs, generator=torch.Generator().manual_seed(number)).to(x)
        return _outputs_and_gradients(model, x, dy), _outputs_and_gradients(exact, x.double(), dy.double())

    _, right = once(0)
    tolerance = {name: CLOSE[layer.dtype] * (1 if name == "y" else 3) for name in right}
    said = compare(once, tolerance, layer.dtype)
    return said and f"{said}; {len(x)} tokens, {config}"


def _outputs_and_gradients(model: nn.Module, x: Tensor, dy: Tensor) -> Results:
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(dy)
    found = {f"d {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return {"y": y.detach(), "d x": x.grad, **found}


def _tensor(t: Tensor | None) -> Tensor:
    assert t is not None
    return t


CHECKS = {
    "grouped": check_grouped,
    "decode": check_decode,
    "given": check_given,
    "fused": check_fused,
    "module": check_module,
}
