"""Images decoded once into a file of bytes beside their data, so that no later run opens a JPEG.

The cache is named after what it was made from. Bytes are put in place before the small file that describes them, each
in one move, so a run that was killed leaves nothing that looks like data.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import torch

from dynamicgate.data.arrays import Arrays, View
from dynamicgate.lab.datasets.images.pixels import MemmapRows, Pixels, to_features

Members: TypeAlias = Callable[[], Iterator[tuple[str, bytes]]]

FORMAT = 1
REPORT_EVERY_S = 3.0
ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True)
class Part:
    """Which of the decoded images make up a part, in the order to read them, and the class of each."""

    rows: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Labelled:
    """What the images are: the names of the classes, and the parts by name."""

    class_names: list[str]
    parts: dict[str, Part]


@dataclass(frozen=True)
class Decoding:
    """How to decode images into a cache. `members` yields (name, content); `describe` reads labels off the names.

    `describe` is called when all members have been decoded and may raise ValueError: no cache is left then.
    """

    name: str
    source: Path
    shape: tuple[int, int, int]
    """channels, height, width"""
    identity: object
    """What tells this source from another or a changed one, ready for JSON."""
    members: Members
    decode: Callable[[bytes], Pixels]
    describe: Callable[[Sequence[str]], Labelled]

    @property
    def key(self) -> str:
        """The name of the cache."""
        told = json.dumps([FORMAT, self.name, self.shape, self.identity])
        return f"{self.name}-{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}"


def decoded(job: Decoding, folders: Sequence[Path]) -> tuple[dict[str, Arrays], tuple[str, ...]]:
    """The parts by name and the class names: from the first folder with a cache, else decoded into a writable one."""
    for folder in folders:
        if found := _read(folder / job.key):
            return found
    writable = [folder for folder in folders if _writable(folder)]
    if not writable:
        tried = ", ".join(map(str, folders))
        raise PermissionError(
            f"no folder for the decoded images of {job.source} can be written to (tried {tried}); "
            "name one with cache_dir="
        )
    folder = writable[0]
    try:
        _write(job, folder)
    except OSError as error:
        if error.errno is None:  # a sentence of our own
            raise
        sentence = f"could not decode {job.source} into {folder} ({error}); cache_dir= names another folder"
        raise OSError(error.errno, sentence) from error
    found = _read(folder / job.key)
    if found is None:
        raise OSError(f"the decoded images in {folder / job.key}.u8 were changed while they were written; try again")
    return found


def source_identity(source: Path) -> list[object]:
    """Name, size and time of an archive, or of every file of a folder that is not hidden."""
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
    return [name, found.st_size, found.st_mtime_ns]


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    # Root may write anywhere: a folder nobody was meant to write to is told by its mode.
    return folder.is_dir() and bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def _read(base: Path) -> tuple[dict[str, Arrays], tuple[str, ...]] | None:
    try:
        told = json.loads(_beside(base, ".json").read_text(encoding="utf-8"))
        store = MemmapRows(_beside(base, ".u8"), tuple(told["shape"]))
        parts = {name: _arrays(store, Part(**part)) for name, part in told["parts"].items()}
        return parts, tuple(told["class_names"])
    except (OSError, ValueError, KeyError, TypeError):  # absent, half copied, or of another size: made again
        return None


def _arrays(store: MemmapRows, part: Part) -> Arrays:
    rows, labels = torch.tensor(part.rows), torch.tensor(part.labels)
    if rows.shape != labels.shape or not 0 <= int(rows.min()) <= int(rows.max()) < len(store):
        raise ValueError("expected a label for each row, and rows that are there")
    return Arrays(View(store, rows), labels, prepare=to_features)


def _write(job: Decoding, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{job.key}*.part"):  # of killed runs; one that is being written has a recent time
        if time.time() - left.stat().st_mtime > ABANDONED_AFTER_S:
            left.unlink(missing_ok=True)
    names: list[str] = []
    with _in_one_move(folder / job.key, ".u8") as pixels:
        _decode_all(job, folder, pixels, names)
        labelled = job.describe(names)
    told = {"source": str(job.source), "shape": [len(names), *job.shape], **asdict(labelled)}
    with _in_one_move(folder / job.key, ".json") as text:
        text.write(json.dumps(told).encode())


def _decode_all(job: Decoding, folder: Path, file: BinaryIO, names: list[str]) -> None:
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
            print(f"{job.name}: {len(names):,} images decoded into {folder} (only this once)", file=sys.stderr)


@contextmanager
def _in_one_move(base: Path, suffix: str) -> Iterator[BinaryIO]:
    """A file that takes its place when it is whole and on disk, or is removed if anything goes wrong."""
    handle, name = tempfile.mkstemp(dir=base.parent, prefix=f".{base.name}", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's is for the owner alone; a cache may be shared
        os.replace(name, _beside(base, suffix))
    finally:
        Path(name).unlink(missing_ok=True)


def _beside(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)
