"""Files that libhdf5 cannot be trusted with are read by another process first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamicgate.lab.datasets.single_cell.h5ad_probe import refuse_dangerous

h5py = pytest.importorskip("h5py")
LIMIT = 1 << 26


def a_file(path: Path, text: str = "x" * 4321) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=[[1.0, 2.0], [3.0, 4.0]])
        file.create_dataset("names", data=["one", "two"], dtype=h5py.string_dtype())
        file.create_group("empty").attrs["text"] = text
        file.create_dataset("number", data=3)
    return path


def test_an_ordinary_file_passes(tmp_path: Path) -> None:
    refuse_dangerous(a_file(tmp_path / "a.h5ad"), LIMIT)


def test_a_file_that_ends_its_reader_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(ValueError, match="libhdf5 ended with signal 11"):
        refuse_dangerous(a_file(tmp_path / "a.h5ad"), LIMIT)


@pytest.mark.skipif(sys.platform == "win32", reason="processor time cannot be limited there")
def test_a_file_that_keeps_its_reader_busy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = tmp_path / "modules" / "h5py.py"
    endless.parent.mkdir()
    endless.write_text("def File(*_):\n    while True:\n        pass\n")
    path = a_file(tmp_path / "a.h5ad")
    monkeypatch.setenv("PYTHONPATH", str(endless.parent))
    with pytest.raises(ValueError, match="ran in circles"):
        refuse_dangerous(path, LIMIT)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_file_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path / "a.h5ad")
    content, length = path.read_bytes(), (4321).to_bytes(4, "little")
    assert content.count(length) >= 1
    path.write_bytes(content.replace(length, (0x7FFF_FFF0).to_bytes(4, "little")))
    with pytest.raises(ValueError, match="memory allocation failed"):
        refuse_dangerous(path, LIMIT)


def test_a_file_that_promises_more_than_it_may_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        file.create_dataset("X", shape=(1 << 40,), dtype="f4", chunks=(1 << 16,), compression="gzip")
        file.create_dataset("Y", shape=(0, 5), dtype="f4")
    with pytest.raises(ValueError, match="would unpack to 4,398,046,511,104 bytes"):
        refuse_dangerous(tmp_path / "a.h5ad", LIMIT)


def test_a_link_to_another_file_is_refused(tmp_path: Path) -> None:
    a_file(tmp_path / "other.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        file["X"] = h5py.ExternalLink("other.h5ad", "/X")
    with pytest.raises(ValueError, match="is in another file"):
        refuse_dangerous(tmp_path / "a.h5ad", LIMIT)
