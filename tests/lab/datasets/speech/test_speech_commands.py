"""Speech Commands: classes, parts, silence, augmentation, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.speech.background_noise import noise_segments
from dynamicgate.lab.datasets.speech.clip_cache import read_clips
from dynamicgate.lab.datasets.speech.mel_features import CODE, TEXT, log_mel
from dynamicgate.lab.datasets.speech.speech_commands import (
    CLASSES_12,
    KEYWORDS,
    find_recordings,
    official_parts,
    word_of,
)
from dynamicgate.lab.datasets.splits import Splits
from tests.places import data_folder

from ..small_arrays import rows_of
from .small_speech_commands import OTHERS, equal_splits, load, small_dataset
from .wav_writers import hiss, tone, wav_bytes, write_files, write_tar


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("small") / "SpeechCommands", small_dataset()).parent


def counts(splits: Splits) -> dict[str, list[int]]:
    return splits.info()["class_counts"]


def test_unknown_and_silence_each_have_a_tenth_of_the_keyword_clips(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path)
    assert splits.class_names == CLASSES_12 == (*KEYWORDS, "_silence_", "_unknown_")
    assert (splits.name, splits.classes, splits.mean, splits.std) == ("speech-commands", 12, 0, 1)
    assert counts(splits) == {
        "train": [4] * 10 + [4, 4],
        "valid": [2] * 10 + [2, 2],
        "test": [2] * 10 + [2, 2],
    }
    assert splits.train.x.dtype == torch.float32
    assert splits.train.values.mean(1).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("features", "dimension"), [("code", 1640), (replace(CODE, mels=64), 2624), ("text", 3920)], ids=str
)
def test_features_are_those_of_the_clip_and_have_the_dimensions_of_the_paper(
    small: Path, tmp_path: Path, features: Any, dimension: int
) -> None:
    splits = load(small, tmp_path, features=features)
    assert splits.info()["features"] == dimension
    config = TEXT if features == "text" else replace(CODE, mels=dimension // 41)
    wave = np.zeros(config.samples)
    half = tone(500, 0.5, seed=1)  # "down", alphabetically first, by the second speaker
    wave[: len(half)] = half
    expected = log_mel(torch.from_numpy(wave / 32_768).float()[None], config).flatten()
    assert torch.allclose(splits.train.values[1], expected, atol=1e-4)
    assert CLASSES_12[splits.train.y[1]] == "down"


@pytest.mark.parametrize(("fraction", "train", "rest"), [(None, 8, 4), (0.0, 0, 0), (0.05, 2, 1), (9.0, 8, 4)])
def test_unknown_words_are_drawn_at_the_given_fraction_as_far_as_there_are_enough(
    small: Path, tmp_path: Path, fraction: float | None, train: int, rest: int
) -> None:
    found = counts(load(small, tmp_path, unknown_share=fraction))
    assert [found[part][11] for part in ("train", "valid", "test")] == [train, rest, rest]


def test_silence_is_seeded_noise_crops_from_disjoint_segments(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path, silence_clips=(9, 5, 7), augment=True)
    assert [row[10] for row in counts(splits).values()] == [9, 5, 7]
    noise = read_clips(small / "SpeechCommands", CODE, waves=True, folders=[tmp_path]).noise
    assert sorted(noise) == ["_background_noise_/bike.wav", "_background_noise_/tap.wav"]
    for part, arrays in enumerate((splits.train, splits.valid, splits.test)):
        allowed = b"|".join(segment.tobytes() for segment in noise_segments(noise, part, CODE.samples))
        assert all(row in allowed for row in rows_of(arrays.x[arrays.y == 10]))


def test_silence_of_zeros_as_in_the_published_code_is_exactly_zero(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path, silence="zeros", silence_share=0.2)
    silent = splits.test.values[splits.test.y == 10]
    assert silent.shape == (4, 1640)
    assert silent.count_nonzero() == 0


def test_every_word_can_be_a_class_without_unknown_and_silence(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path, labels="all")
    assert splits.class_names == tuple(sorted((*KEYWORDS, *OTHERS)))
    assert counts(splits) == {"train": [4] * 12, "valid": [2] * 12, "test": [2] * 12}


def test_the_seed_changes_training_and_validation_but_never_the_test_part(small: Path, tmp_path: Path) -> None:
    first, again, other = (load(small, tmp_path, seed=seed, unknown_share=0.05) for seed in (0, 0, 1))
    assert equal_splits(first, again)
    assert first.test.x.equal(other.test.x)
    assert not first.train.x.equal(other.train.x)
    assert not first.valid.x.equal(other.valid.x)


@pytest.mark.parametrize("place", [".", "SpeechCommands", "speech_commands", "SpeechCommands/speech_commands_v0.02"])
def test_an_unpacked_dataset_is_found_in_each_of_the_usual_folders(tmp_path: Path, place: str) -> None:
    write_files(tmp_path / place, {"yes/a_nohash_0.wav": b"", "testing_list.txt": b""})
    assert find_recordings(tmp_path).resolve() == (tmp_path / place).resolve()


@pytest.mark.parametrize("place", [".", "SpeechCommands", "speech_commands"])
def test_the_newest_archive_is_found_and_the_separate_test_set_is_ignored(tmp_path: Path, place: str) -> None:
    names = ("speech_commands_v0.01.tar.gz", "speech_commands_v0.02.tar.gz", "speech_commands_test_set_v0.02.tar.gz")
    write_files(tmp_path / place, dict.fromkeys(names, b""))
    assert find_recordings(tmp_path).name == names[1]


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("speech_commands_v0.01.tar.gz", "./"),
        ("speech_commands_v0.02-subset.tar.xz", ""),
        ("speech_commands.tar", "speech_commands_v0.02/"),
    ],
)
def test_an_archive_gives_what_the_folder_gives(small: Path, tmp_path: Path, name: str, prefix: str) -> None:
    write_tar(tmp_path / name, small_dataset(), prefix)
    assert equal_splits(load(tmp_path, tmp_path / "cache"), load(small, tmp_path / "other"))


def test_with_augmentation_rows_are_waves_and_evaluation_sees_the_same_features(small: Path, tmp_path: Path) -> None:
    plain, augmented = load(small, tmp_path), load(small, tmp_path, augment=True)
    assert augmented.train.x.shape == (48, 12_800)
    assert augmented.train.x.dtype == torch.int16
    assert augmented.train.features == 1640
    for part in ("train", "valid", "test"):
        ours, theirs = getattr(augmented, part), getattr(plain, part)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)
        assert ours.y.equal(theirs.y)
    rows = torch.arange(20)
    assert augmented.valid.augment is None
    assert augmented.valid.rows(rows, training=True).equal(augmented.valid.rows(rows))
    torch.manual_seed(1)
    once, twice = (augmented.train.rows(rows, training=True) for _ in range(2))
    torch.manual_seed(1)
    assert once.equal(augmented.train.rows(rows, training=True))
    assert once.shape == (20, 1640)
    assert not once.equal(twice)


def test_missing_data_names_the_folders_the_files_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load(tmp_path, tmp_path)
    message = str(caught.value)
    for part in (
        str(tmp_path),
        str(tmp_path / "SpeechCommands"),
        str(tmp_path / "speech_commands"),
        "validation_list.txt",
        "testing_list.txt",
        "_background_noise_",
        "speech_commands*.tar.gz",
        "`dynamicgate data get speech-commands`",
        "DYNAMICGATE_DATA",
    ):
        assert part in message


def damaged(files: dict[str, bytes], how: str) -> dict[str, bytes]:
    a_clip = "yes/aa_nohash_0.wav"
    content: dict[str, dict[str, bytes | None]] = {
        "truncated wav": {a_clip: files[a_clip][:-1000]},
        "empty wav": {a_clip: b""},
        "wrong rate": {a_clip: wav_bytes(tone(440, rate=8000), rate=8000)},
        "no validation list": {"validation_list.txt": None},
        "no testing list": {"testing_list.txt": None},
        "empty list": {"testing_list.txt": b""},
        "a clip in both lists": {"testing_list.txt": files["testing_list.txt"] + files["validation_list.txt"]},
        "a speaker in two parts": {"bed/ee_nohash_1.wav": wav_bytes(tone(440))},
        "no keyword": {name: None for name in files if name.startswith("stop/")},
        "no noise": {name: None for name in files if name.startswith("_background_noise_/")},
        "short noise": {f"_background_noise_/{name}.wav": wav_bytes(hiss(5, 0)) for name in ("tap", "bike")},
        "no clips": {name: None for name in files if name.endswith("hash_0.wav")},
    }
    return {name: data for name, data in {**files, **content[how]}.items() if data is not None}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated wav", r"yes/aa_nohash_0\.wav is truncated: its header promises 16000 samples, it holds 15500"),
        ("empty wav", r"yes/aa_nohash_0\.wav is empty"),
        ("wrong rate", r"yes/aa_nohash_0\.wav has 8000 samples per second, expected 16000"),
        ("no validation list", r"has no validation_list\.txt"),
        ("no testing list", r"has no testing_list\.txt"),
        ("empty list", r"no clip belongs to the test part"),
        ("a clip in both lists", r"bed/ee_nohash_0\.wav is in both validation_list\.txt and testing_list\.txt"),
        ("a speaker in two parts", r"speaker ee is in the (valid|train) and the (train|valid) part"),
        ("no keyword", r"has no training clips of stop"),
        ("no noise", r"no file in _background_noise_ is long enough for silence"),
        ("short noise", r"no file in _background_noise_ is long enough for silence clips of the valid part, 12800"),
        ("no clips", r"contains no \.wav files except background noise"),
    ],
)
def test_a_wrong_dataset_is_refused_with_the_reason(tmp_path: Path, how: str, message: str) -> None:
    write_files(tmp_path / "speech_commands", damaged(small_dataset(), how))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(tmp_path, tmp_path / "cache")
    leftovers = [path.name for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")]
    assert leftovers == []


@pytest.mark.parametrize("name", ["speech_commands_v0.02.tar.gz", "speech_commands_v0.02.tar.xz"])
def test_a_truncated_archive_is_named(tmp_path: Path, name: str) -> None:
    path = write_tar(tmp_path / name, small_dataset())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"{name} is damaged or incomplete"):
        load(tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "35"}, 'labels must be "12" or "all"'),
        ({"silence": "white"}, 'silence must be "noise" or "zeros"'),
        ({"unknown_share": -0.1}, "unknown_share must be 0 or more"),
        ({"silence_share": float("nan")}, "silence_share must be 0 or more"),
        ({"silence_clips": (1, 2)}, "silence_clips must be three numbers"),
        ({"features": "mfcc"}, "unknown features 'mfcc'"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, tmp_path, **options)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder with the real subset, and a cache for it."""
    folder = data_folder()
    try:
        source = find_recordings(folder)
    except FileNotFoundError:
        pytest.skip(f"no Speech Commands under {folder}; set DYNAMICGATE_DATA to test on the real clips")
    if "subset" not in source.name:
        pytest.skip(f"{source} is not the subset these counts belong to")
    return folder, tmp_path_factory.mktemp("cache")


