"""`dynamicgate data`: what there is, fetch it, check it, describe it."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, subcommand

from dynamicgate.lab.cli.dataset_summary import as_lines, describe
from dynamicgate.lab.cli.options import loader_options
from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.download import get, readable
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.sources import SOURCES, Source
from dynamicgate.lab.datasets.verification import locate, verify


@dataclass(frozen=True)
class ListData:
    """Show the known datasets: what they are, whether they are here, their size and licence."""

    data_dir: Path | None = None
    """Folder with the data files; by default the variable DYNAMICGATE_DATA, else the cache folder of the platform."""
    json: bool = False
    """Print JSON instead."""

    def run(self) -> int:
        """Print it."""
        folder = _folder(self.data_dir)
        rows = [_row(source, folder) for source in SOURCES.values()]
        if self.json:
            print(json.dumps({"data_dir": str(folder), "datasets": rows}, indent=1))
            return 0
        print(f"data folder: {folder}")
        for row in rows:
            size = f" ({readable(row['size'])})" if row["size"] else ""
            more = f" and {len(row['where']) - 1} more" if len(row["where"]) > 1 else ""
            where = f"here: {row['where'][0]}{more}" if row["where"] else f"not here: {row['get']}"
            print(f"\n{row['name']:<16} {row['description']}")
            print(f"{'':<16} {where}{size}")
            print(f"{'':<16} licence: {row['licence']}")
        return 0


@dataclass(frozen=True)
class Get:
    """Fetch a dataset, verified by its checksums. What is there already is not fetched again.

    For example:

      dynamicgate data get mnist --data-dir DATA
      dynamicgate data get speech-commands --file speech_commands_v0.01.tar.gz
    """

    name: Positional[str]
    """A dataset of `dynamicgate data list`, or all."""
    file: UseAppendAction[tuple[str, ...]] = ()
    """Only this file of it; can be repeated."""
    data_dir: Path | None = None
    """Folder for the data files."""

    def run(self) -> int:
        """Fetch and say where."""
        failures = []
        for name in SOURCES if self.name == "all" else [self.name]:
            try:
                paths = get(name, _folder(self.data_dir), files=self.file, progress=sys.stderr.isatty())
            except OSError as error:  # with all of them, one that cannot be had should not keep the others away
                failures.append(str(error))
                continue
            for path in paths:
                print(path)
            if not paths:
                print(f"{name} has no files to fetch: {SOURCES[name].description}")
            if SOURCES[name].options:
                needed = ",".join(f"{key}={value}" for key, value in SOURCES[name].options)
                print(f"these files alone load with --data-option {needed}")
        if failures:
            raise OSError(". ".join(failures))
        return 0


@dataclass(frozen=True)
class Verify:
    """Check data files: official ones by checksum, others by reading every byte, and all by loading them.

    For example:

      dynamicgate data verify mnist cifar10

    Ends with 1 if something is wrong.
    """

    names: Positional[tuple[str, ...]] = ()
    """Datasets of `dynamicgate data list`; none, or all, for those that are here."""
    option: UseAppendAction[tuple[str, ...]] = ()
    """An option of the loader as KEY=VALUE."""
    data_dir: Path | None = None
    """Folder with the data files."""

    def run(self) -> int:
        """Check and say."""
        folder = _folder(self.data_dir)
        options = dict(loader_options(self.option, None, "--option"))
        everything = not self.names or self.names == ("all",)
        names = [name for name in SOURCES if locate(name, folder)] if everything else self.names
        if not names:
            raise FileNotFoundError(f"no known dataset is in {folder}: fetch one with `dynamicgate data get NAME`")
        findings = [finding for name in names for finding in verify(name, folder, options=options)]
        for finding in findings:
            print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.text}")
        return 0 if all(finding.ok for finding in findings) else 1


@dataclass(frozen=True)
class Info:
    """Describe a dataset: rows and classes of each part, features, normalisation, licence, citation.

    For example:

      dynamicgate data info mnist
      dynamicgate data info cells.h5ad --target cell_type --json
    """

    name: Positional[str]
    """A dataset of `dynamicgate data list`, or the path of your own file or folder."""
    option: UseAppendAction[tuple[str, ...]] = ()
    """An option of the loader as KEY=VALUE, e.g. labels=leiden; several with commas, or by repeating this option."""
    target: str | None = None
    """Column that holds the classes, in a .csv, .parquet or .h5ad file."""
    seed: int = 0
    """Seed of the validation part."""
    data_dir: Path | None = None
    """Folder with the data files."""
    json: bool = False
    """Print JSON instead."""

    def run(self) -> int:
        """Load it and print."""
        options = dict(loader_options(self.option, self.target, "--option"))
        splits = load_dataset(self.name, data_dir=self.data_dir, seed=self.seed, options=options)
        found = describe(splits, SOURCES.get(self.name))
        print(json.dumps(found, indent=1) if self.json else "\n".join(as_lines(found)))
        return 0


@dataclass(frozen=True)
class Data:
    """List, fetch, verify and describe datasets."""

    action: OmitArgPrefixes[
        Annotated[ListData, subcommand("list", prefix_name=False)]
        | Annotated[Get, subcommand("get", prefix_name=False)]
        | Annotated[Verify, subcommand("verify", prefix_name=False)]
        | Annotated[Info, subcommand("info", prefix_name=False)]
    ]

    def run(self) -> int:
        """Do it."""
        return self.action.run()


def _row(source: Source, folder: Path) -> dict[str, Any]:
    paths = locate(source.name, folder)
    where, how = [str(path) for path in paths], f"dynamicgate data get {source.name}"
    if not source.files:
        where = ["in scikit-learn"] if importlib.util.find_spec("sklearn") else []
        how = "pip install 'dynamicgate[sklearn]'"
    return {
        "name": source.name,
        "description": source.description,
        "where": where,
        "get": how,
        "size": sum(map(_size, paths)) if paths else source.size,
        "licence": source.licence,
    }


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def _folder(given: Path | None) -> Path:
    return default_data_dir() if given is None else given.expanduser()
