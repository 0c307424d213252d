"""Reading what the runs left behind: results.json for the whole folder; log, evidence and timing of each run."""

import json
from pathlib import Path
from typing import Any

from dynamicgate.files import read_json_lines

Run = dict[str, Any]
Results = dict[str, Any]

REQUIRED = ("model", "seed", "data", "quality", "macs", "params", "seconds")


def read_results(folder: Path) -> Results:
    """The checked content of ``folder/results.json``; without it, of all results files below the folder together."""
    path = Path(folder) / "results.json"
    expected = 'expected a JSON object {"meta": {...}, "runs": [...]}, as the experiment command writes it'
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
    """The runs of every results file below a folder, and of what the files say where they come from, what all agree on.

    Files with one run each belong to the folder they are in, a file with many is an experiment of its own: either is
    then the name of their data, so that runs of different experiments are never averaged.
    """
    metas, runs = [], []
    for path in sorted(folder.rglob("*.json")):
        found = read_object(path)
        own = parts(found, "runs")
        if not own or any(key not in run for run in own for key in REQUIRED):  # of another kind: timings, say
            continue
        metas.append(part(found, "meta"))
        place = path.parent if len(own) == 1 or path.name == "results.json" else path.with_suffix("")
        name = place.relative_to(folder).as_posix()
        inside = path.parent.relative_to(folder)
        for run in own:
            labelled = {**run, "data": run.get("data") if name == "." else name}
            runs.append({**labelled, "folder": (inside / run["folder"]).as_posix()} if run.get("folder") else labelled)
    shared = {key: value for key, value in (metas or [{}])[0].items() if all(meta.get(key) == value for meta in metas)}
    return {"meta": shared, "runs": runs}


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
    paths = [Path(folder) / str(run["folder"]) / "log.jsonl" if run.get("folder") else None for run in results["runs"]]
    return [read_json_lines(path) if path is not None and path.is_file() else [] for path in paths]


def read_beside(folder: Path, results: Results, name: str) -> list[dict[str, Any]]:
    """The JSON object that each run has in a file of this name, in the order of the runs; empty where it has none.

    ``timing.json`` is what `dynamicgate bench` measured, ``evidence.json`` what measuring saw of single samples.
    """
    return [
        read_object(Path(folder) / str(run["folder"]) / name) if run.get("folder") else {} for run in results["runs"]
    ]


def read_object(path: Path) -> dict[str, Any]:
    """The object in the file; empty where there is no file, or it holds anything else."""
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
