"""CIFAR-10 in its binary and its pickled version, intact, damaged and hostile."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.images.cifar10 import BINARY, CLASSES, load_cifar10
from dynamicgate.lab.datasets.images.cifar10_pickle import read_pickled_batch
from dynamicgate.lab.datasets.splits import Splits
from tests.lab.datasets.archive_writers import KINDS, pack
from tests.places import real_folder

from ..small_arrays import rows_of

PER_BATCH = 20
NAMES = [f"name{number}" for number in range(10)]


def records(batch: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(batch)
    return rng.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8), np.arange(PER_BATCH, dtype=np.uint8) % 10


def binary_files() -> dict[str, bytes]:
    files = {"cifar-10-batches-bin/batches.meta.txt": ("\n".join(NAMES) + "\n\n").encode()}
    for number, name in enumerate(BINARY):
        pixels, labels = records(number)
        files[f"cifar-10-batches-bin/{name}"] = np.hstack([labels[:, None], pixels]).tobytes()
    return files


def python_files() -> dict[str, bytes]:
    """Like the official ones: protocol 2, a dictionary with an array and a list."""
    files = {"cifar-10-batches-py/readme.html": b"<html>"}
    for number, name in enumerate(BINARY):
        pixels, labels = records(number)
        batch = {"batch_label": f"batch {number}", "labels": labels.tolist(), "data": pixels, "filenames": ["a.png"]}
        content = pickle.dumps(batch, protocol=2)
        files[f"cifar-10-batches-py/{name.removesuffix('.bin')}"] = content
    return files


def check(splits: Splits) -> None:
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (90, 10, 20)
    pixels, labels = records(5)
    assert np.array_equal(splits.test.x.reshape(-1, 3072).numpy(), pixels)  # type: ignore[union-attr]
    assert splits.test.y.tolist() == labels.tolist()
    expected = np.concatenate([records(number)[0] for number in range(5)])
    found = torch.cat([splits.train.x, splits.valid.x])  # type: ignore[list-item]
    assert rows_of(found) == {row.tobytes() for row in expected}
    assert splits.test.rows(torch.arange(2)).equal(torch.from_numpy(pixels[:2] / np.float32(255)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [".", "cifar10", "CIFAR10", "cifar-10"])
def test_the_binary_version_is_read_from_every_place_and_archive(tmp_path: Path, place: str, kind: str) -> None:
    pack(binary_files(), tmp_path / place, "cifar-10-binary", kind)
    splits = load_cifar10(tmp_path, 0)
    check(splits)
    assert splits.class_names == tuple(NAMES)


@pytest.mark.parametrize("kind", ["folder", ".tar.gz"])
def test_the_pickled_version_gives_the_same_data(tmp_path: Path, kind: str) -> None:
    pack(python_files(), tmp_path, "cifar-10-python", kind)
    splits = load_cifar10(tmp_path, 0)
    check(splits)
    assert splits.class_names == CLASSES
    pack(binary_files(), tmp_path, "cifar-10-binary", kind)
    assert load_cifar10(tmp_path, 0).train.x.equal(splits.train.x)  # type: ignore[union-attr, arg-type]
    assert load_cifar10(tmp_path, 0).class_names == tuple(NAMES), "the binary version is preferred"


def test_the_data_folder_may_be_the_folder_of_the_batches_itself(tmp_path: Path) -> None:
    pack(binary_files(), tmp_path, "", "folder")
    pack({"old/data_batch_1.bin": b"not ours"}, tmp_path / "cifar-10-batches-bin", "", "folder")
    check(load_cifar10(tmp_path / "cifar-10-batches-bin", 0))


def test_the_seed_draws_a_stratified_validation_part_and_keeps_the_test_part(tmp_path: Path) -> None:
    pack(binary_files(), tmp_path, "cifar-10", ".tar")
    first, same, other = (load_cifar10(tmp_path, seed) for seed in (0, 0, 1))
    assert torch.bincount(first.valid.y).tolist() == [1] * 10
    assert first.valid.x.equal(same.valid.x)  # type: ignore[union-attr, arg-type]
    assert not first.valid.x.equal(other.valid.x)  # type: ignore[union-attr, arg-type]
    assert first.test.x.equal(other.test.x)  # type: ignore[union-attr, arg-type]


def test_options_choose_augmentation_and_normalisation(tmp_path: Path) -> None:
    pack(binary_files(), tmp_path, "cifar-10", ".tar")
    splits = load_cifar10(tmp_path, 0)
    assert splits.train.augment is not None
    assert splits.valid.augment is splits.test.augment is None
    assert load_cifar10(tmp_path, 0, augment=False).train.augment is None
    assert isinstance(splits.mean, torch.Tensor)
    assert isinstance(splits.std, torch.Tensor)
    assert splits.mean.view(3, 1024)[:, [0, -1]].flatten().tolist() == pytest.approx(
        [0.4914, 0.4914, 0.4822, 0.4822, 0.4465, 0.4465]
    )
    assert splits.std.view(3, 1024)[:, 0].tolist() == pytest.approx([0.2023, 0.1994, 0.2010])
    with pytest.raises(ValueError, match="augment must be"):
        load_cifar10(tmp_path, 0, augment="more")
    with pytest.raises(ValueError, match="normalisation must be one of paper, received 'x'"):
        load_cifar10(tmp_path, 0, normalisation="x")


def test_missing_data_says_where_it_is_expected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin.*CIFAR10.*`dynamicgate data get cifar10`"):
        load_cifar10(tmp_path, 0)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
def test_a_missing_batch_is_named(tmp_path: Path, name: str) -> None:
    files = binary_files()
    del files[f"cifar-10-batches-bin/{name}"]
    source = pack(files, tmp_path, "cifar-10", ".tar.gz")
    with pytest.raises(FileNotFoundError, match=rf"{source} lacks {name}; expected data_batch_1.bin, "):
        load_cifar10(tmp_path, 0)


@pytest.mark.parametrize("size", [0, 1, 3072, 3073 * 4 - 1])
def test_records_of_a_wrong_size_are_refused(tmp_path: Path, size: int) -> None:
    files = binary_files()
    files["cifar-10-batches-bin/data_batch_2.bin"] = bytes(size)
    pack(files, tmp_path, "cifar-10", ".tar.gz")
    with pytest.raises(ValueError, match=rf"data_batch_2.bin has {size} bytes, expected records of 3073 bytes"):
        load_cifar10(tmp_path, 0)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    files = binary_files()
    content = bytearray(files["cifar-10-batches-bin/test_batch.bin"])
    content[3073 * 7] = 10
    files["cifar-10-batches-bin/test_batch.bin"] = bytes(content)
    pack(files, tmp_path, "cifar-10", ".tar.xz")
    with pytest.raises(ValueError, match=r"test_batch.bin: labels must be 0..9, found 10 in record 7"):
        load_cifar10(tmp_path, 0)


def test_a_truncated_or_damaged_archive_is_refused(tmp_path: Path) -> None:
    source = pack(binary_files(), tmp_path, "cifar-10", ".tar.gz")
    whole = source.read_bytes()
    source.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is damaged or incomplete"):
        load_cifar10(tmp_path, 0)
    source.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    with pytest.raises(ValueError, match="is damaged or incomplete"):
        load_cifar10(tmp_path, 0)


def test_two_datasets_in_one_archive_are_refused(tmp_path: Path) -> None:
    files = binary_files()
    files["copy/test_batch.bin"] = b""
    pack(files, tmp_path, "cifar-10", ".zip")
    with pytest.raises(ValueError, match=r"contains test_batch.bin twice, the second time as copy/test_batch.bin"):
        load_cifar10(tmp_path, 0)


class Attack:
    """What a hostile file would contain: a call of os.system when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_a_hostile_pickle_is_refused_without_being_run(tmp_path: Path) -> None:
    content = pickle.dumps({"data": Attack(tmp_path / "owned")}, protocol=2)
    with pytest.raises(ValueError, match=r"batch is not a readable CIFAR-10 batch .*refused, it asks for \w+.system"):
        read_pickled_batch(content, "batch")
    assert not (tmp_path / "owned").exists()
    with pytest.raises(ValueError, match=r"asks for builtins.eval|asks for __builtin__.eval"):
        read_pickled_batch(pickle.dumps(eval, protocol=2), "batch")


