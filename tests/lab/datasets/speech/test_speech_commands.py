from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.speech import clip_cache as clips
from dynamicgate.lab.datasets.speech.background_noise import stretches
from dynamicgate.lab.datasets.speech.mel_features import CODE, TEXT, log_mel
from dynamicgate.lab.datasets.speech.speech_commands import (
    CLASSES_12,
    KEYWORDS,
    find_source,
    load_speech_commands,
    official_parts,
    word_of,
)
from dynamicgate.lab.datasets.splits import Splits
from tests.places import data_folder

from ..conftest import rows_of
from .wav_writers import hiss, tone, wav_bytes, write_files, write_tar

SPEAKERS = {"train": ("aa", "bb", "cc", "dd"), "valid": ("ee", "ff"), "test": ("gg", "hh")}
OTHERS = ("bed", "cat")


def dataset() -> dict[str, bytes]:
    """Ten keywords and two other words, spoken by 4 / 2 / 2 speakers, with two files of noise."""
    files = {f"_background_noise_/{name}.wav": wav_bytes(hiss(11, seed)) for seed, name in enumerate(("tap", "bike"))}
    listed: dict[str, list[str]] = {part: [] for part in SPEAKERS}
    for pitch, word in enumerate((*KEYWORDS, *OTHERS)):
        for part, speakers in SPEAKERS.items():
            for seed, speaker in enumerate(speakers):
                name = f"{word}/{speaker}_nohash_0.wav"
                files[name] = wav_bytes(tone(200 + 100 * pitch, 0.5 if seed else 1.0, seed))
                listed[part].append(name)
    absent = ["sheila/zz_nohash_0.wav"]  # official lists come with subsets
    files["validation_list.txt"] = "\n".join(absent + listed["valid"]).encode()
    files["testing_list.txt"] = "\r\n".join(listed["test"]).encode() + b"\r\n"
    files["README.md"] = b"words"
    files["yes/._aa_nohash_0.wav"] = b"not a wav: macOS puts these into archives"
    return files


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("small") / "SpeechCommands", dataset()).parent


def load(folder: Path, cache: Path, seed: int = 0, **options: Any) -> Splits:
    return load_speech_commands(folder, seed, cache_dir=cache, **options)


def counts(splits: Splits) -> dict[str, list[int]]:
    return splits.info()["class_counts"]


def same(a: Splits, b: Splits) -> bool:
    pairs = ((a.train, b.train), (a.valid, b.valid), (a.test, b.test))
    return all(p.x.equal(q.x) and p.y.equal(q.y) for p, q in pairs)  # type: ignore[arg-type]


