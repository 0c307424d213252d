"""A user's own folder or archive of wav files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dynamicgate.lab.datasets.speech import clip_cache
from dynamicgate.lab.datasets.speech.wav_folder import load_wav_folder
from dynamicgate.lab.datasets.splits import Splits

from ..small_arrays import rows_of
from .wav_writers import hiss, tone, wav_bytes, write_files, write_tar


def sounds(
    prefix: str = "", each: int = 10, classes: tuple[str, ...] = ("low", "high"), seed: int = 0
) -> dict[str, bytes]:
    return {
        f"{prefix}{name}/{k}.wav": wav_bytes(tone(300 * (position + 1), 0.3 + 0.1 * (k % 9), 100 * seed + k))
        for position, name in enumerate(classes)
        for k in range(each)
    }


def counts(splits: Splits) -> list[list[int]]:
    return list(splits.info()["class_counts"].values())


def test_class_folders_become_three_stratified_parts(tmp_path: Path) -> None:
    splits = load_wav_folder(write_files(tmp_path / "own", sounds(each=20)), 0)
    assert (splits.name, splits.classes, splits.class_names) == ("own", 2, ("high", "low"))
    assert counts(splits) == [[14, 13], [2, 3], [4, 4]] or counts(splits) == [[13, 14], [3, 2], [4, 4]]
    assert splits.train.x.shape == (27, 3920)
    train, valid, test = (rows_of(part.values) for part in (splits.train, splits.valid, splits.test))
    assert len(train | valid | test) == 40
    other = load_wav_folder(tmp_path / "own", 1)
    assert other.test.values.equal(splits.test.values)
    assert not other.valid.values.equal(splits.valid.values)


@pytest.mark.parametrize(
    "names", [("train", "valid", "test"), ("training", "validation", "testing"), ("Train", "val", "Test")]
)
def test_parts_given_as_folders_are_kept(tmp_path: Path, names: tuple[str, str, str]) -> None:
    files = {k: v for seed, n in enumerate(names) for k, v in sounds(f"{n}/", 5 - seed, seed=seed).items()}
    splits = load_wav_folder(write_files(tmp_path / "own", files), 0)
    assert counts(splits) == [[5, 5], [4, 4], [3, 3]]


def test_a_missing_part_is_split_off_from_training(tmp_path: Path) -> None:
    files = {**sounds("train/", 20), **sounds("test/", 2, seed=1)}
    splits = load_wav_folder(write_files(tmp_path / "own", files), 0)
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (34, 6, 4)


@pytest.mark.parametrize("prefix", ["", "own/", "train/"])
def test_an_archive_gives_what_the_folder_gives(tmp_path: Path, prefix: str) -> None:
    folder = load_wav_folder(write_files(tmp_path / "own", sounds()), 0)
    archive = load_wav_folder(write_tar(tmp_path / "packed" / "own.tar.gz", sounds(), prefix), 0)
    assert archive.name == "own"
    for part in ("train", "valid", "test"):
        ours, theirs = getattr(archive, part), getattr(folder, part)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)
        assert ours.y.equal(theirs.y)


def test_rate_length_and_features_can_be_chosen(tmp_path: Path) -> None:
    files = {f"{c}/{k}.wav": wav_bytes(tone(300, 1.0, k, 8000), 8000) for c in "ab" for k in range(8)}
    folder = write_files(tmp_path / "own", files)
    assert load_wav_folder(folder, 0, rate=8000).info()["features"] == 3920
    assert load_wav_folder(folder, 0, rate=8000, seconds=0.8, features="code").info()["features"] == 1640
    with pytest.raises(ValueError, match=r"a/0\.wav has 8000 samples per second, expected 16000"):
        load_wav_folder(folder, 0)


def test_a_second_load_reads_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_files(tmp_path / "own", sounds())
    first = load_wav_folder(folder, 0)
    assert (folder / ".cache").is_dir()
    monkeypatch.setattr(clip_cache, "read_members", None)
    again = load_wav_folder(folder, 0)
    assert again.train.values.equal(first.train.values)
    assert load_wav_folder(folder, 1).train.y.shape == first.train.y.shape


def test_background_noise_is_not_a_class_and_augments_training_clips(tmp_path: Path) -> None:
    files = {**sounds(), "_background_noise_/hum.wav": wav_bytes(hiss(5, 1))}
    folder = write_files(tmp_path / "own", files)
    plain, augmented = load_wav_folder(folder, 0), load_wav_folder(folder, 0, augment=True)
    assert augmented.class_names == plain.class_names == ("high", "low")
    assert torch.allclose(augmented.train.values, plain.train.values, atol=1e-5)
    rows = torch.arange(len(augmented.train))
    assert not torch.allclose(augmented.train.rows(rows, training=True), plain.train.values, atol=0.1)
    assert augmented.valid.augment is None
    assert augmented.test.augment is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"contains no \.wav files"),
        (sounds(classes=("only",)), r"at least 2 classes are needed, found only 'only'"),
        ({**sounds(), "loose.wav": wav_bytes(tone(1))}, r"loose\.wav is not in a class folder; expected <class>/"),
        (
            {**sounds("train/"), "test/x.wav": wav_bytes(tone(1))},
            r"test/x\.wav is not in a class folder; expected <part>/",
        ),
        (
            {**sounds("train/"), **sounds("test/", classes=("low", "middle"))},
            r"test has the class 'middle', which has no",
        ),
        ({**sounds("valid/"), **sounds("test/")}, r"has clips for test and valid but none for train"),
        (sounds(each=1), r"\(test part\): cannot split 2 rows"),
        ({**sounds(), "low/3.wav": b""}, r"low/3\.wav is empty"),
    ],
)
def test_a_wrong_folder_is_refused_with_the_reason(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(ValueError, match=message):
        load_wav_folder(write_files(tmp_path / "own", files), 0)


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"there is no folder or archive .*absent; give one with a folder for each"
    ):
        load_wav_folder(tmp_path / "absent", 0)
