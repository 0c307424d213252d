"""`decode_ffn` on a CUDA GPU. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate.ops import GateNet
from dynamicgate.ops.ffn import FFNWeights, decode_ffn
from tests.ops.ffn.decode_cases import error, error_given, made, with_gate, with_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-5}
BF16 = {"dtype": torch.bfloat16, "device": "cuda"}


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was not written is NaN, so that a test notices what a kernel leaves out."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("opened", [0.1, 0.9])
def test_results_match_the_reference(dtype: torch.dtype, opened: float) -> None:
    more = {"sizes": (512, 4096, 1024), "block": 64, "opened": opened, "dtype": dtype, "device": "cuda"}
    assert all(error(made(tokens, **more)) < TOLERANCE[dtype] for tokens in (1, 2, 8, 16))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("opened", [0.1, 0.9])
def test_given_decisions_match_the_reference(dtype: torch.dtype, opened: float) -> None:
    more = {"sizes": (512, 4096, 1024), "block": 64, "opened": opened, "dtype": dtype, "device": "cuda"}
    assert all(error_given(made(tokens, **more)) < TOLERANCE[dtype] for tokens in (1, 4, 16, 33, 64))


@pytest.mark.parametrize("tokens", [1, 5, 50])
@pytest.mark.parametrize("block", [8, 96])
def test_given_decisions_with_odd_sizes_biases_and_swiglu(tokens: int, block: int) -> None:
    more = {"sizes": (333, 777, 130), "value": True, "activation": "silu", "bias": True, **BF16}
    assert error_given(made(tokens, block=block, **more)) < 1e-2
    assert error_given(made(tokens, block=block, **more), 0.0) < 1e-2


@pytest.mark.parametrize("tokens", [1, 5])
def test_odd_sizes_biases_and_swiglu(tokens: int) -> None:
    more = {"sizes": (333, 777, 130), "value": True, "activation": "silu", "bias": True, **BF16}
    assert error(made(tokens, block=96, **more)) < 1e-2


@pytest.mark.parametrize("tokens", [1, 3])
def test_unit_gates_of_low_rank_scaled_by_p(tokens: int) -> None:
    assert error(made(tokens, sizes=(512, 2048, 256), block=1, rank=16, tau=0.5, **BF16)) < 1e-2


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(("block", "rank"), [(1, 16), (128, 0)])
def test_gates_with_a_soft_width(tokens: int, block: int, rank: int) -> None:
    given = made(tokens, sizes=(512, 2048, 256), block=block, rank=rank, soft_width=0.7, **BF16)
    assert error(given) < 1e-2
    cut_G = torch.full((given["gate"].blocks,), given["gate"].cut, device="cuda")
    assert error(with_gate(given, cut=cut_G)) < 1e-2


@pytest.mark.parametrize("tokens", [1, 7])
def test_the_largest_logits_open(tokens: int) -> None:
    given = made(tokens, sizes=(512, 2048, 256), block=128, **BF16)
    assert error(with_gate(given, cut=torch.inf, top_k=2)) < 1e-2


@pytest.mark.parametrize("tokens", [1, 7, 16])
@pytest.mark.parametrize(("top_k", "cut"), [(0, None), (3, None), (2, torch.inf), (0, torch.inf)])
@pytest.mark.parametrize("sizes", [(512, 2048, 256), (200, 1500, 520)])
def test_open_blocks_that_share_one_weight(
    tokens: int, top_k: int, cut: float | None, sizes: tuple[int, int, int]
) -> None:
    given = with_gate(made(tokens, sizes=sizes, block=64, tau=0.7, bias=True, **BF16), competes=True, top_k=top_k)
    assert error(given if cut is None else with_gate(given, cut=cut)) < 1e-2


@pytest.mark.parametrize("tokens", [1, 4])
def test_all_open_all_closed_and_weights_that_must_not_be_read(tokens: int) -> None:
    given = made(tokens, sizes=(512, 2048, 256), block=128, bias=True, **BF16)
    assert error(with_gate(given, cut=-torch.inf)) < 1e-2
    weights = given["weights"]
    poisoned = {name: torch.full_like(getattr(weights, name), torch.nan) for name in ("up", "down", "up_bias")}
    closed = decode_ffn(**with_gate(with_weights(given, **poisoned), cut=torch.inf))
    assert torch.equal(closed, weights.down_bias.expand_as(closed))


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("tokens", [1, 8])
def test_it_runs_from_a_cuda_graph_and_compiled_with_the_same_bits(tokens: int) -> None:
    torch.use_deterministic_algorithms(False)  # it fills memory, which a capture does not see
    sizes = (512, 4096, 1024)
    given = made(tokens, sizes=sizes, block=64, **BF16)
    gate, weights = given["gate"], given["weights"]

    def layer(x_TD: Tensor) -> Tensor:
        return decode_ffn(x_TD, gate, weights, block=64)

    x_TD = given["x_TD"].clone()
    first = layer(x_TD)
    assert torch.equal(torch.compile(layer, fullgraph=True)(x_TD), first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y_TO = layer(x_TD)
    for seed in range(20):
        x_TD.copy_(made(tokens, sizes=sizes, block=64, seed=seed, **BF16)["x_TD"])
        graph.replay()
        assert torch.equal(y_TO, layer(x_TD))


def test_calls_on_several_streams_do_not_deadlock() -> None:
    given = made(1, sizes=(1024, 8192, 4096), block=64, opened=0.5, **BF16)
    expected = decode_ffn(**given)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(decode_ffn(**given))
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected) for y in found)


def test_more_than_two_to_the_31_weights() -> None:
    N, D, block = 2**19 + 1024, 4096, 1024
    up_ND = torch.zeros(N, D, dtype=torch.bfloat16, device="cuda")
    down_ON = torch.zeros(64, N, dtype=torch.bfloat16, device="cuda")
    up_ND[-1], down_ON[:, -1] = 1.0, 2.0
    cut_G = torch.full((N // block,), torch.inf, device="cuda")
    cut_G[-1] = -torch.inf
    gate = GateNet((torch.ones(N // block, D, dtype=torch.bfloat16, device="cuda"),), (None,), cut=cut_G)
    for tokens in (1, 3):
        x_TD = torch.ones(tokens, D, dtype=torch.bfloat16, device="cuda")
        y_TO = decode_ffn(x_TD, gate, FFNWeights(up_ND, down_ON), block=block)
        assert torch.equal(y_TO, torch.full_like(y_TO, 2.0 * D))
