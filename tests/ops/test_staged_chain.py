"""The chain op on stages, against its float64 reference."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops import chain
from dynamicgate.ops.chain import registration
from dynamicgate.ops.chain.layers import LAYOUTS
from dynamicgate.ops.chain.stage_packing import unpack_staged
from dynamicgate.ops.chain.stages import DECIDE
from tests.ops.chains import THREADS, on_threads
from tests.ops.staged_chains import assert_close_staged, build_staged, expect_staged, rows_for
from tests.places import ROOT

BATCHES = (1, 3, 17, 300)
SIZES = {
    "one layer, two stages": [[19, 70]],
    "one layer, four stages": [[16, 5, 33, 20]],
    "two layers, three stages": [[21, 32, 50], [7, 40, 18]],
    "three layers, two stages": [[33, 65], [16, 48], [9, 30]],
    "three layers, four stages": [[15, 17, 16, 31], [13, 1, 20, 16], [16, 2, 9, 40]],
}


def run_and_check(
    staged: chain.Staged, *batches: int, stride: str = "rows", zeros: float = 0.3, threads: Sequence[int] = ()
) -> None:
    packed = chain.pack_staged(staged)
    for rows in batches:
        x = rows_for(staged, rows, stride, zeros)
        results = on_threads(threads, partial(chain.run, x, packed))
        if rows < 64:
            results.append(chain.run(x, packed, backend="torch"))
        assert_close_staged(results, x, staged)


@pytest.mark.parametrize("decide", DECIDE)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_odd_sizes_match_the_reference_at_any_batch(sizes: list[list[int]], decide: str) -> None:
    staged = build_staged(sizes, decide=decide)
    run_and_check(staged, *BATCHES, threads=THREADS)


def test_rows_stop_at_different_stages() -> None:
    for decide in DECIDE:
        staged = build_staged(SIZES["three layers, four stages"], decide=decide)
        _, stopped, clear = expect_staged(rows_for(staged, 300), staged)
        assert set(stopped[clear].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("cut", [math.inf, -math.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_rows_may_stop_at_once_or_not_at_all(layout: str, cut: float) -> None:
    sizes = SIZES["two layers, three stages"]
    staged = replace(build_staged(sizes, layout=layout), cut=(cut, cut))
    for rows in BATCHES:
        x = rows_for(staged, rows)
        assert set(expect_staged(x, staged)[1].tolist()) == {0 if cut > 0 else 2}
    run_and_check(staged, *BATCHES, threads=THREADS)


@pytest.mark.parametrize("zeros", [0.1, 0.6, 0.97])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_right_with_few_and_many_zeros(layout: str, skip: bool, zeros: float) -> None:
    staged = build_staged([[40, 90], [24, 50]], inputs=130, layout=layout, skip_zeros=skip)
    run_and_check(staged, *BATCHES, zeros=zeros, threads=THREADS)


def test_stages_may_have_different_layouts() -> None:
    layouts = ["vectors", "csr", "rows", "panels", "columns", "csr", "rows", "vectors"]
    for turn in range(len(layouts)):
        for skip in (False, True):
            staged = build_staged(
                [[16, 20, 33], [30, 12, 16]], inputs=90, layout=layouts[turn:] + layouts[:turn], skip_zeros=skip
            )
            run_and_check(staged, *BATCHES, 257, zeros=0.5)


@pytest.mark.parametrize("stride", ["rows", "columns", "wide"])
@pytest.mark.parametrize("first", LAYOUTS)
def test_sparse_rows_find_open_inputs_where_they_are(first: str, stride: str) -> None:
    staged = build_staged([[20, 33, 40]], inputs=75, layout=[first, "panels", "csr", "panels", "csr", "rows"])
    run_and_check(staged, 1, 5, 17, 300, 520, stride=stride, threads=THREADS)  # 520 rows are three chunks


def test_tiles_with_any_number_of_rows_match_the_reference() -> None:
    staged = build_staged([[20, 33]], inputs=75, layout="csr")
    run_and_check(staged, *range(1, 34))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_padding_stays_zero_behind_every_activation(activation: str) -> None:
    staged = build_staged(SIZES["two layers, three stages"], activation=activation)
    run_and_check(staged, *BATCHES)


@pytest.mark.parametrize("stride", ["columns", "wide"])
def test_an_input_that_is_not_contiguous_matches_the_reference(stride: str) -> None:
    for skip in (False, True):
        staged = build_staged(SIZES["two layers, three stages"], skip_zeros=skip)
        run_and_check(staged, *BATCHES, stride=stride, threads=THREADS)


def test_large_layers_are_shared_by_threads() -> None:
    staged = build_staged([[400, 600], [300, 500]], inputs=700, outputs=33)
    run_and_check(staged, 1, 2, 40, 700, threads=THREADS)


def test_a_row_gets_the_same_bits_whatever_its_batch_opens() -> None:
    staged = build_staged(SIZES["two layers, three stages"])
    packed = chain.pack_staged(staged)
    x = rows_for(staged, 120)
    _, stopped, _ = expect_staged(x, staged)
    together = chain.run(x, packed)
    for k in range(3):
        torch.testing.assert_close(chain.run(x[stopped == k], packed), together[stopped == k])


@pytest.mark.parametrize("decide", ["margin", "entropy"])
def test_a_row_with_nan_or_infinite_outputs_stops_as_in_torch(decide: str) -> None:
    staged = replace(build_staged([[16, 16]], inputs=4, decide=decide, activation="identity"), cut=(-math.inf,))
    packed = chain.pack_staged(staged)
    x = rows_for(staged, 6, zeros=0.0)
    x[1, 2], x[4, 0] = math.nan, math.inf
    for rows in (x, x[1:2], x[4:5]):
        want = chain.reference_staged(rows, staged)
        torch.testing.assert_close(chain.run(rows, packed), want, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_unpacking_gives_the_same_chain_with_padded_stages() -> None:
    for layout in LAYOUTS:
        for decide in DECIDE:
            staged = build_staged(SIZES["two layers, three stages"], layout=layout, decide=decide)
            again = unpack_staged(*chain.pack_staged(staged)[:2])
            assert [layer.weight.shape[0] for layer in again.stages[0][:-1]] == [32, 16]
            assert (again.decide, again.cut) == (decide, tuple(torch.tensor(staged.cut).tolist()))
            x = rows_for(staged, 50).double()
            same = chain.reference_staged(x, replace(staged, cut=again.cut))
            torch.testing.assert_close(chain.reference_staged(x, again), same)


def test_the_op_and_its_bypass_give_the_same_bits() -> None:
    staged = build_staged(SIZES["two layers, three stages"])
    packed = chain.pack_staged(staged)
    op = torch.ops.dynamicgate.run_chain.default
    for rows in (0, *BATCHES):
        x = rows_for(staged, rows)
        by_op = op(x, packed.weights, packed.program, None, packed.outputs)
        assert torch.equal(chain.run(x, packed), by_op)
        assert by_op.shape == (rows, 10)
        if registration._bypass is not None and rows:
            assert torch.equal(registration._bypass(x, packed.weights, packed.program), by_op)
    torch.library.opcheck(op, (x, packed.weights, packed.program, None, packed.outputs))


@pytest.mark.parametrize("backend", [None, "torch"])
def test_a_program_that_was_damaged_is_refused(backend: str | None) -> None:
    packed = chain.pack_staged(build_staged([[16, 16]]))
    x = torch.zeros(2, 37)

    def refused(words: str, given: chain.Packed, rows: torch.Tensor = x, **rest: torch.Tensor) -> None:
        with pytest.raises(ValueError, match=words):
            chain.run(rows, given, backend=backend, **rest)

    wrong = "same call of pack"
    refused(wrong, packed._replace(weights=packed.weights[:-16]))
    refused(wrong, packed._replace(program=packed.program[:-1]))
    refused(wrong, packed._replace(program=packed.program[:40]))
    changed = packed.program.clone()
    changed[0] += 1
    refused(wrong, packed._replace(program=changed))
    short = packed.program[:40].clone()
    short[5] = 40
    refused(wrong, packed._replace(program=short))
    refused("37 features", packed, torch.zeros(2, 36))
    refused("float32", packed, x.double())
    refused("needs factor", packed, factor_BG=torch.ones(2, 3))


def test_chains_that_cannot_be_run_are_refused_with_a_sentence() -> None:
    good = build_staged(SIZES["two layers, three stages"])
    one, two, three = good.stages
    last = three[-1]

    def refused(words: str, wrong: chain.Staged) -> None:
        with pytest.raises(ValueError, match=words):
            chain.pack_staged(wrong)

    refused("two stages or more", replace(good, stages=(one,), cut=()))
    refused("two stages or more", replace(good, stages=(one, two, three[:-1])))
    refused("need 2 cuts, received 1", replace(good, cut=(0.0,)))
    refused("decide must be one of", replace(good, decide="random"))
    refused(
        "stage 2, layer 1: expected 53 inputs, received", replace(good, stages=(one, (two[0], one[1], two[2]), three))
    )
    refused("no gates on units", replace(good, stages=(one, two, (*three[:-1], replace(last, block=2)))))
    refused("have no activation", replace(good, stages=(one, two, (*three[:-1], replace(last, activation="relu")))))
    refused("layout must be one of", replace(good, stages=(one, two, (*three[:-1], replace(last, layout="tiles")))))
    refused("two outputs or more", build_one_output())
    refused("heads read the units computed so far", replace(good, decide="head"))


def build_one_output() -> chain.Staged:
    staged = build_staged([[16, 16]])
    stages = tuple((a, replace(b, weight=b.weight[:1], bias=None)) for a, b in staged.stages)
    return replace(staged, stages=stages)


def test_one_output_is_enough_for_heads() -> None:
    staged = build_staged([[16, 30]], outputs=1, decide="head")
    run_and_check(staged, *BATCHES)


def test_without_the_library_torch_gives_the_same_result() -> None:
    script = """
        import pathlib, torch
        hidden = pathlib.Path.glob
        pathlib.Path.glob = lambda self, pattern: [] if "_kernels" in str(pattern) else hidden(self, pattern)
        from dynamicgate.ops import backend, chain
        from tests.ops.staged_chains import build_staged, rows_for
        staged = build_staged([[21, 32], [7, 40]])
        packed = chain.pack_staged(staged)
        assert backend() == "torch", backend()
        print(chain.run(rows_for(staged, 5), packed).tolist())
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    staged = build_staged([[21, 32], [7, 40]])
    assert_close_staged([torch.tensor(eval(found.stdout))], rows_for(staged, 5), staged)
