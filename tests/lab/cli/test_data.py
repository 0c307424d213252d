"""`dynamicgate data`, and loader options of the other commands."""

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

import numpy as np
import pytest

from dynamicgate.lab.cli import main
from dynamicgate.lab.cli.options import loader_options
from dynamicgate.lab.datasets import sources
from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.sources import SOURCES, File, Source
from dynamicgate.lab.methods import Settings, settings_hash
from tests.places import real_folder

QUICK = ["--epochs", "1", "--hidden", "8", "--budget", "0.9"]


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


def write_table(path: Path, rows: int = 60) -> Path:
    random = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'abc'[k % 3]}" for k, (a, b) in enumerate(random.normal(size=(rows, 2)))]
    path.write_text("one,two,kind\n" + "\n".join(lines) + "\n")
    return path


# --- list -------------------------------------------------------------------------------------------------------------


def test_list_shows_what_there_is_and_what_is_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = folder / "cifar10/cifar-10-small.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(bytes(2500))
    assert main(["data", "list"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"data folder: {folder}\n")
    for source in SOURCES.values():
        assert f"\n{source.name}" in said
        assert source.description in said
        assert f"licence: {source.licence}" in said
    assert "here: in scikit-learn" in said
    assert f"here: {archive} (2.5 kB)" in said
    assert "not here: dynamicgate data get mnist (11.6 MB)" in said
    assert "not here: dynamicgate data get speech-commands (2.4 GB)" in said


def test_list_prints_json_and_takes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json", "--data-dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data_dir"] == str(tmp_path)
    assert [row["name"] for row in found["datasets"]] == list(SOURCES)
    assert [row["where"] for row in found["datasets"]] == [["in scikit-learn"], *[[]] * 5]
    assert {row["size"] for row in found["datasets"]} == {source.size for source in SOURCES.values()}


def test_list_finds_the_real_files(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert f"here: {real / 'MNIST/raw/train-images-idx3-ubyte.gz'} and 3 more (11.6 MB)" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_mistake() -> None:
    command = [sys.executable, "-m", "dynamicgate", "data", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


# --- get --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on this machine that has `toy.bin`, which is the only dataset known."""
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
        file = File("toy.bin", (address,), sha256(b"toy" * 1000).hexdigest(), 3000)
        lost = replace(file, urls=(f"{address}.lost",))
        toys = [Source(name, "a toy", (f,), "none", "-", "-", name) for name, f in (("lost", lost), ("toy", file))]
        known = {"digits": SOURCES["digits"], **{toy.name: toy for toy in toys}}
        monkeypatch.setattr(sources, "SOURCES", known)
        monkeypatch.setattr("dynamicgate.lab.cli.data.SOURCES", known)
        yield address
        server.shutdown()
        thread.join(timeout=10)


@pytest.mark.usefixtures("served")
def test_get_fetches_and_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "toy"]) == 0
    assert capsys.readouterr() == (f"{folder / 'toy/toy.bin'}\n", ""), "no progress bar where nobody looks"
    assert (folder / "toy/toy.bin").read_bytes() == b"toy" * 1000
    assert main(["data", "get", "toy", "--file", "toy.bin"]) == 0
    assert main(["data", "get", "digits"]) == 0
    assert "digits has no files to fetch: 1,797 handwritten digits" in capsys.readouterr().out


def test_get_that_fails_says_why_in_one_line(served: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "lost"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dynamicgate: toy.bin could not be fetched. Tried: {served}.lost (answered 404).")
    assert said.count("\n") == 1
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
    assert "these files alone load with --data-option labels=leiden" in capsys.readouterr().out


@pytest.mark.usefixtures("served")
def test_get_all_goes_on_after_a_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "all"]) == 2
    said = capsys.readouterr()
    assert f"{folder / 'toy/toy.bin'}\n" in said.out
    assert "toy.bin could not be fetched" in said.err


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_ends_with_zero_or_one(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        line for line in lines if line.startswith(f"WRONG {labels}")
    ]
    assert len(lines) == 4


def test_verify_of_nothing_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify"]) == 2
    assert f"no known dataset is in {folder}" in capsys.readouterr().err
    assert main(["data", "verify", "mnist"]) == 1
    assert f"WRONG mnist is not in {folder}" in capsys.readouterr().out
    assert main(["data", "verify", "minst"]) == 2
    assert "unknown dataset 'minst'" in capsys.readouterr().err


# --- info -------------------------------------------------------------------------------------------------------------


def test_info_describes_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "digits"]) == 0
    said = capsys.readouterr().out
    assert "digits: 64 features of shape 64, 10 classes" in said
    assert "is right in 10.3 % of the test rows" in said
    assert "normalisation: mean 0.3056, standard deviation 0.3762" in said
    assert "all      1,222      216      359" in said
    for key in ("licence", "citation", "homepage"):
        assert f"{key}: {getattr(SOURCES['digits'], key)}" in said


