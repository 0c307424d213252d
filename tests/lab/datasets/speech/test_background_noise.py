"""Noise segments, noise crops and augmentation by shift and noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.speech.background_noise import (
    ShiftAndNoise,
    make_shift_and_noise,
    noise_crops,
    noise_segments,
)

NOISE = {"a": np.arange(1000, dtype=np.int16), "b": np.arange(5000, 7000, dtype=np.int16)}


def naive(clip: np.ndarray, by: int, crop: np.ndarray, level: float) -> np.ndarray:
    shifted = np.zeros(len(clip))
    for place, value in enumerate(clip):
        if 0 <= place + by < len(clip):
            shifted[place + by] = value
    return np.clip(shifted + level * crop, -32_768, 32_767)


def test_the_segments_of_the_three_parts_share_no_sample_and_leave_none_out() -> None:
    cut = [noise_segments(NOISE, part, 100) for part in range(3)]
    assert [[len(segment) for segment in part] for part in cut] == [[800, 1600], [100, 200], [100, 200]]
    assert np.array_equal(np.concatenate([part[0] for part in cut]), NOISE["a"])
    assert np.array_equal(np.concatenate([part[1] for part in cut]), NOISE["b"])


@pytest.mark.parametrize("part", range(3))
def test_crops_come_from_the_segments_of_their_part(part: int) -> None:
    crops = noise_crops(NOISE, part, 200, 50, np.random.default_rng(0))
    assert crops.shape == (200, 50)
    assert (np.diff(crops, axis=1) == 1).all()  # the noise counts up, so a crop across a boundary would jump
    allowed = set(np.concatenate(noise_segments(NOISE, part, 50)).tolist())
    assert set(crops.ravel().tolist()) <= allowed
    assert {int(row[0]) >= 5000 for row in crops} == {True, False}
    assert np.array_equal(crops, noise_crops(NOISE, part, 200, 50, np.random.default_rng(0)))


def test_noise_that_is_too_short_is_refused_only_if_crops_are_needed() -> None:
    assert noise_crops({}, 2, 0, 50, np.random.default_rng(0)).shape == (0, 50)
    with pytest.raises(ValueError, match=r"long enough for silence clips of the test part, 300 samples from 10% of a"):
        noise_crops(NOISE, 2, 1, 300, np.random.default_rng(0))


def test_augmentation_equals_a_naive_implementation_and_follows_torchs_seed() -> None:
    augment = make_shift_and_noise(NOISE, 60, rate=160)
    assert (augment.shift, augment.lengths.tolist()) == (16, [800, 1600])
    waves = torch.randint(-32_768, 32_768, (64, 60), dtype=torch.int16)
    torch.manual_seed(5)
    augmented = augment(waves)
    torch.manual_seed(5)
    by = torch.randint(-16, 17, (64, 1))[:, 0]
    which = torch.randint(2, (64,))
    where = torch.rand(64, dtype=torch.float64)
    level = torch.rand(64, 1)[:, 0] * 0.1
    noisy = torch.rand(64, 1)[:, 0] < 0.8
    training = noise_segments(NOISE, 0, 60)
    for row in range(64):
        segment = training[int(which[row])]
        start = int(where[row].item() * (len(segment) - 59))
        expected = naive(
            waves[row].numpy(), int(by[row]), segment[start : start + 60], level[row].item() if noisy[row] else 0.0
        )
        assert np.abs(augmented[row].numpy() - expected).max() < 0.01  # of 32,768
    assert 0.6 < noisy.float().mean() < 1
    assert not augment(waves).equal(augmented)


def test_a_shift_pads_with_zeros_and_drops_what_leaves_the_clip() -> None:
    augment = ShiftAndNoise(3, torch.zeros(0, dtype=torch.int16), torch.zeros(0, dtype=torch.int64))
    waves = torch.arange(1, 9, dtype=torch.int16).repeat(200, 1)
    seen = {tuple(row) for row in augment(waves).int().tolist()}
    later = [tuple([0] * k + list(range(1, 9 - k))) for k in range(4)]
    earlier = [tuple(list(range(1 + k, 9)) + [0] * k) for k in range(4)]
    assert seen == {*later, *earlier}


def test_loud_noise_is_clipped_to_what_16_bits_hold() -> None:
    augment = ShiftAndNoise(0, torch.full((50,), 32_767, dtype=torch.int16), torch.tensor([50]), level=1.0, noisy=1.0)
    augmented = augment(torch.full((100, 20), 30_000, dtype=torch.int16))
    assert augmented.max() == 32_767
    assert augmented.min() >= 30_000
