"""A file that unpacks to far more than it is: refused before it takes the memory."""

from __future__ import annotations

import gzip
import io
import resource
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dynamicgate.lab.datasets import limits
from dynamicgate.lab.datasets.archive import read_members
from dynamicgate.lab.datasets.idx_format import read_idx
from dynamicgate.lab.datasets.limits import ALWAYS, RATIO, gunzip, most_bytes_of
from dynamicgate.lab.datasets.npz_file import read_npz
from dynamicgate.lab.datasets.table_file import read_frame

BOMB = 1 << 28  # bytes; of zeros, a quarter of a megabyte when packed


def gzip_bomb(path: Path, start: bytes = b"", line: bytes = bytes(1 << 16)) -> Path:
    with gzip.open(path, "wb", 6) as file:
        file.write(start)
        for _ in range(BOMB // len(line)):
            file.write(line)
    return path


def tar_bomb(path: Path) -> Path:
    info = tarfile.TarInfo("data_batch_1")
    info.size = BOMB
    return gzip_bomb(path, info.tobuf())


def sparse_tar(path: Path) -> Path:
    name = "data_batch_1"
    info = tarfile.TarInfo(name)
    info.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name, "GNU.sparse.realsize": str(1 << 33),
    }  # fmt: skip
    body = b"1\n0\n0\n".ljust(512, b"\0")
    info.size = len(body)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(body))
    return path


def many_members(path: Path) -> Path:
    return gzip_bomb(path, line=tarfile.TarInfo("x").tobuf() * 128)


def zip_bomb(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x", "w", force_zip64=True) as file:
        for _ in range(BOMB >> 20):
            file.write(bytes(1 << 20))
    return path


def npz_bomb(path: Path) -> Path:
    zip_bomb(path)
    return path


def huge_npz(path: Path) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 12)})
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header.getvalue())
    return path


def idx_header(shape: tuple[int, ...]) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)


def read_all(path: Path) -> object:
    return list(read_members(path, lambda _: True))


CASES: dict[str, tuple[str, Callable[[Path], Path], Callable[[Path], object]]] = {
    "a tar with one large member": ("x.tar.gz", tar_bomb, read_all),
    "a sparse tar": ("x.tar", sparse_tar, read_all),
    "a tar with millions of members": ("x.tar.gz", many_members, read_all),
    "a zip": ("x.zip", zip_bomb, read_all),
    "an idx file": ("train-images-idx3-ubyte.gz", lambda path: gzip_bomb(path, idx_header((1 << 28,))), read_idx),
    "an npz file": ("x.npz", npz_bomb, read_npz),
    "an npz file with a large shape": ("x.npz", huge_npz, read_npz),
    "a table": ("x.csv.gz", lambda path: gzip_bomb(path, b"a,y\n", b"1,0\n2,1\n" * 8192), read_frame),
}


@pytest.mark.parametrize("name", CASES)
def test_what_unpacks_to_far_more_than_it_is_is_refused_in_time(name: str, tmp_path: Path) -> None:
    file, write, read = CASES[name]
    path = write(tmp_path / file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=rf"{path.name}.*(would unpack to|promises shape)"):
        read(path)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < 200, f"{grown} MB"


def test_a_gzipped_idx_file_is_read_no_further_than_a_wrong_header(tmp_path: Path) -> None:
    """By its size alone it may unpack to gigabytes: 40 MB of zeros are 8 GB."""
    path = gzip_bomb(tmp_path / "images-idx3-ubyte.gz")
    with pytest.raises(ValueError, match="is not an idx file: expected a magic number"):
        read_idx(path)
    assert path.stat().st_size > 100_000
    path.write_bytes(gzip.compress(idx_header((2, 3))) + b"not gzip any more")
    with pytest.raises(ValueError, match=r"promises shape \(2, 3\), 18 bytes in all|damaged gzip file"):
        read_idx(path)
    path.write_bytes(gzip.compress(idx_header((2, 3)) + bytes(7)))
    with pytest.raises(ValueError, match="18 bytes in all, found 19 or more"):
        read_idx(path)


def test_large_files_may_unpack_to_a_part_of_the_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_bytes", lambda: 1 << 30)
    assert most_bytes_of(10 << 20) == 1 << 28
    assert most_bytes_of(1 << 20) == RATIO << 20
    table = tmp_path / "x.csv.gz"
    table.write_bytes(gzip.compress(b"a,y\n") + random_gzip(300_000) + gzip.compress(b"1,0\n" * (18 << 20)))
    with pytest.raises(ValueError, match=r"x.csv.gz.*would unpack to .* and 67,108,864 are allowed"):
        read_frame(table)
    monkeypatch.setattr(limits, "memory_bytes", lambda: None)
    assert most_bytes_of(1 << 30) == RATIO << 30


def random_gzip(size: int) -> bytes:
    """What does not pack: the rest may then unpack to more."""
    return gzip.compress(np.random.default_rng(0).bytes(size))


def test_a_process_may_take_no_more_than_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 29, resource.RLIM_INFINITY))
    assert limits.memory_bytes(()) == 1 << 29


def test_one_large_file_in_an_archive_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamicgate.lab.datasets.archive.LARGEST_MEMBER", 1000)
    info = tarfile.TarInfo("large")
    info.size = 1001
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(info, io.BytesIO(bytes(1001)))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("large", bytes(1001))
    for name in ("x.tar", "x.zip"):
        with pytest.raises(ValueError, match=rf"{name}, large: refused, it would unpack to 1,001 bytes"):
            read_all(tmp_path / name)
        assert list(read_members(tmp_path / name, lambda name: name != "large")) == []


def test_small_files_may_pack_as_well_as_they_like() -> None:
    packed = gzip.compress(bytes(ALWAYS))
    assert len(packed) * RATIO < ALWAYS
    assert len(gunzip(packed, "zeros")) == ALWAYS
