"""Run by test_decode.py with TRITON_INTERPRET=1: the kernels on CPU tensors against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynamicgate.ops.ffn import decode, decode_ffn, decode_given, decode_launch, given_decisions
from dynamicgate.ops.ffn.weights import map_weights
from tests.ops.ffn.decode_cases import error, error_given, made, with_gate, with_weights


@pytest.fixture(autouse=True)
def _no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the kernels."""
    for module in (decode, given_decisions):
        monkeypatch.delattr(module, "reference_ffn")


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("block", [1, 3, 16, 17, 64, 256])
def test_results_match_the_reference(tokens: int, block: int) -> None:
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
        {"activation": "gelu_tanh", "value": True},
        {"activation": "quick_gelu"},
        {"activation": "relu2"},
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


# every two of the four in every combination
@pytest.mark.parametrize(
    ("tokens", "block", "top_k", "rank"),
    [
        *((1, 1, 0, 0), (5, 1, 1, 5), (1, 1, 3, 5)),
        *((5, 16, 0, 5), (1, 16, 1, 0), (5, 16, 3, 0)),
        *((1, 20, 0, 5), (5, 20, 1, 0), (1, 20, 3, 0)),
    ],
)
def test_open_blocks_that_share_one_weight(tokens: int, block: int, top_k: int, rank: int) -> None:
    given = with_gate(made(tokens, block=block, rank=rank, tau=0.7, bias=True), competes=True, top_k=top_k)
    assert error(given) < 1e-6
    assert error(with_gate(given, cut=torch.inf)) < 1e-6  # top k alone, or all closed
    assert error(with_gate(given, cut=-torch.inf)) < 1e-6
    cuts_G = torch.full((given["gate"].blocks,), float(given["gate"].cut))
    cuts_G[0] = -torch.inf
    assert error(with_gate(given, cut=cuts_G)) < 1e-6


def test_a_nan_in_a_token_shows_where_blocks_compete() -> None:
    given = with_gate(made(4, tau=1.0), competes=True, top_k=1)
    x_TD = given["x_TD"].clone()
    x_TD[1, 0] = torch.nan
    found, expected = decode_ffn(**{**given, "x_TD": x_TD}), decode_ffn(**given)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3]], expected[[0, 2, 3]])


def test_equal_logits_open_the_first_blocks() -> None:
    given = made(2, tau=1.0)
    same = tuple(torch.zeros_like(weight) for weight in given["gate"].weights)
    assert error(with_gate(given, weights=same, cut=torch.inf, top_k=2, competes=True)) < 1e-6


@pytest.mark.parametrize(
    ("tokens", "block", "rank"), [(1, 1, 0), (3, 1, 5), (1, 16, 5), (3, 16, 0), (1, 20, 0), (3, 20, 5)]
)
def test_a_gate_with_a_soft_width(tokens: int, block: int, rank: int) -> None:
    given = made(tokens, block=block, rank=rank, soft_width=0.7, bias=True)
    assert error(given) < 1e-6
    sharp = decode_ffn(**with_gate(given, soft_width=None))
    assert not torch.allclose(decode_ffn(**given), sharp, rtol=1e-2, atol=1e-2)
    unbounded = with_gate(given, soft_width=0.2, unbounded=True)
    assert error(unbounded) < 1e-6
    bounded = decode_ffn(**with_gate(unbounded, unbounded=False))
    assert not torch.allclose(decode_ffn(**unbounded), bounded, rtol=1e-2, atol=1e-2)


