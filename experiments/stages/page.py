"""The results in docs/stages.md, between its markers."""

from __future__ import annotations

from statistics import fmean

from dynamicgate.lab.result_file import read_runs
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import Paired, interval, paired
from experiments.stages.clock import equal_accuracy, fastest_dense
from experiments.stages.latency import BATCHES, latency_path
from experiments.stages.summary import Comparison, Key, costs, points, primary, put_at, read_comparisons
from experiments.stages.tables import ABLATED_AT, ABLATED_ON, TILES, TIMED

PAGE = "docs/stages.md"


def pages(experiment: Experiment) -> Pages:
    """The page and its tables."""
    found, tiles = read_comparisons(experiment), read_comparisons(experiment, TILES)
    if not found:
        return {}
    parts = [
        overview(found, "masks of single connections"),
        overview(tiles, "masks of tiles of 16 outputs"),
        compared(found, "masks of single connections"),
        compared(tiles, "masks of tiles of 16 outputs"),
        curve(experiment),
        ablation(experiment),
        clock(experiment),
    ]
    return {PAGE: {"stages": "\n\n".join(part for part in parts if part)}}


def overview(found: dict[Key, Comparison], masks: str) -> str:
    """The primary comparison with one kind of masks."""
    tests = primary(found)
    if not tests:
        return ""
    rows = [
        [
            test.name,
            ", ".join(f"{budget:g}" for budget in test.budgets) or "none",
            f"{test.difference:+.2f}" if test.budgets else ABSENT,
            f"{test.p:.2g}" if test.budgets else ABSENT,
            f"{test.corrected:.2g}" if test.budgets else ABSENT,
            _tested(test.against_cascade),
        ]
        for test in tests
    ]
    better = [t.name for t in tests if t.difference > 0 and t.corrected < 0.05]
    worse = [t.name for t in tests if t.difference < 0 and t.corrected < 0.05]
    head = ["dataset", "stages used at", "points gained", "p", "p, Holm", "against a cascade (p)"]
    said = f"Better after Holm's correction: {', '.join(better) or 'none'}. Worse: {', '.join(worse) or 'none'}."
    return (
        f"### Stages against the same recipe without them, {masks}\n\n"
        "Points of accuracy on test rows gained over the recipe without gates at the same mean cost, averaged over "
        "budgets of 0.02, 0.05 and 0.1; 0 at budgets where validation rows say that stages do not pay. Paired over "
        f"five seeds. {said} Against a cascade the recipe is taken as it is used: with stages or without.\n\n"
        + markdown(head, rows)
    )


def compared(found: dict[Key, Comparison], masks: str) -> str:
    """Every budget of every dataset with one kind of masks."""
    if not found:
        return ""
    rows = []
    for (name, budget), one in found.items():
        test, cascade, random = paired(points(one.staged), points(one.single)), one.against_cascade, one.against_random
        worst = max(abs(cost - budget) for cost in costs(one.staged))
        opened = " / ".join(f"{fmean(v):.2f}" for v in zip(*(run["stages"]["open"] for run in one.staged), strict=True))
        rows.append(
            [
                f"{name} {budget:g}",
                _interval(points(one.single)),
                _interval(points(one.staged)),
                _tested(test),
                "yes" if one.used else "no",
                _tested(cascade),
                _tested(random),
                opened,
                f"{fmean(costs(one.staged)):.4f} ± {worst:.4f}",
                f"{fmean(one.correlations):.2f}" if one.correlations else ABSENT,
            ]
        )
    head = [
        "", "no stages", "stages", "gain (p)", "used", "against cascade (p)", "against random (p)", "opened",
        "cost, largest error", "cost and error",
    ]  # fmt: skip
    return (
        f"### Every budget, {masks}\n\n"
        "Accuracy on test rows in points, mean over five seeds with its 95 % interval. `cascade`: independent networks "
        "of the same costs. `random`: the same stops dealt to rows at random. `opened`: the fraction of rows that "
        "opened each stage. `cost`: mean executed MACs on test rows relative to dense, everything counted, and the "
        "largest distance of a seed from the budget. `cost and error`: correlation over test rows of what an input "
        "costs with being answered wrongly.\n\n" + markdown(head, rows)
    )


