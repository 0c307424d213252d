"""Downloads from a real server on this machine that misbehaves on request."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import pytest

from dynamicgate.lab.datasets import download, sources
from dynamicgate.lab.datasets.download import CHUNK, download_dataset
from dynamicgate.lab.datasets.sources import Source, SourceFile

from .local_server import Answer, Handler, Server, broken_once, half, running_server, status, whole

CONTENT = random.Random(0).randbytes(4 * CHUNK)


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes `toy` a known dataset with one file at these addresses."""

    def register(*urls: str, content: bytes = CONTENT) -> None:
        files = (
            SourceFile("toy.bin", urls, sha256(content).hexdigest(), len(content)),
            SourceFile("old.bin", urls, sha256(content).hexdigest(), len(content), by_default=False),
        )
        toy = Source("toy", "a toy", files, "none", "nobody", "nowhere", folder="toys")
        monkeypatch.setattr(sources, "SOURCES", MappingProxyType({**sources.SOURCES, "toy": toy}))

    return register


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_is_downloaded_verified_and_put_in_its_place(
    server: Server, known: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    assert download_dataset("toy", tmp_path / "new") == [tmp_path / "new/toys/toy.bin"]
    assert (tmp_path / "new/toys/toy.bin").read_bytes() == CONTENT
    assert files_in(tmp_path) == ["new/toys/toy.bin"], "no temporary file is left"
    assert "100%" in capsys.readouterr().err, "the progress bar"
    assert (tmp_path / "new/toys/toy.bin").stat().st_mode & 0o777 == 0o644


def test_no_progress_bar_is_shown_when_none_is_wanted(
    server: Server, known: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    download_dataset("toy", tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_file_that_is_there_is_not_downloaded_again(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    download_dataset("toy", tmp_path, progress=False)
    before = (tmp_path / "toys/toy.bin").stat().st_mtime_ns
    (tmp_path / "toys").chmod(0o555)  # nothing needs to be written
    try:
        download_dataset("toy", str(tmp_path), progress=False)
    finally:
        (tmp_path / "toys").chmod(0o755)
    assert len(server.requests) == 1
    assert (tmp_path / "toys/toy.bin").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:1000] + b"!" + CONTENT[1001:], b""])
def test_a_damaged_file_is_replaced(damage: bytes, server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/toy.bin").write_bytes(damage)
    download_dataset("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("resumes", [True, False])
def test_a_download_that_breaks_halfway_is_resumed(
    resumes: bool, server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", broken_once(CONTENT, resumes=resumes)))
    download_dataset("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
    assert server.requests[1] == ("/toy.bin", "bytes=262144-"), "only the rest is requested"
    assert len(server.requests) == (2 if resumes else 3)
    assert files_in(tmp_path) == ["toys/toy.bin"]


def test_a_failed_download_is_continued_by_the_next_call(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", half(CONTENT)))
    with pytest.raises(
        OSError, match=r"toy.bin could not be downloaded.*answered 503.*so far is kept in .*continues from there"
    ):
        download_dataset("toy", tmp_path, progress=False)
    assert files_in(tmp_path) == ["toys/.toy.bin.part"], "nothing that looks like data"
    server.offer("/toy.bin", whole(CONTENT))
    download_dataset("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
    assert server.requests[-1] == ("/toy.bin", "bytes=262144-")


def test_wrong_bytes_from_an_earlier_attempt_are_discarded(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir()
    for wrong in (b"rubbish", CONTENT + b"and more", bytes(len(CONTENT))):
        (tmp_path / "toys/.toy.bin.part").write_bytes(wrong)
        download_dataset("toy", tmp_path, progress=False)
        assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
        (tmp_path / "toys/toy.bin").unlink()


@pytest.mark.parametrize("served", [b"<html>log in first</html>", CONTENT[:-1] + b"!", b""])
def test_wrong_bytes_are_refused_and_nothing_is_left_behind(
    served: bytes, server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(served)))
    with pytest.raises(OSError, match=f"served {len(served):,} bytes with sha256 .*, expected 524,288 bytes with"):
        download_dataset("toy", tmp_path, progress=False)
    assert files_in(tmp_path) == []
    assert len(server.requests) == 1


def test_wrong_bytes_do_not_replace_an_existing_file(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(b"wrong")))
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys/toy.bin").write_bytes(b"mine")
    with pytest.raises(OSError, match="could not be downloaded"):
        download_dataset("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == b"mine"


@pytest.mark.parametrize("first", [status(404), status(500), whole(b"wrong"), half(CONTENT)])
def test_the_next_mirror_is_tried(first: Answer, server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    known(server.offer("/one/toy.bin", first), server.offer("/two/toy.bin", whole(CONTENT)))
    download_dataset("toy", tmp_path, progress=False)
    assert (tmp_path / "toys/toy.bin").read_bytes() == CONTENT
    assert [path for path, _ in server.requests][-1] == "/two/toy.bin"


def test_when_all_mirrors_fail_each_is_named_with_its_reason(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    nobody = "http://127.0.0.1:9/toy.bin"  # the discard port: refused
    known(server.offer("/one/toy.bin", status(404)), nobody)
    with pytest.raises(OSError, match="could not be downloaded") as caught:
        download_dataset("toy", tmp_path, progress=False)
    said = str(caught.value)
    assert "/one/toy.bin (answered 404); http://127.0.0.1:9/toy.bin (" in said
    assert "Connection refused" in said
    assert f"put it at {tmp_path / 'toys/toy.bin'}" in said
    assert files_in(tmp_path) == []


def test_a_file_that_is_not_a_default_one_is_downloaded_by_its_name(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    assert download_dataset("toy", tmp_path, files=["old.bin"], progress=False) == [tmp_path / "toys/old.bin"]
    with pytest.raises(ValueError, match=r"toy has no file new.bin; its files are: toy.bin, old.bin"):
        download_dataset("toy", tmp_path, files=["new.bin"])


def test_an_unknown_dataset_is_refused_with_a_list_of_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown dataset 'minst': expected one of digits, mnist, cifar10"):
        download_dataset("minst", tmp_path)


def test_a_dataset_without_files_needs_no_download(tmp_path: Path) -> None:
    assert download_dataset("digits", tmp_path / "absent") == []
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_cannot_be_created_is_reported_with_what_to_do(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match=r"could not write .*file/toys: .*; choose another folder with --data-dir"):
        download_dataset("toy", tmp_path / "file", progress=False)
    assert server.requests == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported_with_what_to_do(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir(mode=0o555)
    with pytest.raises(OSError, match=r"could not write .*toys/.*: Permission denied; choose another folder"):
        download_dataset("toy", tmp_path, progress=False)
    assert server.requests == []


def test_a_full_disk_is_not_blamed_on_the_mirror(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download, "_append", full)
    with pytest.raises(OSError, match=f"could not write {tmp_path / 'toys'}: No space left on device"):
        download_dataset("toy", tmp_path, progress=False)


def test_too_little_free_space_is_reported_before_the_download_starts(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1234})())
    with pytest.raises(
        OSError, match=r"toy.bin needs 524.3 kB, but .*toys has 1.2 kB free: free some space, or choose"
    ):
        download_dataset("toy", tmp_path, progress=False)
    assert server.requests == []


@pytest.mark.skipif(os.name == "nt", reason="Windows does not replace a file that is open")
def test_two_downloads_into_one_folder_cannot_run_at_once(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    import fcntl

    known(server.offer("/toy.bin", whole(CONTENT)))
    (tmp_path / "toys").mkdir()
    other = os.open(tmp_path / "toys", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process is downloading data into"):
            download_dataset("toy", tmp_path, progress=False)
    finally:
        os.close(other)
    assert server.requests == []
    download_dataset("toy", tmp_path, progress=False)


def test_requests_name_the_client_and_ask_for_unmodified_bytes(
    server: Server, known: Callable[..., None], tmp_path: Path
) -> None:
    headers: list[tuple[str | None, str | None]] = []

    def answer(handler: Handler) -> None:
        headers.append((handler.headers.get("Accept-Encoding"), handler.headers.get("User-Agent")))
        whole(CONTENT)(handler)

    known(server.offer("/toy.bin", answer))
    download_dataset("toy", tmp_path, progress=False)
    assert headers[0][0] == "identity"
    assert str(headers[0][1]).startswith("dynamicgate/")


def test_without_its_packages_the_downloader_says_what_to_install(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(server.offer("/toy.bin", whole(CONTENT)))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"downloading data needs pooch.*pip install 'dynamicgate\[data\]'"):
        download_dataset("toy", tmp_path)
    assert files_in(tmp_path) == []


def test_importing_the_downloader_does_not_import_the_http_packages() -> None:
    code = "import sys, dynamicgate.lab.datasets.download; print(*{'pooch', 'requests'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_server_that_sends_more_than_the_file_is_stopped_at_its_size(
    server: Server, known: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(400):
                handler.wfile.write(bytes(CHUNK))
        except OSError:  # the client has gone
            return
        written.append(400)

    known(server.offer("/toy.bin", endless))
    monkeypatch.setattr(download, "checksum", lambda path, kind: written.append(path.stat().st_size // CHUNK) or "0")
    with pytest.raises(OSError, match="served more bytes, expected 524,288 bytes"):
        download_dataset("toy", tmp_path, progress=False)
    assert max(written) <= len(CONTENT) // CHUNK
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("address", ["http://example.org/toy.bin", "ftp://example.org/toy.bin", "file:///etc/hosts"])
def test_only_https_is_used(address: str, known: Callable[..., None], tmp_path: Path) -> None:
    known(address)
    with pytest.raises(OSError, match=f"refused to download from {address}: expected an address that"):
        download_dataset("toy", tmp_path, progress=False)


def test_a_server_cannot_lead_to_plain_http(server: Server, known: Callable[..., None], tmp_path: Path) -> None:
    def elsewhere(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "http://example.org/toy.bin")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    known(server.offer("/toy.bin", elsewhere))
    with pytest.raises(OSError, match=r"refused to download from http://example.org/toy.bin"):
        download_dataset("toy", tmp_path, progress=False)