def test_the_twelve_classes_with_unknown_and_silence_at_a_tenth_of_the_keywords(small: Path, tmp_path: Path) -> None:
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
def test_features_have_the_dimensions_of_the_paper_and_are_those_of_the_clip(
    small: Path, tmp_path: Path, features: Any, dimension: int
) -> None:
    splits = load(small, tmp_path, features=features)
    assert splits.info()["features"] == dimension
    config = TEXT if features == "text" else replace(CODE, mels=dimension // 41)
    wave = np.zeros(config.samples)
    half = tone(500, 0.5, seed=1)  # "down", first by the alphabet, by the second speaker
    wave[: len(half)] = half
    expected = log_mel(torch.from_numpy(wave / 32_768).float()[None], config).flatten()
    assert torch.allclose(splits.train.values[1], expected, atol=1e-4)
    assert CLASSES_12[splits.train.y[1]] == "down"


@pytest.mark.parametrize(("share", "train", "rest"), [(None, 8, 4), (0.0, 0, 0), (0.05, 2, 1), (9.0, 8, 4)])
def test_unknown_words_are_drawn_at_the_share_asked_for_as_far_as_there_are(
    small: Path, tmp_path: Path, share: float | None, train: int, rest: int
) -> None:
    found = counts(load(small, tmp_path, unknown_share=share))
    assert [found[part][11] for part in ("train", "valid", "test")] == [train, rest, rest]


def test_silence_is_seeded_crops_of_the_noise_from_disjoint_stretches(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path, silence_clips=(9, 5, 7), augment=True)
    assert [row[10] for row in counts(splits).values()] == [9, 5, 7]
    noise = clips.read_clips(small / "SpeechCommands", CODE, waves=True, folders=[tmp_path]).noise
    assert sorted(noise) == ["_background_noise_/bike.wav", "_background_noise_/tap.wav"]
    for part, arrays in enumerate((splits.train, splits.valid, splits.test)):
        allowed = b"|".join(stretch.tobytes() for stretch in stretches(noise, part, CODE.samples))
        assert all(row in allowed for row in rows_of(arrays.x[arrays.y == 10]))


def test_silence_of_zeros_as_in_the_published_code_is_exactly_zero(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path, silence="zeros", silence_share=0.2)
    silent = splits.test.values[splits.test.y == 10]
    assert silent.shape == (4, 1640)
    assert silent.count_nonzero() == 0


def test_all_words_can_be_classes_without_unknown_and_silence(small: Path, tmp_path: Path) -> None:
    splits = load(small, tmp_path, labels="all")
    assert splits.class_names == tuple(sorted((*KEYWORDS, *OTHERS)))
    assert counts(splits) == {"train": [4] * 12, "valid": [2] * 12, "test": [2] * 12}


def test_the_seed_draws_training_and_validation_and_never_moves_the_test(small: Path, tmp_path: Path) -> None:
    first, again, other = (load(small, tmp_path, seed=seed, unknown_share=0.05) for seed in (0, 0, 1))
    assert same(first, again)
    assert first.test.x.equal(other.test.x)
    assert not first.train.x.equal(other.train.x)
    assert not first.valid.x.equal(other.valid.x)


@pytest.mark.parametrize("place", [".", "SpeechCommands", "speech_commands", "SpeechCommands/speech_commands_v0.02"])
def test_an_unpacked_dataset_is_found_in_each_of_the_usual_folders(tmp_path: Path, place: str) -> None:
    write_files(tmp_path / place, {"yes/a_nohash_0.wav": b"", "testing_list.txt": b""})
    assert find_source(tmp_path).resolve() == (tmp_path / place).resolve()


@pytest.mark.parametrize("place", [".", "SpeechCommands", "speech_commands"])
def test_the_newest_archive_is_found_and_the_separate_test_set_is_not_taken_for_it(tmp_path: Path, place: str) -> None:
    names = ("speech_commands_v0.01.tar.gz", "speech_commands_v0.02.tar.gz", "speech_commands_test_set_v0.02.tar.gz")
    write_files(tmp_path / place, dict.fromkeys(names, b""))
    assert find_source(tmp_path).name == names[1]


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("speech_commands_v0.01.tar.gz", "./"),
        ("speech_commands_v0.02-subset.tar.xz", ""),
        ("speech_commands.tar", "speech_commands_v0.02/"),
    ],
)
def test_an_archive_gives_what_the_folder_gives(small: Path, tmp_path: Path, name: str, prefix: str) -> None:
    write_tar(tmp_path / name, dataset(), prefix)
    assert same(load(tmp_path, tmp_path / "cache"), load(small, tmp_path / "other"))


def test_the_second_time_only_the_cache_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = write_tar(tmp_path / "speech_commands_v0.01.tar.gz", dataset())
    first = load_speech_commands(tmp_path, 0)
    written = sorted(path.name for path in (tmp_path / ".cache").iterdir())
    assert [Path(name).suffix for name in written] == [".npz", ".rows"]
    status = archive.stat()
    archive.write_bytes(bytes(status.st_size))  # unreadable, but by its size and time the same
    os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert same(load_speech_commands(tmp_path, 0), first)
    monkeypatch.setattr(clips, "log_mel", None)  # other labels take other rows of the same cache
    assert load_speech_commands(tmp_path, 3, labels="all").classes == 12
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in (tmp_path / ".cache").iterdir()) == written


def test_other_features_a_changed_source_or_a_damaged_cache_are_read_anew(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "speech_commands", dataset())
    cache = tmp_path / "cache"
    first = load(tmp_path, cache)
    load(tmp_path, cache, features="text")
    load(tmp_path, cache, augment=True)
    assert len(list(cache.glob("*.rows"))) == 3
    (folder / "yes" / "aa_nohash_0.wav").write_bytes(wav_bytes(tone(3000)))
    changed = load(tmp_path, cache)
    assert len(list(cache.glob("*.rows"))) == 4
    assert not changed.train.x.equal(first.train.x)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    assert same(load(tmp_path, cache), changed)


def test_a_cache_goes_elsewhere_where_the_data_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    write_tar(data / "speech_commands_v0.01.tar", dataset())
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "mine"))
    data.chmod(0o555)
    try:
        load_speech_commands(data, 0)
        assert sorted(path.name for path in data.iterdir()) == ["speech_commands_v0.01.tar"]
        assert len(list((tmp_path / "mine" / ".cache").iterdir())) == 2
        with pytest.raises(PermissionError, match=r"no folder to keep the clips in: .*name another with cache_dir="):
            load_speech_commands(data, 0, features="text", cache_dir=data / "cache")
    finally:
        data.chmod(0o755)


