"""docs/why-it-works.md with its figures, and the table of the README, made from the stored runs."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, stdev

from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.frontier.comparisons import (
    BATCHES,
    Entries,
    Entry,
    Latencies,
    area,
    comparisons,
    latency_comparisons,
    read_entries,
)
from experiments.frontier.datasets import (
    AT_A_BUDGET,
    AT_FULL_COST,
    BUDGETS,
    DATASETS,
    OURS,
    OURS_IN_TILES,
    UNGATED,
)
from experiments.frontier.latency import read_latencies
from experiments.frontier.plot import by_cost, by_latency
from experiments.frontier.search import search
from experiments.frontier.summary import (
    caveats,
    latency_summary,
    list_untimed,
    overview,
    summary,
)

PAGE = "docs/why-it-works.md"
INTRO = f"""\
# Why it works, and where it does not

<!-- Made by `python -m experiments.frontier page` from experiments/results/frontier: do not edit. -->

Every method is trained to the same fraction of the dense network's MACs (gate networks and output layer counted, hard
gates, no skipping of zeros) with the same epochs and the same tuning: for each method two learning rates, with and
without dropout, chosen by validation rows. Test rows are measured once in
each run, at its end; the defaults of `{OURS}` were changed after a first set of runs, so its test rows were looked at
more than once.

```bash
python -m experiments.frontier digits     # all methods and budgets on one dataset; stored runs are not repeated
python -m experiments.frontier latency    # time the models that were trained here, with one CPU thread
python -m experiments.frontier page       # this page again, from the committed results
```

`{OURS}` uses the defaults of the library everywhere: nothing about its gates is set for a dataset.

## The recipe

- **A dense start.** All connections exist at first. From a tenth of training on, the smallest weights are pruned along
  a cubic, while a few missing connections with large gradients are grown: which ones are worth keeping is learned, not
  guessed from a first gradient.
- **Erdős–Rényi densities.** Small layers stay denser than large ones.
- **Wider layers where the budget allows them.** From a budget of 0.1 on, hidden layers are a quarter wider than asked
  for, from 0.2 on half as wide again, at the same cost: more units to choose from, each with fewer inputs. Where
  connections are scarce, that only spreads them thinner. A dense start then takes correspondingly longer to train.
- **Light gates.** They open and close blocks of 16 units, and are as sparse as the layers they gate. Below a budget of
  0.1 they take a twentieth of it and leave 85 % of the units open, from 0.1 on a fiftieth and 95 %. What closed units
  save pays for more connections. Where a gate could read fewer than four inputs for that, as on digits, there is none.
- **Gates save what they must save in the end.** The budget asks gates to save the fraction of the existing connections
  that they will have to save of the final ones. If they had to meet the whole budget while most connections are still
  to be pruned, they would close far more than they ever need to, and closed units are slow to come back.

## When gating helps, and when it does not

`{UNGATED}` below is the same recipe without gates, so the last table of the next section says what gates add and what
they cost. A gate is a restriction: every input does without some units, which in training acts like a dropout that
depends on the input. What it saves pays for more connections. With an MLP that reads one vector that is close to an
even trade: on most datasets here gates neither add nor cost a tenth of a point. They add most on Tiny-ImageNet from 0.1
on, and cost most there at 0.05. Most of the lead over the controls comes from choosing connections from a dense start,
distributing them by layer size, and, from 0.1 on, choosing among more of them: pruned networks gain from width as well,
as the search shows. So `{UNGATED}` at the same width is a fair choice, too, and on a CPU the
faster one: the blocks that gates leave out do not pay for running the gates (tables of latency below).

