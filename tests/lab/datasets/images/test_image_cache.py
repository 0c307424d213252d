from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.images import image_cache
from dynamicgate.lab.datasets.images.image_cache import Decoding, Labelled, Part, decoded, source_identity
from dynamicgate.lab.datasets.images.pixels import (
    MemmapRows,
    chosen_augment,
    constants,
    crop_and_flip,
    decode_image,
    flip_only,
    measured_constants,
    to_features,
)

from ..archive_writers import image_bytes

RNG = np.random.default_rng(0)


def random_images(n: int = 6, channels: int = 3, height: int = 5, width: int = 7) -> torch.Tensor:
    return torch.randint(1, 256, (n, channels, height, width), dtype=torch.uint8)


def naive_crop_and_flip(batch: torch.Tensor, padding: int) -> torch.Tensor:
    """One image at a time, one pixel at a time, from the same draws."""
    tops, lefts = torch.randint(2 * padding + 1, (2, len(batch)))
    mirrored = torch.rand(len(batch)) < 0.5
    out = torch.zeros_like(batch)
    _, _, height, width = batch.shape
    for i in range(len(batch)):
        for row in range(height):
            for column in range(width):
                y, x = row + int(tops[i]) - padding, column + int(lefts[i]) - padding
                place = width - 1 - column if mirrored[i] else column
                if 0 <= y < height and 0 <= x < width:
                    out[i, :, row, place] = batch[i, :, y, x]
    return out


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_equals_the_naive_one(padding: int, channels: int) -> None:
    batch = random_images(20, channels)
    torch.manual_seed(5)
    expected = naive_crop_and_flip(batch, padding)
    torch.manual_seed(5)
    found = crop_and_flip(padding)(batch)
    assert found.dtype == torch.uint8
    assert found.equal(expected)


def test_augmentation_is_a_function_of_torchs_generator() -> None:
    batch = random_images(32)
    for augment in (crop_and_flip(2), flip_only):
        before = torch.get_rng_state()
        first, second = augment(batch), augment(batch)
        assert not first.equal(second)
        torch.set_rng_state(before)
        assert augment(batch).equal(first)
        assert augment(batch).equal(second)


def test_crop_and_flip_reaches_every_offset_and_leaves_the_batch_alone() -> None:
    batch = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).repeat(2000, 1, 1, 1)
    before = batch.clone()
    assert len(torch.unique(crop_and_flip(1)(batch), dim=0)) == 9 * 2
    assert len(torch.unique(flip_only(batch), dim=0)) == 2
    assert batch.equal(before)


def test_augmentation_changes_training_batches_only() -> None:
    images = Arrays(random_images(), torch.arange(6), prepare=to_features, augment=crop_and_flip(2))
    index = torch.arange(6)
    assert images.rows(index).equal(to_features(images.x[index]))
    assert not images.rows(index, training=True).equal(images.rows(index))


def test_features_lie_in_zero_to_one_and_keep_zeros() -> None:
    batch = torch.tensor([0, 1, 128, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    features = to_features(batch)
    assert features.dtype == torch.float32
    assert features.tolist() == [[0.0, pytest.approx(1 / 255), pytest.approx(128 / 255), 1.0]]
    assert batch.flatten().tolist() == [0, 1, 128, 255]
    with pytest.raises(ValueError, match=r"expected pixels of type torch.uint8, received torch.float32"):
        to_features(features)


def test_options_are_checked_in_sentences() -> None:
    assert chosen_augment(False, 4) is chosen_augment("none", 4) is chosen_augment(None, 4) is None
    assert chosen_augment("flip", 4) is flip_only
    assert chosen_augment(True, 4) is not None
    with pytest.raises(
        ValueError, match="augment must be True, False or one of none, flip, crop_and_flip, received 'x'"
    ):
        chosen_augment("x", 4)
    with pytest.raises(ValueError, match="padding must be 0 or more pixels, received -1"):
        crop_and_flip(-1)
    with pytest.raises(ValueError, match="normalisation must be one of a, received 'b'"):
        constants({"a": ((0.5,), (1.0,))}, "b", 4)


def test_constants_are_laid_out_like_features() -> None:
    mean, std = constants({"a": ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))}, "a", 2)
    assert mean.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    assert std.tolist() == [1, 1, 2, 2, 3, 3]


