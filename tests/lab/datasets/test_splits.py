"""Stratified splits: exact sizes, every class on both sides, the same rows every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamicgate.data import Arrays
from dynamicgate.data.batching import seeded
from dynamicgate.lab.datasets.splits import TEST_SEED, split_arrays, stratified_split

counts_of_classes = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def shuffled_labels(counts: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


@settings(deadline=None)
@given(counts=counts_of_classes, fraction=st.floats(0.02, 0.98), seed=st.integers(0, 2**40))
def test_a_split_is_exact_disjoint_and_complete_with_every_class_in_both_parts_or_it_is_refused(
    counts: list[int], fraction: float, seed: int
) -> None:
    y, sizes = shuffled_labels(counts, 1), np.array(counts)
    least, most, total = (sizes >= 2).sum(), (sizes - 1).sum(), round(fraction * len(y))
    if least == 0 or not least <= total <= most:
        with pytest.raises(ValueError, match=rf"cannot split {len(y)} rows of {len(sizes)} classes.*{least} to {most}"):
            stratified_split(y, fraction, seed)
        return
    rest, part = stratified_split(y, fraction, seed)
    assert sorted(rest.tolist() + part.tolist()) == list(range(len(y)))
    assert len(part) == total
    in_part = np.bincount(y[part.numpy()], minlength=len(sizes))
    assert (in_part[sizes >= 2] >= 1).all()
    assert (in_part < sizes).all()  # the rest holds every class, single members too


@settings(deadline=None)
@given(
    per_class=st.lists(st.integers(20, 200), min_size=2, max_size=10),
    fraction=st.floats(0.1, 0.5),
    seed=st.integers(0, 99),
)
def test_every_class_is_split_by_the_fraction_to_within_one_row(
    per_class: list[int], fraction: float, seed: int
) -> None:
    y = shuffled_labels(per_class, 2)
    _, part = stratified_split(y, fraction, seed)
    ideal = np.array(per_class) * (round(fraction * len(y)) / len(y))
    assert (np.abs(np.bincount(y[part.numpy()]) - ideal) < 1).all()


def test_the_same_seed_gives_the_same_parts_and_another_seed_gives_others() -> None:
    y = torch.arange(300) % 7
    assert stratified_split(y, 0.2, 5)[1].equal(stratified_split(y.numpy(), 0.2, 5)[1])
    assert not stratified_split(y, 0.2, 5)[1].equal(stratified_split(y, 0.2, 6)[1])


def test_every_row_of_a_class_is_drawn_equally_often() -> None:
    y = np.repeat([0, 1], [5, 10])
    drawn = torch.stack([torch.bincount(stratified_split(y, 0.2, seed)[1], minlength=15) for seed in range(3000)]).sum(
        0
    )
    # Each row is drawn with probability 0.2: 600 times, standard deviation 22; 5 of them is 110.
    assert (drawn - 600).abs().max() < 110


def test_the_only_row_of_a_class_stays_in_the_rest() -> None:
    y = np.array([0] * 10 + [1] * 10 + [2])
    rest, part = stratified_split(y, 0.5, 0)
    assert 20 in rest.tolist()
    assert len(part) == round(10.5)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_fraction_outside_zero_to_one_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"fraction must lie between 0 and 1 .* got"):
        stratified_split(np.array([0, 0, 1, 1]), fraction, 0)


def test_labels_of_two_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1-dimensional.* got shape \(2, 2\)"):
        stratified_split(np.zeros((2, 2)), 0.5, 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds and epochs must be 0 or more, got seed -1"):
        seeded(-1)


def test_the_error_for_a_split_names_the_data() -> None:
    with pytest.raises(ValueError, match=r"^my\.npz: cannot split 2 rows"):
        split_arrays(Arrays(torch.zeros(2, 1), torch.tensor([0, 1])), 0.5, 0, "my.npz")


def test_the_test_part_never_changes_between_versions() -> None:
    """Results are compared on the test part, so a change in numpy or in this code must not alter it unnoticed."""
    _, part = stratified_split(np.repeat([0, 1, 2], [10, 20, 30]), 0.2, TEST_SEED)
    assert part.tolist() == [1, 6, 10, 20, 22, 25, 30, 35, 37, 38, 48, 55]


@pytest.mark.parametrize(
    ("counts", "fraction", "message"),
    [([5] * 10, 0.1, "would have 5 rows.* 10 to 40"), ([2, 2], 0.9, "4 rows.* 2 to 2"), ([1, 1, 1], 0.5, "0 to 0")],
)
def test_the_error_for_an_impossible_split_says_which_sizes_are_possible(
    counts: list[int], fraction: float, message: str
) -> None:
    with pytest.raises(ValueError, match=f"cannot split .*{message}; add rows, choose another fraction, or provide"):
        stratified_split(np.repeat(np.arange(len(counts)), counts), fraction, 0)
