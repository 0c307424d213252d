"""A small Speech Commands dataset, and how the tests load and compare it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynamicgate.lab.datasets.speech.speech_commands import KEYWORDS, load_speech_commands
from dynamicgate.lab.datasets.splits import Splits

from .wav_writers import hiss, tone, wav_bytes

SPEAKERS = {"train": ("aa", "bb", "cc", "dd"), "valid": ("ee", "ff"), "test": ("gg", "hh")}
OTHERS = ("bed", "cat")


def small_dataset() -> dict[str, bytes]:
    """Ten keywords and two other words, spoken by 4 / 2 / 2 speakers, and two files of noise."""
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


def load(folder: Path, cache: Path, seed: int = 0, **options: Any) -> Splits:
    return load_speech_commands(folder, seed, cache_dir=cache, **options)


def equal_splits(a: Splits, b: Splits) -> bool:
    pairs = ((a.train, b.train), (a.valid, b.valid), (a.test, b.test))
    return all(p.x.equal(q.x) and p.y.equal(q.y) for p, q in pairs)  # type: ignore[arg-type]
