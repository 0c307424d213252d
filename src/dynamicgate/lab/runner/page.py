"""docs/paper.md, made from the JSON of the runs: the same runs, the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynamicgate.lab.report.markdown_tables import markdown
from dynamicgate.lab.report.number_format import ABSENT
from dynamicgate.lab.runner.claims import Claim, Evidence, MissingRunError, Verdict
from dynamicgate.lab.runner.jobs import KINDS, Kind, Recipe, Table, jobs_of, load_module, load_tables
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.runner.statistics import Interval, Paired

INTRO = """\
# The paper, run again

<!-- Made by `dynamicgate paper page` from experiments/results/paper: do not edit. -->

Every table of section 5 of the paper, three times: what it printed, what its published code gives when it is run as it
is, and what this library gives with equal budgets, controls and several seeds. [The paper and the code](paper-code.md)
says where each formula is.

```bash
dynamicgate paper all            # everything; finished runs are found
dynamicgate paper mnist --quick  # does it run here? a minute or two, results apart
dynamicgate paper page           # this page again, from the committed results
```

- **as published** repeats the reference code: its settings, its static gates, and its faults where they make the
  result. **as written** follows the paper's text. **ours** is what this library does.
- *executed* is MACs relative to the dense network on hard gates as deployed, gate networks and output layer counted.
  *own count* is the same number by the formula of the published code.
- ± is the standard deviation over seeds, brackets are 95 % intervals of the mean, p-values are two-sided paired t tests
  over seeds. *time* is that of a training step relative to the dense network's, in turn in one process.
"""
NO_RESULT = "not run yet"


def page(folder: Path, results: Path, *, quick: bool = False) -> str:
    """The text of the page."""
    tables = load_tables(folder)
    evidence = Evidence(*read_results(results, jobs_of(tables, seeds=None, quick=quick)))
    claims: Sequence[Claim] = load_module(folder, "claims").CLAIMS
    parts = [INTRO, claims_section(claims, evidence), *(table_section(table, evidence) for table in tables)]
    return "\n".join(parts).rstrip("\n") + "\n"


def claims_section(claims: Sequence[Claim], evidence: Evidence) -> str:
    """Which claims hold, and by which number."""
    verdicts = [decided(claim, evidence) for claim in claims]
    counts = ", ".join(
        f"{sum(v is not None and v.outcome == outcome for v in verdicts)} {words}"
        for outcome, words in (("holds", "hold"), ("does not hold", "do not"), ("cannot be tested", "cannot be tested"))
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


def table_section(table: Table, evidence: Evidence) -> str:
    """One section of the page."""
    text = [f"## {table.section} {table.title}{subset(table, evidence)}\n", side_by_side(table, evidence)]
    for recipe in table.recipes:
        models = [model for model in recipe.models if (table.name, recipe.kind, model) in evidence.runs]
        title = f"### {table.section} {KINDS[recipe.kind]}\n"
        if models:
            text += [title, origin(table, recipe, evidence, models), accounts(table, recipe, evidence, models)]
        else:
            text += [title, f"{NO_RESULT.capitalize()}: `dynamicgate paper {table.name}/{recipe.kind}`\n"]
        text.append("\n".join(f"- {remark}" for remark in recipe.remarks) + "\n")
    return "\n".join(text)


def subset(table: Table, evidence: Evidence) -> str:
    """What of the data set was there, if not all."""
    found = [evidence.data[key] for key in evidence.data if key.startswith(f"{table.name}/")]
    rows = max((data["train"] + data["valid"] for data in found), default=table.whole)
    return "" if rows >= table.whole else f" (a subset: {rows:,} of {table.whole:,} training rows)"


def side_by_side(table: Table, evidence: Evidence) -> str:
    """The paper's number, what its code gives, and ours."""
    kinds: list[Kind] = [recipe.kind for recipe in table.recipes]
    columns = ["model", "paper: accuracy, %", "paper: MACs"]
    for kind in kinds:
        columns.append(f"{KINDS[kind]}: accuracy, %")
        columns += [f"{KINDS[kind]}: own count"] if kind == "published" else []
        columns.append(f"{KINDS[kind]}: executed")
    models = dict.fromkeys([*table.paper, *(model for recipe in table.recipes for model in recipe.models)])
    rows = []
    for model in models:
        printed = table.paper.get(model, {})
        row = [model, share(printed.get("accuracy")), ratio(printed.get("relative"))]
        for kind in kinds:
            row.append(cell(evidence, table, kind, model, "accuracy", 100, 2))
            row += [cell(evidence, table, kind, model, "claimed", 1, 3)] if kind == "published" else []
            row.append(cell(evidence, table, kind, model, "relative", 1, 3))
        rows.append(row)
    return markdown(columns, rows) + "\n"


