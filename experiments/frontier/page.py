"""docs/why-it-works.md with its figures, and the table of the README, made from the stored runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean

from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from experiments.frontier.clock import latency_section, latency_summary
from experiments.frontier.comparisons import Entries, ask_the_clock, read_entries, read_oracles
from experiments.frontier.datasets import DATASETS
from experiments.frontier.gate_alone import gate_against_small
from experiments.frontier.latency import read_latencies, refused
from experiments.frontier.methods import (
    ANY_SPEED,
    AT_A_BUDGET,
    BUDGETS,
    DENSE,
    KINDS,
    NO_GATES,
    OURS,
    OURS_IN_TILES,
    UNGATED,
    WITHOUT_GATES,
)
from experiments.frontier.plot import by_cost
from experiments.frontier.record import collapses, kinds, looks, search
from experiments.frontier.summary import accuracy, areas, every_control, overview, primary, tiles
from experiments.frontier.tables import kind_of, read_chosen

PAGE = "docs/why-it-works.md"
INTRO = f"""\
# Why it works, and where it does not

<!-- Made by `python -m experiments.frontier page` from experiments/results/frontier: do not edit. -->

Every method is trained to the same fraction of the dense network's MACs (gate networks and output layer counted, hard
gates, no skipping of zeros) with the same epochs and the same rule for the search of its settings, in which `gate`,
`small` and `static` have one setting and some seeds more than the others. What is run, what tuning may see and how
cells are tested is in `experiments/frontier/protocol.md`, which also says what was added after which results. ± is half
of a 95 % interval over seeds.

```bash
python -m experiments.frontier tuning     # settings of all methods, by validation rows; stored runs are not repeated
python -m experiments.frontier all        # all methods and budgets on all datasets
python -m experiments.frontier latency    # time the models that were trained here, with one CPU thread
python -m experiments.frontier page       # this page again, from the committed results
```

## The recipe

- **A dense start.** All connections exist at first. From a tenth of training on, the smallest weights are pruned along
  a cubic, while a few missing connections with large gradients are grown: which ones are worth keeping is learned, not
  guessed from a first gradient.
- **Erdős–Rényi densities.** Small layers stay denser than large ones.
- **Wider layers where the budget allows them.** From a budget of 0.1 on, hidden layers are a quarter wider than asked
  for, from 0.2 on half as wide again, at the same cost. A dense start then takes correspondingly longer to train.
- **Gates where validation rows say that they pay.** Three kinds are tried against none: gates that open and close
  blocks of 16 units and are as sparse as the layers they gate, or two or three stages, where easy inputs stop early.
  Where a gate on units could read fewer than four inputs for what it may cost, that kind is no candidate. Gates that
  make the compiled model slower than none at equal MACs are refused by the clock.
- **Gates save what they must save in the end.** The budget asks gates to save the fraction of the existing connections
  that they will have to save of the final ones, so that they do not pay for connections that are still to be pruned.

