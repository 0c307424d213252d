"""The kernels for many tokens on a CUDA GPU. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from dynamicgate.ops.ffn import gated_ffn, reference, tune
from tests.ops.ffn.cases import errors, run, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-5}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN: what a kernel leaves out cannot go unnoticed."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@pytest.fixture(params=["rows", "adding"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to sum over pairs. Memory stays poisoned: only our own question is answered otherwise."""
    if request.param == "adding":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    return str(request.param)


both_ways = pytest.mark.usefixtures("way")


def wrong(found: dict[str, float], dtype: torch.dtype = torch.bfloat16) -> dict[str, float]:
    return {name: error for name, error in found.items() if not error < TOLERANCE[dtype]}


@both_ways
@dtypes
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_results_and_gradients_are_those_of_the_reference(dtype: torch.dtype, activation: str) -> None:
    given = tensors(1100, 512, 1024, 384, 128, dtype=dtype, device="cuda")
    assert wrong(errors(given, block=128, activation=activation), dtype) == {}


@both_ways
@dtypes
@pytest.mark.parametrize("value", [False, True])
def test_exact_gradients_reach_closed_factors(dtype: torch.dtype, value: bool) -> None:
    given = tensors(1100, 512, 1024, 384, 128, value=value, dtype=dtype, device="cuda")
    assert wrong(errors(given, block=128, activation="silu", gradient="exact"), dtype) == {}


