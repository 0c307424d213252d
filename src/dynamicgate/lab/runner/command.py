"""What `dynamicgate paper NAME` does: the runs that are missing, then the page."""

from __future__ import annotations

from pathlib import Path

from dynamicgate.files import write_text
from dynamicgate.lab.runner.jobs import find_folder, jobs_of, load_tables
from dynamicgate.lab.runner.page import page
from dynamicgate.lab.runner.pool import run_jobs
from dynamicgate.lab.runner.results import QUICK, RESULTS, WORK, write_summary

PAGE = Path("docs") / "paper.md"


def run_paper(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int | None = None,
    device: str = "auto",
    recipes: Path | None = None,
    data_dir: Path | None = None,
    command: str = "",
) -> int:
    """Do the runs of a table (or `table/kind`, or `all`) that are missing and write the page; `page` writes it only.

    Results, runs and page lie in the checkout that the recipes belong to, two folders above them; `quick` ones in
    runs/paper-quick, where they cannot be taken for others.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"at least one job at a time is needed, received {jobs}")
    folder = find_folder(recipes)
    root = folder.parents[1]
    results, work = (root / QUICK / "results", root / QUICK) if quick else (root / RESULTS, root / WORK)
    path = root / (QUICK / "paper.md" if quick else PAGE)
    if name != "page":
        table, _, kind = name.partition("/")
        tables = load_tables(folder, table)
        asked = jobs_of(tables, seeds=seeds, quick=quick, kind=kind or None)
        run_jobs(
            asked, recipes=folder, results=results, work=work, processes=jobs, device=device, data_dir=data_dir,
            command=command,
        )  # fmt: skip
        for one in tables:
            write_summary(work, results, one, asked)
    write_text(path, page(folder, results, quick=quick))
    print(f"wrote {path.relative_to(root)}")
    return 0
