"""Tiny-ImageNet-200: 64 x 64 photographs in 200 classes (Y. Le, X. Yang, 2015), or a subset of its classes.

The labels of the official test images are not public. As in the paper (sec 5.3), the official validation images are
used as the test part, and validation is drawn from the training images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dynamicgate.lab.datasets.archive import dataset_not_found, find_dataset, read_members
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.images.augmentation import make_augmentation
from dynamicgate.lab.datasets.images.channel_statistics import published_statistics
from dynamicgate.lab.datasets.images.image_cache import (
    DecodingJob,
    ImageLabels,
    Part,
    load_or_decode,
    source_fingerprint,
)
from dynamicgate.lab.datasets.images.pixels import decode_image
from dynamicgate.lab.datasets.splits import Splits, split_arrays

TOP = "tiny-imagenet-200"
PLACES = (".", TOP, "tiny-imagenet", "TinyImageNet")
FOLDERS = ((TOP, "wnids.txt"), (TOP, "train/n*"), (".", "wnids.txt"))
SHAPE = (3, 64, 64)
VALID_FRACTION = 0.10
NORMALISATION = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "dataset": ((0.480, 0.448, 0.398), (0.277, 0.269, 0.282)),
}

_LISTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
_TRAIN = re.compile(r"train/([^/.][^/]*)/images/[^/.][^/]*\.JPEG")
_VAL = re.compile(r"val/images/([^/.][^/]*\.JPEG)")


def load_tiny_imagenet(
    data_dir: Path,
    seed: int,
    *,
    augment: bool | str | None = True,
    normalisation: str = "imagenet",
    cache_dir: str | Path | None = None,
) -> Splits:
    """The training images, 10 % of them drawn by `seed` for validation; the official validation images are the test.

    Classes are those of wnids.txt, in its order. Images are decoded once into `cache_dir` (by default a folder .cache
    beside the data, or in the user's cache folder) and read as 12,288 features in [0, 1]. In training they are cropped
    at random after padding by 4 pixels, and flipped (`augment`: also "flip", or False for neither).
    """
    mean, std = published_statistics(NORMALISATION, normalisation, 64 * 64)
    augmentation = make_augmentation(augment, padding=4)
    places = [data_dir / place for place in PLACES]
    source = find_dataset(places, FOLDERS, TOP)
    if source is None:
        raise dataset_not_found("tiny-imagenet", places, f"a folder {TOP} with wnids.txt, or an archive named {TOP}*")
    parts, names = load_or_decode(decoding_job(source), cache_folders(data_dir, cache_dir))
    train, valid = split_arrays(parts["train"], VALID_FRACTION, seed, f"{source} (validation part)")
    return Splits(
        "tiny-imagenet", replace(train, augment=augmentation), valid, parts["test"], len(names), mean, std, names
    )


def decoding_job(source: Path) -> DecodingJob:
    """How to decode and label the images of this folder or archive."""
    lists: dict[str, str] = {}

    def members() -> Iterator[tuple[str, bytes]]:
        for name, content in read_members(source, lambda name: _is_wanted(_inside(name))):
            inside = _inside(name)
            if inside in _LISTS:
                lists[inside] = content.decode("utf-8", "replace")
            else:
                yield inside, content

    return DecodingJob(
        "tiny-imagenet",
        source,
        SHAPE,
        source_fingerprint(source),
        members,
        partial(decode_image, shape=SHAPE),
        lambda names: assign_labels(names, lists, source),
    )


def assign_labels(names: Sequence[str], lists: dict[str, str], source: Path) -> ImageLabels:
    """Classes and parts from the image paths and the three lists; images of classes not in wnids.txt are left out."""
    for needed in ("wnids.txt", "val/val_annotations.txt"):
        if needed not in lists:
            raise FileNotFoundError(
                f"{source} has no {needed}; download it again with `dynamicgate data get tiny-imagenet`"
            )
    wnids = lists["wnids.txt"].split()
    if len(wnids) < 2 or len(set(wnids)) != len(wnids):
        raise ValueError(f"{source}: wnids.txt names {len(wnids)} classes, expected at least 2, each once")
    number = {wnid: position for position, wnid in enumerate(wnids)}
    annotated = dict(line.split("\t")[:2] for line in lists["val/val_annotations.txt"].splitlines() if "\t" in line)

    # Sorted, so that a folder, a tar and a zip of the same images give the same rows in the same order.
    train = sorted((number[m[1]], m[0], row) for row, m in _matches(_TRAIN, names) if m[1] in number)
    if without_images := set(wnids) - {wnids[label] for label, _, _ in train}:
        raise ValueError(
            f"{source} has no training images of {len(without_images)} of its {len(wnids)} classes, e.g. "
            f"{min(without_images)}; download it again, or remove these lines from wnids.txt"
        )
    images = {m[1]: row for row, m in _matches(_VAL, names)}
    if unlabelled := sorted(set(images) - set(annotated)):
        raise ValueError(
            f"{source}: val_annotations.txt has no line for {len(unlabelled)} images, e.g. {unlabelled[0]}"
        )
    listed = [name for name in sorted(annotated) if annotated[name] in number]
    if missing := [name for name in listed if name not in images]:
        raise ValueError(f"{source} lacks {len(missing)} images of val_annotations.txt, e.g. val/images/{missing[0]}")
    test = sorted((number[annotated[name]], name, images[name]) for name in listed)
    if not test:
        raise ValueError(f"{source} has no image of a class in wnids.txt in val/images, which is used as the test part")

    words = dict(line.split("\t", 1) for line in lists.get("words.txt", "").splitlines() if "\t" in line)
    return ImageLabels(
        [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids], {"train": _part(train), "test": _part(test)}
    )


def _inside(name: str) -> str:
    return name.split(f"{TOP}/", 1)[-1]


def _is_wanted(inside: str) -> bool:
    return inside in _LISTS or bool(_TRAIN.fullmatch(inside) or _VAL.fullmatch(inside))


def _matches(pattern: re.Pattern[str], names: Sequence[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for row, name in enumerate(names):
        if match := pattern.fullmatch(name):
            yield row, match


def _part(items: list[tuple[int, str, int]]) -> Part:
    return Part([row for _, _, row in items], [label for label, _, _ in items])
