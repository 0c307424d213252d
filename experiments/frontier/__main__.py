"""Accuracy against cost on every data set.

python experiments/frontier mnist              # every method at every budget, five seeds; finished runs are found
python experiments/frontier mnist-tuning       # first: learning rates and dropouts, by validation rows
python experiments/frontier mnist-ablation     # the recipe with one thing changed at a time, by validation rows
python experiments/frontier all --jobs 16 --device cuda
python experiments/frontier clock mnist        # latency of what is trained here, with one thread; no name: all sets
python experiments/frontier page               # docs/why-it-works.md from the committed results
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from dynamicgate.files import write_text
from dynamicgate.lab.runner import Job, jobs_of, load_tables, run_jobs
from dynamicgate.lab.runner.jobs import load_module
from dynamicgate.lab.runner.results import read_results

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
RESULTS = Path("experiments") / "results" / "frontier"
KINDS = ("tuning", "ablation")


def main() -> int:
    """Run what is asked for, then choose or print."""
    parser = argparse.ArgumentParser(
        prog="frontier", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="+",
        help="data sets, NAME-tuning, NAME-ablation, all, tuning or ablation (of all), or page;\n"
        "or clock, and after it data sets (all)",
    )
    parser.add_argument("--only", nargs="*", default=None, help="methods; all")
    parser.add_argument("--budgets", nargs="*", type=float, default=None, help="budgets; all")
    parser.add_argument("--seeds", type=int, default=None, help="only the first so many seeds")
    parser.add_argument("--jobs", type=int, default=None, help="runs side by side, one thread each; all cores")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with the data files")
    parser.add_argument("--seconds", type=float, default=0.4, help="of every race on the clock; 0.4")
    parser.add_argument("--repeats", type=int, default=3, help="races of a model on the clock, the median counts; 3")
    parser.add_argument("--quick", action="store_true", help="one seed, few rows and epochs; results apart")
    args = parser.parse_args()
    results = ROOT / ("runs/frontier-quick/results" if args.quick else RESULTS)
    work = ROOT / ("runs/frontier-quick" if args.quick else "runs/frontier")
    if args.names[0] == "clock":
        sets = load_module(FOLDER, "sets").SETS
        unknown = [name for name in args.names[1:] if name not in sets]
        if unknown:
            parser.error(f"unknown data sets {', '.join(unknown)}: clock knows {', '.join(sets)}")
        for name in args.names[1:] or sets:
            load_module(FOLDER, "clock").clock(
                name, results, work, wanted=lambda job: wanted(job, args), seconds=args.seconds,
                repeats=args.repeats, quick=args.quick, data_dir=args.data_dir,
            )  # fmt: skip
    elif args.names != ["page"]:
        tables = [table for name in args.names for table in asked(name)]
        every = jobs_of(tables, seeds=args.seeds, quick=args.quick)
        jobs = [job for job in every if wanted(job, args)]
        run_jobs(
            jobs, recipes=FOLDER, results=results, work=work, processes=args.jobs, device=args.device,
            data_dir=args.data_dir, command=f"python experiments/frontier {' '.join(args.names)}",
        )  # fmt: skip
        if not args.quick:
            choose(results)
    load_module(FOLDER, "page").write(ROOT, results, quick=args.quick)
    return 0


def asked(name: str) -> list[Any]:
    """The tables of a name."""
    tables = load_tables(FOLDER)
    if name == "all":
        return [table for table in tables if not table.name.endswith(KINDS)]
    return (
        [table for table in tables if table.name.endswith(f"-{name}")] if name in KINDS else load_tables(FOLDER, name)
    )


def wanted(job: Job, args: argparse.Namespace) -> bool:
    """Whether a model is among the methods and budgets asked for; what is at full cost has no budget to be left out
    by."""
    method = re.sub(r"( [\d.e-]+)+$", "", job.model)  # a name ends with its budget, or with what is tuned
    here = args.budgets is None or job.settings.get("budget") in (None, *args.budgets)
    return here and (args.only is None or method in args.only)


def choose(results: Path) -> None:
    """Write for every tuned method the settings with the best validation accuracy."""
    sets = load_module(FOLDER, "sets")
    chosen = json.loads(sets.CHOSEN.read_text(encoding="utf-8")) if sets.CHOSEN.exists() else {}
    for table in asked("tuning"):
        runs, _ = read_results(results, jobs_of([table], seeds=None, quick=False))
        best: dict[str, tuple[float, dict[str, float]]] = {}
        for (_, _, model), tried in runs.items():
            reached = [run["quality"]["accuracy"] for run in tried if "unreachable" not in run]
            if not reached:
                continue
            asked_for = table.recipes[0].models[model]
            found = fmean(reached), {key: asked_for[key] for key in ("lr", "dropout")}
            method = asked_for["model"]
            if method not in best or found[0] > best[method][0]:
                best[method] = found
        if best:
            chosen[table.name.removesuffix("-tuning")] = {method: values for method, (_, values) in best.items()}
    if chosen:
        write_text(sets.CHOSEN, json.dumps(chosen, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
