"""The cache of decoded images: made once, made again when damaged or outdated, never half there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamicgate.lab.datasets.images import image_cache
from dynamicgate.lab.datasets.images.image_cache import (
    DecodingJob,
    ImageLabels,
    Part,
    load_or_decode,
    source_fingerprint,
)
from dynamicgate.lab.datasets.images.pixels import decode_image

from ..archive_writers import image_bytes

RNG = np.random.default_rng(0)


class Source:
    """Three images in memory, and a count of how often they were read."""

    def __init__(self, fingerprint: object = 0) -> None:
        self.pixels = RNG.integers(0, 256, (3, 2, 2, 3), dtype=np.uint8)
        self.read = 0
        self.job = DecodingJob(
            "three",
            Path("memory"),
            (3, 2, 2),
            fingerprint,
            self.members,
            partial(decode_image, shape=(3, 2, 2)),
            self.assign_labels,
        )

    def members(self) -> Iterator[tuple[str, bytes]]:
        self.read += 1
        for number, pixels in enumerate(self.pixels):
            yield f"{number}.png", image_bytes(pixels)

    def assign_labels(self, names: Sequence[str]) -> ImageLabels:
        assert list(names) == ["0.png", "1.png", "2.png"]
        return ImageLabels(["no", "yes"], {"train": Part([2, 0], [1, 0]), "test": Part([1], [1])})

    def check(self, folder: Path) -> None:
        parts, names = load_or_decode(self.job, [folder])
        assert names == ("no", "yes")
        assert parts["train"].y.tolist() == [1, 0]
        stored = parts["train"].x[torch.arange(2)].numpy()
        assert np.array_equal(stored, self.pixels[[2, 0]].transpose(0, 3, 1, 2))
        assert parts["test"].features == 12


def test_images_are_decoded_once(tmp_path: Path) -> None:
    source = Source()
    source.check(tmp_path)
    source.check(tmp_path)
    assert source.read == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".u8"]
    about = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert (about["shape"], about["source"]) == ([3, 3, 2, 2], "memory")


def test_another_fingerprint_gets_another_cache(tmp_path: Path) -> None:
    Source(1).check(tmp_path)
    Source(2).check(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


CHECKSUMS = ("other rows", "other labels", "another pixel")


@pytest.mark.parametrize(
    "damage", ["shorter", "longer", "no json", "half a json", "no bytes", "not a dict", "no checksum", *CHECKSUMS]
)
def test_a_damaged_or_incomplete_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    source = Source()
    source.check(tmp_path)
    pixels, about = next(tmp_path.glob("*.u8")), next(tmp_path.glob("*.json"))
    text = about.read_text()
    match damage:
        case "shorter" | "longer":
            pixels.write_bytes(pixels.read_bytes()[:-1] if damage == "shorter" else pixels.read_bytes() + b"x")
        case "no json":
            about.unlink()
        case "half a json":
            about.write_text(text[: len(text) // 2])
        case "no bytes":
            pixels.unlink()
        case "other rows":
            about.write_text(text.replace('"rows": [2, 0]', '"rows": [3, 0]'))
        case "other labels":
            about.write_text(text.replace('"labels": [', '"labels": [77, '))
        case "another pixel":
            pixels.write_bytes(bytes([pixels.read_bytes()[0] ^ 1]) + pixels.read_bytes()[1:])
        case "no checksum":
            about.write_text(text.replace("sha256", "sha255"))
        case "not a dict":
            about.write_text("[]")
    with pytest.warns(UserWarning, match="was damaged since") if damage in CHECKSUMS else nullcontext():
        source.check(tmp_path)
    assert source.read == 2


def test_a_killed_run_leaves_nothing_that_looks_like_data(tmp_path: Path) -> None:
    source = Source()
    on_disk: dict[str, bytes] = {}

    def cut_short() -> Iterator[tuple[str, bytes]]:
        yield from list(source.members())[:2]
        on_disk.update((path.name, path.read_bytes()) for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_decode(replace(source.job, members=cut_short), [tmp_path])
    assert list(tmp_path.iterdir()) == [], "an interrupted run cleans up; a killed one cannot"
    assert [name[: name.rindex(".")] for name in on_disk] == [f".{source.job.key}.u8"]
    left = [tmp_path / name for name in on_disk]
    left[0].write_bytes(on_disk[left[0].name])
    source = Source()
    source.check(tmp_path)
    assert source.read == 1
    assert not left[0].exists(), "nobody writes to it any more"


def test_an_unreadable_image_is_named_and_leaves_no_cache(tmp_path: Path) -> None:
    source = Source()
    bad = [("good.png", image_bytes(source.pixels[0])), ("bad", b"x")]
    with pytest.raises(ValueError, match=r"memory: bad: not a readable image \(.*\); replace or remove it"):
        load_or_decode(replace(source.job, members=lambda: iter(bad)), [tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_slow_decoding_reports_its_progress_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_cache, "REPORT_EVERY_S", -1.0)
    Source().check(tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"three: 3 images decoded into {tmp_path} (only the first time)" in err


def test_a_read_only_folder_is_read_but_not_written_to(tmp_path: Path) -> None:
    read_only, writable = tmp_path / "read_only", tmp_path / "writable"
    read_only.mkdir()
    source = Source()
    read_only.chmod(0o555)
    try:
        load_or_decode(source.job, [read_only / ".cache", writable / ".cache"])
        assert list(read_only.iterdir()) == []
        assert len(list((writable / ".cache").iterdir())) == 2
        with pytest.raises(
            PermissionError, match=r"no folder for the decoded images of memory can be written to .*cache_dir="
        ):
            load_or_decode(Source(7).job, [read_only / ".cache"])
    finally:
        read_only.chmod(0o755)
    (writable / ".cache").rename(read_only / ".cache")
    (read_only / ".cache").chmod(0o555)
    load_or_decode(source.job, [read_only / ".cache", writable / ".cache"])
    (read_only / ".cache").chmod(0o755)
    assert source.read == 1


def test_a_full_disk_is_reported_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not decode memory into .* \(\[Errno 28\] No space left.*cache_dir="):
        load_or_decode(Source().job, [tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_of_a_folder_changes_with_its_files_but_not_with_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"123")
    first = source_fingerprint(tmp_path)
    (tmp_path / "a" / ".DS_Store").write_bytes(b"1")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "y").write_bytes(b"1")
    assert source_fingerprint(tmp_path) == first
    os.utime(tmp_path / "a" / "x.png", (1, 1))
    second = source_fingerprint(tmp_path)
    (tmp_path / "a" / "x.png").rename(tmp_path / "a" / "y.png")
    third = source_fingerprint(tmp_path)
    assert len({json.dumps(fingerprint) for fingerprint in (first, second, third)}) == 3
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"12")
    assert source_fingerprint(archive) == [["x.zip", 2, archive.stat().st_mtime_ns, archive.stat().st_ctime_ns]]
