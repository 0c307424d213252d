from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.loading import LOADERS, load_dataset


@pytest.mark.parametrize("name", ["imagenet", "", "data.txt", "MNIST"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown data '{name}': expected one of cifar10, digits, mnist, .*\.npz"):
        load_dataset(name)


def test_a_table_without_a_target_says_which_option_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs the option target .*--target NAME"):
        load_dataset(tmp_path / "mine.csv")


def test_options_given_as_text_become_what_the_loader_expects(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    rows = "\n".join(f"{i % 7},{i % 5},{'ab'[i % 2]},{i}" for i in range(60))
    table.write_text(f"one,two,kind,row\n{rows}\n")
    splits = load_dataset(table, options={"target": "kind", "drop": "row,two", "most_categories": "3"})
    assert splits.train.features == 1
    assert splits.class_names == ("a", "b")
    with pytest.raises(ValueError, match="option most_categories takes a int, received 'many'"):
        load_dataset(table, options={"target": "kind", "most_categories": "many"})


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="digits has no option 'colour'; its options are: none"):
        load_dataset("digits", options={"colour": "true"})
    with pytest.raises(ValueError, match=r"pbmc3k has no option 'colour'; its options are: .*labels"):
        load_dataset("pbmc3k", options={"colour": "true"})


def test_the_table_of_loaders_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        LOADERS["mine"] = None  # type: ignore[index]


def test_the_environment_variable_names_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_dataset("mnist")


def test_a_given_folder_goes_before_the_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "from-environment"))
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("mnist", data_dir=str(tmp_path / "given"))
    assert "from-environment" not in str(caught.value)


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", "home/.cache/dynamicgate"),
        ("darwin", "home/Library/Caches/dynamicgate"),
        ("win32", "local/dynamicgate"),
    ],
)
def test_the_default_folder_is_the_cache_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, expected: str
) -> None:
    monkeypatch.delenv("DYNAMICGATE_DATA", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert default_data_dir() == tmp_path / expected


def test_importing_the_package_does_not_import_scikit_learn() -> None:
    code = "import sys, dynamicgate.lab.datasets; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
