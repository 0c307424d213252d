"""Read the files of a dataset from where they are: a folder, a tar (plain, gz, bz2, xz) or a zip, without unpacking."""

from __future__ import annotations

import errno
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

# What the readers of the standard library raise on damaged bytes. RuntimeError is zipfile's for encryption and, as
# NotImplementedError, for compression it does not know.
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError)
_ODD = (RuntimeError, UnicodeDecodeError, struct.error, OverflowError)


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive this module reads."""
    return path.name.lower().endswith(SUFFIXES)


def find_source(places: Sequence[Path], folders: Sequence[tuple[str, str]], prefix: str) -> Path | None:
    """The first of `places` that holds a dataset, as the folder or archive to give to `read_members`.

    `folders` are (folder in the place, pattern of a file that tells it is the dataset). An archive has a name that
    starts with `prefix`; of several the shortest name is taken, so that "x.zip" goes before "x-subset.zip".
    """
    for place in places:
        for name, pattern in folders:
            if any((place / name).glob(pattern)):
                return place / name
        archives = place.iterdir() if place.is_dir() else ()
        named = [path for path in archives if path.name.lower().startswith(prefix) and is_archive(path)]
        if found := [path for path in named if path.is_file()]:
            return min(found, key=lambda path: (len(path.name), path.name))
    return None


def not_found(name: str, places: Sequence[Path], expected: str) -> FileNotFoundError:
    """The error to raise where `find_source` finds nothing."""
    return FileNotFoundError(
        f"{name} was not found. Expected {expected}. Looked in: {', '.join(map(str, places))}. Fetch it with "
        f"`dynamicgate data get {name}`, or name the folder that holds it with --data-dir (data_dir=) or the "
        "environment variable DYNAMICGATE_DATA."
    )


def read_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path inside, content) of every file whose path `wanted` accepts, in the order of the archive; a folder's sorted.

    Paths have forward slashes and no leading "./". An archive that names an absolute path, climbs out with "..", or
    holds a link is refused: nobody packs a dataset like that by accident. Damage is found at the latest when the last
    member has been read, so take nothing for good before that.
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
    except _DAMAGE as error:
        raise ValueError(f"{source} is damaged or incomplete ({_one_line(error)}): fetch it again") from error
    except _ODD as error:
        raise ValueError(f"{source} is damaged, or packed in a way that is not read ({error})") from error
    except OSError as error:
        # gzip and bz2 report a bad checksum or header without a number; a wrong offset in a zip is an invalid seek.
        if error.errno in (None, errno.EINVAL):
            raise ValueError(f"{source} is damaged or incomplete ({_one_line(error)}): fetch it again") from error
        raise


class _StrictHeader(tarfile.TarInfo):
    """tarfile takes a damaged or missing header for the end of the archive, and the members after it would be lost."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictHeader:
        """One header, or the error of tarfile that it does not swallow; a block of zeros is the end mark."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"{error} where a member or the end mark should be") from error


def _tar_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(source, tarinfo=_StrictHeader) as archive:
        for member in archive:
            name = _safe_name(member.name, source)
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{source}: refused, it holds a link or a device at {member.name!r}")
            if member.isfile() and wanted(name):
                content = archive.extractfile(member)
                assert content is not None
                yield name, content.read()
        assert archive.fileobj is not None
        while archive.fileobj.read(1 << 20):  # to the end of the compressed stream, where its checksum is
            pass


def _zip_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        with source.open("rb") as file:  # zipfile does not compare what it found with the count in the end record
            file.seek(-(22 + len(archive.comment)), 2)
            count = int.from_bytes(file.read(12)[10:], "little")
        if count not in (0xFFFF, len(archive.infolist()) & 0xFFFF):  # the former in archives of more files
            raise zipfile.BadZipFile(f"its list has {len(archive.infolist())} files and says {count}")
        for info in archive.infolist():
            name = _safe_name(info.filename, source)
            if stat.S_ISLNK(info.external_attr >> 16):  # the upper half is the Unix mode, where there is one
                raise ValueError(f"{source}: refused, it holds a link or a device at {info.filename!r}")
            if not info.is_dir() and wanted(name):
                yield name, archive.read(info)


def _safe_name(name: str, source: Path) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
        raise ValueError(f"{source}: refused, it names a path outside the archive: {name!r}")
    return path.as_posix()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