def test_measured_constants_are_those_of_numpy() -> None:
    images = random_images(700)
    images[:, 2] = 9
    mean, std = measured_constants(Arrays(images, torch.zeros(700, dtype=torch.int64)))
    values = images.numpy().astype(np.float64) / 255
    assert mean.view(3, -1)[:, 0].tolist() == pytest.approx(values.mean(axis=(0, 2, 3)).tolist(), rel=1e-6)
    expected = [*values.std(axis=(0, 2, 3))[:2], 1.0]
    assert std.view(3, -1)[:, 0].tolist() == pytest.approx(expected, rel=1e-6)
    assert len(mean) == len(std) == 3 * 5 * 7


def test_mapped_rows_read_whole_batches_of_their_own(tmp_path: Path) -> None:
    images = random_images(9)
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


def test_decoding_keeps_colours_and_makes_grey_into_three_channels() -> None:
    colour = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(decode_image(image_bytes(colour), (3, 4, 6)), colour.transpose(2, 0, 1))
    grey = colour[:, :, 0].copy()
    found = decode_image(image_bytes(grey), (3, 4, 6))
    assert all(np.array_equal(channel, grey) for channel in found)
    assert np.array_equal(decode_image(image_bytes(grey), (1, 4, 6)), grey[None])


def test_deep_and_transparent_images_are_brought_to_bytes() -> None:
    deep = np.array([[0, 256, 65535]], dtype=np.uint16)
    assert decode_image(image_bytes(deep), (1, 1, 3)).tolist() == [[[0, 1, 255]]]
    see_through = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], dtype=np.uint8)
    assert decode_image(image_bytes(see_through), (3, 1, 2)).transpose(1, 2, 0).tolist() == [
        [[10, 20, 30], [255, 255, 255]]
    ]


def test_decoding_resizes_only_where_asked_and_turns_photographs_upright() -> None:
    from PIL import Image

    pixels = RNG.integers(0, 256, (8, 4, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="expected 4 x 4 pixels, found 4 x 8"):
        decode_image(image_bytes(pixels), (3, 4, 4))
    expected = np.asarray(Image.fromarray(pixels).resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(decode_image(image_bytes(pixels), (3, 4, 4), resize=True), expected)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned = image_bytes(pixels[::-1, ::-1].copy(), exif=exif)
    assert np.array_equal(decode_image(turned, (3, 4, 4), resize=True), expected)


def test_damaged_images_are_value_errors() -> None:
    whole = image_bytes(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8), "JPEG")
    for content in (b"", b"text", whole[:-100], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        with pytest.raises(ValueError, match="not a readable image"):
            decode_image(content, (3, 16, 16))
    for place in range(0, len(whole), 3):
        with contextlib.suppress(ValueError):
            decode_image(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :], (3, 16, 16))


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'dynamicgate\[data\]'"):
        decode_image(b"", (3, 1, 1))


class Source:
    """Three images in memory, with a count of how often they were read."""

    def __init__(self, stamp: object = 0) -> None:
        self.pixels = RNG.integers(0, 256, (3, 2, 2, 3), dtype=np.uint8)
        self.read = 0
        self.job = Decoding(
            "three",
            Path("memory"),
            (3, 2, 2),
            stamp,
            self.members,
            partial(decode_image, shape=(3, 2, 2)),
            self.describe,
        )

    def members(self) -> Iterator[tuple[str, bytes]]:
        self.read += 1
        for number, pixels in enumerate(self.pixels):
            yield f"{number}.png", image_bytes(pixels)

    def describe(self, names: Sequence[str]) -> Labelled:
        assert list(names) == ["0.png", "1.png", "2.png"]
        return Labelled(["no", "yes"], {"train": Part([2, 0], [1, 0]), "test": Part([1], [1])})

    def check(self, folder: Path) -> None:
        parts, names = decoded(self.job, [folder])
        assert names == ("no", "yes")
        assert parts["train"].y.tolist() == [1, 0]
        stored = parts["train"].x[torch.arange(2)].numpy()
        assert np.array_equal(stored, self.pixels[[2, 0]].transpose(0, 3, 1, 2))
        assert parts["test"].features == 12


def test_images_are_decoded_once(tmp_path: Path) -> None:
    source = Source()
    source.check(tmp_path)
    source.check(tmp_path)
    assert source.read == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".u8"]
    told = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert (told["shape"], told["source"]) == ([3, 3, 2, 2], "memory")


