"""Verify data files: official ones by checksum, others by reading every byte, and then all by loading them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dynamicgate.lab.datasets import mnist
from dynamicgate.lab.datasets.archive import find_dataset, is_archive, read_members
from dynamicgate.lab.datasets.download import checksum, format_size, is_official
from dynamicgate.lab.datasets.images import cifar10, tiny_imagenet
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.single_cell import pbmc3k
from dynamicgate.lab.datasets.sources import Source, SourceFile, get_source
from dynamicgate.lab.datasets.speech import speech_commands


@dataclass(frozen=True)
class Finding:
    """One sentence about one file, or about the dataset as a whole."""

    ok: bool
    text: str


def verify_dataset(name: str, data_dir: str | Path, *, options: Mapping[str, str] | None = None) -> list[Finding]:
    """One finding for each file of a dataset and, if all files are intact, one on whether the loader accepts them.

    `options` are those of the loader, for data that needs them.
    """
    source, folder = get_source(name), Path(data_dir).expanduser()
    paths = locate_files(name, folder)
    if source.files and not paths:
        return [Finding(False, f"{name} is not in {folder}: download it with `dynamicgate data get {name}`")]
    findings = [_check_file(path, source) for path in paths]
    if all(finding.ok for finding in findings):
        if {path.name for path in paths} <= {file.name for file in source.files}:
            options = options or dict(source.options)
        findings.append(_check_loading(name, folder, options))
    return findings


def locate_files(name: str, data_dir: Path) -> list[Path]:
    """The files, archives or folders of a dataset: what its loader would read, and any official files beside that."""
    source = get_source(name)
    try:
        found = _read_by_loader(name, data_dir)
    except FileNotFoundError:
        found = []
    folders = (data_dir / (source.folder or "."), data_dir)
    official = [folder / known for folder in folders for file in source.files for known in _names(file)]
    return list(dict.fromkeys([*found, *(path for path in official if path.is_file())]))


def _read_by_loader(name: str, data_dir: Path) -> list[Path]:
    if name == "mnist":
        return mnist.find_files(data_dir)
    if name == "speech-commands":
        return [speech_commands.find_recordings(data_dir)]
    if name == "pbmc3k":
        counts = pbmc3k.find_counts(data_dir)
        labels = [data_dir / folder / pbmc3k.LABELS for folder in pbmc3k.FOLDERS]
        return [counts, *(path for path in labels if path.is_file())]
    if name == "cifar10":
        found = find_dataset([data_dir / place for place in cifar10.PLACES], cifar10.FOLDERS, "cifar-10")
    elif name == "tiny-imagenet":
        places = [data_dir / place for place in tiny_imagenet.PLACES]
        found = find_dataset(places, tiny_imagenet.FOLDERS, tiny_imagenet.TOP)
    else:
        found = None
    return [] if found is None else [found]


def _names(file: SourceFile) -> tuple[str, ...]:
    return (file.name,) if file.unpacked_sha256 is None else (file.name, file.name.removesuffix(".gz"))


def _check_file(path: Path, source: Source) -> Finding:
    download_again = f"download it again with `dynamicgate data get {source.name}`"
    file = next((file for file in source.files if path.name in _names(file)), None)
    try:
        if file is not None and is_official(path, file):
            return Finding(True, f"{path} is the official file")
        if file is not None and file.unpacked_sha256 is not None:
            found = _unpacked_checksum(path)
            if found == file.unpacked_sha256:
                return Finding(True, f"{path} is not the official file, but has the same content once unpacked")
            expected = f"the official one is {file.unpacked_sha256}"
            return Finding(False, f"{path} is damaged: unpacked, its sha256 is {found}, {expected}; {download_again}")
        if file is not None and path.name == file.name and path.stat().st_size == file.size:
            found = checksum(path, "sha256")
            expected = f"the official one is {file.sha256}"
            return Finding(False, f"{path} is damaged: its sha256 is {found}, {expected}; {download_again}")
        return Finding(True, f"{path} is not an official file, but intact: {_read_through(path)}")
    except (ValueError, OSError) as error:
        text = " ".join(str(error).split())  # tarfile's messages span several lines
        return Finding(False, text if path.name in text else f"{path}: {text}")


def _unpacked_checksum(path: Path) -> str:
    with path.open("rb") as content:
        gzipped = content.read(2) == b"\x1f\x8b"
    if not gzipped:
        return checksum(path, "sha256")
    found = hashlib.sha256()
    try:
        with gzip.open(path) as unpacked:
            while piece := unpacked.read(1 << 20):
                found.update(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is a truncated or damaged gzip file ({error}); download it again") from error
    return found.hexdigest()


def _read_through(path: Path) -> str:
    """Unpack every byte, which compares it with the checksums inside an archive; says how much was read."""
    if not path.is_dir() and not is_archive(path):
        return f"read {format_size(len(path.read_bytes()))}"
    count = size = 0
    for _, content in read_members(path, lambda _: True):
        count, size = count + 1, size + len(content)
    if not count:
        raise ValueError(f"{path} contains no files")
    return f"read {count:,} files in it, {format_size(size)}"


def _check_loading(name: str, folder: Path, options: Mapping[str, str] | None) -> Finding:
    try:
        splits = load_dataset(name, data_dir=folder, options=options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        return Finding(False, f"{name} could not be loaded: {error}")
    sizes = f"{len(splits.train):,} / {len(splits.valid):,} / {len(splits.test):,}"
    return Finding(True, f"{name} loads: {sizes} training, validation and test rows, {splits.classes} classes")
