"""Fetch a known dataset: mirrors in order, broken downloads resumed, nothing accepted before its checksum is right.

Bytes arrive in a hidden neighbour, `.NAME.part`, and get their name only once they are verified: a half download never
looks like data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dynamicgate._version import __version__
from dynamicgate.lab.datasets.sources import File, Source, source_of

ATTEMPTS = 5  # at one mirror, as long as each brings more bytes
CHUNK = 1 << 17
ELSEWHERE = "choose another folder with --data-dir (data_dir=) or the environment variable DYNAMICGATE_DATA"


def get(name: str, data_dir: str | Path, *, files: Sequence[str] = (), progress: bool = True) -> list[Path]:
    """Fetch the files of a dataset into its place in `data_dir`, and say where they are.

    Files that are there and right are not fetched again; one that is there and wrong is replaced once the right one has
    arrived. `files` names some of the dataset's files instead of the usual ones.
    """
    source = source_of(name)
    chosen = _chosen(source, files)
    folder = Path(data_dir).expanduser() / (source.folder or ".")
    missing = [file for file in chosen if not is_official(folder / file.name, file)]
    if missing:
        _need_pooch()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _only_one_process(folder):
                for file in missing:
                    _fetch(file, folder / file.name, progress)
        except OSError as error:
            if error.errno is None:  # already a sentence
                raise
            where = error.filename or folder
            raise OSError(f"could not write {where}: {error.strerror}; {ELSEWHERE}") from error
    return [folder / file.name for file in chosen]


def is_official(path: Path, file: File) -> bool:
    """Whether `path` holds exactly the bytes of the official file."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return digest(path, "sha256") == file.sha256
    return file.md5 is not None and digest(path, "md5") == file.md5


def digest(path: Path, kind: str) -> str:
    """Checksum of a file of any size, as hexadecimal digits."""
    found = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as content:
        while piece := content.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def readable(size: int) -> str:
    """A number of bytes for people: 11.6 MB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _chosen(source: Source, names: Sequence[str]) -> list[File]:
    unknown = [name for name in names if name not in {file.name for file in source.files}]
    if unknown:
        known = ", ".join(file.name for file in source.files) or "none to fetch"
        raise ValueError(f"{source.name} has no file {', '.join(unknown)}; its files are: {known}")
    return [file for file in source.files if (file.name in names if names else file.wanted)]


def _fetch(file: File, target: Path, progress: bool) -> None:
    part = target.with_name(f".{target.name}.part")
    _need_room(file, part)
    failures = []
    for url in file.urls:
        reason = _from_mirror(url, file, part, progress)
        if reason is None:
            with part.open("rb") as content:
                os.fsync(content.fileno())
            part.chmod(0o644)
            os.replace(part, target)
            return
        failures.append(f"{url} ({reason})")
    if part.exists() and part.stat().st_size == 0:
        part.unlink()
    kept = f" What has arrived is kept, and fetched no second time: {part}." if part.exists() else ""
    raise OSError(
        f"{file.name} could not be fetched. Tried: {'; '.join(failures)}.{kept} Try again later, or fetch it elsewhere "
        f"and put it at {target}"
    )


def _from_mirror(url: str, file: File, part: Path, progress: bool) -> str | None:
    """Why it failed; None once the whole, right file is at `part`."""
    from requests import RequestException  # type: ignore[import-untyped, unused-ignore]

    for _ in range(ATTEMPTS):
        start = part.stat().st_size if part.exists() else 0
        if start < file.size:
            try:
                _append(url, part, start, progress)
            except RequestException as error:
                if part.exists() and part.stat().st_size > start:
                    continue  # the connection broke on the way: go on from there
                return _reason(error)
        if is_official(part, file):
            return None
        received = f"{part.stat().st_size:,} bytes with sha256 {digest(part, 'sha256')}"
        part.unlink()
        if start == 0:
            return f"served {received}, expected {file.size:,} bytes with {file.sha256 or file.md5}"
        # What was there before may have been wrong, or the server does not resume: once more from the beginning.
    return f"the connection broke {ATTEMPTS} times"


def _append(url: str, part: Path, start: int, progress: bool) -> None:
    from pooch import HTTPDownloader  # type: ignore[import-untyped, unused-ignore]

    # Some hosts refuse unnamed programs; and a .gz must arrive packed, as it was summed.
    headers = {"User-Agent": f"dynamicgate/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with part.open("ab") as output:
        HTTPDownloader(progressbar=progress, chunk_size=CHUNK, headers=headers)(url, output, None)


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"answered {status}"
    cause: BaseException = error
    while cause.args and isinstance(cause.args[-1], BaseException):  # requests wraps urllib3 wraps the reason
        cause = cause.args[-1]
    reason = str(getattr(cause, "reason", cause)).split("): ", 1)[-1]
    return reason or type(error).__name__


def _need_pooch() -> None:
    try:
        import pooch  # noqa: F401
        import tqdm  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"fetching data needs {error.name}, which is not installed: pip install 'dynamicgate[data]'"
        ) from error


def _need_room(file: File, part: Path) -> None:
    needed = file.size - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        has = f"{part.parent} has {readable(free)} free"
        raise OSError(f"{file.name} needs {readable(needed)}, but {has}: make room, or {ELSEWHERE}")


@contextlib.contextmanager
def _only_one_process(folder: Path) -> Iterator[None]:
    """Two downloads into one file would mix; the lock goes with the process, however it ends."""
    if sys.platform == "win32":  # there, a file that another process has open cannot be replaced anyway
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _locked(handle):
            raise OSError(f"another process is fetching data into {folder}: wait until it has ended")
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks: go without
        pass
    return True
