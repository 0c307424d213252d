"""docs/why-it-works.md and its figures, made from the JSON of the runs: the same runs, the same bytes."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

from dynamicgate.files import write_text
from dynamicgate.lab.report.markdown_tables import filled, markdown
from dynamicgate.lab.report.number_format import ABSENT

from .cells import (
    BATCHES,
    JUDGED,
    Cell,
    Cells,
    Clock,
    area,
    clock_duels,
    duels,
    read_cells,
    read_clock,
    read_transfer,
)
from .plot import by_clock, by_cost
from .search import search
from .sets import AT_A_BUDGET, AT_FULL_COST, BUDGETS, OURS, OURS_IN_CELLS, SETS, UNGATED
from .verdict import clock_summary, counted, lost, on_the_clock, overview, summary, untimed

PAGE = Path("docs") / "why-it-works.md"
README = Path("README.md")
FIGURES = Path("docs") / "figures"
FOLDER = Path(__file__).resolve().parent
INTRO = f"""\
# Why it works, and where it does not

<!-- Made by `python experiments/frontier page` from experiments/results/frontier: do not edit. -->

Every method, trained to the same share of the dense network's MACs (gate networks and output layer counted, hard gates,
no skipping of zeros) with the same epochs and the same tuning: for each method two learning rates with and without
dropout, judged by validation rows. Test rows are measured once, at the end of a run.

```bash
python experiments/frontier digits    # all methods and budgets on one data set; finished runs are found
python experiments/frontier clock     # the latency of what is trained here, with one thread of the CPU
python experiments/frontier page      # this page again, from the committed results
```

`{OURS}` has the defaults of the library everywhere: nothing about its gates is set for a data set.

## The recipe

- **From dense.** All connections exist at first. From a tenth of training on the weakest go, along a cubic, while a few
  missing ones with large gradients grow: what is worth keeping is learned, not guessed from a first gradient.
- **By Erdős–Rényi.** Small layers stay denser than large ones.
- **Wide where the budget allows.** From a budget of 0.1 on hidden layers are a quarter wider than asked for, from 0.2
  on half as wide again, at the same cost: more units to choose from, each with fewer inputs. Where connections are
  scarce that only spreads them thinner. A dense start then takes as much more to train.
- **Light gates.** They open and close blocks of 16 units, and are as sparse as the layers they gate. Below a budget of
  0.1 they take a twentieth of it and leave 85 % open, from 0.1 on a fiftieth and 95 %. What closed units save pays for
  more connections. Where a gate could read fewer than four inputs for that, as on digits, there is none.
- **Gates close for what stays.** The budget asks of gates the share that they will have to save at the end, of the
  connections that exist now. Asked to meet the whole budget while most connections are still to go, they close far
  more than they ever need to, and what they closed is slow to come back.

## When gating helps, and when it does not

`{UNGATED}` below is the same recipe without gates, so the last table of the next section says what gates add
and what they cost. A gate is a restriction: every input makes do without some units, and in training that acts like
dropout that knows the input. What it saves pays for more connections. With an MLP that reads one vector that is close
to an even trade: on most data sets here gates neither add nor cost a tenth of a point. They add most on Tiny-ImageNet
from 0.1 on, and cost most there at 0.05. Most of the lead over the controls is that connections are chosen from a dense
start, spread by layer size, and, from 0.1 on, chosen among more: pruned networks gain from width as well, as the search
shows. So `{UNGATED}` at the same width is a fair choice, too. What gates have besides is the clock, for which a
closed block is work that is never started.

