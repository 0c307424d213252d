"""Downloads, from a real server on this machine that misbehaves on request."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from dynamicgate.lab.datasets import download, sources
from dynamicgate.lab.datasets.download import CHUNK, get
from dynamicgate.lab.datasets.sources import File, Source

CONTENT = random.Random(0).randbytes(4 * CHUNK)
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers a path by the function the test put there, and notes what was asked."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))
        self.server.answers[self.path](self)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str | None]] = []

    def offer(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(timeout=10)


def whole(content: bytes, *, resumes: bool = True) -> Answer:
    def answer(handler: Handler) -> None:
        asked = handler.headers.get("Range")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and resumes else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:])

    return answer


def broken_once(content: bytes, *, resumes: bool = True) -> Answer:
    """Half of it, then the line goes dead; whole the next time."""
    times: list[int] = []

    def answer(handler: Handler) -> None:
        times.append(1)
        if len(times) > 1:
            return whole(content, resumes=resumes)(handler)
        return half(content)(handler)

    return answer


def half(content: bytes) -> Answer:
    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            return handler.send_error(503)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.wfile.flush()
        handler.close_connection = True
        return None

    return answer


def status(code: int) -> Answer:
    return lambda handler: handler.send_error(code)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes `toy` a known dataset with one file at these addresses."""

    def register(*urls: str, content: bytes = CONTENT) -> None:
        files = (
            File("toy.bin", urls, sha256(content).hexdigest(), len(content)),
            File("old.bin", urls, sha256(content).hexdigest(), len(content), wanted=False),
        )
        toy = Source("toy", "a toy", files, "none", "nobody", "nowhere", folder="toys")
        monkeypatch.setattr(sources, "SOURCES", MappingProxyType({**sources.SOURCES, "toy": toy}))

    return register


