"""Files are written whole or not at all; of JSON lines only a last one that was cut short is left out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamicgate.files import read_json, read_json_lines, write_atomically, write_text


def test_text_arrives_as_written_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.txt"
    write_text(path, "λ = 0.3\n")
    assert path.read_bytes() == "λ = 0.3\n".encode()
    write_text(path, "second")
    assert path.read_text() == "second"
    assert os.listdir(path.parent) == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), OSError("no")])
def test_a_write_that_fails_halfway_leaves_the_earlier_file_and_nothing_else(
    error: BaseException, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "first")

    def fail(temporary: Path) -> None:
        assert temporary.parent == tmp_path, "in the same folder, else it could not be moved in one go"
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, fail)
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("existed", [True, False])
def test_an_error_of_the_system_names_the_file_and_keeps_its_number(existed: bool, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    if existed:
        write_text(path, "first")

    def full(_temporary: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=f"could not write {path}: No space left on device") as caught:
        write_atomically(path, full)
    assert caught.value.errno == errno.ENOSPC
    assert ("the earlier file is untouched" in str(caught.value)) == existed


def test_an_error_without_a_number_reads_as_a_sentence(tmp_path: Path) -> None:
    def fail(_temporary: Path) -> None:
        raise OSError("the other library says no")

    with pytest.raises(OSError, match="could not write") as caught:
        write_atomically(tmp_path / "x", fail)
    assert str(caught.value) == f"could not write {tmp_path / 'x'}: the other library says no"


def test_json_lines_are_read_in_order_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "site": "λ"}\n\n{"step": 2}\r\n{"step": 3}', encoding="utf-8")
    assert read_json_lines(path) == [{"step": 1, "site": "λ"}, {"step": 2}, {"step": 3}]
    path.write_text("")
    assert read_json_lines(path) == []


@pytest.mark.parametrize("rest", [b'{"st', b'{"step": 2, "site": "\xce', b"{", b"nu"])
def test_a_last_json_line_that_was_cut_short_is_left_out(rest: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n' + rest)
    assert read_json_lines(path) == [{"step": 1}]


@pytest.mark.parametrize("damaged", ['{"st', "null", "3", "[1]", "\x00\x00"])
@pytest.mark.parametrize("after", ["", '{"step": 3}\n'])
def test_a_whole_line_that_is_no_json_object_is_an_error_naming_file_and_line(
    damaged: str, after: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1}}\n{damaged}\n{after}')
    with pytest.raises(ValueError, match=rf"{path}, line 2: expected a JSON object, received "):
        read_json_lines(path)


def test_json_lines_of_a_file_that_is_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json_lines(tmp_path / "absent.jsonl")


def test_the_umask_decides_who_may_read_a_new_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "mine.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "mine.txt").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_there_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "first")
    path.chmod(0o640)
    write_text(path, "second")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_symbolic_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "real.txt", tmp_path / "link.txt"
    write_text(target, "first")
    link.symlink_to(target)
    write_text(link, "second")
    assert link.is_symlink()
    assert target.read_text() == "second"
    assert os.listdir(tmp_path / "elsewhere") == ["real.txt"]


KILLED = """
import os, signal
from pathlib import Path
from dynamicgate.files import write_atomically
def die(temporary):
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path("file.txt"), die)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".file.txt.")
    (tmp_path / ".file.txt.backup").write_text("not ours")

    def write_another(temporary: Path) -> None:
        write_text(path, "inner")  # a second writer while this one is at work
        assert temporary.exists()
        temporary.write_text("outer")

    write_atomically(path, write_another)
    assert path.read_text() == "outer"
    assert sorted(os.listdir(tmp_path)) == [".file.txt.backup", "file.txt"]


def test_the_folder_is_flushed_after_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.path.isdir(f"/proc/self/fd/{fd}")), fsync(fd)))
    write_text(tmp_path / "file.txt", "x")
    assert synced == [False, True]


def test_a_damaged_line_costs_itself_and_no_row_after_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\xffep": 2}\n\n{"step": 3}\nnull\n{"step": 4}\n{"step"')
    damaged: list[int] = []
    assert [row["step"] for row in read_json_lines(path, damaged)] == [1, 3, 4]
    assert damaged == [2, 5]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_json_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_json(path)
