"""Where data files are looked for, and where caches go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamicgate.lab.datasets import default_data_dir, load_dataset
from dynamicgate.lab.datasets.data_folders import cache_folders


def test_the_environment_variable_names_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_dataset("mnist")


def test_a_given_folder_takes_precedence_over_the_environment_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
def test_the_default_folder_is_the_cache_folder_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, expected: str
) -> None:
    monkeypatch.delenv("DYNAMICGATE_DATA", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert default_data_dir() == tmp_path / expected


def test_the_cache_is_beside_the_data_or_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "set"))
    home = Path.home() / ".cache" / "dynamicgate" / ".cache"
    assert cache_folders(tmp_path, None) == [tmp_path / ".cache", tmp_path / "set" / ".cache", home]
    assert cache_folders(None, None) == [tmp_path / "set" / ".cache", home]
    assert cache_folders(tmp_path, str(tmp_path / "mine")) == [tmp_path / "mine"]
