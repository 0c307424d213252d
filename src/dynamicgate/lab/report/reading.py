"""Reading what runs leave behind: results.json of a whole folder; log, sample statistics and timings of each run.

The names of files and keys belong to the code that writes them. Those that may change are read here only, so that a
rename there is one line here.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamicgate.files import read_json_lines
from dynamicgate.lab.result_file import read_runs

Run = dict[str, Any]
Results = dict[str, Any]
LogEntry = dict[str, Any]
Log = list[LogEntry]
SampleStats = dict[str, Any]
"""What measuring a run recorded of single samples: a histogram of their cost, the easiest and the hardest ones."""
Timing = dict[str, Any]
"""What `dynamicgate bench` measured of a run's model."""

RESULTS_FILE = "results.json"
LOG_FILE = "log.jsonl"
SAMPLES_FILE = "samples.json"
TIMING_FILE = "timing.json"
SPARSITY_KEY = "sparsity"
"""Key of a log entry: density, exploration and churn of each layer with sparse weights."""
COMPILED = "ours"
"""Key of a row of timings: the time of the compiled model."""
EXAMPLE_KINDS = {"easiest": "easiest", "hardest": "hardest", "cheapest": "cheapest", "most expensive": "most_expensive"}
"""Kinds of example inputs, and the key of each in the sample statistics."""
REQUIRED = ("model", "seed", "data", "quality", "macs", "params", "seconds")
"""Keys that every run must have."""


def gates_in(run: Run) -> list[dict[str, Any]]:
    """What a run says about each of its gates."""
    return get_objects(run, "gates")


def sites_of(entry: LogEntry) -> dict[str, Any]:
    """What a log entry says about each gate, by site."""
    return get_object(entry, "sites")


def sparsity_of(entry: LogEntry) -> dict[str, Any]:
    """What a log entry says about each layer with sparse weights: its density, exploration and churn."""
    return get_object(entry, SPARSITY_KEY)


def read_results(folder: Path) -> Results:
    """The checked content of ``folder/results.json``; without it, of all results files below the folder together."""
    path = Path(folder) / RESULTS_FILE
    expected = 'expected a JSON object {"meta": {...}, "runs": [...]}, as the command `dynamicgate compare` writes it'
    if not path.is_file():
        gathered = gather_results(Path(folder))
        if not gathered["runs"]:
            raise ValueError(f"no results to report: looked for {path} and for results files below it; {expected}")
        return check_results(gathered, str(folder))
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON ({error}); {expected}") from error
    return check_results(results, str(path))


def gather_results(folder: Path) -> Results:
    """The runs of every results file below a folder, and the part of their provenance that all runs agree on.

    Files with one run each belong to the folder they are in; a file with several runs is an experiment of its own. The
    name of that folder or file replaces the name of the dataset, so that runs of different experiments are never
    averaged.
    """
    metas, runs = [], []
    paths = [path for path in folder.rglob("*") if path.suffix in RUN_READERS and path.name != LOG_FILE]
    for path in sorted(paths):
        found = RUN_READERS[path.suffix](path)
        if any(key not in run for run in found for key in REQUIRED):  # something else, such as timings
            continue
        metas += [get_object(run, "meta") for run in found]
        place = path.parent if len(found) == 1 or path.name == RESULTS_FILE else path.with_suffix("")
        name = place.relative_to(folder).as_posix()
        inside = path.parent.relative_to(folder)
        for run in found:
            labelled = {**run, "data": run.get("data") if name == "." else name}
            runs.append({**labelled, "folder": (inside / run["folder"]).as_posix()} if run.get("folder") else labelled)
    shared = {key: value for key, value in (metas or [{}])[0].items() if all(meta.get(key) == value for meta in metas)}
    return {"meta": shared, "runs": runs}


def read_json_runs(path: Path) -> list[Run]:
    """The runs in a JSON file, each with the provenance of the file under "meta"; none where it holds anything else."""
    content = read_object(path)
    return [{**run, "meta": get_object(content, "meta")} for run in get_objects(content, "runs")]


def read_table_runs(path: Path) -> list[Run]:
    """The runs in a results table, each with its provenance under "meta", except those with an unreachable budget."""
    return [run for run in read_runs(path) if "unreachable" not in run]


RUN_READERS: dict[str, Callable[[Path], list[Run]]] = {".json": read_json_runs, ".jsonl": read_table_runs}
"""How runs, each with its provenance under "meta", are read from a results file, by the ending of its name."""


def check_results(results: object, origin: str = "results") -> Results:
    """The same results; ValueError unless every run has what the summary table is made of."""
    if not isinstance(results, dict):
        raise _unexpected(origin, f"a {type(results).__name__}", "an object with the key 'runs'")
    runs = results.get("runs")
    if not isinstance(runs, list):
        raise _unexpected(origin, f"the keys {sorted(map(str, results))}", "a list of runs under 'runs'")
    if not runs:
        raise _unexpected(origin, "an empty list under 'runs'", "at least one finished run")
    for index, run in enumerate(runs):
        _check_run(run, f"{origin}: runs[{index}]")
    return results


def _check_run(run: object, origin: str) -> None:
    if not isinstance(run, dict):
        raise _unexpected(origin, f"{run!r}", f"an object with the keys {list(REQUIRED)}")
    missing = [key for key in REQUIRED if key not in run]
    if missing:
        raise _unexpected(origin, f"a run without {missing}", f"the keys {list(REQUIRED)}")
    for kind, keys in ((dict, ("quality", "macs")), (str, ("model", "data"))):
        for key in keys:
            if not isinstance(run[key], kind):
                raise _unexpected(f"{origin}[{key!r}]", repr(run[key]), f"a {kind.__name__}")


def _unexpected(origin: str, received: str, expected: str) -> ValueError:
    return ValueError(f"{origin}: received {received}, expected {expected}")


def read_logs(folder: Path, results: Results) -> list[Log]:
    """The training log of each run, in the order of the runs; empty where there is none."""
    paths = [run_file(folder, run, LOG_FILE) for run in results["runs"]]
    return [read_json_lines(path) if path is not None and path.is_file() else [] for path in paths]


def read_sample_stats(folder: Path, results: Results) -> list[SampleStats]:
    """The sample statistics of each run, in the order of the runs; empty where there are none."""
    return [_read_beside(folder, run, SAMPLES_FILE) for run in results["runs"]]


def read_timings(folder: Path, results: Results) -> list[Timing]:
    """The timings of each run's model, in the order of the runs; empty where it was not timed."""
    return [_read_beside(folder, run, TIMING_FILE) for run in results["runs"]]


def _read_beside(folder: Path, run: Run, name: str) -> dict[str, Any]:
    path = run_file(folder, run, name)
    return {} if path is None else read_object(path)


def run_file(folder: Path, run: Run, name: str) -> Path | None:
    """Where a run keeps a file of this name; None for a run without a folder."""
    return Path(folder) / str(run["folder"]) / name if run.get("folder") else None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file; an empty one where there is no file, or it holds anything else."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def get_object(holder: object, key: str) -> dict[str, Any]:
    """The object under ``key``, or an empty one where it is absent or null."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def get_objects(holder: object, key: str) -> list[dict[str, Any]]:
    """The objects in the list under ``key``, or none where it is absent or null."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def get_strings(holder: object, key: str) -> list[str]:
    """The strings in the list under ``key``, or none where it is absent or null."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