@pytest.mark.parametrize(
    ("batch", "message"),
    {
        "not a dictionary": ([1, 2], 'expected "data" to be an array of n x 3072 bytes, found none'),
        "no data": ({"labels": [1]}, "found none"),
        "wrong shape": ({"data": np.zeros((2, 5), np.uint8), "labels": [1, 2]}, r"found shape \(2, 5\)"),
        "floats": ({"data": np.zeros((2, 3072)), "labels": [1, 2]}, "an array of type 'f8', expected bytes"),
        "objects": ({"data": np.array([[object]]), "labels": [1]}, "an array of type 'O8', expected bytes"),
        "no labels": ({"data": np.zeros((2, 3072), np.uint8)}, 'expected "labels" to be a list of whole numbers'),
        "text labels": ({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}, "a list of whole numbers"),
        "fewer labels": ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "has 2 images but 1 labels"),
    }.values(),
)
def test_other_pickles_are_refused(batch: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_pickled_batch(pickle.dumps(batch, protocol=2), "batch")


def test_a_damaged_pickle_is_a_value_error() -> None:
    batch = {"labels": [1, 2], "data": np.zeros((2, 3072), np.uint8)}
    content = pickle.dumps(batch, protocol=2)
    for offset in [*range(120), *range(len(content) - 120, len(content))]:
        with contextlib.suppress(ValueError):
            read_pickled_batch(content[:offset] + bytes([content[offset] ^ 0x15]) + content[offset + 1 :], "batch")
    with pytest.raises(ValueError, match="not a readable CIFAR-10 batch"):
        read_pickled_batch(content[:50], "batch")


def test_byte_strings_written_by_python_2_are_read() -> None:
    """The opcodes of the official files: protocol 2 with byte strings as keys and as pixels."""

    def text(value: bytes) -> bytes:
        return (
            b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + len(value).to_bytes(4, "little") + value
        )

    pixels = bytes(range(256)) * 12
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        b"(K\x01(K\x01M\x00\x0ctcnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + text(pixels) + b"tb"
    )
    content = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"](K\x07eu."
    found, labels = read_pickled_batch(content, "batch")
    assert found.tobytes() == pixels
    assert labels.tolist() == [7]


