"""docs/language-models.md: what the runs say, in its generated sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dynamicgate.lab.language.corpora import PLAIN
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import holm, interval, paired
from experiments.language.plot import plot_costs
from experiments.language.tables import GATE, LANGUAGE

PAGE = "docs/language-models.md"
Rows = dict[str, list[Run]]
"""Runs by model, in the order of the seeds."""


def pages(experiment: Experiment = LANGUAGE) -> Pages:
    """Every section and figure for which there are runs."""
    sections: dict[str, str] = {}
    made: dict[str, Any] = {}
    for table in experiment.tables:
        rows = read_rows(experiment, table)
        if table.name.endswith("-rates"):
            sections[table.name] = rates_table(rows) or MISSING
            continue
        if table.name.endswith("-variants"):
            sections[table.name] = variants_table(rows) or MISSING
            continue
        shown = (main_table(rows), layers_table(rows), token_table(rows))
        sections[table.name] = "\n\n".join(filter(None, shown)) if rows else MISSING
        if rows:
            made[f"docs/figures/language-{table.name}.svg"] = plot_costs(table.name, rows)
    return {**made, PAGE: sections}


MISSING = "No runs yet."


def read_rows(experiment: Experiment, table: Table) -> Rows:
    """The stored runs of a table."""
    runs, _ = read_results(experiment.results, experiment.jobs([table]))
    return {model: found for (_, model), found in runs.items()}


def bits(run: Run) -> float:
    """Bits per byte on the last text that the run was measured on: test text, or validation text where it chooses."""
    return float(run["quality"]["bits_per_byte"])


def main_table(rows: Rows) -> str:
    """Every model: its cost in inference and training, its bits per byte, and the gate's lead over it."""
    reference = rows.get("dense 1d", [])
    base = fmean(run["macs"]["executed"] for run in reference) if reference else None
    trained = rows.get("dense 4d", [])
    base_training = fmean(run["macs"]["training"] for run in trained) if trained else None
    lead = leads(rows)
    other = any(PLAIN in run["quality"] for runs in rows.values() for run in runs)
    order = sorted(rows, key=lambda name: fmean(bits(run) for run in rows[name]))
    body = []
    for name in order:
        found = interval([bits(run) for run in rows[name]])
        half = "" if found.half is None else f" ± {found.half:.4f}"
        executed = fmean(run["macs"]["executed"] for run in rows[name])
        training = fmean(run["macs"]["training"] for run in rows[name])
        body.append([
            f"**{name}**" if name == GATE else name,
            f"{executed / 1e6:.2f} M" + ("" if base is None else f" ({executed / base:.3f})"),
            ABSENT if base_training is None else f"{training / base_training:.2f}",
            f"{fmean(run['params'] for run in rows[name]) / 1e6:.1f} M",
            f"{found.mean:.4f}{half}",
            *([f"{fmean(run['quality'][PLAIN]['bits_per_byte'] for run in rows[name]):.4f}"] if other else []),
            lead.get(name, ABSENT),
            str(found.n),
        ])  # fmt: skip
    columns = [
        "model", "MACs a token (of dense 1d)", "training MACs (of dense 4d)", "parameters", "bits per byte",
        *(["bits per byte, WikiText-2"] if other else []), "lead of the gate, bits (p)", "seeds",
    ]  # fmt: skip
    return markdown(columns, body, numbers=True)


def leads(rows: Rows) -> dict[str, str]:
    """How many bits per byte the gate is better than each model, paired by seed, p corrected for their number."""
    ours = {run["seed"]: bits(run) for run in rows.get(GATE, [])}
    found = {}
    for name, runs in rows.items():
        shared = [run for run in runs if run["seed"] in ours]
        if name != GATE and shared:
            found[name] = paired([bits(run) for run in shared], [ours[run["seed"]] for run in shared])
    tested = [name for name, result in found.items() if result.p is not None]
    corrected = dict(zip(tested, holm([found[name].p or 0.0 for name in tested]), strict=True))
    return {
        name: f"{result.difference:+.4f}" + (f" ({corrected[name]:.2g})" if name in corrected else "")
        for name, result in found.items()
    }


