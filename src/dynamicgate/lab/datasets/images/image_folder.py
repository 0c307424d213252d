"""Anyone's own images: a folder for each class, optionally within train/, valid/ and test/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dynamicgate.lab.datasets.archive import read_members
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.images.image_cache import Decoding, Labelled, Part, decoded, source_identity
from dynamicgate.lab.datasets.images.pixels import chosen_augment, decode_image, measured_constants
from dynamicgate.lab.datasets.splits import TEST_SEED, TEST_SHARE, VALID_SHARE, Splits, split_arrays

PART_FOLDERS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
MOST_PIXELS = 1024
# Hidden on Windows, but not by their name.
HIDDEN = ("thumbs.db", "desktop.ini", "__macosx")
_LAYOUT = "expected a folder for each class with its images in it, or such folders within train/, valid/ and test/"


def load_image_folder(
    path: Path,
    seed: int,
    *,
    size: int = 32,
    colour: bool = True,
    augment: bool | str | None = False,
    cache_dir: str | Path | None = None,
) -> Splits:
    """Images of any size, resized (bilinear) to `size` x `size`; classes are the folders, in the order of their names.

    An absent test part is a fixed 20 %, absent validation 15 % of the rest by `seed`. Hidden files are ignored. Images
    are decoded once into `cache_dir` (without it into the user's data folder, never among the images) and read as
    features in [0, 1]. `augment` is False, "flip", or "crop_and_flip" with size / 8 of padding: whether a mirrored
    image is of the same class, only you know.
    """
    if not isinstance(size, int) or not 1 <= size <= MOST_PIXELS:
        raise ValueError(f"size must be 1 to {MOST_PIXELS} whole pixels, received {size}")
    vary = chosen_augment(augment, padding=max(1, size // 8))
    classes = find_classes(path)
    folders = cache_folders(None, cache_dir)
    parts, names = decoded(decoding(path, classes, (3 if colour else 1, size, size)), folders)
    train, test, valid = parts["train"], parts.get("test"), parts.get("valid")
    if test is None:
        train, test = split_arrays(train, TEST_SHARE, TEST_SEED, f"{path} (test part)")
    if valid is None:
        train, valid = split_arrays(train, VALID_SHARE, seed, f"{path} (validation part)")
    mean, std = measured_constants(train)
    return Splits(path.name or "images", replace(train, augment=vary), valid, test, len(names), mean, std, names)


def find_classes(path: Path) -> dict[str, dict[str, Path]]:
    """The class folders of each part, by name; without folders for parts all classes are of "train"."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path.absolute()}; {_LAYOUT}")
    top = _folders(path)
    if not top:
        raise ValueError(f"{path} has no folders; {_LAYOUT}")
    given = [name for name in top if name in PART_FOLDERS]
    if "train" not in given and len(given) < len(top):
        return _checked(path, {"train": top})
    if "train" not in given or len(given) < len(top):
        raise ValueError(f"{path} has the folders {', '.join(top)}; {_LAYOUT}, and train/ among them")
    parts: dict[str, dict[str, Path]] = {}
    for name in given:
        if PART_FOLDERS[name] in parts:
            raise ValueError(f"{path} has two folders for validation ({', '.join(given)}); keep one of them")
        parts[PART_FOLDERS[name]] = _folders(top[name])
    return _checked(path, parts)


def decoding(path: Path, classes: dict[str, dict[str, Path]], shape: tuple[int, int, int]) -> Decoding:
    """How the images of these class folders are decoded; labels are read off the folders."""
    number = {name: label for label, name in enumerate(classes["train"])}
    places = [(part, number[name], folder) for part, folders in classes.items() for name, folder in folders.items()]
    place_of_row: list[int] = []

    def members() -> Iterator[tuple[str, bytes]]:
        for place, (_, _, folder) in enumerate(places):
            for name, content in read_members(folder, _is_shown):
                place_of_row.append(place)
                yield f"{folder.relative_to(path).as_posix()}/{name}", content

    def describe(names: Sequence[str]) -> Labelled:
        parts = {part: Part([], []) for part in classes}
        for row, place in enumerate(place_of_row):
            part, label, _ = places[place]
            parts[part].rows.append(row)
            parts[part].labels.append(label)
        return Labelled(list(number), parts)

    identity = [[part, label, folder.name, source_identity(folder)] for part, label, folder in places]
    decode = partial(decode_image, shape=shape, resize=True)
    return Decoding("images", path, shape, [str(path.resolve()), identity], members, decode, describe)


def _checked(path: Path, parts: dict[str, dict[str, Path]]) -> dict[str, dict[str, Path]]:
    train = parts["train"]
    if len(train) < 2:
        raise ValueError(
            f"{path} has {len(train)} class folders to train on ({', '.join(train) or 'none'}), and at least 2 are "
            f"needed; {_LAYOUT}"
        )
    for part, classes in parts.items():
        if not classes:
            raise ValueError(f"{path}: the {part} part has no class folders; {_LAYOUT}")
        if unknown := [name for name in classes if name not in train]:
            raise ValueError(f"{path}: the {part} part has the class {unknown[0]!r}, which training never shows")
        for folder in classes.values():
            if not any(file.is_file() and _is_shown(file.relative_to(folder).as_posix()) for file in folder.rglob("*")):
                raise ValueError(f"the class folder {folder} has no images; add some or remove it")
    return parts


def _folders(path: Path) -> dict[str, Path]:
    return {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir() and _is_shown(folder.name)}


def _is_shown(name: str) -> bool:
    return not any(part.startswith(".") or part.lower() in HIDDEN for part in name.split("/"))