def test_another_identity_is_another_cache(tmp_path: Path) -> None:
    Source(1).check(tmp_path)
    Source(2).check(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "damage", ["shorter", "longer", "no json", "half a json", "no bytes", "other rows", "not a dict"]
)
def test_a_cache_that_is_not_whole_is_made_again(tmp_path: Path, damage: str) -> None:
    source = Source()
    source.check(tmp_path)
    pixels, told = next(tmp_path.glob("*.u8")), next(tmp_path.glob("*.json"))
    text = told.read_text()
    match damage:
        case "shorter" | "longer":
            pixels.write_bytes(pixels.read_bytes()[:-1] if damage == "shorter" else pixels.read_bytes() + b"x")
        case "no json":
            told.unlink()
        case "half a json":
            told.write_text(text[: len(text) // 2])
        case "no bytes":
            pixels.unlink()
        case "other rows":
            told.write_text(text.replace('"rows": [2, 0]', '"rows": [3, 0]'))
        case "not a dict":
            told.write_text("[]")
    source.check(tmp_path)
    assert source.read == 2


def test_a_killed_run_leaves_nothing_that_looks_like_data(tmp_path: Path) -> None:
    source = Source()
    on_disk: dict[str, bytes] = {}

    def cut_short() -> Iterator[tuple[str, bytes]]:
        yield from list(source.members())[:2]
        on_disk.update((path.name, path.read_bytes()) for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(replace(source.job, members=cut_short), [tmp_path])
    assert list(tmp_path.iterdir()) == [], "an interrupted run clears up; a killed one cannot"
    assert [Path(name).suffix for name in on_disk] == [".part"]
    left = [tmp_path / name for name in on_disk]
    left[0].write_bytes(on_disk[left[0].name])
    source = Source()
    source.check(tmp_path)
    assert source.read == 1
    assert left[0].exists(), "it may be another run's that is still writing"
    os.utime(left[0], (0, time.time() - 2 * image_cache.ABANDONED_AFTER_S))
    next(tmp_path.glob("*.json")).unlink()
    source.check(tmp_path)
    assert not left[0].exists()


def test_an_unreadable_image_is_named_and_leaves_no_cache(tmp_path: Path) -> None:
    source = Source()
    bad = [("good.png", image_bytes(source.pixels[0])), ("bad", b"x")]
    with pytest.raises(ValueError, match=r"memory: bad: not a readable image \(.*\); replace or remove it"):
        decoded(replace(source.job, members=lambda: iter(bad)), [tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_a_long_decoding_is_reported_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_cache, "REPORT_EVERY_S", -1.0)
    Source().check(tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"three: 3 images decoded into {tmp_path} (only this once)" in err


def test_a_read_only_folder_is_read_but_not_written_to(tmp_path: Path) -> None:
    closed, open_ = tmp_path / "closed", tmp_path / "open"
    closed.mkdir()
    source = Source()
    closed.chmod(0o555)
    try:
        decoded(source.job, [closed / ".cache", open_ / ".cache"])
        assert list(closed.iterdir()) == []
        assert len(list((open_ / ".cache").iterdir())) == 2
        with pytest.raises(
            PermissionError, match=r"no folder for the decoded images of memory can be written to .*cache_dir="
        ):
            decoded(Source(7).job, [closed / ".cache"])
    finally:
        closed.chmod(0o755)
    (open_ / ".cache").rename(closed / ".cache")
    (closed / ".cache").chmod(0o555)
    decoded(source.job, [closed / ".cache", open_ / ".cache"])
    (closed / ".cache").chmod(0o755)
    assert source.read == 1


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not decode memory into .* \(\[Errno 28\] No space left.*cache_dir="):
        decoded(Source().job, [tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_the_cache_lies_beside_the_data_or_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "set"))
    home = Path.home() / ".cache" / "dynamicgate" / ".cache"
    assert cache_folders(tmp_path, None) == [tmp_path / ".cache", tmp_path / "set" / ".cache", home]
    assert cache_folders(None, None) == [tmp_path / "set" / ".cache", home]
    assert cache_folders(tmp_path, str(tmp_path / "mine")) == [tmp_path / "mine"]


def test_the_identity_of_a_folder_changes_with_its_files_but_not_with_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"123")
    first = source_identity(tmp_path)
    (tmp_path / "a" / ".DS_Store").write_bytes(b"1")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "y").write_bytes(b"1")
    assert source_identity(tmp_path) == first
    os.utime(tmp_path / "a" / "x.png", (1, 1))
    second = source_identity(tmp_path)
    (tmp_path / "a" / "x.png").rename(tmp_path / "a" / "y.png")
    third = source_identity(tmp_path)
    assert len({json.dumps(identity) for identity in (first, second, third)}) == 3
    archive = tmp_path / "x.zip"
    archive.write_bytes(io.BytesIO(b"12").getvalue())
    assert source_identity(archive) == [["x.zip", 2, archive.stat().st_mtime_ns]]
