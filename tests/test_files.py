"""Files are written whole or not at all; of JSON lines only a last one that was cut short is left out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dynamicgate.files import read_json_lines, write_atomically, write_text


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
