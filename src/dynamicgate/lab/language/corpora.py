"""The texts: books and Python source, found in the data folder, checked, and written once as arrays of tokens.

books: public-domain books, split by book, as `books/{train,valid,test}.txt.xz`.
python: the .py files of pinned wheels, split by package, in `python-source/`; `fetch_python` downloads them.
wikitext-2: `wikitext-2/{valid,test}.txt`, to test on only: it has no training part here. `wikitext-2-plain` is the same
text as people would write it, for models that were trained on such text.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dynamicgate.files import write_atomically, write_text
from dynamicgate.lab.datasets.data_folders import cache_folders, default_data_dir
from dynamicgate.lab.language.text import PARTS, Text, read_tokens
from dynamicgate.lab.language.tokenizers import make_tokenizer, read_vocabulary, some_of

TEXT_FILES = {
    "books": {
        "train": ("books/train.txt.xz", "61844582f30fb6fbb6b23774be76123826a0d69fc1eb8f1f0c7a86f72c79e628"),
        "valid": ("books/valid.txt.xz", "b4b9dc8048d84070a3ca16d63bd9a2bf746cb8b54a7506b691bc7b26d23f573f"),
        "test": ("books/test.txt.xz", "6a17dfdff5c96c8e287123a4db13a7dc682458cd4cb09f3b5aa451fa7570535e"),
    },
    "wikitext-2": {
        "valid": ("wikitext-2/valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
        "test": ("wikitext-2/test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    },
}
WHEELS = Path(__file__).with_name("python_wheels.json")  # name, version and sha256 of each wheel, by part
PYTHON_FOLDER = "python-source"
CORPORA = ("books", "python")
PLAIN = "wikitext-2-plain"


def load_text(
    name: str, tokenizer: str = "bytes", *, data_dir: Path | None = None, vocabulary: Path | None = None
) -> Text:
    """A corpus in tokens: made from its files once, and kept in a folder `language` of the data or the cache folder.

    vocabulary: the tokenizer.json of a pretrained model, for which `tokenizer` is then the name.
    """
    stem = f"{name}-{tokenizer}"
    for folder in _folders(data_dir):
        if (folder / f"{stem}.json").is_file():
            return _read(folder, stem)
    raw = read_parts(name, data_dir)
    for folder in _folders(data_dir):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write(folder, stem, name, tokenizer, raw, vocabulary)
        except PermissionError:
            continue
    raise OSError(f"none of the folders for prepared text can be written: {', '.join(map(str, _folders(data_dir)))}")


def with_other_text(text: Text, name: str, *, data_dir: Path | None = None) -> Text:
    """`text` and, as a part of its own, the test part of another corpus in the same tokens: to measure on."""
    raw = read_parts(name, data_dir)["test"]
    digest = hashlib.sha256(raw).hexdigest()
    return replace(
        text,
        tokens={**text.tokens, name: text.make_tokenizer().encode(raw)},
        bytes={**text.bytes, name: len(raw)},
        sha256={**text.sha256, name: digest},
    )


def write_sample(
    name: str, tokenizer: str, folder: Path, *, data_dir: Path | None, vocabulary: Path, most: int
) -> Text:
    """What `load_text` finds in `folder`, with at most about `most` bytes of training text, taken from all over it: for
    a machine that gets its files one by one. The other parts are whole."""
    raw = {part: some_of(text, most) if part == "train" else text for part, text in read_parts(name, data_dir).items()}
    (folder / "language").mkdir(parents=True, exist_ok=True)
    return _write(folder / "language", f"{name}-{tokenizer}", name, tokenizer, raw, vocabulary)


def _folders(data_dir: Path | None) -> list[Path]:
    near = data_dir or default_data_dir()
    return [near / "language", *(place / "language" for place in cache_folders(near, None))]


def read_parts(name: str, data_dir: Path | None = None) -> dict[str, bytes]:
    """The text of each part, from checked files."""
    folder = data_dir or default_data_dir()
    if name == PLAIN:
        raw = read_parts("wikitext-2", data_dir)
        return {part: detokenised(text.decode("utf-8")).encode("utf-8") for part, text in raw.items()}
    if name == "python":
        return {part: _python_source(folder / PYTHON_FOLDER, wheels) for part, wheels in python_wheels().items()}
    if name not in TEXT_FILES:
        raise ValueError(f"unknown text {name!r}: expected one of {', '.join([*TEXT_FILES, 'python', PLAIN])}")
    return {part: _checked(folder / path, digest) for part, (path, digest) in TEXT_FILES[name].items()}


def detokenised(text: str) -> str:
    """WikiText as people would write it: it comes with spaces around punctuation, and @-@ for a hyphen."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([,.;:!?)\]'%])", r"\1", re.sub(r"([(\[]) ", r"\1", text))
    return re.sub(r" n't", "n't", re.sub(r'" ([^"]*) "', r'"\1"', text))