def test_info_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "digits", "--json", "--seed", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in load_dataset("digits", seed=3).info()} == load_dataset("digits", seed=3).info()
    assert found["shape"] == [64]
    assert found["std"] == load_dataset("digits", seed=3).std
    assert found["citation"] == SOURCES["digits"].citation


def test_info_of_ones_own_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table(tmp_path / "own.csv")
    assert main(["data", "info", str(path), "--target", "kind"]) == 0
    said = capsys.readouterr().out
    assert "own: 2 features of shape 2, 3 classes" in said
    assert [line.split()[0] for line in said.splitlines() if line[:1] in "abc" and line[1:2] == " "] == ["a", "b", "c"]
    assert "over 2 features" in said
    assert "licence" not in said
    assert main(["data", "info", str(path), "--option", "target=kind", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"].keys() == {"features", "least", "most"}


# --- options of loaders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "target", "pairs"),
    [
        ((), None, ()),
        (("labels=leiden",), None, (("labels", "leiden"),)),
        (("b=2,a=1", "c=3"), None, (("a", "1"), ("b", "2"), ("c", "3"))),
        (("columns=x,y,rare=30",), None, (("columns", "x,y"), ("rare", "30"))),
        (("cache-dir=/a/b",), None, (("cache_dir", "/a/b"),)),
        (("query=a==b",), None, (("query", "a==b"),)),
        (("empty=",), "kind", (("empty", ""), ("target", "kind"))),
    ],
)
def test_loader_options_are_pairs_in_a_fixed_order(
    words: tuple[str, ...], target: str | None, pairs: tuple[tuple[str, str], ...]
) -> None:
    assert loader_options(words, target, "--option") == pairs


@pytest.mark.parametrize(
    ("words", "target", "sentence"),
    [
        (("leiden",), None, "--option takes KEY=VALUE, e.g. labels=leiden, received 'leiden'"),
        (("=leiden",), None, "received '=leiden'"),
        (("",), None, "received ''"),
        (("a=1", "a=2"), None, "--option sets a twice: give it once"),
        (("target=a",), "b", r"--option sets target twice \(--target sets it too\)"),
    ],
)
def test_a_mistake_in_loader_options_is_answered_with_a_sentence(
    words: tuple[str, ...], target: str | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        loader_options(words, target, "--option")


def test_a_target_reaches_training_measuring_and_comparing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ["--data", str(write_table(tmp_path / "own.csv")), *QUICK]
    model = tmp_path / "run/model.safetensors"
    assert main(["train", *table, "--target", "kind", "--model", "dense", "--out", str(model.parent)]) == 0
    assert json.loads((model.parent / "run.json").read_text())["settings"]["data_options"] == [["target", "kind"]]
    capsys.readouterr()
    assert main(["measure", str(model)]) == 0, "the options of the training are remembered"
    remembered = capsys.readouterr().out
    assert main(["measure", str(model), *table[:2], "--data-option", "target=kind"]) == 0
    assert capsys.readouterr().out == remembered
    out = tmp_path / "compared"
    words = ["--data-option", "target=kind", "--models", "dense", "--seeds", "1", "--out", str(out)]
    assert main(["compare", *table, *words]) == 0
    run = json.loads((out / "results.json").read_text())["runs"][0]
    assert run["settings"]["data_options"] == [["target", "kind"]]
    assert main(["train", *table, "--out", str(tmp_path / "none")]) == 2
    assert "target" in capsys.readouterr().err


def test_loader_options_belong_to_the_identity_of_a_run() -> None:
    splits = load_dataset("digits")
    plain = settings_hash(Settings(), splits)
    assert settings_hash(Settings(data_options=()), splits) == plain
    one = settings_hash(Settings(data_options=(("labels", "leiden"),)), splits)
    two = settings_hash(Settings(data_options=(("labels", "louvain"),)), splits)
    assert len({plain, one, two}) == 3


def test_an_option_that_the_loader_does_not_know_is_answered_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data-option", "colour=red", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "digits has no option 'colour'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["data"], ["list", "get", "verify", "info"]),
        (["data", "get"], ["For example", "dynamicgate data get mnist", "--file", "--data-dir"]),
        (["data", "verify"], ["For example", "dynamicgate data verify mnist cifar10", "--option", "Ends with 1"]),
        (["data", "info"], ["For example", "dynamicgate data info mnist", "--target", "--json"]),
        (["train"], ["--data-option", "labels=leiden", "--target"]),
    ],
)
def test_help_shows_examples_and_options(
    arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert [text for text in shown if text not in said] == []