def test_soft_width_starts_at_the_cut_of_each_block() -> None:
    given = made(3, soft_width=0.7)
    cut_G = given["gate"].cut + torch.linspace(-0.3, 0.3, given["gate"].blocks)
    cut_G[1] = torch.inf
    assert error(with_gate(given, cut=cut_G)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("block", [1, 20])
def test_the_largest_logits_open_whatever_the_cut_is(tokens: int, block: int) -> None:
    given = made(tokens, block=block, rank=3)
    assert error(with_gate(given, cut=torch.inf, top_k=2)) < 1e-6
    assert error(with_gate(given, top_k=3, tau=1.5)) < 1e-6


def test_of_equal_logits_the_lowest_index_opens() -> None:
    given = made(2, bias=False)
    (weight,) = given["gate"].weights
    given = with_gate(given, weights=(torch.ones_like(weight),), biases=(None,), cut=torch.inf, top_k=2)
    up = torch.zeros_like(given["weights"].up)
    up[:40] = given["weights"].up[:40]
    all_open = with_gate(with_weights(given, up=up), cut=-torch.inf, top_k=0)
    torch.testing.assert_close(decode_ffn(**given), decode_ffn(**all_open))


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
    strided = {**given, "x_TD": _strided(given["x_TD"]), "weights": map_weights(given["weights"], _strided)}
    gate = given["gate"]
    strided = with_gate(strided, weights=tuple(map(_strided, gate.weights)), biases=tuple(map(_strided, gate.biases)))
    cut_G = torch.tensor(gate.cut).expand(gate.blocks)
    assert not strided["weights"].up_bias.is_contiguous()
    assert torch.equal(decode_ffn(**with_gate(strided, cut=cut_G)), expected)


def _strided(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, dim=-1)[..., ::2]


@pytest.mark.parametrize("tokens", [1, 5])
def test_everything_open_and_everything_closed(tokens: int) -> None:
    given = made(tokens, bias=True)
    assert error(with_gate(given, cut=-torch.inf)) < 1e-6
    closed = decode_ffn(**with_gate(given, cut=torch.inf))
    assert torch.equal(closed, given["weights"].down_bias.expand_as(closed))


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
        for name in ("up", "value", "up_bias", "value_bias"):
            getattr(given["weights"], name)[units] = torch.nan
        given["weights"].down[:, units] = torch.nan
    assert torch.equal(decode_ffn(**given), expected)


def test_more_blocks_than_can_be_listed_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_launch, "_MOST_LISTED", 4)
    assert all(error(made(tokens)) < 1e-6 for tokens in (1, 3))


def test_float16_is_as_accurate_as_its_rounding_allows() -> None:
    assert all(error(made(tokens, dtype=torch.float16)) < 1e-3 for tokens in (1, 4))


def test_leading_dimensions_are_tokens() -> None:
    given = made(6)
    x_TD = given["x_TD"]
    found = decode_ffn(**{**given, "x_TD": x_TD.reshape(2, 3, -1)})
    assert torch.equal(found.reshape(6, -1), decode_ffn(**given))


@pytest.mark.parametrize(
    ("rule", "tokens", "block"),
    [
        *(({}, 1, 2), ({}, 4, 2), ({}, 1, 20), ({}, 4, 20)),
        *(({"tau": 0.5}, 1, 2), ({"tau": 0.5}, 4, 20), ({"soft_width": 0.5}, 4, 2), ({"soft_width": 0.5}, 1, 20)),
        *(({"top_k": 2}, 1, 2), ({"top_k": 2}, 4, 20), ({"cut": torch.inf}, 4, 2), ({"cut": torch.inf}, 1, 20)),
    ],
    ids=str,
)
def test_a_token_with_a_nan_gives_nan_and_the_others_what_they_give_without_it(
    rule: dict[str, float], tokens: int, block: int
) -> None:
    given = with_gate(made(tokens, block=block), **rule)
    expected = decode_ffn(**given)
    given["x_TD"][0, 3] = torch.nan
    found = decode_ffn(**given)
    assert found[0].isnan().all()
    assert torch.equal(found[1:], expected[1:])


# --- decisions that were made before


@pytest.mark.parametrize("tokens", [1, 5, 33, 64])
@pytest.mark.parametrize("block", [3, 16, 20])
def test_given_decisions_match_the_reference(tokens: int, block: int) -> None:
    assert error_given(made(tokens, block=block, bias=True)) < 1e-6


@pytest.mark.parametrize("tokens", [1, 40])
def test_given_decisions_with_swiglu_and_odd_sizes(tokens: int) -> None:
    assert error_given(made(tokens, sizes=(130, 70, 33), block=17, value=True, activation="silu")) < 1e-6


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_given_decisions_that_open_everything_or_nothing(tokens: int, factor: float) -> None:
    assert error_given(made(tokens, bias=True), factor) < 1e-6


@pytest.mark.parametrize("tokens", [1, 18])
def test_given_decisions_never_read_a_closed_block(tokens: int) -> None:
    given = made(tokens, value=True, bias=True)
    factor_TG = torch.rand(tokens, given["gate"].blocks) + 0.1
    factor_TG[:, 1] = 0.0
    rest = {"block": given["block"], "activation": given["activation"]}
    expected = decode_given(given["x_TD"], factor_TG, given["weights"], **rest)
    for name in ("up", "value", "up_bias", "value_bias"):
        getattr(given["weights"], name)[20:40] = torch.nan
    given["weights"].down[:, 20:40] = torch.nan
    assert torch.equal(decode_given(given["x_TD"], factor_TG, given["weights"], **rest), expected)
