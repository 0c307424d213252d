"""Options of dataset loaders on the command line, and that they reach the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamicgate.lab.cli import main
from dynamicgate.lab.cli.options import loader_options
from dynamicgate.lab.datasets import load_dataset
from dynamicgate.lab.methods import Settings, settings_hash

from .quick_runs import write_table

QUICK = ["--epochs", "1", "--hidden", "8", "--budget", "0.9"]


@pytest.mark.parametrize(
    ("texts", "target", "pairs"),
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
def test_loader_options_become_sorted_pairs(
    texts: tuple[str, ...], target: str | None, pairs: tuple[tuple[str, str], ...]
) -> None:
    assert loader_options(texts, target, "--option") == pairs


@pytest.mark.parametrize(
    ("texts", "target", "message"),
    [
        (("leiden",), None, "--option takes KEY=VALUE, such as labels=leiden, received 'leiden'"),
        (("=leiden",), None, "received '=leiden'"),
        (("",), None, "received ''"),
        (("a=1", "a=2"), None, "--option sets a twice: give it once"),
        (("target=a",), "b", r"--option sets target twice \(--target sets it too\)"),
    ],
)
def test_a_wrong_loader_option_is_refused_with_the_reason(
    texts: tuple[str, ...], target: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        loader_options(texts, target, "--option")


def test_the_target_reaches_train_measure_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ["--data", str(write_table(tmp_path / "own.csv")), *QUICK]
    model = tmp_path / "run/model.safetensors"
    assert main(["train", *table, "--target", "kind", "--model", "dense", "--out", str(model.parent)]) == 0
    assert json.loads((model.parent / "run.json").read_text())["settings"]["data_options"] == [["target", "kind"]]
    capsys.readouterr()
    assert main(["measure", str(model), *table[:2]]) == 0, "the training options are stored in the model file"
    from_file = capsys.readouterr().out
    assert main(["measure", str(model), *table[:2], "--data-option", "target=kind"]) == 0
    assert capsys.readouterr().out == from_file
    out = tmp_path / "compared"
    words = ["--data-option", "target=kind", "--models", "dense", "--seeds", "1", "--out", str(out)]
    assert main(["compare", *table, *words]) == 0
    run = json.loads((out / "results.json").read_text())["runs"][0]
    assert run["settings"]["data_options"] == [["target", "kind"]]
    assert main(["train", *table, "--out", str(tmp_path / "none")]) == 2
    assert "target" in capsys.readouterr().err


def test_loader_options_are_part_of_the_settings_hash() -> None:
    splits = load_dataset("digits")
    plain = settings_hash(Settings(), splits)
    assert settings_hash(Settings(data_options=()), splits) == plain
    one = settings_hash(Settings(data_options=(("labels", "leiden"),)), splits)
    two = settings_hash(Settings(data_options=(("labels", "louvain"),)), splits)
    assert len({plain, one, two}) == 3


def test_an_unknown_loader_option_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data-option", "colour=red", "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert "digits has no option 'colour'" in printed
    assert printed.count("\n") == 1
