"""Decoding images to pixels, mapping them from a file, and turning them into features."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.images.pixels import MemmapRows, decode_image, to_features

from ..archive_writers import image_bytes

RNG = np.random.default_rng(0)


def test_features_lie_in_zero_to_one_and_keep_zeros() -> None:
    batch = torch.tensor([0, 1, 128, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    features = to_features(batch)
    assert features.dtype == torch.float32
    assert features.tolist() == [[0.0, pytest.approx(1 / 255), pytest.approx(128 / 255), 1.0]]
    assert batch.flatten().tolist() == [0, 1, 128, 255]
    with pytest.raises(ValueError, match=r"expected pixels of type torch.uint8, received torch.float32"):
        to_features(features)


def test_memory_mapped_rows_return_batches_that_are_copies(tmp_path: Path) -> None:
    images = torch.randint(1, 256, (9, 3, 5, 7), dtype=torch.uint8)
    (tmp_path / "x.u8").write_bytes(images.numpy().tobytes())
    rows = MemmapRows(tmp_path / "x.u8", tuple(images.shape))
    index = torch.tensor([8, 0, 0, 3])
    batch = rows[index]
    assert (len(rows), rows.shape, batch.dtype) == (9, (9, 3, 5, 7), torch.uint8)
    assert batch.equal(images[index])
    batch.zero_()
    assert rows[index].equal(images[index])
    for same in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert same[index].equal(images[index])
    with pytest.raises(ValueError, match=r"has 945 bytes, but images of shape \(8, 3, 5, 7\) have 840"):
        MemmapRows(tmp_path / "x.u8", (8, 3, 5, 7))


def test_decoding_keeps_colours_and_repeats_grey_in_three_channels() -> None:
    colour = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(decode_image(image_bytes(colour), (3, 4, 6)), colour.transpose(2, 0, 1))
    grey = colour[:, :, 0].copy()
    found = decode_image(image_bytes(grey), (3, 4, 6))
    assert all(np.array_equal(channel, grey) for channel in found)
    assert np.array_equal(decode_image(image_bytes(grey), (1, 4, 6)), grey[None])


def test_images_of_16_bits_and_transparent_ones_become_8_bit_pixels() -> None:
    deep = np.array([[0, 256, 65535]], dtype=np.uint16)
    assert decode_image(image_bytes(deep), (1, 1, 3)).tolist() == [[[0, 1, 255]]]
    transparent = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], dtype=np.uint8)
    assert decode_image(image_bytes(transparent), (3, 1, 2)).transpose(1, 2, 0).tolist() == [
        [[10, 20, 30], [255, 255, 255]]
    ]


def test_decoding_resizes_only_when_asked_and_rotates_photographs_upright() -> None:
    from PIL import Image

    pixels = RNG.integers(0, 256, (8, 4, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="expected 4 x 4 pixels, found 4 x 8"):
        decode_image(image_bytes(pixels), (3, 4, 4))
    expected = np.asarray(Image.fromarray(pixels).resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(decode_image(image_bytes(pixels), (3, 4, 4), resize=True), expected)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    rotated = image_bytes(pixels[::-1, ::-1].copy(), exif=exif)
    assert np.array_equal(decode_image(rotated, (3, 4, 4), resize=True), expected)


def test_damaged_images_are_value_errors() -> None:
    whole = image_bytes(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8), "JPEG")
    for content in (b"", b"text", whole[:-100], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        with pytest.raises(ValueError, match="not a readable image"):
            decode_image(content, (3, 16, 16))
    for offset in range(0, len(whole), 3):
        with contextlib.suppress(ValueError):
            decode_image(whole[:offset] + bytes([whole[offset] ^ 0x55]) + whole[offset + 1 :], (3, 16, 16))


def test_without_pillow_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'dynamicgate\[data\]'"):
        decode_image(b"", (3, 1, 1))
