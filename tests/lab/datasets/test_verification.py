"""Verification finds every flipped byte and every missing end, and names the file."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynamicgate.lab.datasets.sources import SOURCES
from dynamicgate.lab.datasets.verification import Finding, locate_files, verify_dataset

SMALL = "t10k-labels-idx1-ubyte.gz"


def mnist_with(real_data: Path, folder: Path, change: Callable[[bytes], bytes], name: str = SMALL) -> Path:
    """A folder with the real MNIST, one small file of it changed; `name` is what that file is called there."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for path in (real_data / "MNIST/raw").glob("*.gz"):
        if path.name == SMALL:
            (raw / name).write_bytes(change(path.read_bytes()))
        else:
            (raw / path.name).symlink_to(path)
    return raw / name


def flipped(content: bytes, offset: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 0x10]) + content[offset + 1 :]


def only_problem(findings: list[Finding]) -> str:
    """The text of the one finding that is not ok."""
    (finding,) = [finding for finding in findings if not finding.ok]
    assert "\n" not in finding.text
    return finding.text


# --- official files ---------------------------------------------------------------------------------------------------


def test_the_real_mnist_is_official_and_loads(real_data: Path) -> None:
    findings = verify_dataset("mnist", real_data)
    assert all(finding.ok for finding in findings)
    assert [finding.text.endswith("is the official file") for finding in findings] == [True] * 4 + [False]
    assert findings[-1].text == "mnist loads: 55,000 / 5,000 / 10,000 training, validation and test rows, 10 classes"


@pytest.mark.parametrize("place", [0, 5, 20, 2000, 4541])
def test_a_flipped_byte_in_a_gzip_file_is_found(place: int, real_data: Path, tmp_path: Path) -> None:
    path = mnist_with(real_data, tmp_path, lambda content: flipped(content, place))
    findings = verify_dataset("mnist", tmp_path)
    if place in (5, 20):  # in the time stamp or the stored name: another file, but the same content
        assert f"{path} is not the official file, but has the same content once unpacked" in [
            finding.text for finding in findings
        ]
        assert all(finding.ok for finding in findings)
    else:
        assert str(path) in only_problem(findings)
        assert "damaged" in only_problem(findings)
        assert len(findings) == 4, "damaged data is not loaded"


@pytest.mark.parametrize("length", [0, 1, 12, 3000, 4541])
def test_a_truncated_gzip_file_is_found(length: int, real_data: Path, tmp_path: Path) -> None:
    path = mnist_with(real_data, tmp_path, lambda content: content[:length])
    assert str(path) in only_problem(verify_dataset("mnist", tmp_path))


def test_an_unpacked_or_repacked_file_is_recognised_by_its_content(real_data: Path, tmp_path: Path) -> None:
    plain = mnist_with(real_data, tmp_path / "plain", gzip.decompress, SMALL.removesuffix(".gz"))
    again = mnist_with(real_data, tmp_path / "again", lambda content: gzip.compress(gzip.decompress(content), 1))
    for path, folder in ((plain, tmp_path / "plain"), (again, tmp_path / "again")):
        assert f"{path} is not the official file, but has the same content once unpacked" in [
            f.text for f in verify_dataset("mnist", folder)
        ]
    plain.write_bytes(flipped(plain.read_bytes(), 5000))
    assert f"{plain} is damaged: unpacked, its sha256 is" in only_problem(verify_dataset("mnist", tmp_path / "plain"))


def test_a_missing_file_is_reported(real_data: Path, tmp_path: Path) -> None:
    mnist_with(real_data, tmp_path, bytes).unlink()
    assert "mnist could not be loaded: MNIST was not found." in only_problem(verify_dataset("mnist", tmp_path))
    assert "lacks t10k-labels-idx1-ubyte" in only_problem(verify_dataset("mnist", tmp_path))


