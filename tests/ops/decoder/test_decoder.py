"""A packed decoder against the reference in float64: prompts, caches, padding, gates, NaN, and programs that lie."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import GateNet, decoder, native
from dynamicgate.ops.chain import Layer
from dynamicgate.ops.chain.rounding import rounded_to_bytes

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")


def build(
    *, features: int = 24, heads: int = 4, key_heads: int = 2, size: int = 6, width: int = 40, block: int = 16,
    cut: float = 0.1, value: bool = True, layers: int = 2, tokens: int = 37, seed: int = 0, layer_norms: bool = False,
    norms_of_heads: bool = False, both_ways: bool = False, norms_behind: bool = False, head: bool = True,
) -> decoder.Decoder:  # fmt: skip
    draw = torch.Generator().manual_seed(seed)

    def linear(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, generator=draw) / inputs**0.5

    def norm(features: int = features) -> decoder.Norm:
        bias = torch.randn(features, generator=draw) if layer_norms else None
        return decoder.Norm(torch.rand(features, generator=draw) + 0.5, 1e-6, bias)

    def one() -> decoder.Block:
        gate = GateNet((linear(-(-width // block), features),), (None,), cut=cut) if block else None
        up = Layer(
            linear(width, features), None, "silu", block, gate, value_weight=linear(width, features) if value else None
        )
        qkv = Layer(linear((heads + 2 * key_heads) * size, features), torch.randn((heads + 2 * key_heads) * size))
        mix = Layer(linear(features, heads * size))
        of_heads = [norm(size) if norms_of_heads else None for _ in range(2)]
        return decoder.Block(norm(), qkv, mix, norm(), (up, Layer(linear(features, width))), *of_heads)

    blocks = tuple(one() for _ in range(layers))
    speed = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    made = decoder.Decoder(
        blocks, norm(), Layer(linear(tokens, features)), heads, key_heads, speed, size**-0.5, both_ways=both_ways,
        norms_behind=norms_behind,
    )  # fmt: skip
    return made if head else dataclasses.replace(made, head=None, norm=None)


def step_by_step(packed: decoder.PackedDecoder, x: Tensor, prompt: int, step: int = 1) -> Tensor:
    """The scores of a prompt, then of the rest in steps, each from the cache of the one before."""
    cache, found, past = decoder.new_cache(packed, len(x), x.shape[1]), [], 0
    ends = [prompt, *range(prompt + step, x.shape[1], step), x.shape[1]]
    for end in ends:
        if end > past:
            found.append(decoder.run_decoder(packed, x[:, past:end], cache, past)[1])
            past = end
    return torch.cat(found, dim=1)  # type: ignore[arg-type]


SHAPES = {
    "odd sizes": {},
    "no gate": {"block": 0},
    "no value": {"value": False},
    "all open": {"cut": -torch.inf},
    "all closed": {"cut": torch.inf},
    "one head": {"heads": 1, "key_heads": 1, "size": 10},
    "as many keys as queries": {"heads": 3, "key_heads": 3, "size": 32, "features": 96, "width": 128, "block": 64},
    "layer norms": {"layer_norms": True},
    "norms of queries and keys": {"norms_of_heads": True, "heads": 6},
    "layer norms of queries and keys": {"norms_of_heads": True, "layer_norms": True, "size": 34},
    "norms behind": {"norms_behind": True, "layer_norms": True},
    "groups of five": {"heads": 5, "key_heads": 1, "size": 16, "tokens": 100, "block": 7},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sequences", [1, 3])
def test_prompts_and_steps_match_float64(name: str, sequences: int) -> None:
    model = build(**SHAPES[name])  # type: ignore[arg-type]
    packed = decoder.pack_decoder(model)
    x = torch.randn(sequences, 21, model.features)
    want = decoder.reference_decoder(model, x.double())
    for prompt, step in ((21, 1), (1, 1), (8, 3), (5, 4)):
        got = step_by_step(packed, x, prompt, step)
        assert float((got - want).abs().max()) < 2e-5 * float(want.abs().max()), (prompt, step)


@pytest.mark.parametrize("name", ["odd sizes", "as many keys as queries", "groups of five"])
def test_prompts_of_many_positions_match_float64(name: str) -> None:
    """Their keys are read in panels."""
    model = build(**SHAPES[name])  # type: ignore[arg-type]
    packed = decoder.pack_decoder(model)
    x = torch.randn(2, 101, model.features)
    want = decoder.reference_decoder(model, x.double())
    for prompt, step in ((101, 1), (40, 61), (64, 37), (3, 98)):
        got = step_by_step(packed, x, prompt, step)
        assert float((got - want).abs().max()) < 2e-5 * float(want.abs().max()), (prompt, step)


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("past", [0, 1, 15, 16, 33, 70])
def test_one_more_token_after_any_number_matches_float64(sequences: int, past: int) -> None:
    model = build(seed=past)
    packed = decoder.pack_decoder(model)
    x = torch.randn(sequences, past + 1, model.features)
    cache = decoder.new_cache(packed, sequences, past + 9)
    if past:
        decoder.run_decoder(packed, x[:, :past], cache, 0, scored=0)
    _, got = decoder.run_decoder(packed, x[:, past:], cache, past)
    want = decoder.reference_decoder(model, x.double())[:, past:]
    assert got is not None
    assert float((got - want).abs().max()) < 2e-5 * float(want.abs().max())
    assert bool(cache[..., past + 1 :, :].isnan().all()), "nothing is written behind the new positions"


@pytest.mark.parametrize("times", [1, 10], ids=["short", "long"])
def test_padding_is_not_looked_at(times: int) -> None:
    model, T, prompt = build(), 12 * times, 9 * times
    packed = decoder.pack_decoder(model)
    x = torch.randn(3, T, model.features)
    padding = torch.tensor([0, 5, 11]) * times
    position = (torch.arange(T) - padding[:, None]).clamp(min=0)
    want = decoder.reference_decoder(model, x.double(), padding)
    cache = decoder.new_cache(packed, 3, T)
    early: dict[str, Any] = {"position_BT": position[:, :prompt], "padding_B": padding.clamp(max=prompt)}
    _, first = decoder.run_decoder(packed, x[:, :prompt], cache, 0, **early)
    late: dict[str, Any] = {"position_BT": position[:, prompt:], "padding_B": padding}
    _, rest = decoder.run_decoder(packed, x[:, prompt:], cache, prompt, **late)
    assert first is not None
    assert rest is not None
    got = torch.cat((first, rest), dim=1)
    for row, start in enumerate(padding.tolist()):
        assert float((got - want)[row, start:].abs().max()) < 2e-5 * float(want.abs().max())


@pytest.mark.parametrize("times", [1, 5], ids=["short", "long"])
def test_nan_reaches_later_positions_of_its_sequence_and_nothing_else(times: int) -> None:
    model, T, at = build(), 11 * times, 6 * times
    packed = decoder.pack_decoder(model)
    x = torch.randn(2, T, model.features)
    clean = step_by_step(packed, x, T)
    x[1, at, 3] = torch.nan
    for prompt in (T, 1, at + 1):
        got = step_by_step(packed, x, prompt)
        assert bool(got[1, at:].isnan().all())
        assert torch.allclose(got[0], clean[0], atol=1e-5)
        assert torch.allclose(got[1, :at], clean[1, :at], atol=1e-5)


def test_only_the_last_positions_are_scored_where_asked() -> None:
    model = build()
    packed = decoder.pack_decoder(model)
    x = torch.randn(3, 7, model.features)
    features, every = decoder.run_decoder(packed, x, decoder.new_cache(packed, 3, 7), 0)
    same, last = decoder.run_decoder(packed, x, decoder.new_cache(packed, 3, 7), 0, scored=2)
    assert every is not None
    assert last is not None
    assert last.shape == (3, 2, 37)
    assert torch.allclose(last, every[:, -2:], atol=1e-5)
    assert torch.equal(features, same)
    assert decoder.run_decoder(packed, x, decoder.new_cache(packed, 3, 7), 0, scored=0)[1] is None


@pytest.mark.parametrize("T", [1, 7, 16, 33, 70])
@pytest.mark.parametrize("behind", [True, False])
def test_positions_that_see_both_ways_match_float64(T: int, behind: bool) -> None:
    model = build(both_ways=True, norms_behind=behind, layer_norms=True, head=False, seed=T)
    packed = decoder.pack_decoder(model)
    assert packed.both_ways
    assert packed.outputs == 0
    padding = torch.tensor([0, T // 3, 0, T - 1])
    end = torch.tensor([T, T, T - T // 3, T])
    x = torch.randn(4, T, model.features)
    number = torch.arange(T)
    seen = (number >= padding[:, None]) & (number < end[:, None])
    want = decoder.reference_decoder(model, x.double(), padding, end)
    x[~seen] = torch.nan  # nothing looks at it
    cache = decoder.new_cache(packed, 4, T)
    assert len(cache) == 1
    position = (number - padding[:, None]).clamp(min=0)
    features, scores = decoder.run_decoder(packed, x, cache, 0, position_BT=position, padding_B=padding, end_B=end)
    assert scores is None
    assert float((features - want)[seen].abs().max()) < 2e-5 * float(want.abs().max())
    alone, _ = decoder.run_decoder(packed, x[:1], decoder.new_cache(packed, 1, T), 0)
    assert torch.allclose(alone, features[:1], atol=1e-5)


def test_calls_that_do_not_fit_an_encoder_are_refused() -> None:
    packed = decoder.pack_decoder(build(both_ways=True, head=False))
    x, cache = torch.randn(1, 4, 24), decoder.new_cache(packed, 1, 6)
    for options, match in (
        ({"past": 1}, "given all at once"),
        ({"past": 0, "scored": 1}, "no head"),
        ({"past": 0, "end_B": torch.tensor([5])}, "more padding"),
        ({"past": 0, "end_B": torch.tensor([0])}, "more padding"),
        ({"past": 0, "end_B": torch.tensor([4, 4])}, "ends of 1 sequences"),
    ):
        with pytest.raises(ValueError, match=match):
            decoder.run_decoder(packed, x, cache, **options)  # type: ignore[arg-type]


def test_a_layer_norm_takes_a_large_mean_away_in_double() -> None:
    """In float32 a mean of 1,000 times the spread would cost three digits."""
    model = build(layer_norms=True, block=0)
    packed = decoder.pack_decoder(model)
    x = torch.randn(2, 5, model.features) + 1e3
    got = step_by_step(packed, x, 5)
    want = decoder.reference_decoder(model, x.double())
    assert float((got - want).abs().max()) < 1e-3 * float(want.abs().max())
    alone = torch.full((1, 1, model.features), 3.0)  # no spread at all: what is left is the bias
    assert bool(step_by_step(packed, alone, 1).isfinite().all())


def test_the_same_bits_on_any_number_of_threads() -> None:
    model = build(features=256, heads=8, key_heads=4, size=32, width=512, block=64)
    packed = decoder.pack_decoder(model)
    x = torch.randn(2, 150, 256)
    before, found = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.add(step_by_step(packed, x, 148).numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_the_time_of_each_part_is_counted() -> None:
    packed = decoder.pack_decoder(build())
    seconds = torch.zeros(len(decoder.PARTS), dtype=torch.float64)
    decoder.run_decoder(packed, torch.randn(1, 4, 24), decoder.new_cache(packed, 1, 4), 0, seconds=seconds)
    assert bool((seconds > 0).all())


def test_a_call_that_does_not_fit_is_refused() -> None:
    packed = decoder.pack_decoder(build())
    x, cache = torch.randn(1, 4, 24), decoder.new_cache(packed, 1, 6)
    for wrong, match in (
        (lambda: decoder.run_decoder(packed, x, cache, 3), "do not fit the cache"),
        (lambda: decoder.run_decoder(packed, x, cache, -1), "do not fit the cache"),
        (lambda: decoder.run_decoder(packed, x, decoder.new_cache(packed, 2, 6), 0), "another size"),
        (lambda: decoder.run_decoder(packed, x, cache, 0, scored=5), "more positions"),
        (lambda: decoder.run_decoder(packed, x, cache, 0, padding_B=torch.tensor([9])), "more padding"),
        (lambda: decoder.run_decoder(packed, x[..., :20], cache, 0), "received"),
        (lambda: decoder.run_decoder(packed, x.double(), cache, 0), "received"),
    ):
        with pytest.raises(ValueError, match=match):
            wrong()


def test_no_changed_word_makes_the_kernels_leave_their_memory() -> None:
    packed = decoder.pack_decoder(build(layers=1, layer_norms=True, norms_of_heads=True))
    draw = torch.Generator().manual_seed(0)
    x, refused = torch.randn(1, 3, 24), 0
    for at in range(18 + 18):
        for value in (-1, 0, 1, 7, 1 << 20, (1 << 31) - 1, int(torch.randint(1 << 30, (), generator=draw))):
            program = packed.program.clone()
            program[at] = value
            changed = packed._replace(program=program)
            try:
                decoder.check_decoder(changed)
            except ValueError:
                refused += 1
                continue
            if changed.sizes[1:] == packed.sizes[1:]:
                decoder.run_decoder(changed, x, decoder.new_cache(changed, 1, 3), 0)
    assert refused > 80


def test_a_decoder_of_an_earlier_version_is_refused_with_a_remedy() -> None:
    packed = decoder.pack_decoder(build())
    for number, match in ((0x44474C01, "compile the model again"), (7, "does not start as one")):
        program = packed.program.clone()
        program[0] = number
        with pytest.raises(ValueError, match=match):
            decoder.check_decoder(packed._replace(program=program))


@pytest.mark.parametrize("layout", ["panels", "half panels", "byte panels"])
def test_a_head_in_panels_can_be_read_row_by_row(layout: Any) -> None:
    model = build(tokens=37)
    weight = model.head.weight.bfloat16().float()
    if layout == "byte panels":
        weight = rounded_to_bytes(weight)
    packed = decoder.pack_decoder(
        dataclasses.replace(model, head=dataclasses.replace(model.head, weight=weight, layout=layout))
    )
    ids = torch.tensor([[0, 15], [16, 36]])
    assert packed.head_in_panels
    rows = packed.head_rows()
    assert torch.equal(rows.of(ids), weight[ids])
    for token in ids.flatten():
        one = rows.of(token.view(1, 1))
        assert torch.equal(one[0, 0], rows.of(ids)[ids == token][0])
        one.zero_()
    assert float(rows.of(ids).abs().sum()) > 0  # what was given is no view of the weights
    assert rows.of(ids[:0]).shape == (0, 2, weight.shape[1])
    assert torch.equal(rows.of(ids.int()), rows.of(ids))
    for wrong in (ids[:1, :1].float(), ids.to(torch.uint8), ids[:1, :1] > 0):
        with pytest.raises(ValueError, match=f"int32 or int64, received {wrong.dtype}"):
            rows.of(wrong)
    for wrong in ([[37]], [[-1]], [[3, 37]], [[-1, 3]]):
        with pytest.raises(IndexError, match="tokens are 0 to 36, received"):
            rows.of(torch.tensor(wrong))


def test_tensors_elsewhere_and_norms_of_another_width_are_refused() -> None:
    packed = decoder.pack_decoder(build())
    x, cache = torch.randn(1, 4, 24), decoder.new_cache(packed, 1, 6)
    with pytest.raises(ValueError, match="runs on the cpu, received tensors on meta"):
        decoder.run_decoder(packed, x, cache, 0, padding_B=torch.zeros(1, device="meta"))
    with pytest.raises(ValueError, match="5 float64 seconds"):
        decoder.run_decoder(packed, x, cache, 0, seconds=torch.zeros(5))
    model = build()
    assert model.norm is not None
    wide = dataclasses.replace(model.norm, weight=torch.ones(48))
    with pytest.raises(ValueError, match="a norm of 24 features has 48 weights"):
        decoder.pack_decoder(dataclasses.replace(model, norm=wide))
