"""Read the files of a dataset from where they are: a folder, a tar (plain, gz, bz2, xz) or a zip, without unpacking."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive this module reads."""
    return path.name.lower().endswith(SUFFIXES)


def read_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path inside, content) of every file whose path `wanted` accepts, in the order of the archive; a folder's sorted.

    Paths have forward slashes and no leading "./". An archive that names an absolute path, climbs out with "..", or
    holds a link is refused whole: nobody packs a dataset like that by accident.
    """
    if source.is_dir():
        for path in sorted(p for p in source.rglob("*") if p.is_file()):
            name = path.relative_to(source).as_posix()
            if wanted(name):
                yield name, path.read_bytes()
        return
    if not source.is_file():
        raise FileNotFoundError(f"no archive or folder at {source}")
    try:
        yield from (_zip_members if source.suffix.lower() == ".zip" else _tar_members)(source, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{source} is damaged or incomplete ({error}): fetch it again") from error
    except OSError as error:
        if error.errno is None:  # gzip and bz2 report a bad checksum or header so
            raise ValueError(f"{source} is damaged or incomplete ({error}): fetch it again") from error
        raise


def _tar_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(source) as archive:
        for member in archive:
            name = _safe_name(member.name, source)
            if member.issym() or member.islnk():
                raise ValueError(f"{source}: refused, it holds a link at {member.name!r}")
            if member.isfile() and wanted(name):
                content = archive.extractfile(member)
                assert content is not None
                yield name, content.read()


def _zip_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            name = _safe_name(info.filename, source)
            if not info.is_dir() and wanted(name):
                yield name, archive.read(info)


def _safe_name(name: str, source: Path) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
        raise ValueError(f"{source}: refused, it names a path outside the archive: {name!r}")
    return path.as_posix().removeprefix("./")
