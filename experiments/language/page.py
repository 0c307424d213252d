"""docs/language-models.md: what the runs say, in its generated sections."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from dynamicgate.lab.language.corpora import PLAIN
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from dynamicgate.lab.statistics import interval
from experiments.language.leads import leads
from experiments.language.opened import layers_table, seeds_table, token_table
from experiments.language.plot import plot_costs, plot_training
from experiments.language.plot_opened import plot_kinds, plot_layers
from experiments.language.rows import MISSING, Rows, bits, counted, finished, mean_bits, read_rows, said_missing
from experiments.language.shown import shown_table
from experiments.language.tables import GATE, LANGUAGE
from experiments.language.variants import noise, variants_table

PAGE = "docs/language-models.md"
TEXTS = ("python", "books")
FIGURES = "docs/figures/language-{}.svg"
NO_FIGURE = ("-rates", "-variants")  # ends of the names of tables that choose


def pages(experiment: Experiment = LANGUAGE) -> Pages:
    """Every section and figure for which there are runs."""
    sections: dict[str, str] = {}
    made: dict[str, Any] = {}
    for table in experiment.tables:
        rows = read_rows(experiment, table)
        if table.name.endswith("-rates"):
            sections[table.name] = rates_table(rows) or MISSING
        elif table.name.endswith("-variants"):
            whole = read_rows(experiment, experiment.table(table.name.removesuffix("-variants")))
            spread = noise(whole)
            shown = (variants_table(rows, table, spread), spread.text)
            sections[table.name] = "\n\n".join(filter(None, shown)) if rows else MISSING
        else:
            sections[table.name] = section(table, rows)
            made |= figures(table.name, finished(rows))
    texts = {name: read_rows(experiment, experiment.table(name)) for name in (*TEXTS, "books-large")}
    sections["shown"] = shown_table({name: finished(rows) for name, rows in texts.items()})
    return {**made, PAGE: sections}


def section(table: Table, rows: Rows) -> str:
    """The tables of a text: results, what is missing, and what the gates open."""
    shown = (main_table(rows), said_missing(table, rows), layers_table(rows), token_table(rows), seeds_table(rows))
    return "\n\n".join(filter(None, shown)) if rows else MISSING


def figures(name: str, rows: Rows) -> dict[str, str]:
    """The figures of a text, by their paths."""
    if not rows:
        return {}
    drawn = {
        name: plot_costs(name, rows),
        f"{name}-training": plot_training(name, rows),
        f"{name}-layers": plot_layers(name, rows),
        f"{name}-kinds": plot_kinds(name, rows),
    }
    return {FIGURES.format(path): figure for path, figure in drawn.items() if figure}


def main_table(rows: Rows) -> str:
    """Every model: its cost in inference and training, its bits per byte, and the gate's lead over it."""
    done = finished(rows)
    reference, trained = done.get("dense 1d", []), done.get("dense 4d", [])
    base = fmean(run["macs"]["executed"] for run in reference) if reference else None
    base_training = fmean(run["macs"]["training"] for run in trained) if trained else None
    lead = leads(rows)
    other = any(PLAIN in run["quality"] for runs in done.values() for run in runs)
    body = []
    for name in sorted(done, key=lambda name: mean_bits(done[name])):
        runs = done[name]
        found = interval([bits(run) for run in runs])
        half = "" if found.half is None else f" ± {found.half:.4f}"
        executed = fmean(run["macs"]["executed"] for run in runs)
        training = fmean(run["macs"]["training"] for run in runs)
        body.append([
            f"**{name}**" if name == GATE else name,
            f"{executed / 1e6:.2f} M" + ("" if base is None else f" ({executed / base:.3f})"),
            ABSENT if base_training is None else f"{training / base_training:.2f}",
            f"{fmean(run['params'] for run in runs) / 1e6:.1f} M",
            f"{found.mean:.4f}{half}",
            *([f"{fmean(run['quality'][PLAIN]['bits_per_byte'] for run in runs):.4f}"] if other else []),
            lead[name].text if name in lead else ABSENT,
            counted(rows, name),
        ])  # fmt: skip
    columns = [
        "model", "MACs a token (of dense 1d)", "training MACs (of dense 4d)", "parameters", "bits per byte",
        *(["bits per byte, WikiText-2"] if other else []), "lead of the gate, bits (p)", "seeds",
    ]  # fmt: skip
    lost = [name for name in rows if name not in done]
    body += [[name, *[ABSENT] * (len(columns) - 2), counted(rows, name)] for name in lost]
    return markdown(columns, body, numbers=True)


def rates_table(rows: Rows) -> str:
    """Bits per byte of validation text by learning rate."""
    models = list(dict.fromkeys(name.rpartition(" ")[0] for name in rows))
    rates = sorted({float(name.rpartition(" ")[2]) for name in rows})
    done = finished(rows)

    def reached(model: str, rate: float) -> str:
        name = f"{model} {rate:g}"
        if name in rows and name not in done:
            return "diverged"
        return f"{mean_bits(done[name]):.4f}" if name in done else ABSENT

    body = [[model, *(reached(model, rate) for rate in rates)] for model in models]
    return markdown(["learning rate", *(f"{rate:g}" for rate in rates)], body, numbers=True) if rows else ""