def everything_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_verified_and_put_in_its_place(
    server: Server, known: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    assert get("toy", tmp_path / "new") == [tmp_path / "new/toys/toy.bin"]
    assert (tmp_path / "new/toys/toy.bin").read_bytes() == CONTENT
    assert everything_in(tmp_path) == ["new/toys/toy.bin"], "no temporary file is left"
    assert "100%" in capsys.readouterr().err, "the progress bar"
    assert (tmp_path / "new/toys/toy.bin").stat().st_mode & 0o777 == 0o644


def test_no_progress_is_shown_when_none_is_wanted(
    server: Server, known: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    get("toy", tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")


def test_what_is_there_is_not_fetched_again(server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    get("toy", tmp_path, progress=False)
    before = (tmp_path / "toys/toy.bin").stat().st_mtime_ns
    (tmp_path / "toys").chmod(0o555)  # and nothing needs to be written
    try:
        get("toy", str(tmp_path), progress=False)
    finally:
        (tmp_path / "toys").chmod(0o755)
    assert len(server.asked) == 1
    assert (tmp_path / "toys/toy.bin").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:1000] + b"!" + CONTENT[1001:], b""])
def test_a_damaged_file_is_replaced(damage: bytes, server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/toy.bin").write_bytes(damage)
    get("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("resumes", [True, False])
def test_a_connection_that_breaks_half_way_is_taken_up_again(
    resumes: bool, server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", broken_once(CONTENT, resumes=resumes)))
    get("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
    assert server.asked[1] == ("/toy.bin", "bytes=262144-"), "only the rest is asked for"
    assert len(server.asked) == (2 if resumes else 3)
    assert everything_in(tmp_path) == ["toys/toy.bin"]


def test_a_download_that_broke_for_good_goes_on_with_the_next_command(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", half(CONTENT)))
    with pytest.raises(OSError, match=r"toy.bin could not be fetched.*answered 503.*kept, and fetched no second time"):
        get("toy", tmp_path, progress=False)
    assert everything_in(tmp_path) == ["toys/.toy.bin.part"], "nothing that looks like data"
    server.offer("/toy.bin", whole(CONTENT))
    get("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
    assert server.asked[-1] == ("/toy.bin", "bytes=262144-")


def test_a_beginning_that_is_wrong_does_not_spoil_the_next_attempt(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir()
    for rubbish in (b"rubbish", CONTENT + b"and more", bytes(len(CONTENT))):
        (tmp_path / "toys/.toy.bin.part").write_bytes(rubbish)
        get("toy", tmp_path, progress=False)
        assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
        (tmp_path / "toys/toy.bin").unlink()


@pytest.mark.parametrize("served", [b"<html>log in first</html>", CONTENT[:-1] + b"!", CONTENT + b"!", b""])
def test_wrong_bytes_are_refused_and_nothing_is_left(
    served: bytes, server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(served)))
    with pytest.raises(OSError, match=f"served {len(served):,} bytes with sha256 .*, expected 524,288 bytes with"):
        get("toy", tmp_path, progress=False)
    assert everything_in(tmp_path) == []
    assert len(server.asked) == 1


def test_wrong_bytes_leave_what_was_there(server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    known(server.offer("/toy.bin", whole(b"wrong")))
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/toy.bin").write_bytes(b"mine")
    with pytest.raises(OSError, match="could not be fetched"):
        get("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == b"mine"


@pytest.mark.parametrize("first", [status(404), status(500), whole(b"wrong"), half(CONTENT)])
def test_the_next_mirror_is_tried(first: Answer, server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    known(server.offer("/one/toy.bin", first), server.offer("/two/toy.bin", whole(CONTENT)))
    get("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
    assert [path for path, _ in server.asked][-1] == "/two/toy.bin"


def test_when_all_mirrors_fail_each_is_named_with_its_reason(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    nobody = "http://127.0.0.1:9/toy.bin"  # the discard port: refused
    known(server.offer("/one/toy.bin", status(404)), nobody)
    with pytest.raises(OSError, match="could not be fetched") as caught:
        get("toy", tmp_path, progress=False)
    said = str(caught.value)
    assert "/one/toy.bin (answered 404); http://127.0.0.1:9/toy.bin (" in said
    assert "Connection refused" in said
    assert f"put it at {tmp_path / 'toys/toy.bin'}" in said
    assert everything_in(tmp_path) == []


def test_a_file_that_is_not_usual_is_fetched_by_its_name(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    assert get("toy", tmp_path, files=["old.bin"], progress=False) == [tmp_path / "toys/old.bin"]
    with pytest.raises(ValueError, match=r"toy has no file new.bin; its files are: toy.bin, old.bin"):
        get("toy", tmp_path, files=["new.bin"])


def test_a_name_that_is_not_known_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown dataset 'minst': expected one of digits, mnist, cifar10"):
        get("minst", tmp_path)


def test_a_dataset_without_files_needs_no_fetching(tmp_path: Path) -> None:
    assert get("digits", tmp_path / "absent") == []
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_cannot_be_made_is_answered_with_a_sentence(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"could not write .*file/toys: .*; choose another folder with --data-dir"):
        get("toy", tmp_path / "file", progress=False)
    assert server.asked == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_answered_with_a_sentence(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir(mode=0o555)
    with pytest.raises(OSError, match=r"could not write .*toys/.*: Permission denied; choose another folder"):
        get("toy", tmp_path, progress=False)
    assert server.asked == []


def test_a_disk_that_fills_up_is_not_blamed_on_the_mirror(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download, "_append", full)
    with pytest.raises(OSError, match=f"could not write {tmp_path / 'toys'}: No space left on device"):
        get("toy", tmp_path, progress=False)


def test_a_disk_that_is_too_small_is_known_before(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1234})())
    with pytest.raises(OSError, match=r"toy.bin needs 524.3 kB, but .*toys has 1.2 kB free: make room, or choose"):
        get("toy", tmp_path, progress=False)
    assert server.asked == []


@pytest.mark.skipif(os.name == "nt", reason="Windows does not replace a file that is open")
def test_two_downloads_into_one_folder_do_not_mix(server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    import fcntl

    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir()
    other = os.open(tmp_path / "toys", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process is fetching data into"):
            get("toy", tmp_path, progress=False)
    finally:
        os.close(other)
    assert server.asked == []
    get("toy", tmp_path, progress=False)


def test_a_file_that_belongs_to_someone_is_not_asked_for_packed_otherwise(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def answer(handler: Handler) -> None:
        seen.append((handler.headers.get("Accept-Encoding"), handler.headers.get("User-Agent")))
        whole(CONTENT)(handler)

    known(server.offer("/toy.bin", answer))
    get("toy", tmp_path, progress=False)
    assert seen[0][0] == "identity"
    assert str(seen[0][1]).startswith("dynamicgate/")


def test_without_its_packages_fetching_says_what_to_install(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"fetching data needs pooch.*pip install 'dynamicgate\[data\]'"):
        get("toy", tmp_path)
    assert everything_in(tmp_path) == []


def test_importing_the_downloader_does_not_import_what_it_downloads_with() -> None:
    code = "import sys, dynamicgate.lab.datasets.download; print(*{'pooch', 'requests'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
