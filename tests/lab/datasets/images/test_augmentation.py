"""Random crops and flips of image batches."""

from __future__ import annotations

import pytest
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.images.augmentation import crop_and_flip, flip, make_augmentation
from dynamicgate.lab.datasets.images.pixels import to_features


def random_images(n: int = 6, channels: int = 3, height: int = 5, width: int = 7) -> torch.Tensor:
    return torch.randint(1, 256, (n, channels, height, width), dtype=torch.uint8)


def naive_crop_and_flip(batch: torch.Tensor, padding: int) -> torch.Tensor:
    """One image at a time, one pixel at a time, from the same draws."""
    tops, lefts = torch.randint(2 * padding + 1, (2, len(batch)))
    flipped = torch.rand(len(batch)) < 0.5
    out = torch.zeros_like(batch)
    _, _, height, width = batch.shape
    for i in range(len(batch)):
        for row in range(height):
            for column in range(width):
                y, x = row + int(tops[i]) - padding, column + int(lefts[i]) - padding
                target = width - 1 - column if flipped[i] else column
                if 0 <= y < height and 0 <= x < width:
                    out[i, :, row, target] = batch[i, :, y, x]
    return out


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_equals_a_naive_implementation(padding: int, channels: int) -> None:
    batch = random_images(20, channels)
    torch.manual_seed(5)
    expected = naive_crop_and_flip(batch, padding)
    torch.manual_seed(5)
    found = crop_and_flip(padding)(batch)
    assert found.dtype == torch.uint8
    assert found.equal(expected)


def test_augmentation_depends_only_on_the_state_of_torchs_generator() -> None:
    batch = random_images(32)
    for augment in (crop_and_flip(2), flip):
        before = torch.get_rng_state()
        first, second = augment(batch), augment(batch)
        assert not first.equal(second)
        torch.set_rng_state(before)
        assert augment(batch).equal(first)
        assert augment(batch).equal(second)


def test_crop_and_flip_reaches_every_offset_and_does_not_change_the_batch() -> None:
    batch = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).repeat(2000, 1, 1, 1)
    before = batch.clone()
    assert len(torch.unique(crop_and_flip(1)(batch), dim=0)) == 9 * 2
    assert len(torch.unique(flip(batch), dim=0)) == 2
    assert batch.equal(before)


def test_augmentation_changes_training_batches_only() -> None:
    images = Arrays(random_images(), torch.arange(6), prepare=to_features, augment=crop_and_flip(2))
    index = torch.arange(6)
    assert images.rows(index).equal(to_features(images.x[index]))
    assert not images.rows(index, training=True).equal(images.rows(index))


def test_wrong_options_are_refused_with_the_allowed_ones() -> None:
    assert make_augmentation(False, 4) is make_augmentation("none", 4) is make_augmentation(None, 4) is None
    assert make_augmentation("flip", 4) is flip
    assert make_augmentation(True, 4) is not None
    with pytest.raises(
        ValueError, match="augment must be True, False or one of none, flip, crop_and_flip, received 'x'"
    ):
        make_augmentation("x", 4)
    with pytest.raises(ValueError, match="padding must be 0 or more pixels, received -1"):
        crop_and_flip(-1)