@both_ways
@dtypes
@pytest.mark.parametrize("sizes", [(17, 40, 72, 24, 8), (1033, 200, 777, 130, 96), (1029, 1000, 2050, 999, 512)])
def test_odd_sizes_and_swiglu(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    given = tensors(*sizes, value=True, dtype=dtype, device="cuda")
    assert wrong(errors(given, block=sizes[-1], activation="silu"), dtype) == {}


@both_ways
@pytest.mark.parametrize("block", [64, 512])
@pytest.mark.parametrize("value", [False, True])
def test_tokens_that_fall_into_patterns(block: int, value: bool) -> None:
    more = {"opened": 0.25, "patterns": 8, "value": value, "dtype": torch.bfloat16, "device": "cuda"}
    given = tensors(9000, 512, 4096, 512, block, **more)
    assert wrong(errors(given, block=block, activation="silu")) == {}


@both_ways
@pytest.mark.parametrize(
    "blocks",
    [slice(8), slice(0), slice(3, 4), slice(2, 6, 3)],
    ids=["all open", "all closed", "one block takes all", "empty blocks"],
)
def test_skewed_gates(blocks: slice) -> None:
    opened = torch.zeros(9000, 8, dtype=torch.bool, device="cuda")
    opened[:, blocks] = True
    given = tensors(9000, 256, 1024, 256, 128, opened=opened, dtype=torch.bfloat16, device="cuda")
    assert wrong(errors(given, block=128)) == {}


@both_ways
@pytest.mark.parametrize("outputs", [512, 390], ids=["aligned", "odd"])
@pytest.mark.parametrize("opened", [0.1, 0.0, 1.0])
def test_inference_in_small_blocks(outputs: int, opened: float) -> None:
    given = tensors(9001, 512, 2048, outputs, 128, opened=opened, dtype=torch.bfloat16, device="cuda")
    in_float64 = {name: None if t is None else t.double() for name, t in given.items()}
    with torch.no_grad():
        y, right = gated_ffn(**given, block=128), reference(**in_float64, block=128)
    assert ((y - right).norm() / right.norm()).item() < 1e-2


@pytest.mark.parametrize("adds", [False, True], ids=["rows", "adding"])
def test_launches_that_start_early_wait_for_what_they_read(adds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "adds", lambda *_: adds)
    torch.use_deterministic_algorithms(False)  # it fills memory, and no launch would follow another closely
    more = {"dtype": torch.bfloat16, "device": "cuda"}
    given = [tensors(2000, 512, 2048, 512, 128, opened=0.1 * n, seed=n, **more) for n in range(1, 7)]
    with torch.no_grad():
        alone = []
        for each in given:
            alone.append(gated_ffn(**each, block=128))
            torch.cuda.synchronize()
        for _ in range(5):
            together = [gated_ffn(**each, block=128) for each in given]
            apart = max(((a - b).norm() / a.norm()).item() for a, b in zip(alone, together, strict=True))
            assert apart < (5e-3 if adds else 1e-9)


@both_ways
def test_weights_of_a_closed_block_are_never_read() -> None:
    opened = torch.rand(9000, 8, device="cuda") < 0.5
    opened[:, 5] = False
    given = tensors(9000, 256, 1024, 256, 128, opened=opened, dtype=torch.bfloat16, device="cuda")
    for name, units in (("up_ND", (slice(640, 768),)), ("down_ON", (slice(None), slice(640, 768)))):
        given[name][units] = torch.nan
    assert all(t.isfinite().all() for t in run(gated_ffn, given, None, block=128).values())


def test_the_same_call_gives_the_same_bits_where_torch_is_asked_for_it() -> None:
    given = tensors(3000, 512, 2048, 512, 256, dtype=torch.bfloat16, device="cuda")
    first, second = (run(gated_ffn, given, None, block=256, activation="gelu") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@both_ways
def test_65537_tokens_and_more_than_two_to_the_31_hidden_values() -> None:
    T, block = 65_537, 4096  # 65,537 * 36,864 hidden values
    given = tensors(T, 64, 9 * block, 64, block, opened=0.15, bias=False, dtype=torch.bfloat16, device="cuda")
    found = run(gated_ffn, given, None, block=block)
    some = torch.cat([torch.arange(128), torch.arange(T - 128, T)]).cuda()
    part = {name: t[some] if name in ("x_TD", "factor_TG") else t for name, t in given.items() if t is not None}
    right = reference(**{name: t.double() for name, t in part.items()}, block=block)
    assert ((found["y"][some] - right).norm() / right.norm()).item() < 1e-2
    assert all(t.isfinite().all() for t in found.values())


def test_float32_uses_tf32_only_where_torch_may(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors(512, 512, 1024, 512, 128, device="cuda")
    assert errors(given, block=128)["y"] < 1e-6
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    assert 1e-5 < errors(given, block=128)["y"] < 5e-3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_it_compiles_without_a_graph_break_and_runs_from_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors(2048, 256, 1024, 256, 128, dtype=torch.bfloat16, device="cuda")
    compiled = torch.compile(gated_ffn, fullgraph=True)
    eager, found = (run(call, given, None, block=128) for call in (gated_ffn, compiled))
    assert all(torch.equal(eager[name], found[name]) for name in eager)
    monkeypatch.setattr(tune, "adds", lambda *_: False)  # the same bits all the same
    torch.use_deterministic_algorithms(False)  # it fills memory, which a capture does not see
    graph, inputs = torch.cuda.CUDAGraph(), {name: t.clone() for name, t in given.items() if t is not None}
    with torch.no_grad():
        gated_ffn(**inputs, block=128)
        with torch.cuda.graph(graph):
            y = gated_ffn(**inputs, block=128)
        other = tensors(2048, 256, 1024, 256, 128, dtype=torch.bfloat16, device="cuda", seed=5, opened=0.7)
        for name, t in inputs.items():
            t.copy_(other[name])
        graph.replay()
        assert torch.equal(y, gated_ffn(**inputs, block=128))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("opened", [0.1, 1.0])
def test_as_many_additions_as_are_allowed_stay_accurate(dtype: torch.dtype, opened: float) -> None:
    torch.use_deterministic_algorithms(False)
    given = tensors(1500, 256, 64 * tune.MOST_ADDED, 264, 64, opened=opened, dtype=dtype, device="cuda")
    assert tune.adds(1500, tune.MOST_ADDED, 64, False, dtype, given["x_TD"].device)
    assert wrong(errors(given, block=64), torch.bfloat16) == {}
