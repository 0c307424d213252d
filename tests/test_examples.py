"""Every script in examples/ runs as it is, from any folder, and leaves no file behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page_snippets import run_code
from tests.places import ROOT

NEED_WEIGHTS = ("hf_weights", "hf_smollm2", "hf_minilm")  # tests/hf/test_pretrained.py runs them
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in NEED_WEIGHTS]
REACHED = {"hf_train": "MACs per token"}
NEEDS = {"hf": "transformers", "lightning": "lightning", "skorch": "skorch"}


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "own_loop", "sparsify", "dynamic_sparse_training"}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_what_it_reached(path: Path, tmp_path: Path) -> None:
    if package := NEEDS.get(path.stem.partition("_")[0]):
        pytest.importorskip(package)
    if path.stem == "export":
        pytest.importorskip("onnxruntime")
    folder = tmp_path / "folder"
    folder.mkdir()
    printed = run_code(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')", folder, strict=False)
    assert REACHED.get(path.stem, "accuracy") in printed
    assert list(folder.iterdir()) == []
