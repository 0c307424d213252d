"""Tiny-ImageNet-200: 64 x 64 photographs in 200 classes (Y. Le, X. Yang, 2015), or any of its classes.

The labels of the official test images are not public. As in the paper (sec 5.3) the official validation images serve as
the test part; validation is drawn from the training images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dynamicgate.lab.datasets.archive import find_source, not_found, read_members
from dynamicgate.lab.datasets.data_folders import cache_folders
from dynamicgate.lab.datasets.images.image_cache import Decoding, Labelled, Part, decoded, source_identity
from dynamicgate.lab.datasets.images.pixels import chosen_augment, constants, decode_image
from dynamicgate.lab.datasets.splits import Splits, split_arrays

TOP = "tiny-imagenet-200"
PLACES = (".", TOP, "tiny-imagenet", "TinyImageNet")
FOLDERS = ((TOP, "wnids.txt"), (TOP, "train/n*"), (".", "wnids.txt"))
SHAPE = (3, 64, 64)
VALID_SHARE = 0.10
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
    """The training images, 10 % of them drawn by `seed` as validation; the official validation images are the test.

    Classes are those of wnids.txt, in its order. Images are decoded once into `cache_dir` (a folder .cache beside the
    data, or the user's own) and read as 12,288 features in [0, 1]. In training they are cropped at random from 4 pixels
    of padding and mirrored (`augment`: also "flip", or False for neither).
    """
    mean, std = constants(NORMALISATION, normalisation, 64 * 64)
    vary = chosen_augment(augment, padding=4)
    places = [data_dir / place for place in PLACES]
    source = find_source(places, FOLDERS, TOP)
    if source is None:
        raise not_found("tiny-imagenet", places, f"a folder {TOP} with wnids.txt, or an archive named {TOP}*")
    parts, names = decoded(decoding(source), cache_folders(data_dir, cache_dir))
    train, valid = split_arrays(parts["train"], VALID_SHARE, seed, f"{source} (validation part)")
    return Splits("tiny-imagenet", replace(train, augment=vary), valid, parts["test"], len(names), mean, std, names)


def decoding(source: Path) -> Decoding:
    """How the images of this folder or archive are decoded and labelled."""
    lists: dict[str, str] = {}

    def members() -> Iterator[tuple[str, bytes]]:
        for name, content in read_members(source, lambda name: _is_wanted(_inside(name))):
            inside = _inside(name)
            if inside in _LISTS:
                lists[inside] = content.decode("utf-8", "replace")
            else:
                yield inside, content

    return Decoding(
        "tiny-imagenet",
        source,
        SHAPE,
        source_identity(source),
        members,
        partial(decode_image, shape=SHAPE),
        lambda names: describe(names, lists, source),
    )


def describe(names: Sequence[str], lists: dict[str, str], source: Path) -> Labelled:
    """Classes and parts from the paths of the images and the three lists; images of unlisted classes are left out."""
    for needed in ("wnids.txt", "val/val_annotations.txt"):
        if needed not in lists:
            raise FileNotFoundError(
                f"{source} has no {needed}; fetch it again with `dynamicgate data get tiny-imagenet`"
            )
    wnids = lists["wnids.txt"].split()
    if len(wnids) < 2 or len(set(wnids)) != len(wnids):
        raise ValueError(f"{source}: wnids.txt names {len(wnids)} classes, expected at least 2, each once")
    number = {wnid: place for place, wnid in enumerate(wnids)}
    annotated = dict(line.split("\t")[:2] for line in lists["val/val_annotations.txt"].splitlines() if "\t" in line)

    # Sorted, so that a folder, a tar and a zip of the same images give the same rows in the same order.
    train = sorted((number[m[1]], m[0], row) for row, m in _matches(_TRAIN, names) if m[1] in number)
    if empty := set(wnids) - {wnids[label] for label, _, _ in train}:
        raise ValueError(
            f"{source} has no training images of {len(empty)} of its {len(wnids)} classes, e.g. {min(empty)}; "
            "fetch it again, or take such lines out of wnids.txt"
        )
    images = {m[1]: row for row, m in _matches(_VAL, names)}
    if unlabelled := sorted(set(images) - set(annotated)):
        raise ValueError(
            f"{source}: val_annotations.txt has no line for {len(unlabelled)} images, e.g. {unlabelled[0]}"
        )
    listed = [name for name in sorted(annotated) if annotated[name] in number]
    if absent := [name for name in listed if name not in images]:
        raise ValueError(f"{source} lacks {len(absent)} images of val_annotations.txt, e.g. val/images/{absent[0]}")
    test = sorted((number[annotated[name]], name, images[name]) for name in listed)
    if not test:
        raise ValueError(f"{source} has no image in val/images of a class in wnids.txt; they serve as the test part")

    words = dict(line.split("\t", 1) for line in lists.get("words.txt", "").splitlines() if "\t" in line)
    return Labelled(
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
