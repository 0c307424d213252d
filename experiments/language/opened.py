"""Which blocks are open: by layer, by kind of token, and whether the seeds agree."""

from __future__ import annotations

from statistics import fmean

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.language.rows import Rows, bits, finished, last_part
from experiments.language.tables import GATE

POINT = 0.01  # of the MACs of the dense model as wide as the gated one


def layers_table(rows: Rows) -> str:
    """How often the blocks of each layer are open, where a method decides on that, what was asked for and met, and the
    run that missed it most."""
    body = []
    for name, runs in finished(rows).items():
        rates = [run["quality"][last_part(run)].get("open") for run in runs]
        if not all(rates) or (len({tuple(one) for one in rates}) == 1 and len(set(rates[0])) == 1):
            continue
        means = [fmean(layer) for layer in zip(*rates, strict=True)]
        asked = [run["macs"]["target"] for run in runs if run["macs"].get("target") is not None]
        missed = misses(runs)
        worst, above = ABSENT, ABSENT
        if missed:
            worst = f"{100 * max(missed, key=abs):+.2f}"
            above = f"{sum(abs(one) > POINT for one in missed)} of {len(missed)}"
        body.append([
            name, *(f"{rate:.3f}" for rate in means), f"{fmean(asked):.4f}" if asked else ABSENT,
            f"{fmean(run['macs']['relative'] for run in runs):.4f}", worst, above,
            str(sum(len(run["collapses"]) for run in runs)),
        ])  # fmt: skip
    if not body:
        return ""
    columns = [
        "open blocks", *(f"layer {number + 1}" for number in range(len(body[0]) - 6)), "asked", "executed",
        "worst run, points", "runs off by more than a point", "collapses",
    ]  # fmt: skip
    return markdown(columns, body, numbers=True)


def misses(runs: list[Run]) -> list[float]:
    """What each run with a budget executes beyond it, as a fraction of the MACs of the dense model."""
    return [run["macs"]["relative"] - run["macs"]["target"] for run in runs if run["macs"].get("target") is not None]


def token_runs(rows: Rows) -> list[Run]:
    """The runs of the gate of which the cost of tokens is known."""
    return [run for run in finished(rows).get(GATE, []) if run.get("token_costs")]


def token_table(rows: Rows) -> str:
    """What the gate opens for each kind of token: the mean over seeds, and by layer the least and the most of them."""
    found = [run["token_costs"] for run in token_runs(rows)]
    if not found:
        return ""
    body = []
    for kind in kinds_of(rows):
        each = [one["kinds"][kind] for one in found if kind in one["kinds"]]
        share, loss = (fmean(one[key] for one in each) for key in ("tokens", "loss"))
        layers = [between(layer) for layer in zip(*(one["layers"] for one in each), strict=True)]
        opened = [one["open"] for one in each]
        body.append([kind, f"{100 * share:.0f} %", f"{loss:.2f}", f"{fmean(opened):.4f}", between(opened), *layers])
    columns = [
        "token read by the gate", "of all", "loss, nats", "open, mean", "open, least and most of the seeds",
        *(f"layer {number + 1}" for number in range(len(body[0]) - 5)),
    ]  # fmt: skip
    return markdown(columns, body, numbers=True)


def seeds_table(rows: Rows) -> str:
    """Whether the seeds agree on which tokens get more: one row for each, of the first layer, where most is decided."""
    runs = token_runs(rows)
    if not runs:
        return ""
    kinds, body = kinds_of(rows), []
    for run in runs:
        costs = run["token_costs"]
        first = [costs["kinds"].get(kind) for kind in kinds]
        body.append([
            f"seed {run['seed']}", f"{bits(run):.4f}", f"{costs['correlation_with_loss']:+.2f}",
            f"{costs['by_loss'][0]:.4f}", f"{costs['by_loss'][-1]:.4f}",
            *(ABSENT if one is None else f"{one['layers'][0]:.3f}" for one in first),
        ])  # fmt: skip
    columns = [
        GATE, "bits per byte", "correlation of open and loss", "open, the most expected tenth",
        "open, the least expected tenth", *(f"layer 1, {kind}" for kind in kinds),
    ]  # fmt: skip
    return markdown(columns, body, numbers=True)


def kinds_of(rows: Rows) -> list[str]:
    """The kinds of tokens that occur."""
    return list(dict.fromkeys(kind for run in token_runs(rows) for kind in run["token_costs"]["kinds"]))


def between(values: tuple[float, ...] | list[float]) -> str:
    """The least and the most of some rates."""
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"
