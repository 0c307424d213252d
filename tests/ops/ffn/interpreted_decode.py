"""Run by test_decode.py with TRITON_INTERPRET=1: the kernels on CPU tensors against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate.ops.ffn import decode, decode_ffn, decode_launch
from tests.ops.ffn.decode_cases import error, made, with_gate


@pytest.fixture(autouse=True)
def _no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here are the kernels."""
    monkeypatch.delattr(decode, "reference")


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("block", [1, 3, 16, 17, 64, 256])
def test_results_are_those_of_the_reference(tokens: int, block: int) -> None:
    assert error(made(tokens, block=block)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("sizes", [(16, 32, 16), (1, 33, 1), (130, 64, 200)])
def test_odd_sizes(tokens: int, sizes: tuple[int, int, int]) -> None:
    assert error(made(tokens, sizes=sizes, block=16)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize(
    "more",
    [
        {"bias": True},
        {"value": True, "activation": "silu"},
        {"value": True, "activation": "silu", "bias": True},
        {"activation": "gelu"},
        {"activation": "identity", "bias": True},
    ],
    ids=lambda more: " ".join(map(str, more.values())),
)
def test_biases_activations_and_swiglu(tokens: int, more: dict[str, object]) -> None:
    assert error(made(tokens, **more)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("hidden", ["identity", "relu"])
def test_a_gate_of_two_maps_that_scales_by_p(tokens: int, hidden: str) -> None:
    assert error(made(tokens, rank=5, hidden=hidden, tau=0.7, bias=True)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("block", [1, 16, 20])
@pytest.mark.parametrize("rank", [0, 5])
def test_a_gate_with_a_ramp(tokens: int, block: int, rank: int) -> None:
    given = made(tokens, block=block, rank=rank, soft_width=0.7, bias=True)
    assert error(given) < 1e-6
    sharp = decode_ffn(**with_gate(given, soft_width=None))
    assert not torch.allclose(decode_ffn(**given), sharp, rtol=1e-2, atol=1e-2)


def test_a_ramp_starts_at_the_cut_of_each_block() -> None:
    given = made(3, soft_width=0.7)
    cut_G = given["gate"].cut + torch.linspace(-0.3, 0.3, given["gate"].blocks)
    cut_G[1] = torch.inf
    assert error(with_gate(given, cut=cut_G)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("block", [1, 20])
def test_the_largest_logits_open_whatever_the_cut_says(tokens: int, block: int) -> None:
    given = made(tokens, block=block, rank=3)
    assert error(with_gate(given, cut=torch.inf, top_k=2)) < 1e-6
    assert error(with_gate(given, top_k=3, tau=1.5)) < 1e-6


def test_of_equal_logits_the_first_are_kept() -> None:
    given = made(2, bias=False)
    (weight,) = given["gate"].weights
    given = with_gate(given, weights=(torch.ones_like(weight),), biases=(None,), cut=torch.inf, top_k=2)
    units = torch.zeros_like(given["up_ND"])
    units[:40] = given["up_ND"][:40]
    torch.testing.assert_close(
        decode_ffn(**given), decode_ffn(**{**with_gate(given, cut=-torch.inf, top_k=0), "up_ND": units})
    )


def test_a_cut_for_each_block_or_in_a_tensor_for_all() -> None:
    given = made(3)
    cut = given["gate"].cut
    cut_G = torch.full((given["gate"].blocks,), cut)
    cut_G[1], cut_G[2] = torch.inf, -torch.inf
    assert error(with_gate(given, cut=cut_G)) < 1e-6
    assert torch.equal(decode_ffn(**with_gate(given, cut=torch.tensor(cut))), decode_ffn(**given))


def test_tensors_need_not_be_contiguous() -> None:
    given = made(2, bias=True)
    expected = decode_ffn(**given)
    strided = {name: _strided(t) if isinstance(t, Tensor) else t for name, t in given.items()}
    gate = given["gate"]
    strided = with_gate(strided, weights=tuple(map(_strided, gate.weights)), biases=tuple(map(_strided, gate.biases)))
    cut_G = torch.tensor(gate.cut).expand(gate.blocks)
    assert not strided["up_bias_N"].is_contiguous()
    assert torch.equal(decode_ffn(**with_gate(strided, cut=cut_G)), expected)


def _strided(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, dim=-1)[..., ::2]


@pytest.mark.parametrize("tokens", [1, 5])
def test_everything_open_and_everything_closed(tokens: int) -> None:
    given = made(tokens, bias=True)
    assert error(with_gate(given, cut=-torch.inf)) < 1e-6
    closed = decode_ffn(**with_gate(given, cut=torch.inf))
    assert torch.equal(closed, given["down_bias_O"].expand_as(closed))


def test_one_token_opens_everything_and_the_others_nothing() -> None:
    given = made(4)
    given["x_TD"][2] = 50.0
    (weight,) = given["gate"].weights
    given = with_gate(given, weights=(weight.abs(),), cut=10.0)
    y_TO = decode_ffn(**given)
    assert error(given) < 1e-6
    assert not y_TO[[0, 1, 3]].any()
    assert y_TO[2].any()


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("block", [2, 20])
def test_weights_of_a_closed_block_are_never_read(tokens: int, block: int) -> None:
    given = made(tokens, block=block, value=True, bias=True)
    cut_G = torch.full((given["gate"].blocks,), -torch.inf)
    cut_G[1] = cut_G[4] = torch.inf
    given = with_gate(given, cut=cut_G)
    expected = decode_ffn(**given)
    for g in (1, 4):
        units = slice(g * block, (g + 1) * block)
        for name in ("up_ND", "value_ND", "up_bias_N", "value_bias_N"):
            given[name][units] = torch.nan
        given["down_ON"][:, units] = torch.nan
    assert torch.equal(decode_ffn(**given), expected)


def test_more_blocks_than_fit_a_list_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_launch, "_MOST_LISTED", 4)
    assert all(error(made(tokens)) < 1e-6 for tokens in (1, 3))


def test_float16_is_as_exact_as_it_can_be() -> None:
    assert all(error(made(tokens, dtype=torch.float16)) < 1e-3 for tokens in (1, 4))


def test_leading_dimensions_are_tokens() -> None:
    given = made(6)
    x_TD = given["x_TD"]
    found = decode_ffn(**{**given, "x_TD": x_TD.reshape(2, 3, -1)})
    assert torch.equal(found.reshape(6, -1), decode_ffn(**given))
