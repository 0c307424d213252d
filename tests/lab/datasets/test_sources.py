"""The table of known datasets is complete and consistent."""

from __future__ import annotations

import dataclasses
import gzip
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dynamicgate.lab.datasets.loading import LOADERS
from dynamicgate.lab.datasets.sources import SOURCES, Source, SourceFile, get_source

FILES = [pytest.param(source, file, id=file.name) for source in SOURCES.values() for file in source.files]
HOSTS = {
    "ossci-datasets.s3.amazonaws.com",
    "storage.googleapis.com",
    "www.cs.toronto.edu",
    "cave.cs.toronto.edu",
    "cs231n.stanford.edu",
    "download.tensorflow.org",
    "cf.10xgenomics.com",
}


def test_every_dataset_that_can_be_loaded_by_name_has_a_source() -> None:
    assert sorted(SOURCES) == sorted(LOADERS)
    assert all(get_source(name).name == name for name in SOURCES)


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_a_source_has_a_description_a_licence_and_a_citation(source: Source) -> None:
    for text in (source.description, source.licence, source.citation, source.homepage):
        assert text.strip() == text != ""
    assert urlsplit(source.homepage).scheme in ("http", "https")
    assert bool(source.files) == (source.folder is not None)
    assert source.size == sum(file.size for file in source.files if file.by_default)


@pytest.mark.parametrize(("source", "file"), FILES)
def test_a_file_has_a_checksum_a_size_and_mirrors_on_the_known_hosts(source: Source, file: SourceFile) -> None:
    assert file.sha256 is not None
    checksums = {file.sha256: 64, file.md5: 32, file.unpacked_sha256: 64}
    assert all(len(text) == n and set(text) <= set("0123456789abcdef") for text, n in checksums.items() if text)
    assert file.size > 1000
    assert len(set(file.urls)) == len(file.urls) >= 1
    for url in file.urls:
        assert url.startswith("https://")
        assert url.endswith(f"/{file.name}")
        assert urlsplit(url).hostname in HOSTS
        assert urlsplit(url).scheme in ("http", "https")
    assert urlsplit(file.urls[0]).scheme == "https", "the encrypted one first"
    assert Path(file.name).name == file.name


def test_no_two_files_share_a_checksum() -> None:
    checksums = [file.sha256 for source in SOURCES.values() for file in source.files]
    assert len(set(checksums)) == len(checksums) == 9


def test_a_source_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOURCES["mnist"].licence = "mine"  # type: ignore[misc]
    with pytest.raises(TypeError):
        SOURCES["mine"] = SOURCES["mnist"]  # type: ignore[index]


def test_an_unknown_name_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"unknown dataset 'imagenet': expected one of {', '.join(SOURCES)}"):
        get_source("imagenet")


@pytest.mark.parametrize("file", SOURCES["mnist"].files, ids=lambda file: file.name)
def test_the_official_files_of_mnist_have_these_checksums(file: SourceFile, real_data: Path) -> None:
    content = (real_data / "MNIST/raw" / file.name).read_bytes()
    assert (len(content), sha256(content).hexdigest()) == (file.size, file.sha256)
    assert sha256(gzip.decompress(content)).hexdigest() == file.unpacked_sha256
