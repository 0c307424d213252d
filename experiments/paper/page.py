"""docs/paper.md, made from the stored runs: the same runs, the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from dynamicgate.lab.report.number_format import signed_points
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import Interval, Paired
from experiments.continual.tables import CONTINUAL
from experiments.frontier.comparisons import read_entries
from experiments.frontier.datasets import DATASETS
from experiments.frontier.experiment import FRONTIER
from experiments.frontier.tables import read_chosen
from experiments.paper.claims import CLAIMS
from experiments.paper.evidence import Claim, Evidence, MissingRunError, Verdict
from experiments.paper.experiment import SECTIONS
from experiments.paper.section import KINDS, Kind, Recipe, Section

INTRO = """\
# The paper, run again

<!-- Made by `python -m experiments.paper page` from experiments/results/paper: do not edit. -->

Every table of section 5 of the paper, three times: what it printed, what its published code gives when it is run as it
is, and what this library gives with equal budgets, controls and several seeds. [The paper and the code](paper-code.md)
says where each formula is.

```bash
python -m experiments.paper all            # everything; stored runs are not repeated
python -m experiments.paper mnist --quick  # does it run here? a minute or two, results are kept apart
python -m experiments.paper page           # this page again, from the committed results
```

- **as published** repeats the reference code: its settings, its static gates, and those of its faults that decide
  the result. **as written** follows the paper's text. **ours** is what this library does.
- *executed* is MACs relative to the dense network on hard gates as deployed, gate networks and output layer counted.
  *own count* is the same number by the formula of the published code.
- ± is the standard deviation over seeds, brackets are 95 % intervals of the mean, p-values are two-sided paired t tests
  over seeds. *time* is the time of a training step relative to the dense network's, both timed in turn in one process.
"""
NO_RESULT = "not run yet"


def pages(experiment: Experiment) -> dict[str, str]:
    """The page of an experiment, by its path; that of a quick one lies beside its runs."""
    path = "runs/paper-quick/paper.md" if experiment.quick else "docs/paper.md"
    frontier = {} if experiment.quick else read_frontier()
    streams = {} if experiment.quick else read_streams()
    evidence = Evidence(*read_results(experiment.results, experiment.jobs()), frontier, streams=streams)
    parts = [INTRO, claims_section(CLAIMS, evidence), *(table_section(s, evidence) for s in SECTIONS.values())]
    return {path: "\n".join(parts).rstrip("\n") + "\n"}


def read_streams() -> dict[str, dict[str, Sequence[Run]]]:
    """The committed runs along streams in which nothing is kept, by table and model."""
    found: dict[str, dict[str, Sequence[Run]]] = {}
    for table in CONTINUAL.tables:
        if table.name.startswith("e0"):
            runs, _ = read_results(CONTINUAL.results, CONTINUAL.jobs([table]))
            found[table.name] = {model: own for (_, model), own in runs.items()}
    return found


def read_frontier() -> dict[str, dict[tuple[str, float | None], Sequence[Run]]]:
    """The runs of the frontier that are committed, by dataset, method and budget."""
    chosen = read_chosen()
    found = {name: read_entries(FRONTIER, name, chosen)[0] for name in DATASETS}
    return {name: {key: entry.runs for key, entry in entries.items()} for name, entries in found.items()}


def claims_section(claims: Sequence[Claim], evidence: Evidence) -> str:
    """Which claims hold, and by which number."""
    verdicts = [decided(claim, evidence) for claim in claims]
    counts = ", ".join(
        f"{sum(v is not None and v.outcome == outcome for v in verdicts)} {words}"
        for outcome, words in (
            ("holds", "hold"),
            ("does not hold", "do not"),
            ("inconclusive", "are inconclusive"),
            ("cannot be tested", "cannot be tested"),
        )
    )
    open_ = sum(verdict is None for verdict in verdicts)
    rest = f"; {open_} wait for their runs" if open_ else ""
    rows = [
        [claim.section, claim.text, f"**{v.outcome}**" if v else NO_RESULT, v.number if v else ABSENT]
        for claim, v in zip(claims, verdicts, strict=True)
    ]
    head = f"## What holds\n\nOf {len(claims)} claims {counts}{rest}.\n"
    return f"{head}\n{markdown(['section', 'claim', 'verdict', 'decided by'], rows)}\n"


def decided(claim: Claim, evidence: Evidence) -> Verdict | None:
    """The verdict, or None where a run is missing."""
    try:
        return claim.decide(evidence)
    except MissingRunError:
        return None


def table_section(section: Section, evidence: Evidence) -> str:
    """One section of the page."""
    text = [f"## {section.number} {section.title}{subset(section, evidence)}\n", overview(section, evidence)]
    for recipe in section.recipes:
        models = [model for model in recipe.table.models if (recipe.table.name, model) in evidence.runs]
        title = f"### {section.number} {KINDS[recipe.kind]}\n"
        if models:
            text += [title, origin(recipe, evidence, models), details(section, recipe, evidence, models)]
        else:
            text += [title, f"{NO_RESULT.capitalize()}: `python -m experiments.paper {recipe.table.name}`\n"]
        text.append("\n".join(f"- {remark}" for remark in recipe.remarks) + "\n")
    return "\n".join(text)


def subset(section: Section, evidence: Evidence) -> str:
    """How much of the dataset was used, if not all."""
    found = [evidence.data[key] for key in evidence.data if key.startswith(f"{section.name}/")]
    rows = max((data["train"] + data["valid"] for data in found), default=section.training_rows)
    whole = section.training_rows
    return "" if rows >= whole else f" (a subset: {rows:,} of {whole:,} training rows)"


def overview(section: Section, evidence: Evidence) -> str:
    """The paper's number, what its code gives, and ours."""
    kinds: list[Kind] = [recipe.kind for recipe in section.recipes]
    columns = ["model", "paper: accuracy, %", "paper: MACs"]
    for kind in kinds:
        columns.append(f"{KINDS[kind]}: accuracy, %")
        columns += [f"{KINDS[kind]}: own count"] if kind == "published" else []
        columns.append(f"{KINDS[kind]}: executed")
    models = dict.fromkeys([*section.printed, *(model for recipe in section.recipes for model in recipe.table.models)])
    rows = []
    for model in models:
        printed = section.printed.get(model, {})
        row = [model, percent(printed.get("accuracy")), ratio(printed.get("relative"))]
        for kind in kinds:
            row.append(mean_std(evidence, section, kind, model, "accuracy", 100, 2))
            row += [mean_std(evidence, section, kind, model, "claimed", 1, 3)] if kind == "published" else []
            row.append(mean_std(evidence, section, kind, model, "relative", 1, 3))
        rows.append(row)
    return markdown(columns, rows) + "\n"