def test_with_augmentation_rows_are_waves_and_evaluation_reads_the_same_features(small: Path, tmp_path: Path) -> None:
    plain, varied = load(small, tmp_path), load(small, tmp_path, augment=True)
    assert varied.train.x.shape == (48, 12_800)
    assert varied.train.x.dtype == torch.int16
    assert varied.train.features == 1640
    for part in ("train", "valid", "test"):
        ours, theirs = getattr(varied, part), getattr(plain, part)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)
        assert ours.y.equal(theirs.y)
    rows = torch.arange(20)
    assert varied.valid.augment is None
    assert varied.valid.rows(rows, training=True).equal(varied.valid.rows(rows))
    torch.manual_seed(1)
    once, twice = (varied.train.rows(rows, training=True) for _ in range(2))
    torch.manual_seed(1)
    assert once.equal(varied.train.rows(rows, training=True))
    assert once.shape == (20, 1640)
    assert not once.equal(twice)


def test_missing_data_names_the_folders_the_files_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load(tmp_path, tmp_path)
    sentence = str(caught.value)
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
        assert part in sentence


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
    ("how", "sentence"),
    [
        ("truncated wav", r"yes/aa_nohash_0\.wav is truncated: its header promises 16000 samples, it holds 15500"),
        ("empty wav", r"yes/aa_nohash_0\.wav is empty"),
        ("wrong rate", r"yes/aa_nohash_0\.wav has 8000 samples a second, expected 16000"),
        ("no validation list", r"has no validation_list\.txt"),
        ("no testing list", r"has no testing_list\.txt"),
        ("empty list", r"no clip belongs to the test part"),
        ("a clip in both lists", r"bed/ee_nohash_0\.wav is in both validation_list\.txt and testing_list\.txt"),
        ("a speaker in two parts", r"speaker ee is in the (valid|train) and the (train|valid) part"),
        ("no keyword", r"has no training clips of stop"),
        ("no noise", r"no file in _background_noise_ is long enough for silence"),
        ("short noise", r"no file in _background_noise_ is long enough for silence clips of the valid part, 12800"),
        ("no clips", r"holds no \.wav files besides background noise"),
    ],
)
def test_what_is_wrong_with_a_dataset_is_said_in_a_sentence(tmp_path: Path, how: str, sentence: str) -> None:
    write_files(tmp_path / "speech_commands", damaged(dataset(), how))
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        load(tmp_path, tmp_path / "cache")
    leftovers = [path.name for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")]
    assert leftovers == []


@pytest.mark.parametrize("name", ["speech_commands_v0.02.tar.gz", "speech_commands_v0.02.tar.xz"])
def test_a_truncated_archive_is_named(tmp_path: Path, name: str) -> None:
    path = write_tar(tmp_path / name, dataset())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"{name} is damaged or incomplete"):
        load(tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"labels": "35"}, 'labels must be "12" or "all"'),
        ({"silence": "white"}, 'silence must be "noise" or "zeros"'),
        ({"unknown_share": -0.1}, "unknown_share must be 0 or more"),
        ({"silence_share": float("nan")}, "silence_share must be 0 or more"),
        ({"silence_clips": (1, 2)}, "silence_clips must be three numbers"),
        ({"features": "mfcc"}, "unknown features 'mfcc'"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path, tmp_path, **options)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder with the real subset, and a cache for it."""
    folder = data_folder()
    try:
        source = find_source(folder)
    except FileNotFoundError:
        pytest.skip(f"no Speech Commands under {folder}; set DYNAMICGATE_DATA to test on the real clips")
    if "subset" not in source.name:
        pytest.skip(f"{source} is not the subset that these counts are of")
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
    source = find_source(real[0])
    found = clips.read_clips(
        source, CODE, waves=False, folders=[real[1]], texts=("validation_list.txt", "testing_list.txt")
    )
    assert len(found.names) == 2471
    assert len(found.noise) == 6
    assert all(60 * 16_000 <= len(wave) + 160 <= 96 * 16_000 for wave in found.noise.values())
    speakers = [{Path(found.names[i]).name.split("_")[0] for i in part} for part in official_parts(found, source)]
    assert not speakers[0] & speakers[1]
    assert not speakers[2] & (speakers[0] | speakers[1])
    assert sum(word_of(name) in KEYWORDS for name in found.names) == 2160
