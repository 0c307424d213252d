"""`gated_ffn` on a CUDA GPU: the grouped kernels. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate.activations import IN_TRITON
from dynamicgate.ops.ffn import gated_ffn, reference_ffn, tune
from tests.ops.ffn.cases import call, errors, in_float64, run, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-5}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was not written is NaN, so that a test notices what a kernel leaves out."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@pytest.fixture(params=["partial outputs", "atomics"])
def down(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of down projection. Memory stays poisoned: only what our own code asks torch is answered otherwise."""
    if request.param == "atomics":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    return str(request.param)


both_kinds_of_down = pytest.mark.usefixtures("down")


def wrong(found: dict[str, float], dtype: torch.dtype = torch.bfloat16) -> dict[str, float]:
    return {name: error for name, error in found.items() if not error < TOLERANCE[dtype]}


@both_kinds_of_down
@dtypes
@pytest.mark.parametrize("activation", IN_TRITON)
def test_results_and_gradients_match_the_reference(dtype: torch.dtype, activation: str) -> None:
    given = tensors(1100, 512, 1024, 384, 128, dtype=dtype, device="cuda")
    assert wrong(errors(given, block=128, activation=activation), dtype) == {}


@both_kinds_of_down
@dtypes
@pytest.mark.parametrize("value", [False, True])
def test_dense_gate_gradients_reach_closed_factors(dtype: torch.dtype, value: bool) -> None:
    given = tensors(1100, 512, 1024, 384, 128, value=value, dtype=dtype, device="cuda")
    assert wrong(errors(given, block=128, activation="silu", gate_gradient="dense"), dtype) == {}