def curve(experiment: Experiment) -> str:
    """One model put at five budgets."""
    rows = put_at(experiment)
    if not rows:
        return ""
    largest = max(abs(row["put"] - row["trained"]) for row in rows)
    table = [
        [f"{r['budget']:g}", f"{r['put']:.2f} at {r['put_cost']:.4f}", f"{r['trained']:.2f} at {r['trained_cost']:.4f}"]
        for r in rows
    ]
    return (
        "### One model, five budgets\n\n"
        "The CIFAR-10 models trained for 0.05, put at other budgets by `calibrate_` on validation rows, against models "
        f"trained for each of them; means over five seeds. The largest difference is {largest:.2f} points.\n\n"
        + markdown(["budget", "put there", "trained for it"], table)
    )


def ablation(experiment: Experiment) -> str:
    """One thing changed at a time, on validation rows."""
    columns = {}
    for name in ABLATED_ON:
        runs, _ = read_results(experiment.results, experiment.jobs([experiment.table(f"{name}-ablation")]))
        columns[name] = {model: _interval(points(rows)) for (_, model), rows in runs.items() if rows}
    names = [name for name in ABLATED_ON if columns[name]]
    if not names:
        return ""
    models = dict.fromkeys(model for name in names for model in columns[name])
    rows = [[model, *(columns[name].get(model, ABSENT) for name in names)] for model in models]
    return (
        f"### What matters\n\nOne thing changed at a time at a budget of {ABLATED_AT:g}: accuracy on validation rows, "
        "three seeds. A head's MACs are counted.\n\n" + markdown(["", *names], rows)
    )


def clock(experiment: Experiment) -> str:
    """Latency at equal accuracy."""
    every = list(read_runs(latency_path(experiment)))
    parts = []
    for name in TIMED:
        timed = [row for row in every if row["data"] == name]
        if not timed:
            continue
        rows = []
        for row in equal_accuracy(timed):
            cells = [row["model"], f"{100 * row['accuracy']:.2f}", f"{row['relative']:.4f}"]
            for batch in BATCHES:
                found = row["batches"][str(batch)]
                cells += [
                    f"{found['mean_us']:.1f} / {found['p99_us']:.1f}",
                    f"{found['rival']} ({found['rival_us']:.1f})" if found["rival"] else ABSENT,
                    f"{found['ratio']:.2f}" if found["ratio"] else ABSENT,
                ]
            rows.append(cells)
        dense = ", ".join(f"{fastest_dense(timed, batch):.1f} µs at batch {batch}" for batch in BATCHES)
        head = ["", "accuracy", "cost"]
        for batch in BATCHES:
            head += [f"batch {batch}: mean / p99 µs", "fastest without stages", "times as fast"]
        parts.append(f"#### {name}\n\nThe dense network takes {dense}.\n\n{markdown(head, rows)}")
    if not parts:
        return ""
    return (
        "### On the clock\n\n"
        "Compiled models, one CPU thread, one process, in turn over the stream of test inputs, deciding and all stages "
        "included. The rival is the fastest plan without stages, dense ones included, that loses no more than 0.1 "
        "points of accuracy. The dense network is the faster of `torch.compile` and our own plan.\n\n"
        + "\n\n".join(parts)
    )


def _tested(test: Paired) -> str:
    """A difference in points, and its p."""
    return f"{test.difference:+.2f} ({1.0 if test.p is None else test.p:.2g})"


def _interval(values: list[float]) -> str:
    found = interval(values)
    return f"{found.mean:.2f}" + ("" if found.half is None else f" ± {found.half:.2f}")
