"""Reading idx files, plain, gzipped and damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dynamicgate.lab.datasets.idx_format import read_idx

from .small_arrays import idx_bytes, write_idx

VALUES = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
def test_plain_and_gzipped_files_of_every_type_are_read(tmp_path: Path, suffix: str, dtype: str) -> None:
    array = read_idx(write_idx(tmp_path / f"a{suffix}", VALUES.astype(dtype)), ndim=3)
    assert array.dtype == np.dtype(dtype)
    assert array.dtype.isnative
    assert array.flags.writeable
    assert (array == VALUES).all()


def test_gzip_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "unpacked-but-still-called.gz"
    path.write_bytes(idx_bytes(VALUES.astype("uint8")))
    assert (read_idx(path) == VALUES).all()


def test_an_empty_array_is_read(tmp_path: Path) -> None:
    assert read_idx(write_idx(tmp_path / "a", np.zeros((0, 28, 28), "uint8"))).shape == (0, 28, 28)


@pytest.mark.parametrize("keep", [*range(40), "extra"])
def test_any_wrong_number_of_bytes_is_refused(tmp_path: Path, keep: int | str) -> None:
    whole = idx_bytes(VALUES.astype("uint8"))
    assert len(whole) == 40
    path = tmp_path / "cut"
    path.write_bytes(whole[:keep] if isinstance(keep, int) else whole + b"x")
    with pytest.raises(ValueError, match=r"cut .*(at least 4 bytes, found|truncated or damaged.*bytes in all, found)"):
        read_idx(path)


def test_the_error_says_how_many_bytes_the_header_promised(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(idx_bytes(VALUES.astype("int16"))[:-5])
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\), 64 bytes in all, found 59; download the file again"):
        read_idx(path)


def test_a_header_that_promises_an_enormous_array_is_refused_without_allocating_it(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_bytes(bytes([0, 0, 0x0E, 3]) + b"\xff" * 12)
    with pytest.raises(ValueError, match="huge is truncated or damaged"):
        read_idx(path)


@pytest.mark.parametrize("magic", ["01000801", "00010801", "00000a01", "00000000", "00000800", "00000821", "89504e47"])
def test_a_wrong_magic_number_is_refused(tmp_path: Path, magic: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes.fromhex(magic) + bytes(20))
    with pytest.raises(ValueError, match=f"other is not an idx file: expected a magic number .* found 0x{magic}"):
        read_idx(path)


def test_labels_where_images_are_expected_are_refused(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "images", np.zeros(5, "uint8"))
    with pytest.raises(ValueError, match=r"images has the wrong magic.* 3 dimensions, found 1 \(0x00000801\)"):
        read_idx(path, ndim=3)


@pytest.mark.parametrize("damage", ["cut", "flipped", "header only"])
def test_damaged_gzip_files_are_refused(tmp_path: Path, damage: str) -> None:
    whole = bytearray(gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 255, (9, 28, 28), "uint8"))))
    if damage == "flipped":
        whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "bad.gz"
    path.write_bytes({"cut": whole[:-100], "flipped": whole, "header only": whole[:6]}[damage])
    with pytest.raises(ValueError, match=r"bad\.gz is a truncated or damaged gzip file .*download the file again"):
        read_idx(path)
