"""Load a user's own images: one folder for each class, optionally inside train/, valid/ and test/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dynamicgate.lab.datasets.archive import read_members
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.images.augmentation import make_augmentation
from dynamicgate.lab.datasets.images.channel_statistics import measured_statistics
from dynamicgate.lab.datasets.images.image_cache import (
    DecodingJob,
    ImageLabels,
    Part,
    load_or_decode,
    source_fingerprint,
)
from dynamicgate.lab.datasets.images.pixels import decode_image
from dynamicgate.lab.datasets.splits import TEST_FRACTION, TEST_SEED, VALID_FRACTION, Splits, split_arrays

PART_FOLDERS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
MAX_SIZE = 1024
# Hidden files whose names do not start with a dot.
HIDDEN = ("thumbs.db", "desktop.ini", "__macosx")
_LAYOUT = "expected a folder of images for each class, or such folders inside train/, valid/ and test/"


def load_image_folder(
    path: Path,
    seed: int,
    *,
    size: int = 32,
    colour: bool = True,
    augment: bool | str | None = False,
    cache_dir: str | Path | None = None,
) -> Splits:
    """Images of any size, resized (bilinear) to `size` x `size`; the classes are the folders, sorted by name.

    A missing test part is a fixed 20 %, missing validation 15 % of the rest by `seed`. Hidden files are ignored. Images
    are decoded once into `cache_dir` (by default the user's data folder, never among the images) and read as features
    in [0, 1]. `augment` is False, "flip", or "crop_and_flip" with a padding of size / 8; the default is False because
    only you know whether a flipped image still has the same class.
    """
    if not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
        raise ValueError(f"size must be 1 to {MAX_SIZE} whole pixels, received {size}")
    augmentation = make_augmentation(augment, padding=max(1, size // 8))
    classes = find_classes(path)
    folders = cache_folders(None, cache_dir)
    parts, names = load_or_decode(decoding_job(path, classes, (3 if colour else 1, size, size)), folders)
    train, test, valid = parts["train"], parts.get("test"), parts.get("valid")
    if test is None:
        train, test = split_arrays(train, TEST_FRACTION, TEST_SEED, f"{path} (test part)")
    if valid is None:
        train, valid = split_arrays(train, VALID_FRACTION, seed, f"{path} (validation part)")
    mean, std = measured_statistics(train)
    return Splits(
        path.name or "images", replace(train, augment=augmentation), valid, test, len(names), mean, std, names
    )


def find_classes(path: Path) -> dict[str, dict[str, Path]]:
    """The class folders of each part, by name; without part folders, all classes belong to "train"."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path.absolute()}; {_LAYOUT}")
    top = _folders(path)
    if not top:
        raise ValueError(f"{path} has no folders; {_LAYOUT}")
    given = [name for name in top if name in PART_FOLDERS]
    if "train" not in given and len(given) < len(top):
        return _check_parts(path, {"train": top})
    if "train" not in given or len(given) < len(top):
        raise ValueError(f"{path} has the folders {', '.join(top)}; {_LAYOUT}, and train/ among them")
    parts: dict[str, dict[str, Path]] = {}
    for name in given:
        if PART_FOLDERS[name] in parts:
            raise ValueError(f"{path} has two folders for validation ({', '.join(given)}); keep one of them")
        parts[PART_FOLDERS[name]] = _folders(top[name])
    return _check_parts(path, parts)


def decoding_job(path: Path, classes: dict[str, dict[str, Path]], shape: tuple[int, int, int]) -> DecodingJob:
    """How to decode the images of these class folders; an image's label is its folder."""
    number = {name: label for label, name in enumerate(classes["train"])}
    sources = [(part, number[name], folder) for part, folders in classes.items() for name, folder in folders.items()]
    source_of_row: list[int] = []

    def members() -> Iterator[tuple[str, bytes]]:
        for position, (_, _, folder) in enumerate(sources):
            for name, content in read_members(folder, _is_visible):
                source_of_row.append(position)
                yield f"{folder.relative_to(path).as_posix()}/{name}", content

    def assign_labels(names: Sequence[str]) -> ImageLabels:
        parts = {part: Part([], []) for part in classes}
        for row, position in enumerate(source_of_row):
            part, label, _ = sources[position]
            parts[part].rows.append(row)
            parts[part].labels.append(label)
        return ImageLabels(list(number), parts)

    fingerprint = [[part, label, folder.name, source_fingerprint(folder)] for part, label, folder in sources]
    decode = partial(decode_image, shape=shape, resize=True)
    return DecodingJob("images", path, shape, [str(path.resolve()), fingerprint], members, decode, assign_labels)


def _check_parts(path: Path, parts: dict[str, dict[str, Path]]) -> dict[str, dict[str, Path]]:
    train = parts["train"]
    if len(train) < 2:
        raise ValueError(
            f"{path} has {len(train)} class folders to train on ({', '.join(train) or 'none'}), but at least 2 are "
            f"needed; {_LAYOUT}"
        )
    for part, classes in parts.items():
        if not classes:
            raise ValueError(f"{path}: the {part} part has no class folders; {_LAYOUT}")
        if untrained := [name for name in classes if name not in train]:
            raise ValueError(f"{path}: the {part} part has the class {untrained[0]!r}, which has no training images")
        for folder in classes.values():
            if not any(
                file.is_file() and _is_visible(file.relative_to(folder).as_posix()) for file in folder.rglob("*")
            ):
                raise ValueError(f"the class folder {folder} has no images; add some or remove it")
    return parts


def _folders(path: Path) -> dict[str, Path]:
    return {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir() and _is_visible(folder.name)}


def _is_visible(name: str) -> bool:
    return not any(part.startswith(".") or part.lower() in HIDDEN for part in name.split("/"))
