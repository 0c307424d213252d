"""Mask patterns, one prune-and-regrow update, and how density is spread over layers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamicgate.sparsity.density import densities
from dynamicgate.sparsity.patterns import largest, parse_pattern, prune_and_regrow


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 40))
def test_the_k_largest_are_those_of_a_stable_sort(data: st.DataObject, rows: int, columns: int) -> None:
    k = data.draw(st.integers(0, columns))
    values = data.draw(st.lists(st.integers(0, 4), min_size=rows * columns, max_size=rows * columns))
    scores = torch.tensor(values, dtype=torch.float32).reshape(rows, columns)
    first = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    expected = torch.zeros_like(scores, dtype=torch.bool).scatter(1, first, True)
    assert torch.equal(largest(scores, k), expected)


def test_ties_in_half_precision_are_broken_by_index() -> None:
    weights = torch.full((1, 1000), 0.1, dtype=torch.bfloat16)
    assert largest(weights.float(), 3).nonzero()[:, 1].tolist() == [0, 1, 2]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["unstructured", "fan-in", "16x1", "4x4", "5x3"]),
    st.integers(1, 50),
    st.integers(1, 50),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_an_update_keeps_the_number_of_connections_exactly(
    name: str, outputs: int, inputs: int, density: float, fraction: float
) -> None:
    pattern = parse_pattern(name)
    generator = torch.Generator().manual_seed(0)
    mask = pattern.random(torch.Size((outputs, inputs)), density, generator)
    assert bool(mask.any())
    keep, grow = torch.rand(2, outputs, inputs, generator=generator)
    now = prune_and_regrow(pattern, mask, keep, grow, fraction)
    assert now.sum() == mask.sum()
    assert pattern.tile_sums(now.float()).unique().numel() <= 5


def test_an_update_prunes_the_lowest_and_grows_the_highest_scores() -> None:
    mask = torch.tensor([[True, True, True, True, False, False, False]])
    keep = torch.tensor([[0.4, 0.1, 0.3, 0.2, 9.0, 9.0, 9.0]])
    grow = torch.tensor([[9.0, 9.0, 9.0, 9.0, 0.1, 0.3, 0.2]])
    assert prune_and_regrow(parse_pattern("unstructured"), mask, keep, grow, 0.5).tolist() == [
        [True, False, True, False, False, True, True]
    ]


@pytest.mark.parametrize("name", ["", "16", "0x4", "fanin", "4x-1"])
def test_an_unknown_pattern_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a pattern is 'unstructured', 'fan-in' or a tile"):
        parse_pattern(name)


def test_erk_spreads_by_fan_in_plus_fan_out_and_no_density_exceeds_one() -> None:
    shapes = {"wide": torch.Size((1000, 2000)), "square": torch.Size((500, 1000)), "small": torch.Size((10, 500))}
    found = densities(shapes, 0.05, "erk")
    total = sum(found[name] * shape.numel() for name, shape in shapes.items())
    assert total == pytest.approx(0.05 * sum(shape.numel() for shape in shapes.values()))
    assert found["wide"] / (3000 / 2e6) == pytest.approx(found["square"] / (1500 / 5e5))
    assert found["small"] == 1.0, "it would need more than all, so that it is dense and the others divide the rest"


def test_the_last_matching_pattern_decides() -> None:
    shapes = {"layers.0": torch.Size((4, 4)), "layers.1": torch.Size((4, 4))}
    assert densities(shapes, {"*": 0.5, "layers.1": 0.1}, "uniform") == {"layers.0": 0.5, "layers.1": 0.1}


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5, {"a": 0.0}])
def test_a_density_is_a_fraction(density: float) -> None:
    with pytest.raises(ValueError, match="a density is a fraction of the connections"):
        densities({"a": torch.Size((2, 2))}, density, "uniform")


def test_a_layer_without_a_density_is_refused() -> None:
    with pytest.raises(ValueError, match="no density is given for 'a', only for b"):
        densities({"a": torch.Size((2, 2))}, {"b": 0.5}, "uniform")