def test_a_missing_dataset_is_reported_with_the_command_to_download_it(tmp_path: Path) -> None:
    said = only_problem(verify_dataset("cifar10", tmp_path))
    assert said == f"cifar10 is not in {tmp_path}: download it with `dynamicgate data get cifar10`"
    with pytest.raises(ValueError, match="unknown dataset 'cifar'"):
        verify_dataset("cifar", tmp_path)


def test_digits_need_no_files(tmp_path: Path) -> None:
    assert [finding.ok for finding in verify_dataset("digits", tmp_path / "absent")] == [True]


# --- subsets and other distributions ----------------------------------------------------------------------------------


def cifar_files() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    files = {}
    for name in names:
        records = random.integers(0, 256, (40, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(40) % 10
        files[f"cifar-10-batches-bin/{name}"] = records.tobytes()
    return files


def pack(path: Path) -> Path:
    """A small CIFAR-10 in the official layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in cifar_files().items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{path.suffix[1:]}") as packed:  # type: ignore[call-overload]
        for name, content in cifar_files().items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("ending", ["tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_a_subset_is_read_completely_and_loaded(ending: str, tmp_path: Path) -> None:
    path = pack(tmp_path / f"cifar10/cifar-10-small.{ending}")
    assert locate_files("cifar10", tmp_path) == [path]
    assert verify_dataset("cifar10", tmp_path) == [
        Finding(True, f"{path} is not an official file, but intact: read 6 files in it, 737.5 kB"),
        Finding(True, "cifar10 loads: 180 / 20 / 40 training, validation and test rows, 10 classes"),
    ]


@pytest.mark.parametrize("ending", ["tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_a_flipped_byte_or_a_missing_end_of_an_archive_is_found(ending: str, tmp_path: Path) -> None:
    path = pack(tmp_path / f"cifar10/cifar-10-small.{ending}")
    whole = path.read_bytes()
    offsets = [len(whole) * k // 7 for k in range(1, 7)]
    for damage in (*(flipped(whole, offset) for offset in offsets), whole[: len(whole) // 2], whole[:-30], b""):
        path.write_bytes(damage)
        findings = verify_dataset("cifar10", tmp_path)
        assert str(path) in only_problem(findings)
        assert len(findings) == 1


def test_a_file_with_official_name_and_size_but_other_bytes_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(tmp_path / "cifar10/cifar-10-binary.tar.gz")
    assert "not an official file, but intact" in verify_dataset("cifar10", tmp_path)[0].text
    source = SOURCES["cifar10"]
    same_size = replace(source.files[0], size=path.stat().st_size)
    monkeypatch.setattr("dynamicgate.lab.datasets.sources.SOURCES", {"cifar10": replace(source, files=(same_size,))})
    assert f"{path} is damaged: its sha256 is" in only_problem(verify_dataset("cifar10", tmp_path))


def test_a_folder_is_verified_too(tmp_path: Path) -> None:
    for name, content in cifar_files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    findings = verify_dataset("cifar10", tmp_path)
    assert findings[0].text.startswith(
        f"{tmp_path / 'cifar-10-batches-bin'} is not an official file, but intact: read 6 files"
    )
    path.write_bytes(content[:-1])
    assert "test_batch.bin" in only_problem(verify_dataset("cifar10", tmp_path))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cifar10", "cifar10"),
        ("tiny-imagenet", "tiny-imagenet-200"),
        ("speech-commands", "SpeechCommands"),
        ("pbmc3k", "pbmc3k"),
    ],
)
def test_the_real_subsets_are_found_and_so_is_damage_in_them(
    name: str, place: str, real_data: Path, tmp_path: Path
) -> None:
    if not (real_data / place).is_dir():
        pytest.skip(f"no {place} under {real_data}")
    found = locate_files(name, real_data)
    assert found
    archive = max(found, key=lambda path: path.stat().st_size)
    (tmp_path / place).mkdir()
    copy = Path(shutil.copyfile(archive, tmp_path / place / archive.name))
    copy.write_bytes(flipped(copy.read_bytes(), copy.stat().st_size // 3))
    assert str(copy) in only_problem(verify_dataset(name, tmp_path))