Unstructured masks need few MACs, but not always little time: one of their MACs takes a CPU about 3.5 times as long as a
dense one (pruned on CIFAR-10 at 0.05, below). Tiles of 16 outputs that share an input, and gates on blocks of 16 units,
are what a CPU can skip: `{OURS_IN_TILES}` is less accurate at equal MACs and, on all but the smallest networks, mostly
more accurate at equal latency. On digits every model takes about as long as a function call, and there is nothing to
save. For one row of MNIST a narrow dense network with 0.4 of the MACs is as fast as tiles with 0.05: it fits into the
cache, and below 0.1 it is the better choice there.
"""


def pages(experiment: Experiment) -> dict[str, str | Mapping[str, str]]:
    """The page, the figures of all datasets that have runs, and the table of the README; quick ones beside their
    runs."""
    where = f"{experiment.work.relative_to(experiment.root).as_posix()}/" if experiment.quick else ""
    read = {name: read_entries(experiment, name) for name in DATASETS}
    data = {name: sizes for name, (_, sizes) in read.items()}
    found = {name: entries for name, (entries, _) in read.items() if entries}
    latencies = {name: times for name, times in read_latencies(experiment).items() if name in found}
    compared = [one for name, entries in found.items() for one in comparisons(name, entries)]
    ungated = [one for name, entries in found.items() for one in comparisons(name, entries, (UNGATED,))]
    at_equal_latency = {
        (ours, batch): [
            one
            for name, entries in found.items()
            for one in latency_comparisons(name, entries, latencies[name], batch, ours)
        ]
        for ours in (OURS_IN_TILES, OURS)
        for batch in BATCHES
    }
    made: dict[str, str | Mapping[str, str]] = {}
    parts = [
        INTRO,
        summary(compared, ungated) + latency_summary(at_equal_latency) + list_untimed(latencies),
        search(experiment),
    ]
    for name, entries in found.items():
        timed = {key: times for key, times in latencies[name].items() if key in entries}
        parts += [dataset_section(name, entries, data[name]), latency_section(name, timed), gate_table(entries)]
        made[f"{where}docs/figures/frontier-{name}.svg"] = by_cost(name, entries)
        for batch in BATCHES if timed else ():
            made[f"{where}docs/figures/latency-{name}-{batch}.svg"] = by_latency(name, entries, timed, batch)
    if not experiment.quick:
        made["README.md"] = {
            "frontier": overview(found, compared),
            "caveats": caveats(found, compared, ungated, latencies),
        }
    made[where + PAGE] = "\n".join(part for part in parts if part).rstrip("\n") + "\n"
    return made


def dataset_section(name: str, entries: Entries, data: Mapping[str, int]) -> str:
    """Sizes, figure and accuracies of a dataset."""
    rows = f"{data['train']:,} training, {data['valid']:,} validation, {data['test']:,} test rows"
    sizes = "-".join(map(str, (data["features"], *DATASETS[name].hidden, data["classes"])))
    figure = f"![Accuracy against executed MACs on {name}](figures/frontier-{name}.svg)"
    return f"## {name}, {sizes}\n\n{rows}.\n\n{figure}\n\n{accuracy_table(entries)}\n"


def accuracy_table(entries: Entries) -> str:
    """Mean and standard deviation at every budget, and the area under the frontier."""
    columns = ["accuracy, %", *(f"{budget:g}" for budget in BUDGETS), "area"]
    rows = []
    for method in AT_A_BUDGET:
        under = area(entries, method)
        mean = ABSENT if under is None else f"{under.mean:.2f}" + ("" if under.half is None else f" ± {under.half:.2f}")
        rows.append([method, *(spread(entries.get((method, budget)), budget) for budget in BUDGETS), mean])
    full = ", ".join(f"{m} {spread(entries[m, None])}" for m in AT_FULL_COST if (m, None) in entries)
    note = "The area is the mean accuracy over the logarithm of the budget, ± half of a 95 % interval over seeds."
    return f"{markdown(columns, rows, numbers=True)}\n\nAt full cost: {full or ABSENT}. {note}"


def spread(entry: Entry | None, budget: float | None = None) -> str:
    """Mean ± standard deviation, and the cost where it is not what was asked for."""
    if entry is None:
        return ABSENT
    deviation = f" ± {100 * stdev(entry.accuracy):.2f}" if len(entry.accuracy) > 1 else ""
    cost = "" if entry.meets(budget) else f" at {fmean(entry.relative):.3f}"
    return f"{entry.mean:.2f}{deviation}{cost}"


def latency_section(name: str, latencies: Latencies) -> str:
    """The figures and the table of latencies; empty where nothing was timed."""
    if not latencies:
        return ""
    figures = "\n\n".join(
        f"![Accuracy against latency at batch {batch} on {name}](figures/latency-{name}-{batch}.svg)"
        for batch in BATCHES
    )

    def ratios(method: str, budget: float) -> str:
        if (method, budget) not in latencies:
            return ABSENT
        return " / ".join(f"{latencies[method, budget]['batches'][str(batch)]['ratio']:.3f}" for batch in BATCHES)

    columns = [f"latency at batch {' / '.join(map(str, BATCHES))}", *(f"{budget:g}" for budget in BUDGETS)]
    rows = [[method, *(ratios(method, budget) for budget in BUDGETS)] for method in AT_A_BUDGET]
    note = "The model of the first seed, compiled, relative to the dense network in eager torch; one thread."
    return f"{figures}\n\n{markdown(columns, rows, numbers=True)}\n\n{note}\n"


def gate_table(entries: Entries) -> str:
    """Whether gates depend on the input, and what that is worth."""
    rows = []
    for method in ("gate", OURS, OURS_IN_TILES):
        for budget in BUDGETS:
            entry = entries.get((method, budget))
            if entry is None or not any(run["gates"] for run in entry.runs):
                continue
            gates = [gate for run in entry.runs for gate in run["gates"]]
            lost = [100 * (run["quality"]["accuracy"] - run["accuracy_of_mean_mask"]) for run in entry.runs]
            executed = [run["macs"]["relative"] for run in entry.runs]
            cost = fmean(run["macs"]["gate"] / run["macs"]["executed"] for run in entry.runs)
            of_gates = [fmean(gate[key] for gate in gates) for key in ("open", "variance", "always_on", "always_off")]
            apart = 100 * (max(executed) - min(executed))
            numbers = [f"{value:.2f}" for value in (apart, *of_gates, cost, fmean(lost))]
            rows.append([f"{method} {budget:g}", f"{fmean(executed):.3f}", *numbers])
    columns = [
        "gates", "executed", "spread over seeds, points", "open", "variance", "always open", "never open",
        "fraction spent on gates", "lost with the mean mask, points",
    ]  # fmt: skip
    return markdown(columns, rows, numbers=True) + "\n" if rows else ""