def layers_table(rows: Rows) -> str:
    """How often the blocks of each layer are open, where a method decides on that, and what was asked for and met."""
    body = []
    for name, runs in rows.items():
        rates = [run["quality"][last_part(run)].get("open") for run in runs]
        if not all(rates) or (len({tuple(one) for one in rates}) == 1 and len(set(rates[0])) == 1):
            continue
        means = [fmean(layer) for layer in zip(*rates, strict=True)]
        asked = [run["macs"]["target"] for run in runs if run["macs"].get("target") is not None]
        met = [run["macs"]["relative"] for run in runs]
        body.append([
            name, *(f"{rate:.3f}" for rate in means), f"{fmean(asked):.4f}" if asked else ABSENT, f"{fmean(met):.4f}",
            str(sum(len(run["collapses"]) for run in runs)),
        ])  # fmt: skip
    if not body:
        return ""
    layers = len(body[0]) - 4
    columns = ["open blocks", *(f"layer {number + 1}" for number in range(layers)), "asked", "executed", "collapses"]
    return markdown(columns, body, numbers=True)


def token_table(rows: Rows) -> str:
    """What the gate opens for each kind of token, and from the most to the least expected tokens."""
    found = [run["token_costs"] for run in rows.get(GATE, []) if run.get("token_costs")]
    if not found:
        return ""
    body = []
    for kind in found[0]["kinds"]:
        each = [one["kinds"][kind] for one in found if kind in one["kinds"]]
        share, opened, loss = (fmean(one[key] for one in each) for key in ("tokens", "open", "loss"))
        layers = [f"{fmean(layer):.3f}" for layer in zip(*(one["layers"] for one in each), strict=True)]
        body.append([kind, f"{100 * share:.0f} %", f"{loss:.2f}", f"{opened:.4f}", *layers])
    easy, hard = (fmean(one["by_loss"][end] for one in found) for end in (0, -1))
    body += [
        ["the most expected tenth", "10 %", ABSENT, f"{easy:.4f}"],
        ["the least expected tenth", "10 %", ABSENT, f"{hard:.4f}"],
    ]
    width = max(map(len, body))
    columns = ["token read by the gate", "of all", "loss, nats", "open", *(f"layer {n + 1}" for n in range(width - 4))]
    return markdown(columns, [row + [ABSENT] * (width - len(row)) for row in body], numbers=True)


def last_part(run: Run) -> str:
    """The part of the text that the run was measured on last."""
    return "test" if "test" in run["quality"] else "valid"


def rates_table(rows: Rows) -> str:
    """Bits per byte of validation text by learning rate."""
    models = list(dict.fromkeys(name.rpartition(" ")[0] for name in rows))
    rates = sorted({float(name.rpartition(" ")[2]) for name in rows})

    def reached(model: str, rate: float) -> str:
        name = f"{model} {rate:g}"
        return f"{fmean(map(bits, rows[name])):.4f}" if name in rows else ABSENT

    body = [[model, *(reached(model, rate) for rate in rates)] for model in models]
    return markdown(["learning rate", *(f"{rate:g}" for rate in rates)], body, numbers=True) if rows else ""


def variants_table(rows: Mapping[str, Sequence[Run]]) -> str:
    """Changes of the gate: bits per byte of validation text relative to the gate as it is, and training cost."""
    first = "as it is"
    if first not in rows:
        return ""
    start = {run["seed"]: bits(run) for run in rows[first]}
    base = fmean(run["macs"]["training"] for run in rows[first])
    body = []
    for name, runs in rows.items():
        apart = [bits(run) - start[run["seed"]] for run in runs if run["seed"] in start]
        training = fmean(run["macs"]["training"] for run in runs) / base
        mean = fmean(bits(run) for run in runs)
        body.append([name, f"{mean:.4f}", f"{fmean(apart):+.4f}", f"{training:.2f}", str(len(runs))])
    return markdown(["change", "bits per byte", "difference", "training MACs", "seeds"], body, numbers=True)
