"""`dynamicgate data`: list, download, verify and describe datasets."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg, subcommand

from dynamicgate.lab.cli.options import DataDir, LoaderOptions, Target, loader_options
from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.download import download_dataset, format_size
from dynamicgate.lab.datasets.sources import SOURCES, Source


@dataclass(frozen=True)
class ListDatasets:
    """Show the known datasets: what they are, whether they are downloaded, their size and licence."""

    data_dir: DataDir = None
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the list."""
        folder = _folder(self.data_dir)
        rows = [_row(source, folder) for source in SOURCES.values()]
        if self.json:
            print(json.dumps({"data_dir": str(folder), "datasets": rows}, indent=1))
            return 0
        print(f"data folder: {folder}")
        for row in rows:
            size = f" ({format_size(row['size'])})" if row["size"] else ""
            more = f" and {len(row['where']) - 1} more" if len(row["where"]) > 1 else ""
            where = f"found: {row['where'][0]}{more}" if row["where"] else f"not found; get it with: {row['get']}"
            print(f"\n{row['name']:<16} {row['description']}")
            print(f"{'':<16} {where}{size}")
            print(f"{'':<16} licence: {row['licence']}")
        return 0


@dataclass(frozen=True)
class Get:
    """Download a dataset and verify its checksums. Files that are already there are not downloaded again.

    For example:
      dynamicgate data get mnist --data-dir DATA
      dynamicgate data get speech-commands --file speech_commands_v0.01.tar.gz
    """

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """A dataset of `dynamicgate data list`, or `all`."""
    file: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="FILE")] = ()
    """Download only this file of the dataset; repeat the option for several files."""
    data_dir: DataDir = None

    def run(self) -> int:
        """Download, and print the paths."""
        failures = []
        for name in SOURCES if self.name == "all" else [self.name]:
            try:
                paths = download_dataset(name, _folder(self.data_dir), files=self.file, progress=sys.stderr.isatty())
            except OSError as error:  # with `all`, a failed dataset must not keep the others from being downloaded
                failures.append(str(error))
                continue
            for path in paths:
                print(path)
            if not paths:
                print(f"{name} has no files to download: {SOURCES[name].description}")
            if SOURCES[name].options:
                needed = ",".join(f"{key}={value}" for key, value in SOURCES[name].options)
                print(f"if you have only these files, load them with --data-option {needed}")
        if failures:
            raise OSError(". ".join(failures))
        return 0


@dataclass(frozen=True)
class Verify:
    """Check data files: official ones by checksum, others by reading every byte, and then all by loading them.

    For example:
      dynamicgate data verify mnist cifar10

    Exits with code 1 if a file is missing or damaged.
    """

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]", help_behavior_hint="")] = ()
    """Datasets of `dynamicgate data list`; without any, or with `all`, every dataset that is downloaded."""
    option: LoaderOptions = ()
    data_dir: DataDir = None

    def run(self) -> int:
        """Check, and print the findings."""
        from dynamicgate.lab.datasets.verification import locate_files, verify_dataset

        folder = _folder(self.data_dir)
        options = dict(loader_options(self.option, None, "--option"))
        check_all = not self.names or self.names == ("all",)
        names = [name for name in SOURCES if locate_files(name, folder)] if check_all else self.names
        if not names:
            raise FileNotFoundError(f"no known dataset is in {folder}: download one with `dynamicgate data get NAME`")
        findings = [finding for name in names for finding in verify_dataset(name, folder, options=options)]
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'FAIL'} {finding.text}")
        return 0 if all(finding.ok for finding in findings) else 1


@dataclass(frozen=True)
class Info:
    """Describe a dataset: features, rows and classes of each part, normalisation, licence, citation.

    For example:
      dynamicgate data info mnist
      dynamicgate data info cells.h5ad --target cell_type --json
    """

    name: Annotated[Positional[str], arg(metavar="NAME|PATH")]
    """A dataset of `dynamicgate data list`, or the path of your own file or folder."""
    option: LoaderOptions = ()
    target: Target = None
    seed: int = 0
    """Seed of the validation split."""
    data_dir: DataDir = None
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Load the dataset, and print its summary."""
        from dynamicgate.lab.cli.dataset_summary import as_lines, summarise_dataset
        from dynamicgate.lab.datasets.loading import load_dataset

        options = dict(loader_options(self.option, self.target, "--option"))
        splits = load_dataset(self.name, data_dir=self.data_dir, seed=self.seed, options=options)
        summary = summarise_dataset(splits, SOURCES.get(self.name))
        print(json.dumps(summary, indent=1) if self.json else "\n".join(as_lines(summary)))
        return 0


@dataclass(frozen=True)
class Data:
    """List, download, verify and describe datasets."""

    action: OmitArgPrefixes[
        Annotated[ListDatasets, subcommand("list", prefix_name=False)]
        | Annotated[Get, subcommand("get", prefix_name=False)]
        | Annotated[Verify, subcommand("verify", prefix_name=False)]
        | Annotated[Info, subcommand("info", prefix_name=False)]
    ]

    def run(self) -> int:
        """Run the chosen action."""
        return self.action.run()


def _row(source: Source, folder: Path) -> dict[str, Any]:
    from dynamicgate.lab.datasets.verification import locate_files

    paths = locate_files(source.name, folder)
    where, get = [str(path) for path in paths], f"dynamicgate data get {source.name}"
    if not source.files:
        where = ["in scikit-learn"] if importlib.util.find_spec("sklearn") else []
        get = "pip install 'dynamicgate[sklearn]'"
    return {
        "name": source.name,
        "description": source.description,
        "where": where,
        "get": get,
        "size": sum(map(_size, paths)) if paths else source.size,
        "licence": source.licence,
    }


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def _folder(given: Path | None) -> Path:
    return default_data_dir() if given is None else given.expanduser()
