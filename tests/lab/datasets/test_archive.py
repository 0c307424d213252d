"""Reading folders and archives: every kind, hostile paths, and damage."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from dynamicgate.lab.datasets.archive import dataset_not_found, find_dataset, is_archive, read_members

from .archive_writers import KINDS, pack, tar_with, zip_with_link

FILES = {"top/a.txt": b"alpha", "top/b/c.bin": bytes(range(256)) * 20, "top/b/d.txt": b""}


def all_members(source: Path) -> dict[str, bytes]:
    return dict(read_members(source, lambda name: True))


@pytest.mark.parametrize("kind", [*KINDS, ".tar.bz2"])
def test_every_kind_of_archive_gives_the_same_files(tmp_path: Path, kind: str) -> None:
    source = pack(FILES, tmp_path / "in", "x", kind)
    assert all_members(source) == FILES
    assert dict(read_members(source, lambda name: name.endswith(".bin"))) == {"top/b/c.bin": FILES["top/b/c.bin"]}


def test_names_lose_a_leading_dot_and_folders_are_not_files(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("./top")
    folder.type = tarfile.DIRTYPE
    file = tarfile.TarInfo("./top/a.txt")
    file.size = 1
    assert all_members(tar_with(tmp_path / "x.tar", folder, file)) == {"top/a.txt": b"x"}


def test_a_missing_archive_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no archive or folder at"):
        all_members(tmp_path / "x.zip")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "C:/x", "..\\x", "\\\\host\\x"])
@pytest.mark.parametrize("kind", [".tar.gz", ".zip"])
def test_paths_that_lead_outside_the_archive_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    source = pack({name: b"x"}, tmp_path, "x", kind)
    with pytest.raises(ValueError, match="refused, it names a path outside the archive"):
        all_members(source)


@pytest.mark.parametrize("type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, type_: bytes) -> None:
    member = tarfile.TarInfo("top/a.txt")
    member.type, member.linkname = type_, "/etc/passwd"
    source = tar_with(tmp_path / "x.tar", member)
    with pytest.raises(ValueError, match=r"refused, it contains a link or a device at 'top/a.txt'"):
        all_members(source)


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    source = zip_with_link(tmp_path / "x.zip")
    with pytest.raises(ValueError, match="refused, it contains a link or a device at 'link'"):
        all_members(source)


@pytest.mark.parametrize("kind", [".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip"])
def test_a_truncated_archive_is_never_accepted_as_complete(tmp_path: Path, kind: str) -> None:
    source = pack({name: content[:700] for name, content in FILES.items()}, tmp_path, "x", kind)
    whole = source.read_bytes()
    # A tar ends in blocks of zeros; nothing is lost without the last of them.
    end = len(whole.rstrip(b"\0")) if kind == ".tar" else len(whole)
    for size in sorted({*range(0, end, 37), end - 1, end // 512 * 512}):
        source.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged or incomplete"):
            all_members(source)


@pytest.mark.parametrize("kind", [".tar.gz", ".tar.bz2", ".tar.xz", ".zip"])
def test_a_flipped_byte_is_noticed_or_changes_no_file(tmp_path: Path, kind: str) -> None:
    files = {name: content[:300] for name, content in FILES.items()}
    source = pack(files, tmp_path, "x", kind)
    whole = source.read_bytes()
    noticed = 0
    for offset in range(len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x40
        source.write_bytes(damaged)
        try:
            found = all_members(source)
        except ValueError:
            noticed += 1
        else:
            assert found == files, f"byte {offset}"  # such as a time stamp or a comment
    assert noticed > len(whole) / 2


def test_a_damaged_header_does_not_end_a_plain_tar_early(tmp_path: Path) -> None:
    source = pack(FILES, tmp_path, "x", ".tar")
    content = bytearray(source.read_bytes())
    content[content.index(b"top/b/c.bin")] ^= 1
    source.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged or incomplete \(bad checksum where a member or the end mark"):
        all_members(source)


def test_the_checksum_at_the_end_is_verified_although_tar_stops_before_it(tmp_path: Path) -> None:
    source = pack(FILES, tmp_path, "x", ".tar.gz")
    content = bytearray(source.read_bytes())
    content[-8] ^= 1
    source.write_bytes(content)
    with pytest.raises(ValueError, match="CRC check failed"):
        all_members(source)


def test_an_encrypted_zip_is_reported_as_unsupported(tmp_path: Path) -> None:
    source = pack({"a": b"x"}, tmp_path, "x", ".zip")
    content = bytearray(source.read_bytes())
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + flags] |= 1
    source.write_bytes(content)
    with pytest.raises(ValueError, match=r"packed in an unsupported way \(.*encrypted"):
        all_members(source)


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_a_file_that_only_has_the_name_of_an_archive_is_reported_as_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("<html>404</html>")
    with pytest.raises(ValueError, match="damaged or incomplete"):
        all_members(tmp_path / name)


def test_archives_are_recognised_by_their_names() -> None:
    assert all(is_archive(Path(f"a{kind}")) for kind in (".tar", ".TGZ", ".tar.GZ", ".tar.xz", ".tar.bz2", ".zip"))
    assert not any(is_archive(Path(name)) for name in ("a.gz", "a.zip.part", "a.bin", "tar"))


def test_a_dataset_is_a_known_folder_or_else_the_archive_with_the_shortest_name(tmp_path: Path) -> None:
    places = [tmp_path / "absent", tmp_path / "place"]
    assert find_dataset(places, [("top", "a.txt")], "data") is None
    for stem in ("data-subset", "data", "other"):
        pack(FILES, places[1], stem, ".zip")
    (places[1] / "data.zip.part").write_bytes(b"")
    (places[1] / "DATA.tar").mkdir()
    assert find_dataset(places, [("top", "a.txt")], "data") == places[1] / "data.zip"
    pack(FILES, places[1], "", "folder")
    assert find_dataset(places, [("top", "a.txt")], "data") == places[1] / "top"
    assert zipfile.is_zipfile(places[1] / "data.zip")


def test_the_error_for_missing_data_says_where_it_looked_and_how_to_download_it() -> None:
    message = str(dataset_not_found("cifar10", [Path("one"), Path("two")], "an archive"))
    for part in ("cifar10 was not found", "Looked in: one, two", "`dynamicgate data get cifar10`", "DYNAMICGATE_DATA"):
        assert part in message
