"""Read dataset files from a folder, a tar (plain, gz, bz2, xz) or a zip archive, without unpacking it."""

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

from dynamicgate.lab.datasets.limits import LARGEST_MEMBER, most_bytes, most_members, refuse_larger

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

# What the standard library's readers raise on damaged bytes.
_DAMAGE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError)
# RuntimeError is how zipfile reports encryption and, as NotImplementedError, a compression method it does not know.
_UNSUPPORTED_ERRORS = (RuntimeError, UnicodeDecodeError, struct.error, OverflowError)


def is_archive(path: Path) -> bool:
    """Whether the file name is that of an archive this module can read."""
    return path.name.lower().endswith(SUFFIXES)


def find_dataset(places: Sequence[Path], folders: Sequence[tuple[str, str]], prefix: str) -> Path | None:
    """The dataset's folder or archive in the first of `places` that has one, ready for `read_members`.

    `folders` are pairs: a subfolder of the place, and a file pattern that identifies it as the dataset. Failing that,
    an archive whose name starts with `prefix` is used; the shortest name wins, so "x.zip" comes before "x-subset.zip".
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


def dataset_not_found(name: str, places: Sequence[Path], expected: str) -> FileNotFoundError:
    """The error to raise when `find_dataset` finds nothing."""
    return FileNotFoundError(
        f"{name} was not found. Expected {expected}. Looked in: {', '.join(map(str, places))}. Download it with "
        f"`dynamicgate data get {name}`, or give the folder that holds it with --data-dir (data_dir=) or the "
        "environment variable DYNAMICGATE_DATA."
    )


def read_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path inside, content) of every file whose path `wanted` accepts: in archive order, or sorted for a folder.

    Paths use forward slashes and have no leading "./". An archive that contains an absolute path, a path that leaves it
    through "..", or a link is refused: nobody packs a dataset like that by accident. So is one that would unpack to far
    more than it is (see `limits`), before that much is read. Some damage only shows once the last member has been read,
    so do not trust the contents before the iterator ends.
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
    except _DAMAGE_ERRORS as error:
        raise ValueError(f"{source} is damaged or incomplete ({_one_line(error)}): download it again") from error
    except _UNSUPPORTED_ERRORS as error:
        raise ValueError(f"{source} is damaged, or packed in an unsupported way ({error})") from error
    except OSError as error:
        # gzip and bz2 report a bad checksum or header without an errno; a wrong offset in a zip is an invalid seek.
        if error.errno in (None, errno.EINVAL):
            raise ValueError(f"{source} is damaged or incomplete ({_one_line(error)}): download it again") from error
        raise


class _StrictHeader(tarfile.TarInfo):
    """tarfile takes a damaged or missing header for the end of the archive and would lose the members after it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictHeader:
        """One header; a damaged one raises an error that tarfile does not swallow. A block of zeros marks the end."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"{error} where a member or the end mark should be") from error


def _tar_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    limit, total = most_bytes(source), 0
    with tarfile.open(source, tarinfo=_StrictHeader) as archive:
        for count, member in enumerate(archive, start=1):
            archive.members = []  # type: ignore[attr-defined]  # of millions, it would keep every one
            _refuse_more_members(count, source)
            name = _safe_name(member.name, source)
            total += tarfile.BLOCKSIZE + member.size  # of those that are not wanted as well: they are unpacked, too
            refuse_larger(total, limit, str(source))
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{source}: refused, it contains a link or a device at {member.name!r}")
            if member.isfile() and wanted(name):
                refuse_larger(member.size, LARGEST_MEMBER, f"{source}, {name}")
                content = archive.extractfile(member)
                assert content is not None
                yield name, content.read()
        assert archive.fileobj is not None
        while archive.fileobj.read(1 << 20):  # read to the end of the compressed stream, where the checksum is
            pass


def _zip_members(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        with source.open("rb") as file:  # zipfile does not compare its list with the count in the end record
            file.seek(-(22 + len(archive.comment)), 2)
            count = int.from_bytes(file.read(12)[10:], "little")
        if count not in (0xFFFF, len(archive.infolist()) & 0xFFFF):  # 0xFFFF: an archive of more files (zip64)
            raise zipfile.BadZipFile(f"it lists {len(archive.infolist())} files but its end record says {count}")
        # zipfile never unpacks more of a file than it lists, and then compares the checksum
        _refuse_more_members(len(archive.infolist()), source)
        refuse_larger(sum(info.file_size for info in archive.infolist()), most_bytes(source), str(source))
        for info in archive.infolist():
            name = _safe_name(info.filename, source)
            if stat.S_ISLNK(info.external_attr >> 16):  # the upper half is the Unix mode, if there is one
                raise ValueError(f"{source}: refused, it contains a link or a device at {info.filename!r}")
            if not info.is_dir() and wanted(name):
                refuse_larger(info.file_size, LARGEST_MEMBER, f"{source}, {name}")
                yield name, archive.read(info)


def _refuse_more_members(count: int, source: Path) -> None:
    if count > most_members(source):
        raise ValueError(
            f"{source}: refused, it would unpack to more than {most_members(source):,} files, too many for its size; "
            "unpack it yourself if it is what you expect"
        )


def _safe_name(name: str, source: Path) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
        raise ValueError(f"{source}: refused, it names a path outside the archive: {name!r}")
    return path.as_posix()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