DETAILS = {
    "macro-F1, %": ("macro_f1", 100, 2),
    "parameters": ("params", 1, 0),
    "executed": ("relative", 1, 3),
    "of it gate networks": ("gate_cost", 1, 3),
    "saved by gates": ("gate_saved", 1, 3),
    "saved by structure": ("structure_saved", 1, 3),
    "skipping zeros too": ("relative_zero_skip", 1, 3),
    "ComputeProxy": ("compute_proxy", 1, 3),
    "RelMAC": ("relmac", 1, 3),
    "RelMAC fuse": ("relmac_fuse", 1, 3),
    "time": ("seconds_relative", 1, 2),
}


def details(section: Section, recipe: Recipe, evidence: Evidence, models: Sequence[str]) -> str:
    """Everything that was measured."""
    dense = next(iter(recipe.table.models))
    controls = [control for control in dict.fromkeys([dense, "rigl"]) if control in models]
    columns = ["model", "seeds", "accuracy, %", *(f"minus {control}, points (p)" for control in controls), *DETAILS]
    rows = []
    for model in models:
        accuracy = evidence.interval(section.name, recipe.kind, model, "accuracy")
        row = [model, str(accuracy.n), bracketed(accuracy)]
        for control in controls:
            same = control == model
            row.append(ABSENT if same else points(evidence.paired(section.name, recipe.kind, model, control)))
        row += [mean_std(evidence, section, recipe.kind, model, *how) for how in DETAILS.values()]
        rows.append(row)
    found = markdown(columns, rows) + "\n"
    if section.columns:
        more = [
            [model, *(mean_std(evidence, section, recipe.kind, model, path, 1, 4) for path in section.columns.values())]
            for model in models
        ]
        shown = [row for row in more if any(text != ABSENT for text in row[1:])]
        found += "\n" + markdown(["model", *section.columns], shown) + "\n" if shown else ""
    return found


def origin(recipe: Recipe, evidence: Evidence, models: Sequence[str]) -> str:
    """Data, commits, machines and versions of the runs."""
    table = recipe.table.name
    data = evidence.data[table]
    metas = [run["meta"] for model in models for run in evidence.runs[table, model]]
    commits = ", ".join(sorted({str(meta["commit"]) for meta in metas}))
    machines = ", ".join(sorted({meta["machine"]["gpu"] or f"{meta['machine']['arch']} CPU" for meta in metas}))
    versions = ", ".join(sorted({f"torch {meta['versions']['torch']}" for meta in metas}))
    valid = f", {data['valid']:,} validation" if data["valid"] else ", no validation"
    return (
        f"{data['train']:,} training rows{valid}, {data['test']:,} test rows, {data['features']:,} features, "
        f"{data['classes']} classes (most frequent class: {data['majority'] * 100:.1f} %). Commit {commits}; "
        f"{machines}; {versions}.\n"
    )


def mean_std(
    evidence: Evidence, section: Section, kind: Kind, model: str, metric: str, scale: float, digits: int
) -> str:
    """mean ± std of a metric, or the sign for an absent number."""
    try:
        found = evidence.interval(section.name, kind, model, metric)
    except MissingRunError:
        return ABSENT
    mean = f"{found.mean * scale + 0.0:,.{digits}f}"
    std = f"{found.std * scale:,.{digits}f}"
    return f"{mean} ± {std}" if found.std and float(std.replace(",", "")) else mean


def bracketed(found: Interval) -> str:
    """A fraction as a percentage: mean ± std and the 95 % interval."""
    mean = f"{found.mean * 100:.2f}"
    if found.half is None:
        return mean
    low, high = found.mean - found.half, found.mean + found.half
    return f"{mean} ± {found.std * 100:.2f} [{low * 100:.2f}, {high * 100:.2f}]"


def points(found: Paired) -> str:
    """A difference of fractions in percentage points, and its p-value."""
    difference = signed_points(found.difference)
    return difference if found.p is None else f"{difference} ({'<0.001' if found.p < 0.001 else f'{found.p:.3f}'})"


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return ABSENT if value is None else f"{value * 100:.2f}"


def ratio(value: float | None) -> str:
    """A ratio with three decimals."""
    return ABSENT if value is None else f"{value:.3f}"
