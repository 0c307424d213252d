"""Random decoders through the kernels: against float64 in prompts and steps, with padding, NaN, gates of all kinds or
thresholds on what is read, and with changed words in their programs, which must be refused or stay within their memory.

    python -m tests.fuzz.decoders --count 2000 --seed 0
    python -m tests.fuzz.decoders --sanitized --count 2000    # with the address and undefined behaviour sanitizers
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops import GateNet, decoder
from dynamicgate.ops.chain import Layer, rounded_to_bytes
from dynamicgate.ops.chain.layers import BY_INPUT
from tests.fuzz.asan import run_sanitized
from tests.fuzz.mutations import ODD_NUMBERS
from tests.fuzz.running import fuzz

TOLERANCE = 5e-5
OF_TORCH = 4.0  # where plain torch in float32 misses the tolerance too, so many times its error is allowed
DRAWS = 64  # roundings of torch; a few may all be near float64 by luck, and from 32 on the worst is the same
NEAR = 1e-4  # a logit this near its cut may fall on either side in float32
WITH_THRESHOLDS = 4  # one in so many decoders has thresholds instead of gates
MOST_WORK = 1 << 22  # multiply-adds of a changed decoder that are waited for


def random_decoder(rng: random.Random, draw: torch.Generator) -> decoder.Decoder:
    """A decoder of odd sizes."""
    features, size = rng.choice((1, 7, 16, 24, 33, 64)), rng.choice((2, 6, 16, 34, 64, 70))
    key_heads = rng.choice((1, 1, 2, 3))
    heads = key_heads * rng.choice((1, 1, 2, 3, 5))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) / shape[-1] ** 0.5

    of_layers, of_heads, learned = rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.2

    def norm(features: int = features) -> decoder.Norm:
        bias = torch.randn(features, generator=draw) if of_layers else None
        return decoder.Norm(torch.rand(features, generator=draw) + 0.5, rng.choice((1e-6, 1e-2)), bias)

    def block() -> decoder.Block:
        width, per_block = rng.choice((1, 16, 40, 77, 128, 200)), rng.choice((0, 1, 7, 16, 32, 64))
        gate = None
        if per_block:
            tau = rng.choice((None, 0.8))
            cut = rng.choice((-torch.inf, torch.inf, -1.5, 0.0, 0.5))
            gate = GateNet(
                (normal(-(-width // per_block), features),), (None,), cut=cut, tau=tau,
                competes=tau is not None and rng.random() < 0.5,
            )  # fmt: skip
        value = normal(width, features) if rng.random() < 0.5 else None
        up = Layer(normal(width, features), None, rng.choice(tuple(ACTIVATIONS)), per_block, gate, value_weight=value)
        all_heads = (heads + 2 * key_heads) * size
        qkv = Layer(normal(all_heads, features), normal(all_heads) if rng.random() < 0.5 else None)
        return decoder.Block(
            norm(), qkv, Layer(normal(features, heads * size)), norm(), (up, Layer(normal(features, width))),
            *(norm(size) if of_heads else None for _ in range(2)),
        )  # fmt: skip

    blocks = tuple(block() for _ in range(rng.choice((1, 2, 3))))
    speed = torch.zeros(size // 2) if learned else 10_000.0 ** (-torch.arange(0, size, 2) / size)
    head = Layer(normal(rng.choice((1, 17, 50, 100)), features))
    return decoder.Decoder(
        blocks, norm(), head, heads, key_heads, speed, size**-0.5, rng.choice((1.0, 1.3)),
        norms_behind=rng.random() < 0.2,
    )  # fmt: skip


def with_thresholds(model: decoder.Decoder, seed: int) -> decoder.Decoder:
    """The same decoder with thresholds on what its feed-forward layers read instead of gates, and on the factors of
    some, and weights in panels of any kind."""
    rng, draw = random.Random(seed), torch.Generator().manual_seed(seed)

    def some(layer: Layer, size: float) -> Layer:
        features, layout = layer.weight.shape[1], rng.choice(tuple(BY_INPUT))
        above, of_value = (size * torch.rand(features, generator=draw) for _ in range(2))
        weight, value = (None if w is None else _held_in(layout, w) for w in (layer.weight, layer.value_weight))
        assert weight is not None
        factors = rng.choice((None, 0.0, 0.2, 0.2, 100.0)) if value is not None else None
        return replace(
            layer, weight=weight, value_weight=value, layout=layout, block=0, gate=None, above=above,
            value_above=None if value is None else of_value,
            factors_above=None if factors is None else factors * torch.rand(len(weight), generator=draw),
        )  # fmt: skip

    blocks = []
    for block in model.blocks:
        up, down = block.ffn
        up = some(up, rng.choice((0.0, 1.0, 2.0, 100.0))) if rng.random() < 0.8 else replace(up, block=0, gate=None)
        down = some(down, rng.choice((0.0, 0.3, 1.0))) if rng.random() < 0.8 else down
        blocks.append(replace(block, ffn=(up, down)))
    return replace(model, blocks=tuple(blocks))


def _held_in(layout: str, weight: Tensor) -> Tensor:
    if layout == "byte panels":
        return rounded_to_bytes(weight)
    return weight.bfloat16().float() if layout == "half panels" else weight


def check(seed: int) -> str | None:
    """What is wrong with the decoder of this seed, if anything is."""
    rng, draw = random.Random(seed), torch.Generator().manual_seed(seed)
    model = random_decoder(rng, draw)
    if seed % WITH_THRESHOLDS == 2:
        model = with_thresholds(model, seed)
    packed = decoder.pack_decoder(model)
    problem = _against_float64(model, packed, rng, draw)
    for _ in range(10):
        _run_changed(packed, rng)
    return problem


def _against_float64(
    model: decoder.Decoder, packed: decoder.PackedDecoder, rng: random.Random, draw: torch.Generator
) -> str | None:
    B, T = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 5, 17, 40, 70, 130))
    x = torch.randn(B, T, model.features, generator=draw)
    odd = torch.full((B,), T)  # from where on a sequence has a NaN
    if rng.random() < 0.2:
        row, at = rng.randrange(B), rng.randrange(T)
        x[row, at, rng.randrange(model.features)] = torch.nan
        odd[row] = at
    padding = torch.tensor([rng.randrange(T) if rng.random() < 0.3 else 0 for _ in range(B)])
    padding = torch.minimum(padding, odd.clamp(max=T - 1))  # padding may hold anything, but not what decides the test
    want = decoder.reference_decoder(model, x.double().nan_to_num(), padding)
    clear = torch.ones(B, T, dtype=torch.bool)
    for shift in (-NEAR, NEAR):
        moved = decoder.reference_decoder(_with_cuts(model, shift), x.double().nan_to_num(), padding)
        clear &= ((moved - want).abs().amax(-1) <= 1e-9 * want.abs().max()).long().cumprod(1).bool() | (
            torch.arange(T) < padding[:, None]
        )
    cache, got, past = decoder.new_cache(packed, B, T + rng.choice((0, 1, 9))), [], 0
    position = (torch.arange(T) - padding[:, None]).clamp(min=0)
    while past < T:
        until = min(T, past + rng.choice((1, 1, 2, 4, 5, 30, 70)))
        seen = {"position_BT": position[:, past:until], "padding_B": padding.clamp(max=until)}
        got.append(decoder.run_decoder(packed, x[:, past:until], cache, past, **seen)[1])
        past = until
    scores = torch.cat([part for part in got if part is not None], dim=1)
    number = torch.arange(T)
    read = (number >= padding[:, None]) & clear & (number < odd[:, None])
    off = torch.where(read, (scores - want).abs().amax(-1), 0.0)
    allowed = torch.full_like(off, TOLERANCE * float(want.abs().max()))
    if bool((off > allowed).any()):
        allowed = torch.maximum(allowed, OF_TORCH * _off_in_torch(model, x.nan_to_num(), padding, want, draw))
    wrong = ~(off <= allowed)
    if bool(wrong.any()):
        return f"{int(wrong.sum())} of {int(read.sum())} positions are wrong"
    after = number >= odd[:, None]
    return None if bool(scores[after].isnan().all()) else "NaN did not reach what follows it"


def _off_in_torch(model: decoder.Decoder, x: Tensor, padding: Tensor, want: Tensor, draw: torch.Generator) -> Tensor:
    """By position, how far torch in float32 is from float64 at worst, for inputs that differ in their last bit.

    A norm over one feature that is nearly 0 magnifies rounding a thousand times, in torch as in the kernels: over 2,000
    decoders both are off by 1.5e-7 on average, and at the same positions by more than the tolerance.
    """
    worst = torch.zeros(x.shape[:2], dtype=torch.float64)
    for _ in range(DRAWS):
        towards = torch.where(torch.rand(x.shape, generator=draw) < 0.5, torch.inf, -torch.inf)
        y = decoder.reference_decoder(model, torch.nextafter(x, towards), padding)
        worst = torch.maximum(worst, (y - want).abs().amax(-1))
    return worst


def _with_cuts(model: decoder.Decoder, shift: float) -> decoder.Decoder:
    blocks = []
    for block in model.blocks:
        up, down = block.ffn
        gate = up.gate
        if gate is not None:
            up = replace(up, gate=replace(gate, cut=float(gate.cut) + shift))
        up, down = (_with_thresholds_moved(layer, shift) for layer in (up, down))
        blocks.append(replace(block, ffn=(up, down)))
    return replace(model, blocks=tuple(blocks))


def _with_thresholds_moved(layer: Layer, shift: float) -> Layer:
    given = (layer.above, layer.value_above, layer.factors_above)
    moved = [None if above is None else (above + shift).clamp(min=0.0) for above in given]
    return replace(layer, above=moved[0], value_above=moved[1], factors_above=moved[2])


def _run_changed(packed: decoder.PackedDecoder, rng: random.Random) -> None:
    """A program with changed words: refused, or run to the end. Only a sanitizer, or a crash, says more."""
    program = packed.program.clone()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(program)) if rng.random() < 0.5 else rng.randrange(36)
        near = int(program[at]) + rng.choice((-16, -1, 1, 2, 16))
        value = rng.choice((*ODD_NUMBERS, int(program[rng.randrange(len(program))]), near, near, near))
        program[at] = max(-(1 << 31), min((1 << 31) - 1, value))
    changed = packed._replace(program=program)
    try:
        decoder.check_decoder(changed)
    except ValueError:
        return
    layers, features, key_heads, size = changed.sizes
    B, T, room = rng.choice((1, 2)), rng.choice((1, 3, 8)), rng.choice((3, 8, 9))
    if layers * B * (features * len(packed.weights) + key_heads * size * room * room) > MOST_WORK * 64:
        return
    past = rng.choice((0, 0, 1, room - T, room))
    try:
        cache = decoder.new_cache(changed, B, room)
        decoder.run_decoder(changed, torch.randn(B, T, features), cache, past, scored=rng.choice((None, 0, 1, T + 1)))
    except ValueError:
        return


if __name__ == "__main__":
    if "--sanitized" in sys.argv:
        sys.exit(run_sanitized("tests.fuzz.decoders", [word for word in sys.argv[1:] if word != "--sanitized"]))
    fuzz("decoders", check)
