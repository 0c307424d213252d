"""The chain op against its float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops import GateNet, chain
from dynamicgate.ops.chain.layers import LAYOUTS
from dynamicgate.ops.chain.packing import Span, gate_layout, whole
from tests.ops.chains import THREADS, Sketch, assert_close, build, inputs_for, on_threads

ODD = (1, 3, 17, 63, 1000)
EXAMPLES = settings.default.max_examples  # make fuzz asks for more


def run_and_check(layers: list[chain.Layer], *batches: int, stride: str = "rows", threads: Sequence[int] = ()) -> None:
    packed = chain.pack(layers)
    for rows in batches:
        x, factor = inputs_for(layers, rows, 1, stride)
        results = on_threads(threads, partial(chain.run, x, packed, factor))
        if rows < 64:
            results.append(chain.run(x, packed, factor, backend="torch"))
        assert_close(results, x, layers, factor)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outputs", ODD)
@pytest.mark.parametrize("inputs", ODD)
def test_odd_sizes_match_the_reference(inputs: int, outputs: int, layout: str) -> None:
    run_and_check(build(inputs, [Sketch(outputs, layout)], seed=1), 1, 3, 17)
    run_and_check(build(inputs, [Sketch(outputs, layout, block=32), Sketch(7)], seed=1), 1, 3, 17)


@pytest.mark.parametrize("cut", ["all", "none", "some", "each", "top"])
@pytest.mark.parametrize("block", [1, 8, 16, 20, 64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_open_blocks_match_the_reference_at_any_batch(layout: str, block: int, cut: str) -> None:
    layers = build(65, [Sketch(150, layout, block, cut=cut), Sketch(33, "panels", 16), Sketch(10)], seed=2)
    run_and_check(layers, 1, 2, 16, 63, 300, threads=THREADS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_a_gated_input(layout: str) -> None:
    for block in (1, 5, 16, 64):
        layers = build(40, [Sketch(100, "panels", block), Sketch(70, layout, 20), Sketch(9, layout)], seed=4)
        run_and_check(layers, 1, 7, 40)


@pytest.mark.parametrize("cut", ["some", "each"])
@pytest.mark.parametrize("block", [1, 8, 16, 20])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("unbounded", [False, True])
def test_soft_width_matches_the_reference_at_any_batch(layout: str, block: int, cut: str, unbounded: bool) -> None:
    first = Sketch(150, layout, block, cut=cut, soft_width=3.0, activation="gelu", unbounded=unbounded)
    second = Sketch(35, layout, 16, rank=3, soft_width=0.6, cut=cut, unbounded=unbounded)
    layers = build(33, [first, second, Sketch(10)], seed=2)
    run_and_check(layers, 1, 2, 16, 63, 257, threads=THREADS)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("rank", [0, 20])
@pytest.mark.parametrize("gate", ["csr", "vectors"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_gate_is_right_at_any_batch(layout: str, gate: str, rank: int, skip: bool) -> None:
    rest = {"rank": rank, "gate_layout": gate, "skip_zeros": skip}
    first, second = Sketch(150, layout, 8, **rest), Sketch(100, layout, 16, **rest)
    layers = build(90, [first, second, Sketch(10)], seed=3)
    maps = [layer.gate.weights[0] for layer in layers if layer.gate is not None]
    assert {gate_layout(w, whole(w.shape[1])) for w in maps} == {gate}
    run_and_check(layers, 1, 2, 5, 16, 63, 257, threads=THREADS)


def test_a_gate_gets_the_cheapest_layout() -> None:
    dense, small = torch.ones(48, 40), torch.ones(5, 40)
    sparse, columns = torch.zeros(48, 40), torch.zeros(48, 40)
    sparse[:, 3], sparse[2, 5:9] = 1.0, 1.0
    columns[:, 7:9] = 1.0
    scattered = torch.eye(48, 40)
    gated = Span(40, 8, 16, gated=True)
    assert [gate_layout(w, whole(40)) for w in (dense, small, sparse, columns, scattered)] == [
        "panels", "rows", "vectors", "vectors", "csr",
    ]  # fmt: skip
    assert gate_layout(small, gated) == "panels", "rows cannot skip closed inputs"
    assert [gate_layout(w, gated) for w in (columns, scattered)] == ["columns", "csr"]
    assert gate_layout(torch.eye(48, 1 << 17), whole(1 << 17)) == "panels", "indices take two bytes"


def test_with_soft_width_the_factor_rises_from_zero_at_the_cut_to_one() -> None:
    gate = GateNet((torch.ones(2, 1),), (None,), cut=torch.tensor([1.0, 2.0]), soft_width=2.0)
    layers = [chain.Layer(torch.zeros(2, 1), torch.ones(2), block=1, gate=gate, layout="rows")]
    x = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0])[:, None]
    for backend in (None, "torch"):
        y = chain.run(x, chain.pack(layers), backend=backend)
        assert y[:, 0].tolist() == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
        assert y[:, 1].tolist() == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0]
    growing = [replace(layers[0], gate=replace(gate, unbounded=True))]
    for backend in (None, "torch"):
        y = chain.run(x, chain.pack(growing), backend=backend)
        assert y[:, 0].tolist() == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 4.0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_match_the_reference_up_to_rounding(activation: str) -> None:
    layers = [chain.Layer(torch.eye(1), torch.zeros(1), activation)]
    x = torch.cat((torch.linspace(-30, 30, 4001), torch.tensor([-1e4, -100.0, 0.0, 1e-6, 100.0, 1e4])))[:, None]
    y, expected = chain.run(x, chain.pack(layers)), chain.reference_chain(x.double(), layers)
    torch.testing.assert_close(y.double(), expected, atol=5e-7, rtol=5e-7)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_reaches_the_result(activation: str) -> None:
    y = chain.run(torch.tensor([[torch.nan, 1.0]]), chain.pack([chain.Layer(torch.ones(20, 2), None, activation)]))
    assert y.isnan().all()


def test_an_empty_batch_gives_an_empty_result() -> None:
    layers = build(5, [Sketch(40, block=16), Sketch(3)], seed=1)
    assert chain.run(torch.empty(0, 5), chain.pack(layers)).shape == (0, 3)


@pytest.mark.parametrize("stride", ["columns", "wide"])
def test_an_input_that_is_not_contiguous_matches_the_reference(stride: str) -> None:
    layers = build(30, [Sketch(80, block=16, skip_zeros=True), Sketch(11)], seed=1)
    run_and_check(layers, 1, 5, 100, stride=stride, threads=THREADS)


@pytest.mark.parametrize("layout", ["panels", "half panels", "vectors"])
@pytest.mark.parametrize("zeros", [0.2, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("skip", [False, True])
def test_skipping_zeros_matches_the_reference(layout: str, zeros: float, rows: int, skip: bool) -> None:
    sketches = [
        Sketch(300, layout, 32, skip_zeros=skip),
        Sketch(150, layout, 48),
        Sketch(70, layout, activation="gelu"),
        Sketch(5, layout, skip_zeros=skip),
    ]
    layers = build(1000, sketches, seed=2)
    packed = chain.pack(layers)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, 1000, generator=generator)
        x[torch.rand(rows, 1000, generator=generator) < zeros] = 0.0
        assert_close(on_threads(THREADS, partial(chain.run, x, packed)), x, layers, None)


def test_a_gate_may_be_wider_inside_than_its_input() -> None:
    layers = build(3, [Sketch(64, block=32, rank=50, hidden="relu"), Sketch(2)], seed=5)
    run_and_check(layers, 1)


@pytest.mark.parametrize("gate_layout", ["panels", "csr", "vectors"])
@pytest.mark.parametrize(("contexts", "blocks"), [(1, 3), (3, 20), (17, 5), (40, 40)])
def test_a_gate_can_name_the_nearest_prototype(contexts: int, blocks: int, gate_layout: str) -> None:
    gated = {"rank": contexts, "hidden": "nearest", "gate_layout": gate_layout}
    layers = build(37, [Sketch(7 * blocks, block=7, **gated), Sketch(30, block=4, **gated), Sketch(3)], seed=contexts)
    run_and_check(layers, 1, 2, 33, 300)


def test_of_equally_near_prototypes_the_first_is_named_and_nan_before_all() -> None:
    opens = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    gate = GateNet((torch.tensor([[0.0], [1.0], [1.0]]), opens), (None, None), hidden="nearest", cut=0.5)
    layers = [chain.Layer(torch.zeros(3, 1), torch.ones(3), block=1, gate=gate, layout="rows")]
    x = torch.tensor([[2.0], [-2.0], [0.0], [torch.nan], [torch.inf]])
    for backend in (None, "torch"):
        y = chain.run(x, chain.pack(layers), backend=backend)
        assert y[:3].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
        assert bool(y[3:].isnan().all())


def test_only_the_first_of_two_gate_maps_may_name_a_prototype() -> None:
    layers = build(9, [Sketch(32, block=16, rank=3, hidden="nearest")], seed=1)
    for at in (8 + 7, 8 + 2 * 9 + 7):  # the layer's own, and that of the second map
        weights, program, outputs = chain.pack(layers)
        program = program.clone()
        program[at] = 8
        with pytest.raises(ValueError, match="an activation is unknown"):
            chain.check_packed(chain.Packed(weights, program, outputs))


def test_leading_dimensions_are_rows() -> None:
    layers = build(6, [Sketch(32, block=16, given=True), Sketch(4)], seed=1)
    x, factor = inputs_for(layers, 12, seed=1)
    packed = chain.pack(layers)
    y = chain.run(x.view(3, 4, 6), packed, factor.view(3, 4, 2))
    torch.testing.assert_close(y, chain.run(x, packed, factor).view(3, 4, 4))


def test_threads_change_nothing_but_the_order_of_sums() -> None:
    layers = build(2000, [Sketch(1000, block=64, cut="all"), Sketch(600)], seed=1)
    x, _ = inputs_for(layers, 3, seed=1)
    results = []
    before = torch.get_num_threads()
    for count in (1, 2, 8):
        torch.set_num_threads(count)
        results.append(chain.run(x, chain.pack(layers)))
    torch.set_num_threads(before)
    assert all(torch.equal(results[0], result) for result in results)


@pytest.mark.parametrize("panels", [3, 7])
@pytest.mark.parametrize("layout", ["panels", "half panels"])
def test_which_panels_stand_side_by_side_changes_no_bit(layout: str, panels: int) -> None:
    """Four panels are computed side by side, then two, then one; threads divide the panels among them, so that a panel
    has other neighbours, or none, with other threads. Here outputs change places within their blocks of three or seven
    panels; blocks of outputs are open for some of many rows."""
    draw = torch.Generator().manual_seed(0)
    blocks, block = 20, 16 * panels

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=draw) / shape[-1] ** 0.5).bfloat16().float()

    opens = GateNet((normal(8, 64),), (None,), cut=-torch.inf)  # all inputs, which are then summed at once
    up = chain.Layer(normal(512, 64), normal(512), "gelu", 64, opens, "panels")
    some, weight, bias, x = (
        GateNet((normal(blocks, 512),), (None,), cut=0.5),
        normal(blocks * block, 512),
        normal(blocks * block),
        8.0 * normal(40, 64),
    )

    def rolled(of: torch.Tensor, by: int) -> torch.Tensor:
        return of.unflatten(0, (blocks, block)).roll(by, 1).flatten(0, 1)

    def outputs(by: int) -> torch.Tensor:
        layer = chain.Layer(rolled(weight, by), rolled(bias, by), "identity", block, some, layout)
        return rolled(chain.run(x, chain.pack([up, layer])).T, -by).T

    together = outputs(0)
    open_rows = (together.unflatten(1, (blocks, block)) != 0).any(-1).sum(0)
    assert bool((open_rows < 12).any() & (open_rows > 12).any()), "some blocks are open for few rows, some for many"
    for by in range(16, block, 16):
        assert torch.equal(together, outputs(by))


sketches = st.builds(
    Sketch,
    outputs=st.integers(1, 70),
    layout=st.sampled_from(LAYOUTS),
    block=st.sampled_from([0, 0, 1, 3, 8, 16, 20, 32]),
    rank=st.sampled_from([0, 0, 3, 17]),
    cut=st.sampled_from(["all", "none", "some", "some", "each", "top"]),
    top_k=st.integers(0, 3),
    tau=st.sampled_from([None, 0.7]),
    soft_width=st.sampled_from([None, 0.8]),
    unbounded=st.booleans(),
    hidden=st.sampled_from(["identity", "relu", "nearest"]),
    activation=st.sampled_from(tuple(ACTIVATIONS)),
    skip_zeros=st.booleans(),
    gate_layout=st.sampled_from(["panels", "csr", "vectors"]),
)


@pytest.mark.slow
@settings(max_examples=5 * EXAMPLES // 2, deadline=None, database=None)
@given(
    inputs=st.integers(1, 70),
    layers=st.lists(sketches, min_size=1, max_size=3),
    rows=st.integers(2, 40),
    stride=st.sampled_from(["rows", "columns", "wide"]),
    seed=st.integers(0, 10_000),
)
def test_random_cases_match_the_reference(inputs: int, layers: list[Sketch], rows: int, stride: str, seed: int) -> None:
    built = build(inputs, layers, seed)
    packed = chain.pack(built)
    for count, how in ((1, stride), (0, stride), (rows, stride), (rows % 5 + 1, "rows")):
        x, factor = inputs_for(built, count, seed, how)
        assert_close([chain.run(x, packed, factor)], x, built, factor)


def test_a_chain_can_mix_given_factors_with_gates() -> None:
    layers = build(9, [Sketch(50, block=16, given=True), Sketch(40, block=16), Sketch(5)], seed=7)
    run_and_check(layers, 1, 20)


def test_of_equal_logits_the_lowest_index_opens() -> None:
    gate = GateNet((torch.zeros(5, 2),), (torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0]),), cut=torch.inf, top_k=2)
    layers = [chain.Layer(torch.zeros(5, 2), torch.ones(5), block=1, gate=gate, layout="rows")]
    for backend in (None, "torch"):
        y = chain.run(torch.randn(3, 2), chain.pack(layers), backend=backend)
        assert y.tolist() == [[0.0, 1.0, 1.0, 0.0, 0.0]] * 3