@pytest.fixture(scope="module")
def real() -> Splits:
    return load_cifar10(real_folder("cifar10/cifar-10-binary-subset.tar.xz"), 0)


def test_the_real_subset_has_the_counts_of_its_readme(real: Splits) -> None:
    info = real.info()
    assert (info["train"], info["valid"], info["test"], info["features"]) == (9_000, 1_000, 2_000, 3_072)
    assert info["class_counts"] == {"train": [900] * 10, "valid": [100] * 10, "test": [200] * 10}
    assert real.class_names == CLASSES


def test_the_real_images_are_photographs_the_right_way_up(real: Splits) -> None:
    """The published mean fits them, neighbouring pixels are alike, and the sky (ships, planes) is blue and above."""
    pixels = real.train.x.float() / 255  # type: ignore[union-attr]
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.01)
    assert (pixels[..., 1:] - pixels[..., :-1]).abs().mean() < 0.06
    sky = pixels[(real.train.y == 0) | (real.train.y == 8)]
    assert sky[:, 2, :8].mean() > sky[:, 0, :8].mean() + 0.03
    assert sky[:, :, :8].mean() > sky[:, :, -8:].mean() + 0.03


def test_no_real_image_is_in_two_parts(real: Splits) -> None:
    train, valid, test = (rows_of(part.x) for part in (real.train, real.valid, real.test))
    assert not train & valid
    assert not (train | valid) & test
