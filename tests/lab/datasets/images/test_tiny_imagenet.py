"""Tiny-ImageNet from a folder or an archive, with any subset of its classes."""

from __future__ import annotations

import io
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.images import tiny_imagenet
from dynamicgate.lab.datasets.images.image_cache import load_or_decode
from dynamicgate.lab.datasets.images.pixels import Pixels
from dynamicgate.lab.datasets.images.tiny_imagenet import decoding_job, load_tiny_imagenet
from dynamicgate.lab.datasets.splits import Splits
from tests.lab.datasets.archive_writers import KINDS, image_bytes, pack
from tests.places import real_folder

WNIDS = ["n03", "n01", "n02"]  # classes have the order of the file, sorted or not
TOP = "tiny-imagenet-200"
REAL = f"{TOP}/{TOP}-subset40.tar.xz"


def picture(number: int, grey: bool = False) -> bytes:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (8, 8) if grey else (8, 8, 3), dtype=np.uint8)
    return image_bytes(np.repeat(np.repeat(coarse, 8, axis=0), 8, axis=1), "JPEG", quality=95)


def files(train: int = 10, val: int = 2) -> dict[str, bytes]:
    found = {}
    lines = []
    for place, wnid in enumerate(WNIDS):
        for number in range(train):
            picture_number = place * 100 + number
            found[f"{TOP}/train/{wnid}/images/{wnid}_{number}.JPEG"] = picture(picture_number, grey=number == 0)
        found[f"{TOP}/train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
        for number in range(val):
            name = f"val_{number * 3 + place}.JPEG"
            found[f"{TOP}/val/images/{name}"] = picture(1000 + place * 100 + number)
            lines.append(f"{name}\t{wnid}\t0\t0\t9\t9\n")
    found[f"{TOP}/val/val_annotations.txt"] = "".join(lines).encode()
    found[f"{TOP}/test/images/test_0.JPEG"] = b"not opened: it has no label"
    found[f"{TOP}/train/n01/images/._n01_0.JPEG"] = b"left by a Mac"
    found[f"{TOP}/wnids.txt"] = "\n".join(WNIDS).encode()
    found[f"{TOP}/words.txt"] = b"n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbow tie, bow-tie\nn03\tbucket\n"
    return found


def load(folder: Path, seed: int = 0, **options: object) -> Splits:
    return load_tiny_imagenet(folder, seed, cache_dir=folder / "cache", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [".", TOP])
def test_every_kind_of_archive_gives_the_same_rows(tmp_path: Path, place: str, kind: str) -> None:
    from PIL import Image

    pack(files(), tmp_path / place, TOP, kind)
    splits = load(tmp_path)
    assert splits.info()["class_counts"] == {"train": [9] * 3, "valid": [1] * 3, "test": [2] * 3}
    assert splits.class_names == ("bucket", "goldfish", "bow tie")
    assert splits.train.features == 12_288
    expected = np.stack(
        [
            np.asarray(Image.open(io.BytesIO(picture(1000 + place * 100 + number))).convert("RGB"))
            for place in range(3)
            for number in range(2)
        ]
    ).transpose(0, 3, 1, 2)
    assert np.array_equal(splits.test.x[torch.arange(6)].numpy(), expected)
    assert splits.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    both = torch.cat([splits.train.x[torch.arange(27)], splits.valid.x[torch.arange(3)]])
    assert int((both == both[:, :1]).flatten(1).all(dim=1).sum()) == 3, "one grey picture in each class"


def test_the_order_of_rows_does_not_depend_on_the_archive(tmp_path: Path) -> None:
    found = files()
    reverse = dict(reversed(found.items()))
    pack(found, tmp_path / "a", TOP, ".tar.gz")
    pack(reverse, tmp_path / "b", TOP, ".zip")
    pack(found, tmp_path / "c", TOP, "folder")
    first, second, third = (load(tmp_path / name) for name in "abc")
    for other in (second, third):
        for part in ("train", "valid", "test"):
            mine, theirs = getattr(first, part), getattr(other, part)
            assert mine.values.equal(theirs.values)
            assert mine.y.equal(theirs.y)


def test_a_second_load_does_not_open_the_archive_unless_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pack(files(), tmp_path, TOP, ".tar.xz")
    first = load(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(tiny_imagenet, "read_members", None)
        assert load(tmp_path).train.values.equal(first.train.values)
    before = source.stat()
    source.write_bytes(b"x" * before.st_size)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size and time
    with pytest.raises(ValueError, match="damaged or incomplete"):
        load(tmp_path)


def test_a_changed_folder_is_decoded_again(tmp_path: Path) -> None:
    pack(files(), tmp_path, TOP, "folder")
    first = load(tmp_path)
    (tmp_path / TOP / "val" / "images" / "val_0.JPEG").write_bytes(picture(7))
    assert not load(tmp_path).test.values.equal(first.test.values)


def test_the_cache_is_beside_the_data_unless_another_folder_is_given(tmp_path: Path) -> None:
    pack(files(), tmp_path, TOP, ".zip")
    load_tiny_imagenet(tmp_path, 0)
    assert sorted(path.suffix for path in (tmp_path / ".cache").iterdir()) == [".json", ".u8"]


def test_the_seed_and_the_options_change_only_what_they_should(tmp_path: Path) -> None:
    pack(files(), tmp_path, TOP, ".zip")
    first, other = load(tmp_path), load(tmp_path, seed=1, augment="flip", normalisation="dataset")
    assert not first.valid.values.equal(other.valid.values)
    assert first.test.values.equal(other.test.values)
    assert first.train.augment is not None
    assert first.valid.augment is first.test.augment is None
    for splits, mean, std in (
        (first, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        (other, [0.480, 0.448, 0.398], [0.277, 0.269, 0.282]),
    ):
        assert splits.mean.view(3, 4096)[:, 7].tolist() == pytest.approx(mean)  # type: ignore[union-attr]
        assert splits.std.view(3, 4096)[:, 7].tolist() == pytest.approx(std)  # type: ignore[union-attr]
    index = torch.arange(8)
    torch.manual_seed(3)
    augmented = first.train.rows(index, training=True)
    torch.manual_seed(3)
    assert first.train.rows(index, training=True).equal(augmented)
    assert not first.train.rows(index).equal(augmented)
    with pytest.raises(ValueError, match="normalisation must be one of imagenet, dataset, received 'x'"):
        load(tmp_path, normalisation="x")


def test_wnids_can_list_a_subset_of_the_classes(tmp_path: Path) -> None:
    found = files()
    found[f"{TOP}/wnids.txt"] = b"n02\r\nn03\r\n"
    del found[f"{TOP}/words.txt"]
    pack(found, tmp_path, TOP, ".zip")
    splits = load(tmp_path)
    assert splits.class_names == ("n02", "n03")
    assert splits.info()["class_counts"] == {"train": [9] * 2, "valid": [1] * 2, "test": [2] * 2}


def test_missing_data_says_where_it_is_expected(tmp_path: Path) -> None:
    (tmp_path / TOP).mkdir()
    with pytest.raises(FileNotFoundError, match=r"wnids.txt.*TinyImageNet.*`dynamicgate data get tiny-imagenet`"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    {
        "no classes": ("wnids.txt", None, FileNotFoundError, r"has no wnids.txt; download it again"),
        "no annotations": ("val/val_annotations.txt", None, FileNotFoundError, "has no val/val_annotations.txt"),
        "class twice": ("wnids.txt", b"n01 n01", ValueError, "names 2 classes, expected at least 2, each once"),
        "one class": ("wnids.txt", b"n01", ValueError, "names 1 classes, expected at least 2"),
        "class without images": ("wnids.txt", b"n01 n02 n09", ValueError, r"no training images of 1 of its 3 .*n09"),
        "unlabelled": ("val/val_annotations.txt", b"val_0.JPEG\tn01\n", ValueError, "no line for 5 images, e.g. val_1"),
        "image absent": ("val/images/val_4.JPEG", None, ValueError, r"lacks 1 images of val_annot.*val_4.JPEG"),
        "unreadable": ("train/n01/images/n01_3.JPEG", b"x", ValueError, r"train/n01/images/n01_3.JPEG: not a readable"),
        "half": ("train/n01/images/n01_3.JPEG", picture(1)[:400], ValueError, r"n01_3.JPEG: not a readable image"),
        "other size": (
            "val/images/val_1.JPEG",
            image_bytes(np.zeros((8, 8), np.uint8), "JPEG"),
            ValueError,
            r"val/images/val_1.JPEG: expected 64 x 64 pixels, found 8 x 8",
        ),
    }.values(),
)
def test_wrong_files_are_named_and_leave_no_cache(
    tmp_path: Path, name: str, content: bytes | None, error: type[Exception], message: str
) -> None:
    found = files()
    if content is None:
        del found[f"{TOP}/{name}"]
    else:
        found[f"{TOP}/{name}"] = content
    pack(found, tmp_path, TOP, ".tar.gz")
    with pytest.raises(error, match=message):
        load(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_truncated_archive_leaves_no_cache(tmp_path: Path) -> None:
    source = pack(files(), tmp_path, TOP, ".tar.gz")
    source.write_bytes(source.read_bytes()[:-4])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        load(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def modes(cache: Path) -> Counter[str]:
    """How many of the real images have which colour mode, counted while decoding them into `cache`."""
    from PIL import Image

    found: Counter[str] = Counter()
    job = decoding_job(real_folder(REAL) / REAL)

    def counting(content: bytes) -> Pixels:
        found[Image.open(io.BytesIO(content)).mode] += 1
        return job.decode(content)

    load_or_decode(replace(job, decode=counting), [cache])
    return found


@pytest.fixture(scope="module")
def real(cache: Path, modes: Counter[str]) -> Splits:
    return load_tiny_imagenet(real_folder(REAL), 0, cache_dir=cache)


def test_the_real_subset_has_the_counts_of_its_readme(real: Splits) -> None:
    info = real.info()
    assert (info["train"], info["valid"], info["test"], info["classes"]) == (18_000, 2_000, 2_000, 40)
    assert info["class_counts"] == {"train": [450] * 40, "valid": [50] * 40, "test": [50] * 40}
    assert real.class_names[:3] == ("dining table", "brown bear", "nail")
    assert len(set(real.class_names)) == 40


def test_the_real_greyscale_images_have_three_equal_channels(real: Splits, modes: Counter[str]) -> None:
    assert modes == {"RGB": 21_513, "L": 487}
    equal = 0
    for part in (real.train, real.valid, real.test):
        for index in torch.arange(len(part)).split(1000):
            batch = part.x[index]
            equal += int((batch == batch[:, :1]).flatten(1).all(dim=1).sum())
    assert 487 <= equal < 600  # some colour files hold grey pictures


def test_the_real_images_are_decoded_once_and_nothing_is_written_beside_them(real: Splits, cache: Path) -> None:
    folder = real_folder(REAL)
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".u8"]
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    again = load_tiny_imagenet(folder, 0, cache_dir=cache)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    index = torch.arange(0, 18_000, 97)
    assert again.train.rows(index).equal(real.train.rows(index))
    assert not (folder / ".cache").exists()


def test_the_real_mean_and_std_are_near_the_published_ones(real: Splits) -> None:
    sample = real.train.rows(torch.arange(0, 18_000, 9)).view(-1, 3, 4096)
    assert sample.mean(dim=(0, 2)).tolist() == pytest.approx([0.480, 0.448, 0.398], abs=0.03)
    assert sample.std(dim=(0, 2)).tolist() == pytest.approx([0.277, 0.269, 0.282], abs=0.02)
