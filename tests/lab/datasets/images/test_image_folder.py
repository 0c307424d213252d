"""A user's own folder of images."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.images import image_folder
from dynamicgate.lab.datasets.images.image_folder import load_image_folder
from dynamicgate.lab.datasets.splits import Splits

from ..archive_writers import image_bytes, pack


def picture(level: int, height: int = 9, width: int = 13, format: str = "PNG") -> bytes:
    """A picture of one grey level, which resizing does not change."""
    return image_bytes(np.full((height, width, 3), level, dtype=np.uint8), format)


def files(n: int = 10) -> dict[str, bytes]:
    """Two classes: dark cats (levels 0..n-1) and bright dogs (100..), of different sizes."""
    found = {f"cat/{level}.png": picture(level, 5 + level) for level in range(n)}
    return found | {f"dog/inner/{level}.bmp": picture(100 + level, width=4 + level, format="BMP") for level in range(n)}


def load(folder: Path, seed: int = 0, **options: object) -> Splits:
    return load_image_folder(folder / "pets", seed, cache_dir=folder / "cache", **options)  # type: ignore[arg-type]


def levels(part: torch.Tensor) -> list[int]:
    return sorted(part[:, 0, 0, 0].tolist())


def test_folders_are_classes_and_parts_are_split_off(tmp_path: Path) -> None:
    pack(files(), tmp_path / "pets", "", "folder")
    splits = load(tmp_path)
    assert (splits.name, splits.class_names, splits.train.features) == ("pets", ("cat", "dog"), 3 * 32 * 32)
    assert splits.info()["class_counts"] == {"train": [7, 7], "valid": [1, 1], "test": [2, 2]}
    parts = [part.x[torch.arange(len(part))] for part in (splits.train, splits.valid, splits.test)]
    assert levels(torch.cat(parts)) == [*range(10), *range(100, 110)]
    for part, pixels in zip((splits.train, splits.valid, splits.test), parts, strict=True):
        assert ((pixels[:, 0, 0, 0] >= 100).long()).equal(part.y)
    mean = torch.cat([parts[0]]).float().mean() / 255
    assert splits.mean[0].item() == pytest.approx(mean.item(), rel=1e-5)  # type: ignore[index]


def test_the_seed_changes_the_validation_part_but_not_the_test_part(tmp_path: Path) -> None:
    pack(files(40), tmp_path / "pets", "", "folder")
    first, other = load(tmp_path), load(tmp_path, seed=1)
    assert first.test.values.equal(other.test.values)
    assert not first.valid.values.equal(other.valid.values)


def test_each_size_and_colour_option_has_its_own_cache(tmp_path: Path) -> None:
    pack(files(), tmp_path / "pets", "", "folder")
    assert load(tmp_path, size=8).train.features == 3 * 64
    grey = load(tmp_path, size=8, colour=False, augment="crop_and_flip")
    assert grey.train.x.shape[1:] == (1, 8, 8)
    assert grey.train.augment is not None
    assert grey.train.rows(torch.arange(3), training=True).shape == (3, 64)
    assert len(list((tmp_path / "cache").iterdir())) == 4
    for size in (0, -1, 5000, 8.5):
        with pytest.raises(ValueError, match=rf"size must be 1 to 1024 whole pixels, received {size}"):
            load(tmp_path, size=size)


@pytest.mark.parametrize("valid", ["valid", "val", "validation"])
def test_parts_given_as_folders_are_kept(tmp_path: Path, valid: str) -> None:
    found = {f"train/{name}": content for name, content in files(8).items()}
    found |= {f"{valid}/cat/{level}.png": picture(50 + level) for level in range(3)}
    found |= {f"test/dog/{level}.jpg": picture(200, format="JPEG") for level in range(4)}
    pack(found, tmp_path / "pets", "", "folder")
    splits = load(tmp_path)
    assert splits.info()["class_counts"] == {"train": [8, 8], "valid": [3, 0], "test": [0, 4]}
    assert levels(splits.valid.x[torch.arange(3)]) == [50, 51, 52]
    shutil.rmtree(tmp_path / "pets" / "test")
    assert load(tmp_path).info()["class_counts"] == {"train": [6, 7], "valid": [3, 0], "test": [2, 1]}


def test_a_second_load_opens_no_image_unless_one_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(files(), tmp_path / "pets", "", "folder")
    first = load(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(image_folder, "read_members", None)
        assert load(tmp_path).train.values.equal(first.train.values)
    image = tmp_path / "pets" / "cat" / "3.png"
    before = image.stat()
    image.write_bytes(bytes(before.st_size))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size and time
    with pytest.raises(ValueError, match=r"cat/3.png: not a readable image .*; replace or remove it"):
        load(tmp_path)


def test_by_default_nothing_is_written_among_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "own"))
    pack(files(), tmp_path / "pets", "", "folder")
    before = sorted((tmp_path / "pets").rglob("*"))
    load_image_folder(tmp_path / "pets", 0)
    assert sorted((tmp_path / "pets").rglob("*")) == before
    assert len(list((tmp_path / "own" / ".cache").iterdir())) == 2


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    hidden = dict.fromkeys((".DS_Store", ".git/a", "cat/.x.png", "cat/Thumbs.db", "dog/.deep/y", "__MACOSX/z"), b"x")
    pack(files() | hidden | {"README.md": b"pets"}, tmp_path / "pets", "", "folder")
    assert load(tmp_path).info()["class_counts"] == {"train": [7, 7], "valid": [1, 1], "test": [2, 2]}


def test_class_folders_may_be_links(tmp_path: Path) -> None:
    pack(files(), tmp_path / "elsewhere", "", "folder")
    (tmp_path / "pets").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).symlink_to(tmp_path / "elsewhere" / name)
    assert len(load(tmp_path).train) == 14


@pytest.mark.parametrize(
    ("found", "message"),
    {
        "no folders": ({"a.png": picture(1)}, "has no folders; expected a folder of images for each class"),
        "one class": ({"cat/a.png": picture(1)}, r"has 1 class folders to train on \(cat\), but at least 2 are needed"),
        "empty class": ({**files(), "emu/.keep": b""}, r"the class folder .*emu has no images; add some or remove it"),
        "text": ({**files(), "cat/notes.txt": b"hello"}, r"cat/notes.txt: not a readable image"),
        "truncated": ({**files(), "cat/half.png": picture(1)[:50]}, r"cat/half.png: not a readable image"),
        "parts and classes": ({**files(), "train/cat/a.png": picture(1)}, "has the folders cat, dog, train; expected"),
        "no train": ({"test/cat/a.png": picture(1), "valid/cat/a.png": picture(1)}, "and train/ among them"),
        "empty train": ({"train/a.png": picture(1)}, r"has 0 class folders to train on \(none\)"),
        "empty test": (
            {**{f"train/{name}": content for name, content in files().items()}, "test/a.png": picture(1)},
            "the test part has no class folders",
        ),
        "new class": (
            {**{f"train/{name}": content for name, content in files().items()}, "test/emu/a.png": picture(1)},
            "the test part has the class 'emu', which has no training images",
        ),
        "validation twice": (
            {f"{part}/{name}": content for part in ("train", "val", "valid") for name, content in files(1).items()},
            "has two folders for validation",
        ),
        "too few": (files(1), r"\(test part\): cannot split 2 rows of 2 classes"),
    }.values(),
)
def test_a_wrong_folder_layout_is_refused_with_the_reason(
    tmp_path: Path, found: dict[str, bytes], message: str
) -> None:
    pack(found, tmp_path / "pets", "", "folder")
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"there is no folder .*pets; expected a folder of images for each class"
    ):
        load(tmp_path)
