"""Load a user's own recordings: a folder or archive with one folder of wav files for each class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.speech.background_noise import make_shift_and_noise
from dynamicgate.lab.datasets.speech.clip_cache import Clips, read_clips, wave_features
from dynamicgate.lab.datasets.speech.mel_features import MelConfig, at_rate, mel_config
from dynamicgate.lab.datasets.splits import PARTS, TEST_FRACTION, TEST_SEED, VALID_FRACTION, Splits, split_arrays

PART_FOLDERS: Mapping[str, str] = MappingProxyType(
    {"train": "train", "training": "train", "valid": "valid", "val": "valid", "validation": "valid"}
    | {"test": "test", "testing": "test"}
)


def load_wav_folder(
    path: str | Path,
    seed: int,
    rate: int = 16_000,
    seconds: float = 1.0,
    features: str | MelConfig = "text",
    *,
    augment: bool = False,
    cache_dir: str | Path | None = None,
) -> Splits:
    """`<class>/*.wav`, or `train/<class>/*.wav` with `valid` and `test` beside it; x is [n, mels * frames].

    A missing test part is a fixed 20 %, missing validation 15 % of the rest by `seed`, both stratified. Clips are cut
    or zero-padded to `seconds`; window and hop keep their durations at another `rate`. A folder `_background_noise_` is
    not a class: with `augment` it is mixed into training clips, as for Speech Commands.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no folder or archive {path.absolute()}; give one with a folder for each class"
        )
    config = at_rate(mel_config(features), rate, seconds)
    beside = path if path.is_dir() else path.parent
    clips = read_clips(path, config, waves=augment, folders=cache_folders(beside, cache_dir))
    given, class_names = _parts(clips, config, augment, path)
    train, valid, test = (given.get(part) for part in PARTS)
    assert train is not None
    if test is None:
        train, test = split_arrays(train, TEST_FRACTION, TEST_SEED, f"{path} (test part)")
    if valid is None:
        train, valid = split_arrays(train, VALID_FRACTION, seed, f"{path} (validation part)")
    if augment:
        augmentation = make_shift_and_noise(clips.noise, config.samples, rate)
        train = Arrays(train.x, train.y, train.prepare, augmentation)
    return Splits(path.name.split(".")[0], train, valid, test, len(class_names), 0.0, 1.0, class_names)


def _parts(clips: Clips, config: MelConfig, waves: bool, path: Path) -> tuple[dict[str, Arrays], tuple[str, ...]]:
    indices: dict[str, list[int]] = {}
    labels: dict[str, list[str]] = {}
    part_and_class = _part_and_class(clips.names, path)
    for index in sorted(part_and_class, key=lambda index: clips.names[index]):  # not in the order they were packed
        part, label = part_and_class[index]
        indices.setdefault(part, []).append(index)
        labels.setdefault(part, []).append(label)
    if "train" not in indices:
        raise ValueError(f"{path} has clips for {' and '.join(sorted(indices))} but none for train; add train/<class>")
    class_names = tuple(sorted(set(labels["train"])))
    if len(class_names) < 2:
        raise ValueError(
            f"{path}: at least 2 classes are needed, found only {class_names[0]!r}; make one folder for each"
        )
    for part, names in labels.items():
        if untrained := sorted(set(names) - set(class_names)):
            raise ValueError(f"{path}: {part} has the class {untrained[0]!r}, which has no training clips")
    number = {name: k for k, name in enumerate(class_names)}
    prepare = partial(wave_features, config=config) if waves else None
    arrays = {
        part: Arrays(clips.take(indices[part]), torch.tensor([number[name] for name in labels[part]]), prepare)
        for part in indices
    }
    return arrays, class_names


def _part_and_class(names: tuple[str, ...], path: Path) -> dict[int, tuple[str, str]]:
    """The part and the class of each clip by its index, from the folders it is in."""
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    while len(tops := {parts[:1] for parts in folders}) == 1 and min(map(len, folders)) > 1:
        folders = [parts[1:] for parts in folders]  # the archive's own top folder
    if () in tops:
        loose = next(name for name, parts in zip(names, folders, strict=True) if not parts)
        raise ValueError(f"{path}: {loose} is not in a class folder; expected <class>/<name>.wav")
    if not all(top.lower() in PART_FOLDERS for (top,) in tops):
        return {index: ("train", parts[0]) for index, parts in enumerate(folders)}
    if short := next((name for name, parts in zip(names, folders, strict=True) if len(parts) < 2), None):
        raise ValueError(f"{path}: {short} is not in a class folder; expected <part>/<class>/<name>.wav")
    return {index: (PART_FOLDERS[parts[0].lower()], parts[1]) for index, parts in enumerate(folders)}
