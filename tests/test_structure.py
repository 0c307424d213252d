"""Rules about the repository that a reader would otherwise have to believe."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from experiments.continual.tables import CONTINUAL

import dynamicgate
from tests.places import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST = 350
DIALECT = {
    r"\bgates_of\b": "named_gates",
    r"\b[Ll]edgers?\b": "MacCounter",
    r"\b[Rr]ewirers?\b": "Sparsifier",
    r"\brecipe_\b": "sparsify_",
    r"\bdata sets?\b": "dataset",
    r"\bimport floors\b|\bfloors of the house\b|\bhouse (rules|style)\b": "layers, style",
    r"\blearn(s|ed)? by heart\b": "overfit",
    r"\bhard model('s|s)?\b": "reference model",
    r"\bunserved\b": "dropped",
}


def written() -> list[Path]:
    """Everything people read: code, pages, and texts of the report."""
    places = ("src", "docs", "examples", "experiments", "benchmarks", "tests", "csrc")
    kinds = (".py", ".md", ".j2", ".js", ".cpp", ".h")
    files = [path for place in places for path in (ROOT / place).rglob("*") if path.suffix in kinds]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(path for path in files if path != Path(__file__))]


def test_no_source_file_is_longer_than_350_lines() -> None:
    assert {
        str(path.relative_to(ROOT)): n for path in SOURCES if (n := len(path.read_text("utf-8").splitlines())) > LONGEST
    } == {}


def test_the_public_api_is_small_documented_and_in_one_place() -> None:
    assert len(dynamicgate.__all__) <= 21
    for name in dynamicgate.__all__:
        assert getattr(dynamicgate, name).__doc__, name
    listed = {name for names in dynamicgate._HOME.values() for name in names} | set(dynamicgate._MODULES)
    assert set(dynamicgate.__all__) <= listed
    assert set(dynamicgate.__all__) <= set(dir(dynamicgate))


def test_modules_that_are_no_longer_top_level_names_are_still_attributes() -> None:
    assert "calibrate_" in dynamicgate.__all__
    assert "schedule" not in dynamicgate.__all__
    assert "schedule" in dir(dynamicgate)
    assert dynamicgate.schedule.linear(1.0, 0.5)(0.5) == 0.75
    assert dynamicgate.training.StageLoss.__doc__


def test_every_package_says_what_it_holds() -> None:
    for path in SOURCES:
        if path.name == "__init__.py":
            assert path.read_text("utf-8").startswith('"""'), path


def test_the_layers_name_every_part_of_the_package() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with tomllib, which Python has from 3.11 on")
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["type"] == "layers" and c["containers"] == ["dynamicgate"])
    named = {name for layer in layers["layers"] for name in layer.replace(" ", "").split("|")}
    package = ROOT / "src" / "dynamicgate"
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - named == {"__init__", "__main__", "_version"}
    assert layers["layers"][0] == "lab", "nothing of the core imports the lab"
    assert any(c["type"] == "acyclic_siblings" for c in contracts)


@pytest.mark.parametrize("word", DIALECT)
def test_words_of_the_field_are_used(word: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in written()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if re.search(word, line)
    ]
    assert found == [], f"say {DIALECT[word]}"


def test_results_are_a_few_files() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "experiments/results", "benchmarks/results"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a checkout")
    files = [ROOT / name for name in listed.stdout.split()]
    one_run = {f"{table.name}.jsonl" for table in CONTINUAL.tables if len(CONTINUAL.jobs([table])) == 1}
    single = {path.name for path in files if path.suffix == ".jsonl" and len(path.read_bytes().splitlines()) < 3}
    assert single <= one_run, "one file a table, never one a run: several runs, where several are asked for"
    crowded = [folder for folder, count in Counter(path.parent.name for path in files).items() if count >= 40]
    assert crowded == []
