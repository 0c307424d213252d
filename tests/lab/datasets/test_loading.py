"""`load_dataset`: names, paths and options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynamicgate.lab.datasets import LOADERS, load_dataset


@pytest.mark.parametrize("name", ["imagenet", "", "data.txt", "MNIST"])
def test_an_unknown_name_is_refused_with_a_list_of_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown dataset '{name}': expected one of cifar10, digits, mnist, .*\.npz"):
        load_dataset(name)


def test_a_table_without_a_target_says_which_option_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs the option target .*--target NAME"):
        load_dataset(tmp_path / "mine.csv")


def test_options_given_as_text_are_converted_to_the_types_the_loader_expects(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    rows = "\n".join(f"{i % 7},{i % 5},{'ab'[i % 2]},{i}" for i in range(60))
    table.write_text(f"one,two,kind,row\n{rows}\n")
    splits = load_dataset(table, options={"target": "kind", "drop": "row,two", "max_categories": "3"})
    assert splits.train.features == 1
    assert splits.class_names == ("a", "b")
    with pytest.raises(ValueError, match="option max_categories takes a whole number, received 'many'"):
        load_dataset(table, options={"target": "kind", "max_categories": "many"})


def test_an_unknown_option_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(ValueError, match="digits has no option 'colour'; its options are: none"):
        load_dataset("digits", options={"colour": "true"})
    with pytest.raises(ValueError, match=r"pbmc3k has no option 'colour'; its options are: .*labels"):
        load_dataset("pbmc3k", options={"colour": "true"})


def test_the_mapping_of_loaders_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        LOADERS["mine"] = None  # type: ignore[index]


def test_importing_the_datasets_does_not_import_the_optional_packages() -> None:
    code = "import sys, dynamicgate.lab.datasets; print(*{'sklearn', 'pandas', 'scanpy', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_data_in_memory_is_not_taken_for_a_path() -> None:
    with pytest.raises(TypeError, match="expected the name of a dataset or the path of a file, received list"):
        load_dataset([1, 2, 3])  # type: ignore[arg-type]
