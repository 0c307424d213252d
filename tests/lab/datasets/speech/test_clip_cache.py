"""The cache of clips: read instead of the recordings, rebuilt when outdated, put where it can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamicgate.lab.datasets.speech import clip_cache
from dynamicgate.lab.datasets.speech.speech_commands import load_speech_commands

from .small_speech_commands import equal_splits, load, small_dataset
from .wav_writers import tone, wav_bytes, write_files, write_tar


def test_a_second_load_reads_only_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tar(tmp_path / "speech_commands_v0.01.tar.gz", small_dataset())
    first = load_speech_commands(tmp_path, 0)
    written = sorted(path.name for path in (tmp_path / ".cache").iterdir())
    assert [Path(name).suffix for name in written] == [".npz", ".rows"]
    monkeypatch.setattr(clip_cache, "read_members", None)
    assert equal_splits(load_speech_commands(tmp_path, 0), first)
    monkeypatch.setattr(clip_cache, "log_mel", None)  # other labels use other rows of the same cache
    assert load_speech_commands(tmp_path, 3, labels="all").classes == 12
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in (tmp_path / ".cache").iterdir()) == written


def test_other_features_a_changed_source_or_a_damaged_cache_make_it_read_again(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "speech_commands", small_dataset())
    cache = tmp_path / "cache"
    first = load(tmp_path, cache)
    load(tmp_path, cache, features="text")
    load(tmp_path, cache, augment=True)
    assert len(list(cache.glob("*.rows"))) == 3
    (folder / "yes" / "aa_nohash_0.wav").write_bytes(wav_bytes(tone(3000)))
    changed = load(tmp_path, cache)
    assert len(list(cache.glob("*.rows"))) == 4
    assert not changed.train.x.equal(first.train.x)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    assert equal_splits(load(tmp_path, cache), changed)


def test_the_cache_goes_elsewhere_if_the_data_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    write_tar(data / "speech_commands_v0.01.tar", small_dataset())
    monkeypatch.setenv("DYNAMICGATE_DATA", str(tmp_path / "mine"))
    data.chmod(0o555)
    try:
        load_speech_commands(data, 0)
        assert sorted(path.name for path in data.iterdir()) == ["speech_commands_v0.01.tar"]
        assert len(list((tmp_path / "mine" / ".cache").iterdir())) == 2
        with pytest.raises(PermissionError, match=r"no folder to cache the clips in: .*give another with cache_dir="):
            load_speech_commands(data, 0, features="text", cache_dir=data / "cache")
    finally:
        data.chmod(0o755)