@both_kinds_of_down
@dtypes
@pytest.mark.parametrize("sizes", [(17, 40, 72, 24, 8), (1033, 200, 777, 130, 96), (1029, 1000, 2050, 999, 512)])
def test_odd_sizes_and_swiglu(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    given = tensors(*sizes, value=True, dtype=dtype, device="cuda")
    assert wrong(errors(given, block=sizes[-1], activation="silu"), dtype) == {}


@both_kinds_of_down
@pytest.mark.parametrize("block", [64, 512])
@pytest.mark.parametrize("value", [False, True])
def test_tokens_that_share_gate_patterns(block: int, value: bool) -> None:
    more = {"opened": 0.25, "patterns": 8, "value": value, "dtype": torch.bfloat16, "device": "cuda"}
    given = tensors(9000, 512, 4096, 512, block, **more)
    assert wrong(errors(given, block=block, activation="silu")) == {}


@both_kinds_of_down
@pytest.mark.parametrize(
    "blocks",
    [slice(8), slice(0), slice(3, 4), slice(2, 6, 3)],
    ids=["all open", "all closed", "one block open for all", "empty blocks"],
)
def test_skewed_gates(blocks: slice) -> None:
    opened = torch.zeros(9000, 8, dtype=torch.bool, device="cuda")
    opened[:, blocks] = True
    given = tensors(9000, 256, 1024, 256, 128, opened=opened, dtype=torch.bfloat16, device="cuda")
    assert wrong(errors(given, block=128)) == {}


@both_kinds_of_down
@pytest.mark.parametrize("outputs", [512, 390], ids=["aligned", "odd"])
@pytest.mark.parametrize("opened", [0.1, 0.0, 1.0])
def test_inference_in_small_blocks(outputs: int, opened: float) -> None:
    given = tensors(9001, 512, 2048, outputs, 128, opened=opened, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        y, right = call(gated_ffn, given, block=128), call(reference_ffn, in_float64(given), block=128)
    assert ((y - right).norm() / right.norm()).item() < 1e-2


@pytest.mark.parametrize("atomic", [False, True], ids=["partial outputs", "atomics"])
def test_launches_that_start_early_wait_for_what_they_read(atomic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "uses_atomics", lambda *_: atomic)
    torch.use_deterministic_algorithms(False)  # it fills memory, so that launches would not follow each other closely
    more = {"dtype": torch.bfloat16, "device": "cuda"}
    given = [tensors(2000, 512, 2048, 512, 128, opened=0.1 * n, seed=n, **more) for n in range(1, 7)]
    with torch.no_grad():
        alone, again = ([_alone(each) for each in given] for _ in range(2))
        # Atomics add in any order, in bfloat16: calls that wait for each other differ too, and by as much.
        rounding = [_apart(one, other) for one, other in zip(alone, again, strict=True)]
        assert max(rounding) < (TOLERANCE[torch.bfloat16] if atomic else 1e-9)
        for _ in range(5):
            together = [call(gated_ffn, each, block=128) for each in given]
            for one, other, usual in zip(alone, together, rounding, strict=True):
                assert _apart(one, other) < max(1.5 * usual, 1e-9)


def _alone(given: dict[str, Tensor]) -> Tensor:
    """The output of a call that nothing else runs beside."""
    torch.cuda.synchronize()
    found = call(gated_ffn, given, block=128)
    torch.cuda.synchronize()
    return found


def _apart(one: Tensor, other: Tensor) -> float:
    return ((one - other).norm() / one.norm()).item()


@both_kinds_of_down
def test_weights_of_a_closed_block_are_never_read() -> None:
    opened = torch.rand(9000, 8, device="cuda") < 0.5
    opened[:, 5] = False
    given = tensors(9000, 256, 1024, 256, 128, opened=opened, dtype=torch.bfloat16, device="cuda")
    for name, units in (("up", (slice(640, 768),)), ("down", (slice(None), slice(640, 768)))):
        given[name][units] = torch.nan
    assert all(t.isfinite().all() for t in run(gated_ffn, given, None, block=128).values())


def test_the_same_call_gives_the_same_bits_with_deterministic_algorithms() -> None:
    given = tensors(3000, 512, 2048, 512, 256, dtype=torch.bfloat16, device="cuda")
    first, second = (run(gated_ffn, given, None, block=256, activation="gelu") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@both_kinds_of_down
def test_65537_tokens_and_more_than_two_to_the_31_hidden_values() -> None:
    T, block = 65_537, 4096  # 65,537 * 36,864 hidden values
    given = tensors(T, 64, 9 * block, 64, block, opened=0.15, bias=False, dtype=torch.bfloat16, device="cuda")
    found = run(gated_ffn, given, None, block=block)
    some = torch.cat([torch.arange(128), torch.arange(T - 128, T)]).cuda()
    part = {name: t[some] if name in ("x", "factor") else t for name, t in given.items()}
    right = call(reference_ffn, in_float64(part), block=block)
    assert ((found["y"][some] - right).norm() / right.norm()).item() < 1e-2
    assert all(t.isfinite().all() for t in found.values())


def test_float32_uses_tf32_only_where_torch_does() -> None:
    given = tensors(512, 512, 1024, 512, 128, device="cuda")
    before = torch.backends.cuda.matmul.fp32_precision
    assert errors(given, block=128)["y"] < 1e-6
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # no attribute that monkeypatch could take back
        assert 1e-5 < errors(given, block=128)["y"] < 5e-3
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
def test_it_compiles_without_a_graph_break_and_runs_from_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors(2048, 256, 1024, 256, 128, dtype=torch.bfloat16, device="cuda")
    compiled = torch.compile(gated_ffn, fullgraph=True)
    eager, found = (run(function, given, None, block=128) for function in (gated_ffn, compiled))
    assert all(torch.equal(eager[name], found[name]) for name in eager)
    monkeypatch.setattr(tune, "uses_atomics", lambda *_: False)  # so that the bits are the same
    torch.use_deterministic_algorithms(False)  # it fills memory, which a capture does not see
    graph, inputs = torch.cuda.CUDAGraph(), {name: None if t is None else t.clone() for name, t in given.items()}
    with torch.no_grad():
        call(gated_ffn, inputs, block=128)
        with torch.cuda.graph(graph):
            y = call(gated_ffn, inputs, block=128)
        other = tensors(2048, 256, 1024, 256, 128, dtype=torch.bfloat16, device="cuda", seed=5, opened=0.7)
        for name, t in inputs.items():
            if t is not None:
                t.copy_(other[name])
        graph.replay()
        assert torch.equal(y, call(gated_ffn, inputs, block=128))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("opened", [0.1, 1.0])
def test_as_many_atomic_additions_as_are_allowed_stay_accurate(dtype: torch.dtype, opened: float) -> None:
    torch.use_deterministic_algorithms(False)
    given = tensors(1500, 256, 64 * tune.MOST_ATOMIC_BLOCKS, 264, 64, opened=opened, dtype=dtype, device="cuda")
    assert tune.uses_atomics(1500, tune.MOST_ATOMIC_BLOCKS, 64, False, dtype, given["x"].device)
    assert wrong(errors(given, block=64), torch.bfloat16) == {}