`{UNGATED}` is the same recipe without gates. The controls have the same densities, widths and number of mask
updates, where these mean anything to them.
"""


def pages(experiment: Experiment) -> Pages:
    """The page, the figures of all datasets that have runs, and the table of the README; quick ones beside their
    runs."""
    where = f"{experiment.work.relative_to(experiment.root).as_posix()}/" if experiment.quick else ""
    chosen = {} if experiment.quick else read_chosen()
    read = {name: read_entries(experiment, name, chosen) for name in DATASETS}
    latencies = {name: times for name, times in read_latencies(experiment).items() if times}
    found = {
        name: ask_the_clock(entries, refused(latencies.get(name, {}))) for name, (entries, _) in read.items() if entries
    }

    def kind(name: str, method: str, budget: float) -> str:
        entries = found.get(name, {})
        asked = kind_of(chosen.get(name, {}), method, budget)
        if (method + ANY_SPEED, budget) in entries:
            return f"{asked}, refused by the clock"
        runs = entries[method, budget].runs if (method, budget) in entries else []
        return asked if asked == NO_GATES or any(run["gates"] or run.get("stages") for run in runs) else NO_GATES

    def has_gates(name: str, method: str, budget: float) -> bool:
        return kind(name, method, budget) in KINDS and kind(name, method, budget) != NO_GATES

    oracles = read_oracles(experiment)
    made: dict[str, str | Mapping[str, str]] = {}
    parts = [
        INTRO,
        missing(found),
        primary(found, kind),
        every_control(found),
        tiles(found),
        gate_against_small(found, oracles),
        latency_summary(latencies),
        areas(found),
        search(experiment),
        kinds(chosen),
        looks(found, oracles),
        collapses(found) if found else "",
    ]
    for name, entries in found.items():
        parts += [dataset_section(name, entries, read[name][1]), gate_table(entries)]
        parts.append(latency_section(latencies.get(name, {}), partial(has_gates, name)))
        made[f"{where}docs/figures/frontier-{name}.svg"] = by_cost(name, entries)
    if not experiment.quick:
        made["README.md"] = {"frontier": overview(found)}
    made[where + PAGE] = "\n".join(part for part in parts if part).rstrip("\n") + "\n"
    return made


def missing(found: Mapping[str, Entries]) -> str:
    """The datasets that were not run yet."""
    names = [name for name in DATASETS if name not in found]
    return f"Not run yet: {', '.join(names)}.\n" if names else ""


def dataset_section(name: str, entries: Entries, data: Mapping[str, int]) -> str:
    """Sizes, figure and accuracies of a dataset."""
    rows = f"{data['train']:,} training, {data['valid']:,} validation, {data['test']:,} test rows"
    sizes = "-".join(map(str, (data["features"], *DATASETS[name].hidden, data["classes"])))
    figure = f"![Accuracy against executed MACs on {name}](figures/frontier-{name}.svg)"
    return f"## {name}, {sizes}\n\n{rows}.\n\n{figure}\n\n{accuracy_table(entries)}\n"


def accuracy_table(entries: Entries) -> str:
    """Mean and interval of every method at every budget."""
    columns = ["accuracy, %", *(f"{budget:g}" for budget in BUDGETS)]
    shown = (
        *AT_A_BUDGET,
        *(o + ANY_SPEED for o in WITHOUT_GATES if any(method == o + ANY_SPEED for method, _ in entries)),
    )
    rows = [[method, *(accuracy(entries.get((method, b)), b) for b in BUDGETS)] for method in shown]
    seeds = max(len(entry.runs) for entry in entries.values())
    full = accuracy(entries.get((DENSE, None)))
    return f"{markdown(columns, rows, numbers=True)}\n\nDense, at full cost: {full}. Up to {seeds} seeds."


def gate_table(entries: Entries) -> str:
    """Whether gates depend on the input, and what that is worth."""
    rows = []
    for method in ("gate", OURS, OURS_IN_TILES, OURS + ANY_SPEED, OURS_IN_TILES + ANY_SPEED):
        for budget in BUDGETS:
            runs = entries[method, budget].runs if (method, budget) in entries else ()
            runs = [run for run in runs if run["gates"]]
            if not runs:
                continue
            gates = [gate for run in runs for gate in run["gates"]]
            masks = [run for run in runs if "accuracy_of_mean_mask" in run]
            lost = [100 * (run["quality"]["accuracy"] - run["accuracy_of_mean_mask"]) for run in masks]
            executed = [run["macs"]["relative"] for run in runs]
            cost = fmean(run["macs"]["gate"] / run["macs"]["executed"] for run in runs)
            of_gates = [fmean(gate[key] for gate in gates) for key in ("open", "variance", "always_on", "always_off")]
            apart = 100 * (max(executed) - min(executed))
            numbers = [f"{value:.2f}" for value in (apart, *of_gates, cost)]
            worth = f"{fmean(lost):.2f}" if lost else ABSENT
            rows.append([f"{method} {budget:g}", f"{fmean(executed):.3f}", *numbers, worth])
    columns = [
        "gates on units", "executed", "spread over seeds, points", "open", "variance", "always open", "never open",
        "fraction spent on gates", "lost with the mean mask, points",
    ]  # fmt: skip
    return markdown(columns, rows, numbers=True) + "\n" if rows else ""
