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

PAGE = "docs/language-models.md"
MISSING = "No runs yet."
TITLES = {PLAIN: "WikiText-2", "books": "books", "python": "Python"}
Rows = dict[str, list[Run]]
"""Runs by model, in the order of the table."""


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
        rows = read_rows(experiment, experiment.table(name))
        if rows:
            made.append(f"Trained with {count // MILLION} M tokens each:\n\n{table_of(rows)}")
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
    """Every student: what it executes, and its test texts, relative to the dense model with the same tokens."""
    dense = rows.get(DENSE)
    body = []
    for name, runs in rows.items():
        cells = [name, f"{mean_of(runs, 'macs', 'ffn'):.3f}", f"{mean_of(runs, 'macs', 'relative'):.3f}"]
        for text in TESTED_ON:
            perplexity = mean_of(runs, "quality", "test", text, "perplexity")
            bits = mean_of(runs, "quality", "test", text, "bits_per_byte")
            cells.append(f"{perplexity:.2f} ({bits:.4f})")
        bits = mean_of(runs, "quality", "bits_per_byte")
        apart = ABSENT if dense is None else f"{bits / mean_of(dense, 'quality', 'bits_per_byte') - 1.0:+.1%}"
        tokens = fmean(run["tokens"] for run in runs)
        body.append([*cells, f"{bits:.4f}", apart, "yes" if tokens else "no"])
    columns = [
        "student", "MACs of the FFNs", "MACs of the model",
        *(f"{TITLES[text]}: perplexity (bits per byte)" for text in TESTED_ON),
        "mean bits per byte", f"against {DENSE}", "trained",
    ]  # fmt: skip
    return markdown(columns, body, numbers=True)


def minilm_table(rows: Rows) -> str:
    """Every student: what it executes, and how close its embeddings are to those of the dense model."""
    body = []
    for name, runs in rows.items():
        found = interval([float(run["quality"]["cosine"]) for run in runs])
        half = "" if found.half is None else f" ± {found.half:.4f}"
        body.append([
            name, f"{mean_of(runs, 'macs', 'ffn'):.3f}", f"{mean_of(runs, 'macs', 'relative'):.3f}",
            f"{found.mean:.4f}{half}", f"{mean_of(runs, 'quality', 'least'):.4f}",
            "yes" if fmean(run["tokens"] for run in runs) else "no", str(found.n),
        ])  # fmt: skip
    columns = ["student", "MACs of the FFNs", "MACs of the model", "mean cosine", "least cosine", "trained", "seeds"]
    return markdown(columns, body, numbers=True)
