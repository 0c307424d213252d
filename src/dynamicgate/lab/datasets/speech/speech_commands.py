"""Speech Commands v0.01 and v0.02: one-second words at 16 kHz (P. Warden, arXiv:1804.03209; CC BY 4.0).

The parts are the official ones of `validation_list.txt` and `testing_list.txt`. The 12 classes are, in this order, the
ten keywords yes no up down left right on off stop go, then `_silence_`, then `_unknown_` (every other word).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.batching import seeded
from dynamicgate.lab.datasets.archive import is_archive
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.speech.background_noise import make_shift_and_noise, noise_crops
from dynamicgate.lab.datasets.speech.clip_cache import NOISE_FOLDER, Clips, read_clips, wave_features
from dynamicgate.lab.datasets.speech.mel_features import MelConfig, mel_config
from dynamicgate.lab.datasets.splits import PARTS, TEST_SEED, Splits

KEYWORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
SILENCE, UNKNOWN = "_silence_", "_unknown_"
CLASSES_12 = (*KEYWORDS, SILENCE, UNKNOWN)
LISTS = ("validation_list.txt", "testing_list.txt")
FOLDERS = (".", "SpeechCommands", "speech_commands")

Chosen = tuple[list[int], list[int]]  # indices of clips, and their classes


def load_speech_commands(
    data_dir: Path,
    seed: int,
    *,
    features: str | MelConfig = "code",
    labels: Literal["12", "all"] = "12",
    unknown_share: float | None = 0.1,
    silence_share: float = 0.1,
    silence_clips: tuple[int, int, int] | None = None,
    silence: Literal["noise", "zeros"] = "noise",
    augment: bool = False,
    cache_dir: str | Path | None = None,
) -> Splits:
    """The official parts; x is [n, mels * frames], each clip standardised on its own, so mean is 0 and std is 1.

    `unknown_share` and `silence_share` are fractions of a part's keyword clips, as in the standard benchmark;
    `unknown_share=None` takes every other word, and `silence_clips` gives exact numbers for train, validation and test.
    The published code uses `unknown_share=None, silence="zeros", silence_clips=(2000, 300, 300)`. `labels="all"` makes
    each word a class, without unknown and silence. `seed` draws the unknown words and the silence of train and
    validation, never of the test. With `augment` the rows are int16 waves in memory: in training they are shifted by up
    to 100 ms and mixed with background noise, and turned into features batch by batch.
    """
    _check_options(labels, unknown_share, silence_share, silence_clips, silence)
    config = mel_config(features)
    source = find_recordings(data_dir)
    clips = read_clips(source, config, waves=augment, folders=cache_folders(data_dir, cache_dir), texts=LISTS)
    parts = official_parts(clips, source)
    if labels == "all":
        class_names = tuple(sorted({word_of(name) for name in clips.names}))
        chosen = [([*part], [class_names.index(word_of(clips.names[i])) for i in part]) for part in parts]
        silent = [0, 0, 0]
    else:
        class_names = CLASSES_12
        chosen = [_with_unknown(clips, part, unknown_share, _random_stream(seed, k)) for k, part in enumerate(parts)]
        _check_keywords(chosen[0][1], source)
        keywords = [sum(label < len(KEYWORDS) for label in labels_of) for _, labels_of in chosen]
        silent = list(silence_clips or (round(silence_share * count) for count in keywords))
    train, valid, test = (
        _arrays(clips, chosen[k], _silent(clips, config, k, silent[k], silence, seed), config, augment, training=k == 0)
        for k in range(len(PARTS))
    )
    return Splits("speech-commands", train, valid, test, len(class_names), 0.0, 1.0, class_names)


def find_recordings(data_dir: Path) -> Path:
    """The unpacked folder or else the archive, newest version first; the separate `test_set` archives do not count."""
    for folder in (data_dir / name for name in FOLDERS):
        found = sorted(folder.glob("speech_commands*"), key=lambda path: path.name, reverse=True)
        candidates = [folder, *(path for path in found if "test_set" not in path.name)]
        for path in candidates:
            if path.is_dir() and any((path / name).exists() for name in (*LISTS, *KEYWORDS, NOISE_FOLDER)):
                return path
        for path in candidates:
            if path.is_file() and is_archive(path):
                return path
    looked = ", ".join(str(data_dir / name) for name in FOLDERS)
    raise FileNotFoundError(
        f"Speech Commands was not found. Looked in: {looked}. Expected there an archive speech_commands*.tar.gz (or "
        f".tar.xz, .tar), or its content: a folder for each word, {NOISE_FOLDER}, {' and '.join(LISTS)}. Download it "
        "with `dynamicgate data get speech-commands`, or give the folder that has it with --data-dir (data_dir=) or "
        "the environment variable DYNAMICGATE_DATA."
    )


def word_of(name: str) -> str:
    """The word of a clip, which is the folder in its path."""
    return PurePosixPath(name).parent.name


def official_parts(clips: Clips, source: Path) -> list[list[int]]:
    """Indices of the train, validation and test clips, each sorted by path; no speaker is in two of them.

    Lines of a list that name a missing file are ignored: subsets come with the official lists.
    """
    for name in LISTS:
        if name not in clips.texts:
            raise FileNotFoundError(
                f"{source} has no {name}, which assigns clips to parts; take it from the official archive"
            )
    listed = [set(clips.texts[name].split()) for name in LISTS]
    if both := sorted(listed[0] & listed[1]):
        raise ValueError(f"{source}: {both[0]} is in both {LISTS[0]} and {LISTS[1]}")
    parts: list[list[int]] = [[], [], []]
    part_of_speaker: dict[str, int] = {}
    short = {"/".join(PurePosixPath(name).parts[-2:]): i for i, name in enumerate(clips.names)}
    for name, index in sorted(short.items()):
        part = next((k for k, names in enumerate(listed, start=1) if name in names), 0)
        parts[part].append(index)
        speaker, has_speaker, _ = PurePosixPath(name).name.partition("_nohash_")
        if has_speaker and part_of_speaker.setdefault(speaker, part) != part:
            raise ValueError(
                f"{source}: speaker {speaker} is in the {PARTS[part_of_speaker[speaker]]} and the {PARTS[part]} part; "
                "the lists do not belong to these files, take both from one official archive"
            )
    for part_name, indices in zip(PARTS, parts, strict=True):
        if not indices:
            raise ValueError(f"{source}: no clip belongs to the {part_name} part; check {' and '.join(LISTS)}")
    return parts


def _with_unknown(clips: Clips, part: Sequence[int], fraction: float | None, random: np.random.Generator) -> Chosen:
    keywords = [i for i in part if word_of(clips.names[i]) in KEYWORDS]
    others = [i for i in part if word_of(clips.names[i]) not in KEYWORDS]
    if fraction is not None:
        wanted = min(round(fraction * len(keywords)), len(others))
        others = [others[k] for k in sorted(random.choice(len(others), wanted, replace=False))] if wanted else []
    classes = [KEYWORDS.index(word_of(clips.names[i])) for i in keywords]
    return keywords + others, classes + [CLASSES_12.index(UNKNOWN)] * len(others)


def _silent(clips: Clips, config: MelConfig, part: int, count: int, kind: str, seed: int) -> torch.Tensor:
    if kind == "zeros" or not count:
        return torch.zeros(count, config.samples, dtype=torch.int16)
    # A random stream of its own, so that drawing more unknown words does not change the silence.
    random = _random_stream(seed, part + len(PARTS))
    return torch.from_numpy(noise_crops(clips.noise, part, count, config.samples, random))


def _arrays(
    clips: Clips, chosen: Chosen, silent_BT: torch.Tensor, config: MelConfig, waves: bool, *, training: bool
) -> Arrays:
    indices, labels = chosen
    y = torch.tensor(labels + [CLASSES_12.index(SILENCE)] * len(silent_BT))
    x = clips.take(indices)
    if not waves:
        return Arrays(torch.cat([x, wave_features(silent_BT, config)]) if len(silent_BT) else x, y)
    augmentation = make_shift_and_noise(clips.noise, config.samples, config.rate) if training else None
    return Arrays(torch.cat([x, silent_BT]), y, partial(wave_features, config=config), augmentation)


def _random_stream(seed: int, key: int) -> np.random.Generator:
    return seeded(TEST_SEED if PARTS[key % len(PARTS)] == "test" else seed, key)


def _check_keywords(labels: Sequence[int], source: Path) -> None:
    counts = Counter(labels)
    if missing := [word for k, word in enumerate(KEYWORDS) if not counts[k]]:
        raise ValueError(
            f"{source} has no training clips of {', '.join(missing)}; the 12 classes need all ten keywords, "
            'labels="all" uses the words that are there'
        )


def _check_options(
    labels: str, unknown: float | None, silence: float, clips: tuple[int, int, int] | None, kind: str
) -> None:
    def problems() -> Iterator[str]:
        if labels not in ("12", "all"):
            yield f'labels must be "12" or "all", got {labels!r}'
        if kind not in ("noise", "zeros"):
            yield f'silence must be "noise" or "zeros", got {kind!r}'
        if unknown is not None and not unknown >= 0:
            yield f"unknown_share must be 0 or more, or None for every other word, got {unknown}"
        if not silence >= 0:
            yield f"silence_share must be 0 or more, got {silence}"
        if clips is not None and (len(clips) != len(PARTS) or min(clips) < 0):
            yield f"silence_clips must be three numbers of 0 or more, got {clips}"

    for problem in problems():
        raise ValueError(problem)
