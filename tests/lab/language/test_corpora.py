"""Texts: checked files, parts that are kept apart, tokens that turn back into the text."""

from __future__ import annotations

import hashlib
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dynamicgate.lab.language import corpora
from dynamicgate.lab.language import tokenizers as tokenizers_of_texts
from dynamicgate.lab.language.tokenizers import make_tokenizer

PROSE = "Call me Ishmael. Some years ago - never mind how long precisely - ñ.\n" * 200


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {}
    (tmp_path / "books").mkdir()
    for part in ("train", "valid", "test"):
        raw = lzma.compress(f"{part}\n{PROSE}".encode())
        (tmp_path / "books" / f"{part}.txt.xz").write_bytes(raw)
        files[part] = (f"books/{part}.txt.xz", hashlib.sha256(raw).hexdigest())
    monkeypatch.setattr(corpora, "TEXT_FILES", {"books": files})
    return tmp_path


def test_a_text_is_made_once(data_dir: Path) -> None:
    text = corpora.load_text("books", data_dir=data_dir)
    assert bytes(text.tokens["valid"]) == f"valid\n{PROSE}".encode()
    assert text.bytes_a_token("valid") == 1.0
    (data_dir / "books" / "train.txt.xz").unlink()  # the prepared text is enough
    again = corpora.load_text("books", data_dir=data_dir)
    assert again.sizes() == text.sizes()
    assert again.sizes()["train"] == len(PROSE.encode()) + 6


def test_byte_pairs_turn_back_into_the_text(data_dir: Path) -> None:
    text = corpora.load_text("books", "bpe300", data_dir=data_dir)
    tokens = text.tokens["test"]
    assert text.vocabulary == 300
    assert tokens.dtype == np.uint16
    assert text.bytes_a_token("test") > 1.5
    made = make_tokenizer("bpe300", None, data_dir / "language" / "books-bpe300-vocabulary.json")
    assert made.decode(tokens.tolist()) == f"test\n{PROSE}".encode()


def test_another_file_is_refused(data_dir: Path) -> None:
    (data_dir / "books" / "valid.txt.xz").write_bytes(lzma.compress(b"another text"))
    with pytest.raises(ValueError, match="is not the expected file"):
        corpora.load_text("books", data_dir=data_dir)


def test_missing_and_unknown_texts_are_one_sentence(data_dir: Path) -> None:
    (data_dir / "books" / "valid.txt.xz").unlink()
    with pytest.raises(FileNotFoundError, match="DYNAMICGATE_DATA"):
        corpora.load_text("books", data_dir=data_dir)
    with pytest.raises(ValueError, match="unknown text 'poems'"):
        corpora.load_text("poems", data_dir=data_dir)
    with pytest.raises(FileNotFoundError, match="language fetch"):
        corpora.load_text("python", data_dir=data_dir)
    with pytest.raises(ValueError, match="unknown tokenizer 'words'"):
        make_tokenizer("words", b"", data_dir)
    with pytest.raises(ValueError, match="no training text"):
        make_tokenizer("bpe300", None, data_dir / "none.json")


def test_python_source_is_the_py_files_of_checked_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / corpora.PYTHON_FOLDER
    folder.mkdir()
    wheels: dict[str, dict[str, str]] = {}
    for part in ("train", "valid", "test"):
        with zipfile.ZipFile(folder / f"{part}.whl", "w") as wheel:
            wheel.writestr("b.py", f"# {part}\n")
            wheel.writestr("a.py", "import b\n")
            wheel.writestr("empty.py", "\n")
            wheel.writestr("data.txt", "no source")
        wheels[part] = {f"{part}.whl": hashlib.sha256((folder / f"{part}.whl").read_bytes()).hexdigest()}
    listed = tmp_path / "wheels.json"
    listed.write_text(json.dumps(wheels))
    monkeypatch.setattr(corpora, "WHEELS", listed)
    text = corpora.load_text("python", data_dir=tmp_path)
    assert bytes(text.tokens["test"]) == b"import b\n\f# test\n"


def test_the_listed_wheels_are_in_one_part_only() -> None:
    parts = corpora.python_wheels()
    names = [wheel.split("-")[0] for wheels in parts.values() for wheel in wheels]
    assert set(parts) == {"train", "valid", "test"}
    assert len(names) == len(set(names))


def test_a_pretrained_tokenizer_makes_tokens_without_marks(data_dir: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    corpora.load_text("books", "bpe300", data_dir=data_dir)
    own = tokenizers.Tokenizer.from_file(str(data_dir / "language" / "books-bpe300-vocabulary.json"))
    first = own.token_to_id("C")
    own.post_processor = tokenizers.processors.TemplateProcessing(single="C $A", special_tokens=[("C", first)])
    own.enable_truncation(8)
    own.save(str(data_dir / "tokenizer.json"))
    text = corpora.load_text("books", "mine", data_dir=data_dir, vocabulary=data_dir / "tokenizer.json")
    learned = corpora.load_text("books", "bpe300", data_dir=data_dir)
    assert np.array_equal(text.tokens["test"], learned.tokens["test"])


def test_a_sample_has_less_to_train_on_and_all_of_the_rest(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers_of_texts, "PIECE", 100)
    corpora.load_text("books", "bpe300", data_dir=data_dir)
    vocabulary = data_dir / "language" / "books-bpe300-vocabulary.json"
    out = data_dir / "out"
    corpora.write_sample("books", "mine", out, data_dir=data_dir, vocabulary=vocabulary, most=len(PROSE) // 4)
    text = corpora.load_text("books", "mine", data_dir=out)  # nothing else is needed
    assert text.bytes["train"] == pytest.approx(len(PROSE.encode()) / 4, rel=0.05)
    assert text.bytes["test"] == len(PROSE.encode()) + 5


def test_wikitext_is_read_as_people_would_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b'The ship , a well @-@ built one ( 1,5 @.@ 2 m ) , did n\'t sink ; " no " .\n'
    (tmp_path / "test.txt").write_bytes(raw)
    files = {"test": ("test.txt", hashlib.sha256(raw).hexdigest())}
    monkeypatch.setattr(corpora, "TEXT_FILES", {"wikitext-2": files})
    text = corpora.load_text(corpora.PLAIN, data_dir=tmp_path)
    assert bytes(text.tokens["test"]) == b'The ship, a well-built one (1,5.2 m), didn\'t sink; "no".\n'
    assert bytes(corpora.load_text("wikitext-2", data_dir=tmp_path).tokens["test"]) == raw
