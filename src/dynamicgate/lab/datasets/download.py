"""Download a known dataset: mirrors in order, broken downloads resumed, every file verified by its checksum.

A file is downloaded as a hidden `.NAME.part` beside its target and renamed once it is verified, so half a download
never looks like data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from dynamicgate._version import __version__
from dynamicgate.lab.datasets.sources import Source, SourceFile, get_source

ATTEMPTS = 5  # at one mirror, as long as each brings in more bytes
CHUNK = 1 << 17
OTHER_FOLDER = "choose another folder with --data-dir (data_dir=) or the environment variable DYNAMICGATE_DATA"


def download_dataset(
    name: str, data_dir: str | Path, *, files: Sequence[str] = (), progress: bool = True
) -> list[Path]:
    """Download the files of a dataset to their place in `data_dir`, and return their paths.

    A file with the right checksum is not downloaded again; a wrong one is replaced once the right one has arrived.
    `files` selects files of the dataset by name; without it, the default ones are downloaded.
    """
    source = get_source(name)
    chosen = _select_files(source, files)
    folder = Path(data_dir).expanduser() / (source.folder or ".")
    missing = [file for file in chosen if not is_official(folder / file.name, file)]
    if missing:
        _require_packages()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _exclusive(folder):
                for file in missing:
                    _download_file(file, folder / file.name, progress)
        except OSError as error:
            if error.errno is None:  # already one of our messages
                raise
            where = error.filename or folder
            raise OSError(f"could not write {where}: {error.strerror}; {OTHER_FOLDER}") from error
    return [folder / file.name for file in chosen]


def is_official(path: Path, file: SourceFile) -> bool:
    """Whether `path` holds exactly the bytes of the official file."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return checksum(path, "sha256") == file.sha256
    return file.md5 is not None and checksum(path, "md5") == file.md5


def checksum(path: Path, kind: str) -> str:
    """Checksum of a file of any size, in hexadecimal."""
    found = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as content:
        while piece := content.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def format_size(size: int) -> str:
    """A number of bytes in readable units: 11.6 MB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _select_files(source: Source, names: Sequence[str]) -> list[SourceFile]:
    unknown = [name for name in names if name not in {file.name for file in source.files}]
    if unknown:
        known = ", ".join(file.name for file in source.files) or "none to download"
        raise ValueError(f"{source.name} has no file {', '.join(unknown)}; its files are: {known}")
    return [file for file in source.files if (file.name in names if names else file.by_default)]


def _download_file(file: SourceFile, target: Path, progress: bool) -> None:
    part = target.with_name(f".{target.name}.part")
    _require_space(file, part)
    failures = []
    for url in file.urls:
        reason = _download_from(url, file, part, progress)
        if reason is None:
            with part.open("rb") as content:
                os.fsync(content.fileno())
            os.replace(part, target)
            return
        failures.append(f"{url} ({reason})")
    if part.exists() and part.stat().st_size == 0:
        part.unlink()
    kept = (
        f" What has arrived so far is kept in {part}, and the next attempt continues from there."
        if part.exists()
        else ""
    )
    raise OSError(
        f"{file.name} could not be downloaded. Tried: {'; '.join(failures)}.{kept} Try again later, or get it from "
        f"elsewhere and put it at {target}"
    )


def _download_from(url: str, file: SourceFile, part: Path, progress: bool) -> str | None:
    """None once the complete, verified file is at `part`, otherwise the reason why not."""
    from requests import RequestException  # type: ignore[import-untyped, unused-ignore]

    for _ in range(ATTEMPTS):
        start = part.stat().st_size if part.exists() else 0
        too_long = False
        if start < file.size:
            try:
                _append(url, part, start, file.size, progress)
            except _TooLongError:
                too_long = True
            except RequestException as error:
                if part.exists() and part.stat().st_size > start:
                    continue  # the connection broke midway: go on from there
                return _reason(error)
        if is_official(part, file):
            return None
        received = f"{part.stat().st_size:,} bytes with sha256 {checksum(part, 'sha256')}"
        received = "more bytes" if too_long else received
        part.unlink()
        if start == 0:
            return f"served {received}, expected {file.size:,} bytes with {file.sha256 or file.md5}"
        # The earlier bytes may have been wrong, or the server cannot resume: start once more from the beginning.
    return f"the connection broke {ATTEMPTS} times"


class _TooLongError(Exception):
    """A server sends more than the file has."""


class _Bounded:
    """A file to write to, up to a length."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self._file, self._room = file, room

    def write(self, piece: bytes) -> int:
        self._room -= len(piece)
        if self._room < 0:
            raise _TooLongError
        return self._file.write(piece)

    def flush(self) -> None:
        self._file.flush()


def _refuse_plain_http(url: str) -> None:
    """What arrives is compared with its checksum, but nobody else needs to know what is downloaded."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise OSError(f"refused to download from {url}: expected an address that starts with https://")


def _follow_only_https(response: Any, **_: Any) -> None:
    if response.is_redirect:
        _refuse_plain_http(urljoin(response.url, response.headers["location"]))


def _append(url: str, part: Path, start: int, size: int, progress: bool) -> None:
    from pooch import HTTPDownloader  # type: ignore[import-untyped, unused-ignore]

    # Some hosts refuse clients without a name. A .gz must arrive packed, because its checksum is of the packed file.
    headers = {"User-Agent": f"dynamicgate/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    _refuse_plain_http(url)
    hooks = {"response": _follow_only_https}
    with part.open("ab") as output:
        download = HTTPDownloader(progressbar=progress, chunk_size=CHUNK, headers=headers, hooks=hooks)
        download(url, _Bounded(output, size - start), None)


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"answered {status}"
    cause: BaseException = error
    while cause.args and isinstance(cause.args[-1], BaseException):  # requests wraps urllib3, which wraps the reason
        cause = cause.args[-1]
    reason = str(getattr(cause, "reason", cause)).split("): ", 1)[-1]
    return reason or type(error).__name__


def _require_packages() -> None:
    try:
        import pooch  # noqa: F401
        import tqdm  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"downloading data needs {error.name}, which is not installed: pip install 'dynamicgate[data]'"
        ) from error


def _require_space(file: SourceFile, part: Path) -> None:
    needed = file.size - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        has = f"{part.parent} has {format_size(free)} free"
        raise OSError(f"{file.name} needs {format_size(needed)}, but {has}: free some space, or {OTHER_FOLDER}")


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder: two downloads into one file would mix. The lock ends with the process, however that ends."""
    if sys.platform == "win32":  # Windows does not replace a file that another process has open anyway
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(handle):
            raise OSError(f"another process is downloading data into {folder}: wait until it has finished")
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks: go on without one
        pass
    return True