def test_the_real_subset_has_the_counts_of_its_lists(real: tuple[Path, Path]) -> None:
    words = load(*real, labels="all")
    assert (len(words.train), len(words.valid), len(words.test), words.classes) == (1833, 276, 362, 30)
    everything = load(*real, unknown_share=None, silence_share=0)
    assert list(counts(everything).values()) == [
        [160] * 10 + [0, 233],
        [24] * 10 + [0, 36],
        [32] * 10 + [0, 42],
    ]
    benchmark = load(*real)
    assert list(counts(benchmark).values()) == [[160] * 12, [24] * 12, [32] * 12]
    assert benchmark.info()["features"] == 1640
    assert torch.isfinite(benchmark.train.values).all()


def test_the_real_subset_has_six_noise_files_and_no_speaker_in_two_parts(real: tuple[Path, Path]) -> None:
    source = find_recordings(real[0])
    found = read_clips(source, CODE, waves=False, folders=[real[1]], texts=("validation_list.txt", "testing_list.txt"))
    assert len(found.names) == 2471
    assert len(found.noise) == 6
    assert all(60 * 16_000 <= len(wave) + 160 <= 96 * 16_000 for wave in found.noise.values())
    speakers = [{Path(found.names[i]).name.split("_")[0] for i in part} for part in official_parts(found, source)]
    assert not speakers[0] & speakers[1]
    assert not speakers[2] & (speakers[0] | speakers[1])
    assert sum(word_of(name) in KEYWORDS for name in found.names) == 2160