ACCOUNT = {
    "macro-F1, %": ("macro_f1", 100, 2),
    "parameters": ("params", 1, 0),
    "executed": ("relative", 1, 3),
    "of it gates": ("gate_cost", 1, 3),
    "saved by gates": ("gate_saved", 1, 3),
    "saved by structure": ("structure_saved", 1, 3),
    "skipping zeros too": ("zero_skip", 1, 3),
    "ComputeProxy": ("compute_proxy", 1, 3),
    "RelMAC": ("relmac", 1, 3),
    "RelMAC fuse": ("relmac_fuse", 1, 3),
    "time": ("seconds", 1, 2),
}


def accounts(table: Table, recipe: Recipe, evidence: Evidence, models: Sequence[str]) -> str:
    """Everything that was measured."""
    dense = next(iter(recipe.models))
    rivals = [rival for rival in dict.fromkeys([dense, "rigl"]) if rival in models]
    columns = ["model", "seeds", "accuracy, %", *(f"to {rival}, points (p)" for rival in rivals), *ACCOUNT]
    rows = []
    for model in models:
        accuracy = evidence.interval(table.name, recipe.kind, model, "accuracy")
        row = [model, str(accuracy.n), bracketed(accuracy)]
        for rival in rivals:
            same = rival == model
            row.append(ABSENT if same else points(evidence.paired(table.name, recipe.kind, model, rival)))
        row += [cell(evidence, table, recipe.kind, model, *how) for how in ACCOUNT.values()]
        rows.append(row)
    found = markdown(columns, rows) + "\n"
    if table.columns:
        more = [
            [model, *(cell(evidence, table, recipe.kind, model, path, 1, 4) for path in table.columns.values())]
            for model in models
        ]
        shown = [row for row in more if any(text != ABSENT for text in row[1:])]
        found += "\n" + markdown(["model", *table.columns], shown) + "\n" if shown else ""
    return found


def origin(table: Table, recipe: Recipe, evidence: Evidence, models: Sequence[str]) -> str:
    """Data, commits, machines and versions of the runs."""
    data = evidence.data[f"{table.name}/{recipe.kind}"]
    metas = [run["meta"] for model in models for run in evidence.runs[table.name, recipe.kind, model]]
    commits = ", ".join(sorted({str(meta["commit"]) for meta in metas}))
    machines = ", ".join(sorted({meta["machine"]["gpu"] or f"{meta['machine']['arch']} CPU" for meta in metas}))
    versions = ", ".join(sorted({f"torch {meta['versions']['torch']}" for meta in metas}))
    valid = f", {data['valid']:,} validation" if data["valid"] else ", no validation"
    return (
        f"{data['train']:,} training rows{valid}, {data['test']:,} test rows, {data['features']:,} features, "
        f"{data['classes']} classes (always the most frequent: {data['majority'] * 100:.1f} %). Commit {commits}; "
        f"{machines}; {versions}.\n"
    )


def cell(evidence: Evidence, table: Table, kind: Kind, model: str, metric: str, scale: float, digits: int) -> str:
    """mean ± std of a metric, where it is known."""
    try:
        found = evidence.interval(table.name, kind, model, metric)
    except MissingRunError:
        return ABSENT
    mean = f"{found.mean * scale + 0.0:,.{digits}f}"
    std = f"{found.std * scale:,.{digits}f}"
    return f"{mean} ± {std}" if found.std and float(std.replace(",", "")) else mean


def bracketed(found: Interval) -> str:
    """A share as a percentage: mean ± std and the 95 % interval."""
    mean = f"{found.mean * 100:.2f}"
    if found.half is None:
        return mean
    low, high = found.mean - found.half, found.mean + found.half
    return f"{mean} ± {found.std * 100:.2f} [{low * 100:.2f}, {high * 100:.2f}]"


def points(found: Paired) -> str:
    """A difference of shares in percentage points, and its p-value."""
    difference = signed(found.difference * 100)
    return difference if found.p is None else f"{difference} ({'<0.001' if found.p < 0.001 else f'{found.p:.3f}'})"


def signed(value: float) -> str:
    """With a sign that is one character wide."""
    return f"{value:+.2f}".replace("-", "−")


def share(value: float | None) -> str:
    """A share as a percentage."""
    return ABSENT if value is None else f"{value * 100:.2f}"


def ratio(value: float | None) -> str:
    """A ratio with three decimals."""
    return ABSENT if value is None else f"{value:.3f}"
