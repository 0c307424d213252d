"""`dynamicgate data`: list, get, verify, info."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dynamicgate.lab.cli import main
from dynamicgate.lab.datasets import SOURCES, default_data_dir, load_dataset, sources
from dynamicgate.lab.datasets.sources import Source, SourceFile
from tests.places import real_folder

from .quick_runs import write_table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, named by the environment."""
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "data"))
    assert default_data_dir() == tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the real data files, named by the environment."""
    found = real_folder("MNIST/raw")
    monkeypatch.setenv("DYNAMICGATE_DATA", str(found))
    return found


def test_list_shows_the_known_datasets_and_whether_they_are_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = folder / "cifar10/cifar-10-small.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(bytes(2500))
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"data folder: {folder}\n")
    for source in SOURCES.values():
        assert f"\n{source.name}" in printed
        assert source.description in printed
        assert f"licence: {source.licence}" in printed
    assert "found: in scikit-learn" in printed
    assert f"found: {archive} (2.5 kB)" in printed
    assert "not found; get it with: dynamicgate data get mnist (11.6 MB)" in printed
    assert "not found; get it with: dynamicgate data get speech-commands (2.4 GB)" in printed


def test_list_prints_json_and_takes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json", "--data-dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data_dir"] == str(tmp_path)
    assert [row["name"] for row in found["datasets"]] == list(SOURCES)
    assert [row["where"] for row in found["datasets"]] == [["in scikit-learn"], *[[]] * 5]
    assert {row["size"] for row in found["datasets"]} == {source.size for source in SOURCES.values()}


def test_list_finds_the_real_files(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert f"found: {real / 'MNIST/raw/train-images-idx3-ubyte.gz'} and 3 more (11.6 MB)" in capsys.readouterr().out


def test_a_closed_output_pipe_is_not_an_error() -> None:
    command = [sys.executable, "-m", "dynamicgate", "data", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on this machine with `toy.bin`; the known datasets are it, a lost one and digits."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served/toy.bin").write_bytes(b"toy" * 1000)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}/toy.bin"
        file = SourceFile("toy.bin", (address,), sha256(b"toy" * 1000).hexdigest(), 3000)
        lost = replace(file, urls=(f"{address}.lost",))
        toys = [Source(name, "a toy", (f,), "none", "-", "-", name) for name, f in (("lost", lost), ("toy", file))]
        known = {"digits": SOURCES["digits"], **{toy.name: toy for toy in toys}}
        monkeypatch.setattr(sources, "SOURCES", known)
        monkeypatch.setattr("dynamicgate.lab.cli.data.SOURCES", known)
        yield address
        server.shutdown()
        thread.join(timeout=10)


@pytest.mark.usefixtures("served")
def test_get_downloads_and_prints_the_paths(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "toy"]) == 0
    assert capsys.readouterr() == (f"{folder / 'toy/toy.bin'}\n", ""), "no progress bar without a terminal"
    assert (folder / "toy/toy.bin").read_bytes() == b"toy" * 1000
    assert main(["data", "get", "toy", "--file", "toy.bin"]) == 0
    assert main(["data", "get", "digits"]) == 0
    assert "digits has no files to download: 1,797 handwritten digits" in capsys.readouterr().out


def test_a_failed_download_is_reported_in_one_line(
    served: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", "lost"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"dynamicgate: toy.bin could not be downloaded. Tried: {served}.lost (answered 404).")
    assert printed.count("\n") == 1
    assert main(["data", "get", "found"]) == 2
    assert "unknown dataset 'found': expected one of digits, lost, toy" in capsys.readouterr().err
    assert main(["data", "get", "toy", "--file", "other"]) == 2
    assert "toy has no file other; its files are: toy.bin" in capsys.readouterr().err
    assert list(folder.rglob("*.bin*")) == []


@pytest.mark.usefixtures("served")
def test_get_says_which_options_the_files_need(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"toy": replace(sources.SOURCES["toy"], options=SOURCES["pbmc3k"].options)}
    monkeypatch.setattr("dynamicgate.lab.cli.data.SOURCES", known)
    assert main(["data", "get", "toy", "--data-dir", str(folder)]) == 0
    assert "if you have only these files, load them with --data-option labels=leiden" in capsys.readouterr().out


@pytest.mark.usefixtures("served")
def test_get_all_continues_after_a_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "all"]) == 2
    printed = capsys.readouterr()
    assert f"{folder / 'toy/toy.bin'}\n" in printed.out
    assert "toy.bin could not be downloaded" in printed.err


def test_verify_exits_with_zero_or_one(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", "mnist", "digits"]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["ok   "] * 6
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for path in (real / "MNIST/raw").glob("*.gz"):
        (raw / path.name).symlink_to(path)
    labels = raw / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(labels.read_bytes())
    content[3000] ^= 1
    labels.unlink()
    labels.write_bytes(content)
    assert main(["data", "verify", "--data-dir", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == [
        line for line in lines if line.startswith(f"FAIL {labels}")
    ]
    assert len(lines) == 4


def test_verify_without_any_data_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify"]) == 2
    assert f"no known dataset is in {folder}" in capsys.readouterr().err
    assert main(["data", "verify", "mnist"]) == 1
    assert f"FAIL mnist is not in {folder}" in capsys.readouterr().out
    assert main(["data", "verify", "minst"]) == 2
    assert "unknown dataset 'minst'" in capsys.readouterr().err


def test_info_describes_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "digits"]) == 0
    printed = capsys.readouterr().out
    assert "digits: 64 features of shape 64, 10 classes" in printed
    assert "is right for 10.3 % of the test rows" in printed
    assert "normalisation: mean 0.3056, standard deviation 0.3762" in printed
    assert "all      1,222      216      359" in printed
    for key in ("licence", "citation", "homepage"):
        assert f"{key}: {getattr(SOURCES['digits'], key)}" in printed


def test_info_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "digits", "--json", "--seed", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in load_dataset("digits", seed=3).info()} == load_dataset("digits", seed=3).info()
    assert found["shape"] == [64]
    assert found["std"] == load_dataset("digits", seed=3).std
    assert found["citation"] == SOURCES["digits"].citation


def test_info_describes_a_users_own_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table(tmp_path / "own.csv")
    assert main(["data", "info", str(path), "--target", "kind"]) == 0
    printed = capsys.readouterr().out
    assert "own: 2 features of shape 2, 3 classes" in printed
    assert [line.split()[0] for line in printed.splitlines() if line[:1] in "abc" and line[1:2] == " "] == [
        "a",
        "b",
        "c",
    ]
    assert "over 2 features" in printed
    assert "licence" not in printed
    assert main(["data", "info", str(path), "--option", "target=kind", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"].keys() == {"features", "min", "max"}
