"""Decode images once into a cache file of raw pixels, so that later runs open no JPEG.

The cache is named after what it was made from. The pixels are moved into place before the small file that describes
them, each atomically, so a killed run leaves nothing that looks like data.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import torch

from dynamicgate.data.arrays import Arrays, View
from dynamicgate.files import file_sha256, read_json, replacing, write_text
from dynamicgate.lab.datasets.images.pixels import MemmapRows, Pixels, to_features

Members: TypeAlias = Callable[[], Iterator[tuple[str, bytes]]]

FORMAT = 2  # 2: with checksums
REPORT_EVERY_S = 3.0


@dataclass(frozen=True)
class Part:
    """The decoded images that make up a part, in reading order, and the class of each."""

    rows: list[int]
    labels: list[int]


@dataclass(frozen=True)
class ImageLabels:
    """The class names, and the parts by name."""

    class_names: list[str]
    parts: dict[str, Part]


@dataclass(frozen=True)
class DecodingJob:
    """How to decode images into a cache: `members` yields (name, content), `assign_labels` labels them by name.

    `assign_labels` is called once all members are decoded. It may raise ValueError, and then no cache is left.
    """

    name: str
    source: Path
    shape: tuple[int, int, int]
    """channels, height, width"""
    fingerprint: object
    """Distinguishes this source from another one, or a changed one; ready for JSON."""
    members: Members
    decode: Callable[[bytes], Pixels]
    assign_labels: Callable[[Sequence[str]], ImageLabels]

    @property
    def key(self) -> str:
        """The name of the cache."""
        made_from = json.dumps([FORMAT, self.name, self.shape, self.fingerprint])
        return f"{self.name}-{hashlib.blake2b(made_from.encode(), digest_size=8).hexdigest()}"


def load_or_decode(job: DecodingJob, folders: Sequence[Path]) -> tuple[dict[str, Arrays], tuple[str, ...]]:
    """Parts by name, and class names: from the first folder that has the cache, else decoded into a writable one."""
    for folder in folders:
        if found := _read(folder / job.key):
            return found
    writable = [folder for folder in folders if _writable(folder)]
    if not writable:
        tried = ", ".join(map(str, folders))
        raise PermissionError(
            f"no folder for the decoded images of {job.source} can be written to (tried {tried}); "
            "give one with cache_dir="
        )
    folder = writable[0]
    try:
        _write(job, folder)
    except OSError as error:
        if error.errno is None:  # already one of our messages
            raise
        message = f"could not decode {job.source} into {folder} ({error}); choose another folder with cache_dir="
        raise OSError(error.errno, message) from error
    found = _read(folder / job.key)
    if found is None:
        raise OSError(f"the decoded images in {folder / job.key}.u8 were changed while they were written; try again")
    return found


def source_fingerprint(source: Path) -> list[object]:
    """Name, size and times of change of an archive, or of every file in a folder that is not hidden."""
    if source.is_file():
        return [_stamp(source, source.name)]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if not any(part.startswith(".") for part in inside.parts) and path.is_file():
            digest.update(json.dumps(_stamp(path, inside.as_posix())).encode())
    return [source.name, digest.hexdigest()]


def _stamp(path: Path, name: str) -> list[object]:
    found = path.stat()
    return [name, found.st_size, found.st_mtime_ns, found.st_ctime_ns]  # unlike the first, the last cannot be set back


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    # Root may write anywhere, so look at the mode: a folder without write permission is meant to stay as it is.
    return folder.is_dir() and bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def _read(base: Path) -> tuple[dict[str, Arrays], tuple[str, ...]] | None:
    try:
        about = read_json(_beside(base, ".json"))
        store = MemmapRows(_beside(base, ".u8"), tuple(about["shape"]))
        if about.pop("sha256") != _checksums(base, about):
            warnings.warn(f"{base}.u8 or .json was damaged since it was written: it is made again", stacklevel=3)
            return None
        names = tuple(about["class_names"])
        parts = {name: _arrays(store, Part(**part), len(names)) for name, part in about["parts"].items()}
        return parts, names
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):  # missing, incomplete or of another size
        return None


def _checksums(base: Path, about: Mapping[str, object]) -> list[str]:
    """Of the pixels, and of what is said about them."""
    return [file_sha256(_beside(base, ".u8")), hashlib.sha256(json.dumps(about).encode()).hexdigest()]


def _arrays(store: MemmapRows, part: Part, classes: int) -> Arrays:
    rows, labels = torch.tensor(part.rows), torch.tensor(part.labels)
    if rows.shape != labels.shape or not 0 <= int(rows.min()) <= int(rows.max()) < len(store):
        raise ValueError("expected a label for each row, and rows that exist")
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError("expected a class for each label")
    return Arrays(View(store, rows), labels, prepare=to_features)


def _write(job: DecodingJob, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    base = folder / job.key
    with replacing(_beside(base, ".u8")) as temporary:
        with temporary.open("wb") as pixels:
            _decode_all(job, folder, pixels, names)
        labels = job.assign_labels(names)
    about = {"source": str(job.source), "shape": [len(names), *job.shape], **asdict(labels)}
    write_text(_beside(base, ".json"), json.dumps({**about, "sha256": _checksums(base, about)}))


def _decode_all(job: DecodingJob, folder: Path, file: BinaryIO, names: list[str]) -> None:
    reported = time.monotonic()
    for name, content in job.members():
        try:
            pixels = job.decode(content)
        except ValueError as error:
            raise ValueError(f"{job.source}: {name}: {error}; replace or remove it") from error
        file.write(pixels.tobytes())
        names.append(name)
        if time.monotonic() - reported > REPORT_EVERY_S:
            reported = time.monotonic()
            print(f"{job.name}: {len(names):,} images decoded into {folder} (only the first time)", file=sys.stderr)


def _beside(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)
