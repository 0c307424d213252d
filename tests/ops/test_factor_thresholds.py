"""Factors below a threshold of their own: of few rows the weights of the units that they multiply are not read, and any
number of rows agrees with float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import chain, native
from dynamicgate.ops.chain import Layer, reference_chain
from dynamicgate.ops.chain.packing import HEADER_WORDS, LINEAR_WORDS
from dynamicgate.ops.chain.unpacking import unpack
from tests.ops.threshold_chains import LAYOUTS, ROWS, build, expect, off, rows_of

FACTORS = {"some": 0.15, "none": 0.0, "all": 1e6}
VALUE = 3 * LINEAR_WORDS  # where the words of the value projection start in those of its layer
no_kernels = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left_out", FACTORS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 16), (37, 41), (64, 170), (257, 79), (99, 333), (577, 48)])
def test_any_number_of_rows_matches_float64(inputs: int, outputs: int, left_out: str, layout: str) -> None:
    for above, bias in ((0.7, True), (0.0, False)):
        layers = [build(inputs, outputs, layout, above=above, factors=FACTORS[left_out], bias=bias)]
        packed = chain.pack(layers)
        for rows in ROWS:
            x = rows_of(rows, inputs)
            wanted, clear = expect(x, layers)
            assert 2 * int(clear.sum()) > rows - 2
            for backend in (None, "torch"):
                found = chain.run(x, packed, backend=backend)  # type: ignore[arg-type]
                assert off(found[clear], wanted[clear]) < 1e-5, (above, rows, backend)
            if left_out == "all":
                assert not bool(found.any())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_layers_match_float64(layout: str) -> None:
    layers = [build(70, 333, layout, factors=0.15), build(333, 41, layout, above=0.1, activation="identity")]
    for rows in ROWS:
        x = rows_of(rows, 70)
        wanted, clear = expect(x, layers)
        assert bool(clear.any())
        assert off(chain.run(x, chain.pack(layers))[clear], wanted[clear]) < 1e-5, rows


@no_kernels
@pytest.mark.parametrize("layout", ["panels", "half panels"])
@pytest.mark.parametrize("rows", [1, 4])
def test_weights_of_units_that_no_row_needs_are_not_read(rows: int, layout: str) -> None:
    layer = build(333, 79, layout, factors=0.4)
    assert layer.factors_above is not None
    x, packed = rows_of(rows, 333), chain.pack([layer])
    found = chain.run(x, packed)
    factors = reference_chain(x, [replace(layer, value_weight=None, value_bias=None, factors_above=None)])
    closed = (factors.abs() <= layer.factors_above).all(0)
    assert 0 < int(closed.sum()) < 79
    start = int(packed.program[HEADER_WORDS + VALUE + 4]) * 16
    held = packed.weights[start:].view(torch.float32 if layout == "panels" else torch.bfloat16)
    held[: 80 * 336].view(80, 336)[:79][closed] = torch.nan
    assert torch.equal(chain.run(x, packed), found)
    held[: 80 * 336].view(80, 336)[:79][~closed] = torch.nan
    assert bool(chain.run(x, packed).isnan().any())


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_a_nan_stays_and_so_does_what_is_infinite(rows: int, backend: str) -> None:
    layers = [build(37, 41, factors=0.3), build(41, 10, activation="identity")]
    x = rows_of(rows, 37)
    for odd in (torch.nan, torch.inf):
        x[0, 3] = odd
        found = chain.run(x, chain.pack(layers), backend="torch" if backend == "torch" else None)
        assert not bool(found[0].isfinite().any())
        assert bool(found[1:].isfinite().all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_no_numbers_are_what_torch_gives(layout: str) -> None:
    """They are computed once more in the plainest way, by other code."""
    layers = [build(37, 41, layout, factors=0.3, activation="relu")]
    for rows in (1, 4, 40):
        x = rows_of(rows, 37)
        x[0, 3], x[-1, 5] = torch.inf, 1e20
        found, wanted = chain.run(x, chain.pack(layers)), chain.run(x, chain.pack(layers), backend="torch")
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_packed_is_unpacked(layout: str) -> None:
    layers = [build(37, 41, layout, factors=0.3), build(41, 3, layout, bias=False)]
    packed = chain.pack(layers)
    chain.check_packed(packed)
    for layer, read in zip(layers, unpack(packed.weights, packed.program), strict=True):
        for name in ("weight", "value_weight", "above", "value_above", "factors_above"):
            one, other = getattr(layer, name), getattr(read, name)
            assert (one is None) == (other is None), name
            assert one is None or torch.equal(one, other), name
        assert read.layout == layout


def refused() -> dict[str, Layer]:
    layer = build(8, 16, factors=0.3)
    return {
        "of both projections": replace(layer, above=None, value_above=None),
        "inputs of both projections": replace(build(8, 16), factors_above=torch.ones(16)),
        "16 finite thresholds": replace(layer, factors_above=torch.ones(8)),
        "expected 16 finite": replace(layer, factors_above=torch.full((16,), torch.inf)),
        "not gated": replace(layer, block=16),
    }


@pytest.mark.parametrize("words", refused())
def test_thresholds_that_mean_nothing_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chain.pack([refused()[words]])


def set_words(*words: tuple[int, int]) -> Callable[[Tensor], None]:
    def change(program: Tensor) -> None:
        for at, value in words:
            program[HEADER_WORDS + at] = value

    return change


def at_the_end(at: int, lines: int) -> Callable[[Tensor], None]:
    """The weights or biases of the value projection so many lines before the end of all weights."""
    return lambda program: program.__setitem__(HEADER_WORDS + VALUE + at, int(program[4]) - lines)


LIES = {
    "units of bytes beside inputs of floats": set_words((VALUE, 12)),
    "units beside panels": set_words((0, 0)),
    "the first projection by unit": set_words((0, 10)),
    "both projections by unit": set_words((0, 10), (VALUE, 10)),
    "a layout beyond all": set_words((VALUE, 13)),
    "no room for thresholds of factors": at_the_end(5, 7),  # of 48 biases and 37 and 48 thresholds: 8.3 lines
    "no room for the padding of inputs": at_the_end(4, 143),  # of 48 units of 48 inputs: 144 lines
    "gated outputs": set_words((4 * LINEAR_WORDS + 1, 3)),
    "more inputs": set_words((VALUE + 1, 38)),
    "zeros to skip": set_words((VALUE + 8, 1)),
    "an activation": set_words((VALUE + 7, 1)),
}


@pytest.mark.parametrize("name", LIES)
@no_kernels
def test_a_program_that_lies_is_refused(name: str) -> None:
    packed = chain.pack([build(37, 41, factors=0.3), build(41, 10)])
    chain.check_packed(packed)
    program = packed.program.clone()
    LIES[name](program)
    with pytest.raises(ValueError, match=r"not a packed chain: \w+"):
        chain.check_packed(packed._replace(program=program))


@no_kernels
def test_room_for_the_last_threshold_is_enough() -> None:
    """So that the limits above are those of what is read."""
    packed = chain.pack([build(37, 41, factors=0.3)])
    program = packed.program.clone()
    for at, lines in ((4, 144), (5, 9)):
        program[HEADER_WORDS + VALUE + at] = int(program[4]) - lines
        chain.check_packed(packed._replace(program=program))
