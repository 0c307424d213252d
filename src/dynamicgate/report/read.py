"""Reading what the runs left behind: results.json for the whole folder, log.jsonl and timing.json for each run."""

import json
from pathlib import Path
from typing import Any

Run = dict[str, Any]
Results = dict[str, Any]

REQUIRED = ("model", "seed", "data", "quality", "macs", "params", "seconds")


def read_results(folder: Path) -> Results:
    """The checked content of ``folder/results.json``."""
    path = Path(folder) / "results.json"
    expected = 'expected a JSON object {"meta": {...}, "runs": [...]}, as the experiment command writes it'
    if not path.is_file():
        raise ValueError(f"no results to report: looked for {path}; {expected}")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON ({error}); {expected}") from error
    return check_results(results, str(path))


def check_results(results: object, origin: str = "results") -> Results:
    """The same results, once it is sure that every run can be tabulated."""
    if not isinstance(results, dict):
        raise unexpected(origin, f"a {type(results).__name__}", "an object with the key 'runs'")
    runs = results.get("runs")
    if not isinstance(runs, list):
        raise unexpected(origin, f"the keys {sorted(map(str, results))}", "a list of runs under 'runs'")
    if not runs:
        raise unexpected(origin, "an empty list under 'runs'", "at least one finished run")
    for index, run in enumerate(runs):
        check_run(run, f"{origin}: runs[{index}]")
    return results


def check_run(run: object, origin: str) -> None:
    """Refuse a run that lacks what the summary table is made of."""
    if not isinstance(run, dict):
        raise unexpected(origin, f"a {type(run).__name__}", f"an object with the keys {list(REQUIRED)}")
    missing = [key for key in REQUIRED if key not in run]
    if missing:
        raise unexpected(origin, f"a run without {missing}", f"the keys {list(REQUIRED)}")
    for kind, keys in ((dict, ("quality", "macs")), (str, ("model", "data"))):
        for key in keys:
            if not isinstance(run[key], kind):
                raise unexpected(f"{origin}[{key!r}]", repr(run[key]), f"a {kind.__name__}")


def unexpected(origin: str, received: str, expected: str) -> ValueError:
    """The error that says where, what was received and what was expected."""
    return ValueError(f"{origin}: received {received}, expected {expected}")


def read_logs(folder: Path, results: Results) -> list[list[dict[str, Any]]]:
    """The training log of each run, in the order of the runs; empty where there is none."""
    return [
        read_log(Path(folder) / str(run["folder"]) / "log.jsonl") if run.get("folder") else []
        for run in results["runs"]
    ]


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a training log. A line cut off by a killed process is skipped."""
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def read_timings(folder: Path, results: Results) -> list[dict[str, Any]]:
    """What `dynamicgate bench` wrote beside the model of each run, in the order of the runs; empty where it did not."""
    return [
        read_timing(Path(folder) / str(run["folder"]) / "timing.json") if run.get("folder") else {}
        for run in results["runs"]
    ]


def read_timing(path: Path) -> dict[str, Any]:
    """The object in the file; a file that is not there, or holds anything else, was no timing."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def part(holder: object, key: str) -> dict[str, Any]:
    """The object under ``key``, or an empty one where it is absent or null."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def parts(holder: object, key: str) -> list[dict[str, Any]]:
    """The objects in the list under ``key``, or none where it is absent or null."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(holder: object, key: str) -> list[str]:
    """The sentences in the list under ``key``, or none where it is absent or null."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
