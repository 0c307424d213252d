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


def read_all(path: Path) -> object:
    return list(read_members(path, lambda _: True))


CASES: dict[str, tuple[str, Callable[[Path], Path], Callable[[Path], object]]] = {
    "a tar with one large member": ("x.tar.gz", tar_bomb, read_all),
    "a sparse tar": ("x.tar", sparse_tar, read_all),
    "a tar with millions of members": ("x.tar.gz", many_members, read_all),
    "a zip": ("x.zip", zip_bomb, read_all),
    "an idx file": ("train-images-idx3-ubyte.gz", gzip_bomb, read_idx),
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


def test_small_files_may_pack_as_well_as_they_like() -> None:
    packed = gzip.compress(bytes(ALWAYS))
    assert len(packed) * RATIO < ALWAYS
    assert len(gunzip(packed, "zeros")) == ALWAYS
    assert most_bytes_of(1 << 30) == RATIO << 30
