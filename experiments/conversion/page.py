"""The sections of docs/language-models.md on converted models."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from dynamicgate.lab.language.corpora import PLAIN
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import interval
from experiments.conversion.tables import CONVERSION, DENSE, MILLION, MINILM_TOKENS, SMOLLM2_TOKENS
from experiments.conversion.texts import TESTED_ON
from experiments.language.rows import MISSING, Rows, finished, said_missing

PAGE = "docs/language-models.md"
NAMED = 4  # of the models without a run
TITLES = {PLAIN: "WikiText-2", "books": "books", "python": "Python"}


def pages(experiment: Experiment = CONVERSION) -> Pages:
    """Both sections."""
    return {
        PAGE: {
            "conversion": section(experiment, SMOLLM2_TOKENS, conversion_table),
            "minilm": section(experiment, MINILM_TOKENS, minilm_table),
        }
    }


def section(experiment: Experiment, tokens: dict[str, int], table_of: Callable[[Rows], str]) -> str:
    """The tables that have runs, each under the number of tokens that its students were trained with."""
    made = []
    for name, count in tokens.items():
        table = experiment.table(name)
        rows = read_rows(experiment, table)
        if rows:
            drawn = next(iter(rows.values()))[0]["meta"]["data"]["train"] / MILLION
            about = f"Trained with {count // MILLION} M tokens each, drawn from {drawn:.1f} M tokens of text:"
            made.append("\n\n".join(filter(None, (about, table_of(rows), said_missing(table, rows, NAMED)))))
    return "\n\n".join(made) or MISSING


def read_rows(experiment: Experiment, table: Table) -> Rows:
    """The stored runs of a table."""
    runs, _ = read_results(experiment.results, experiment.jobs([table]))
    return {model: found for (_, model), found in runs.items()}


def mean_of(runs: list[Run], *path: str) -> float:
    """A number of the runs, by the names that lead to it."""
    found = []
    for run in runs:
        value = run
        for name in path:
            value = value[name]
        found.append(float(value))  # type: ignore[arg-type]
    return fmean(found)


def conversion_table(rows: Rows) -> str:
    """Every student: what it executes on each test text, and its perplexity there, relative to the dense model with the
    same tokens."""
    done = finished(rows)
    dense = done.get(DENSE)
    columns = [
        "student", f"MACs of the FFNs: {', '.join(TITLES[text] for text in TESTED_ON)}", "MACs of the model",
        *(f"{TITLES[text]}: perplexity (against {DENSE})" for text in TESTED_ON),
        "mean bits per byte", f"against {DENSE}", "trained",
    ]  # fmt: skip
    body = []
    for name in rows:
        if name not in done:
            body.append([name, *["diverged"] * (len(columns) - 2), "yes"])
            continue
        runs = done[name]
        shares = [f"{mean_of(runs, 'quality', 'test', text, 'macs', 'ffn'):.3f}" for text in TESTED_ON]
        cells = [name, shares[0] if len(set(shares)) == 1 else ", ".join(shares)]
        cells.append(f"{mean_of(runs, 'macs', 'relative'):.3f}")
        for text in TESTED_ON:
            path = ("quality", "test", text, "perplexity")
            cells.append(f"{mean_of(runs, *path):.2f} ({against(runs, dense, *path)})")
        cells.append(f"{mean_of(runs, 'quality', 'bits_per_byte'):.4f}")
        tokens = fmean(run["tokens"] for run in runs)
        body.append([*cells, against(runs, dense, "quality", "bits_per_byte"), "yes" if tokens else "no"])
    return markdown(columns, body, numbers=True)


def against(runs: list[Run], dense: list[Run] | None, *path: str) -> str:
    """A number of the runs relative to that of the dense model with the same tokens."""
    return ABSENT if dense is None else f"{mean_of(runs, *path) / mean_of(dense, *path) - 1.0:+.1%}"


def minilm_table(rows: Rows) -> str:
    """Every student: what it executes, and how close its embeddings are to those of the dense model."""
    body = []
    for name, runs in finished(rows).items():
        found = interval([float(run["quality"]["cosine"]) for run in runs])
        half = "" if found.half is None else f" ± {found.half:.4f}"
        body.append([
            name, f"{mean_of(runs, 'macs', 'ffn'):.3f}", f"{mean_of(runs, 'macs', 'relative'):.3f}",
            f"{found.mean:.4f}{half}", f"{mean_of(runs, 'quality', 'least'):.4f}",
            "yes" if fmean(run["tokens"] for run in runs) else "no", str(found.n) + said_lost(rows[name]),
        ])  # fmt: skip
    body += [[name, *[ABSENT] * 4, "yes", "0" + said_lost(rows[name])] for name in rows if name not in finished(rows)]
    columns = ["student", "MACs of the FFNs", "MACs of the model", "mean cosine", "least cosine", "trained", "seeds"]
    return markdown(columns, body, numbers=True)


def said_lost(runs: list[Run]) -> str:
    """How many of the runs diverged."""
    lost = sum("diverged" in run for run in runs)
    return f", {lost} diverged" if lost else ""
