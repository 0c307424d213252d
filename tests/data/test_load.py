from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynamicgate.data import LOADERS, default_data_dir, load


@pytest.mark.parametrize("name", ["imagenet", "", "data.csv", "MNIST"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown data '{name}': expected one of digits, mnist, .*\.npz file"):
        load(name)


def test_the_table_of_loaders_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        LOADERS["mine"] = None  # type: ignore[index]


def test_the_environment_variable_names_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load("mnist")


def test_a_given_folder_goes_before_the_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "from-environment"))
    with pytest.raises(FileNotFoundError) as caught:
        load("mnist", data_dir=str(tmp_path / "given"))
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
    code = "import sys, dynamicgate.data; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
