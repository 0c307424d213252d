"""Inputs below a threshold of their own: of a single row their weights are not read, and any number of rows agrees with
float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import GateNet, chain, native
from dynamicgate.ops.chain import Layer, reference_chain
from dynamicgate.ops.chain.packing import HEADER_WORDS, LAYER_WORDS, LINEAR_WORDS
from dynamicgate.ops.chain.unpacking import unpack
from tests.ops.chains import THREADS, on_threads
from tests.ops.threshold_chains import LAYOUTS, LEFT_OUT, ROWS, build, off, rows_of

no_kernels = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 16), (37, 41), (64, 170), (257, 79), (99, 333), (577, 48)])
def test_any_number_of_rows_matches_float64(inputs: int, outputs: int, left_out: str, layout: str) -> None:
    for value in (False, True):
        layers = [build(inputs, outputs, layout, above=LEFT_OUT[left_out], value=value, bias=not value)]
        for rows in ROWS:
            x = rows_of(rows, inputs)
            assert off(chain.run(x, chain.pack(layers)), reference_chain(x.double(), layers)) < 1e-5, (value, rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hidden", ["panels", "half panels", "thresholds"])
def test_two_layers_of_which_some_have_thresholds_match_float64(layout: str, hidden: str) -> None:
    first = build(70, 333, layout, value=True)
    second = build(333, 41, layout, above=0.1, activation="identity")
    if hidden != "thresholds":
        first = replace(build(70, 333, hidden, value=True), above=None, value_above=None)
    for rows in ROWS:
        x = rows_of(rows, 70)
        h = reference_chain(x.double(), [first])
        assert second.above is not None
        apart = (h.abs() - second.above.double()).abs().amin(1) > 1e-6  # rounding may change the others
        found = chain.run(x, chain.pack([first, second]))
        assert bool(apart.any())
        assert off(found[apart], reference_chain(x.double(), [first, second])[apart]) < 1e-5, rows


@no_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("factors", [None, 0.15])
def test_any_number_of_threads_gives_the_same_bits(factors: float | None, layout: str) -> None:
    layers = [build(900, 1500, layout, value=True, factors=factors), build(1500, 1003, layout, above=0.1)]
    for rows in (1, 3, 40):
        x, packed = rows_of(rows, 900), chain.pack(layers)
        first, *others = on_threads((*THREADS, 3), lambda x=x, packed=packed: chain.run(x, packed))  # type: ignore[misc]
        for found in others:
            assert torch.equal(found, first), rows


@no_kernels
@pytest.mark.parametrize("layout", ["panels", "half panels"])
@pytest.mark.parametrize("rows", [1, 4])
def test_weights_of_inputs_that_no_row_has_above_their_threshold_are_not_read(rows: int, layout: str) -> None:
    layer = build(333, 79, layout, value=True)
    assert layer.above is not None
    assert layer.value_weight is not None
    assert layer.value_above is not None
    x = rows_of(rows, 333)
    found = chain.run(x, chain.pack([layer]))
    spoiled = []
    for weight, above in ((layer.weight, layer.above), (layer.value_weight, layer.value_above)):
        closed = (x.abs() <= above).all(0)
        assert 0 < int(closed.sum()) < 333
        weight = weight.clone()
        weight[:, closed] = 1e30 if layout == "panels" else 2.0**100
        spoiled.append(weight)
    changed = replace(layer, weight=spoiled[0], value_weight=spoiled[1])
    assert torch.equal(chain.run(x, chain.pack([changed])), found)
    packed = chain.pack([layer])
    for weight, at in zip(spoiled, (4, 3 * LINEAR_WORDS + 4), strict=True):  # a NaN is no number that bfloat16 holds
        start = int(packed.program[HEADER_WORDS + at]) * 16
        held = packed.weights[start:].view(torch.float32 if layout == "panels" else torch.bfloat16)
        held[: 333 * 80].view(333, 80)[weight[0] > 1e20] = torch.nan
    assert torch.equal(chain.run(x, packed), found)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_a_nan_stays_and_so_does_what_is_infinite(rows: int, backend: str) -> None:
    layers = [build(37, 41, value=True), build(41, 10, activation="identity")]
    x = rows_of(rows, 37)
    x[0, 3] = torch.nan
    found = chain.run(x, chain.pack(layers), backend="torch" if backend == "torch" else None)
    assert bool(found[0].isnan().all())
    assert bool(found[1:].isfinite().all())
    x[0, 3] = torch.inf
    found = chain.run(x, chain.pack(layers), backend="torch" if backend == "torch" else None)
    assert not bool(found[0].isfinite().any())


def test_a_row_of_no_numbers_in_front_of_a_gate_is_what_torch_gives() -> None:
    """Such rows are computed once more in the plainest way, by other code."""
    gate = GateNet((torch.randn(5, 41, generator=torch.Generator().manual_seed(0)),), (None,))
    for layout in LAYOUTS:
        first = build(37, 41, layout, value=True, activation="identity")
        weight = torch.randn(70, 41, generator=torch.Generator().manual_seed(1))
        layers = [first, Layer(weight, None, "relu", 16, gate), Layer(torch.ones(3, 70))]
        x = rows_of(4, 37)
        x[1] *= 1e20
        found, wanted = chain.run(x, chain.pack(layers)), chain.run(x, chain.pack(layers), backend="torch")
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_packed_is_unpacked(layout: str) -> None:
    layers = [build(37, 41, layout, value=True), build(41, 3, layout, bias=False)]
    packed = chain.pack(layers)
    chain.check_packed(packed)
    for layer, read in zip(layers, unpack(packed.weights, packed.program), strict=True):
        for name in ("weight", "value_weight", "above", "value_above"):
            one, other = getattr(layer, name), getattr(read, name)
            assert (one is None) == (other is None), name
            assert one is None or torch.equal(one, other), name
        assert read.layout == layout


def refused() -> dict[str, Layer]:
    layer = build(8, 16, value=True)
    gate = GateNet((torch.randn(1, 8),), (None,))
    return {
        "of all of its projections": replace(layer, value_above=None),
        "thresholds need panels": replace(layer, layout="rows"),
        "not gated": replace(layer, block=16, gate=gate),
        "skip zeros as well": replace(build(8, 16), skip_zeros=True),
        "8 finite thresholds": replace(build(8, 16), above=torch.ones(7)),
        "finite thresholds from 0": replace(build(8, 16), above=-torch.ones(8)),
        "expected 8 finite": replace(build(8, 16), above=torch.full((8,), torch.nan)),
    }


@pytest.mark.parametrize("words", refused())
def test_thresholds_that_mean_nothing_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chain.pack([refused()[words]])


def test_thresholds_behind_a_gate_and_in_stages_are_refused() -> None:
    gate = GateNet((torch.randn(1, 8),), (None,))
    with pytest.raises(ValueError, match="not gated"):
        chain.pack([Layer(torch.randn(16, 8), None, "relu", 16, gate), build(16, 4)])
    stage = (build(8, 16, activation="relu"), build(16, 3, activation="identity"))
    with pytest.raises(ValueError, match="no gates on units, and no thresholds"):
        chain.pack_staged(chain.Staged((stage, stage), (0.5,), "margin", 3))


def set_word(at: int, value: int) -> Callable[[Tensor], None]:
    def change(program: Tensor) -> None:
        program[HEADER_WORDS + at] = value

    return change


LIES = {
    "a bias without room for thresholds": lambda program: program.__setitem__(
        HEADER_WORDS + LAYER_WORDS + 5, int(program[4]) - 1
    ),
    "a layout beyond all": set_word(0, 13),
    "thresholds of one projection": set_word(3 * LINEAR_WORDS, 0),
    "zeros to skip": set_word(8, 1),
    "gated outputs": set_word(4 * LINEAR_WORDS + 1, 3),
    "more inputs": set_word(1, 38),
}


@no_kernels
@pytest.mark.parametrize("name", LIES)
def test_a_program_that_lies_is_refused(name: str) -> None:
    packed = chain.pack([build(37, 41, value=True), build(41, 10)])
    chain.check_packed(packed)
    program = packed.program.clone()
    LIES[name](program)
    with pytest.raises(ValueError, match=r"not a packed chain: \w+"):
        chain.check_packed(packed._replace(program=program))