def _checked(path: Path, digest: str) -> bytes:
    """The bytes of a file, decompressed, if they are the right ones."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: put it there, or name the folder with the data in DYNAMICGATE_DATA"
        )
    raw = path.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise ValueError(f"{path} is not the expected file: its sha256 is {found}, expected {digest}")
    return lzma.decompress(raw) if path.suffix == ".xz" else raw


def python_wheels() -> dict[str, dict[str, str]]:
    """The wheels of each part: file name to sha256."""
    return json.loads(WHEELS.read_text(encoding="utf-8"))


def fetch_python(data_dir: Path | None = None) -> Path:
    """Download the pinned wheels with pip and check them; those that are there are kept. Returns their folder."""
    folder = (data_dir or default_data_dir()) / PYTHON_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for wheels in python_wheels().values():
        for file, digest in wheels.items():
            if not (folder / file).is_file():
                package, version = file.split("-")[:2]
                words = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
                subprocess.run([sys.executable, *words, f"{package}=={version}"], check=True)
            _checked(folder / file, digest)
    return folder


def _python_source(folder: Path, wheels: Mapping[str, str]) -> bytes:
    """The .py files of these wheels in the order of their names, a form feed between them."""
    files: list[bytes] = []
    for name, digest in sorted(wheels.items()):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing: run python -m experiments.language fetch")
        _checked(folder / name, digest)
        with zipfile.ZipFile(folder / name) as wheel:
            files += [wheel.read(file) for file in sorted(wheel.namelist()) if file.endswith(".py")]
    return b"\f".join(file for file in files if file.strip())


def _write(
    folder: Path, stem: str, name: str, tokenizer: str, raw: Mapping[str, bytes], vocabulary: Path | None
) -> Text:
    if vocabulary is None:
        made = make_tokenizer(tokenizer, raw.get("train"), folder / f"{stem}-vocabulary.json")
    else:
        made = read_vocabulary(vocabulary)
    for part, data in raw.items():
        tokens = made.encode(data)
        write_atomically(folder / f"{stem}-{part}.bin", lambda path, tokens=tokens: tokens.tofile(path))  # type: ignore[misc]
    about = {
        "name": name, "tokenizer": tokenizer, "vocabulary": made.size, "dtype": made.dtype,
        "bytes": {part: len(data) for part, data in raw.items()},
        "sha256": {part: hashlib.sha256(data).hexdigest() for part, data in raw.items()},
    }  # fmt: skip
    write_text(folder / f"{stem}.json", json.dumps(about, indent=1) + "\n")
    return _read(folder, stem)


def _read(folder: Path, stem: str) -> Text:
    about = json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
    tokens: dict[str, np.ndarray] = {
        part: read_tokens(folder / f"{stem}-{part}.bin", about["dtype"]) for part in PARTS if part in about["bytes"]
    }
    return Text(
        about["name"], about["tokenizer"], about["vocabulary"], tokens, about["bytes"], about["sha256"],
        folder / f"{stem}-vocabulary.json",
    )  # fmt: skip