Unstructured masks need few MACs, but not always little time: one of their MACs takes a CPU about 3.5 times as long as a
dense one (pruned on CIFAR-10 at 0.05, below). Cells of 16 outputs that share an input, and gates on blocks of 16 units,
are what it can skip: `{OURS_IN_CELLS}` is less accurate at equal MACs and, on all but the smallest networks, mostly
more accurate at equal time. On digits every model takes about as long as a call does, and there is nothing to save.
For one row of MNIST a narrow dense network with 0.4 of the MACs is as fast as cells with 0.05: it lies in the cache,
and below 0.1 it is the better choice there.
"""


def write(root: Path, results: Path, *, quick: bool = False) -> None:
    """Write the page and the figures of all data sets that have runs."""
    found = {name: read_cells(FOLDER, results, name, quick=quick) for name in SETS}
    found = {name: (cells, data) for name, (cells, data) in found.items() if cells}
    where = results.parent if quick else root
    clocks = {name: read_clock(FOLDER, results, name, quick=quick) for name in found}
    fought = [duel for name, (cells, _) in found.items() for duel in duels(name, cells)]
    ungated = [duel for name, (cells, _) in found.items() for duel in duels(name, cells, (UNGATED,))]
    on_clock = {
        (ours, batch): [
            duel for name, (cells, _) in found.items() for duel in clock_duels(name, cells, clocks[name], batch, ours)
        ]
        for ours in (OURS_IN_CELLS, OURS)
        for batch in BATCHES
    }
    parts = [
        INTRO,
        summary(fought, ungated) + clock_summary(on_clock) + untimed(clocks),
        search(FOLDER, results, quick=quick),
    ]
    for name, (cells, data) in found.items():
        write_text(where / FIGURES / f"frontier-{name}.svg", by_cost(name, cells))
        rows = f"{data['train']:,} training, {data['valid']:,} validation, {data['test']:,} test rows"
        sizes = "-".join(map(str, (data["features"], *SETS[name].hidden, data["classes"])))
        figure = f"![Accuracy against executed MACs on {name}](figures/frontier-{name}.svg)"
        parts.append(f"## {name}, {sizes}\n\n{rows}.\n\n{figure}\n\n{accuracies(cells)}\n")
        timed = {key: row for key, row in clocks[name].items() if key in cells}
        if timed:
            for batch in BATCHES:
                write_text(where / FIGURES / f"clock-{name}-{batch}.svg", by_clock(name, cells, timed, batch))
            parts.append(latencies(name, timed))
        parts.append(gates(cells))
    parts.append(elsewhere(read_transfer(results.parent)))
    write_text(where / PAGE, "\n".join(part for part in parts if part).rstrip("\n") + "\n")
    if not quick:
        front = (root / README).read_text(encoding="utf-8")
        every = {name: cells for name, (cells, _) in found.items()}
        front = filled(front, "frontier", overview(every, fought))
        write_text(root / README, filled(front, "clock", on_the_clock(every, clocks)))
    print(f"{OURS} against the controls: {counted(fought, ' cells')}")
    print(f"wrote {where / PAGE}")


def accuracies(cells: Cells) -> str:
    """Mean and standard deviation at every budget, and the area under the frontier."""
    columns = ["accuracy, %", *(f"{budget:g}" for budget in BUDGETS), "area"]
    rows = []
    for method in AT_A_BUDGET:
        under = area(cells, method)
        mean = ABSENT if under is None else f"{under.mean:.2f}" + ("" if under.half is None else f" ± {under.half:.2f}")
        rows.append([method, *(spread(cells.get((method, budget)), budget) for budget in BUDGETS), mean])
    full = ", ".join(f"{method} {spread(cells[method, None])}" for method in AT_FULL_COST if (method, None) in cells)
    note = "The area is the mean accuracy over the logarithm of the budget, ± half a 95 % interval over seeds."
    return f"{markdown(columns, rows, numbers=True)}\n\nAt full cost: {full or ABSENT}. {note}"


def elsewhere(cells: Cells) -> str:
    """Data that nobody tuned on."""
    if not cells:
        return ""
    models = list(dict.fromkeys(model for model, _ in cells))
    rows = [[model, *(spread(cells.get((model, budget))) for budget in JUDGED)] for model in models]
    fought = duels("characters", cells)
    return (
        "## Data that nobody tuned on\n\n"
        "Which character follows sixteen others, as a user's own file: `dynamicgate compare --data characters.npz` "
        "with a budget and nothing else said, every method with its defaults (`python experiments/transfer.py`). "
        f"{OURS}: {counted(fought, ' cells')}.\n\n"
        + markdown(["accuracy, %", *(f"{budget:g}" for budget in JUDGED)], rows, numbers=True)
        + "\n"
        + lost("Lost", fought)
    )


def latencies(name: str, clock: Clock) -> str:
    """The figures and the table of the clock."""
    figures = "\n\n".join(
        f"![Accuracy against latency at batch {batch} on {name}](figures/clock-{name}-{batch}.svg)" for batch in BATCHES
    )

    def told(method: str, budget: float) -> str:
        if (method, budget) not in clock:
            return ABSENT
        return " / ".join(f"{clock[method, budget]['batches'][str(batch)]['ratio']:.3f}" for batch in BATCHES)

    columns = [f"latency at batch {' / '.join(map(str, BATCHES))}", *(f"{budget:g}" for budget in BUDGETS)]
    rows = [[method, *(told(method, budget) for budget in BUDGETS)] for method in AT_A_BUDGET]
    note = "The model of the first seed, compiled, relative to the dense network in eager torch; one thread."
    return f"{figures}\n\n{markdown(columns, rows, numbers=True)}\n\n{note}\n"


def spread(cell: Cell | None, budget: float | None = None) -> str:
    """Mean ± standard deviation, and the cost where it is not what was asked for."""
    if cell is None:
        return ABSENT
    deviation = f" ± {100 * stdev(cell.accuracy):.2f}" if len(cell.accuracy) > 1 else ""
    cost = "" if cell.meets(budget) else f" at {fmean(cell.relative):.3f}"
    return f"{cell.mean:.2f}{deviation}{cost}"


def gates(cells: Cells) -> str:
    """Whether gates depend on the input, and what that is worth."""
    rows = []
    for method in ("gate", OURS, OURS_IN_CELLS):
        for budget in BUDGETS:
            cell = cells.get((method, budget))
            if cell is None or not any(run["gates"] for run in cell.runs):
                continue
            sites = [site for run in cell.runs for site in run["gates"]]
            lost = [100 * (run["quality"]["accuracy"] - run["accuracy_of_mean_mask"]) for run in cell.runs]
            reached = [run["macs"]["relative"] for run in cell.runs]
            share = fmean(run["macs"]["gate"] / run["macs"]["executed"] for run in cell.runs)
            of_sites = [fmean(site[key] for site in sites) for key in ("open", "variance", "always_on", "always_off")]
            apart = 100 * (max(reached) - min(reached))
            numbers = [f"{value:.2f}" for value in (apart, *of_sites, share, fmean(lost))]
            rows.append([f"{method} {budget:g}", f"{fmean(reached):.3f}", *numbers])
    columns = [
        "gates", "executed", "spread over seeds, points", "open", "variance", "always on", "always off", "gate share",
        "lost with the mean mask, points",
    ]  # fmt: skip
    return markdown(columns, rows, numbers=True) + "\n" if rows else ""
