"""The sentences at the top of the page, computed from the numbers: what each model reached, and against which controls
it wins or loses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dynamicgate.lab.report.compared_models import find_model
from dynamicgate.lab.report.controls import subjects
from dynamicgate.lab.report.latency import TimedRun, timed_runs
from dynamicgate.lab.report.number_format import counted, percent, plus_minus, signed, signed_points
from dynamicgate.lab.report.reading import Results, Run, Timing, gates_in
from dynamicgate.lab.report.run_metrics import number, quality_word
from dynamicgate.lab.report.stage_runs import cost_error, dealt_at_random, gain
from dynamicgate.lab.report.summary import Row, group_runs, spread, summarise
from dynamicgate.lab.statistics import t_quantile, welch_half

EQUAL_COST = 0.05
BUDGET_TOLERANCE = 0.01
TIME_TOLERANCE = 0.03  # a difference of less than 3 % is noise
MAX_VERDICTS = 6


@dataclass(frozen=True)
class Verdict:
    """An outcome in a few words, and the numbers behind it. A comparison also has its kind and its opponent."""

    outcome: str
    detail: str
    kind: str = ""
    against: str = ""


@dataclass(frozen=True)
class Headline:
    """What one model reached, and how it compares with its budget and each control."""

    dataset: str
    model: str
    sentence: str
    verdicts: list[Verdict]

    @property
    def brief(self) -> list[Verdict]:
        """The verdicts; where there are many, one for all comparisons with the same outcome."""
        if len(self.verdicts) <= MAX_VERDICTS:
            return self.verdicts
        kinds: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            kinds.setdefault(verdict.kind or verdict.outcome, []).append(verdict)
        return [
            Verdict(kind, ", ".join(verdict.against for verdict in same) + " points") if same[0].kind else same[0]
            for kind, same in kinds.items()
        ]


def headlines(results: Results, timings: Sequence[Timing] = ()) -> list[Headline]:
    """One headline for each model and dataset that the report is about; where it is about none in particular, one for
    every model, without verdicts. timings: of each run, in order, where runs were timed."""
    rows = summarise(results)
    groups = group_runs(results)
    chosen, word = subjects(results), quality_word(results["runs"])
    if not chosen:
        return [Headline(row["data"], row["model"], cost_and_accuracy(row, word), []) for row in rows]
    timed = timed_runs(results, timings) if timings else []
    found = []
    for subject in rows:
        dataset, model = subject["data"], subject["model"]
        if (dataset, model) not in chosen:
            continue
        opponents = [
            row
            for row in rows
            if row["data"] == dataset and is_opponent(model, row["model"], (dataset, row["model"]) in chosen)
        ]
        opponents.sort(key=lambda opponent: not is_equal_cost(subject, opponent))
        verdicts = [
            budget_verdict(subject),
            time_verdict([one for one in timed if (one.run["data"], one.run["model"]) == (dataset, model)]),
            *(accuracy_verdict(subject, opponent) for opponent in opponents),
            input_verdict(groups[dataset, model]),
            stage_verdict(groups[dataset, model]),
        ]
        found.append(Headline(dataset, model, cost_and_accuracy(subject, word), [item for item in verdicts if item]))
    return found


def is_opponent(model: str, other: str, other_is_subject: bool) -> bool:
    """A model is compared with every control, and one such as gate+rigl also with the models it is made from."""
    known = find_model(model)
    return other != model and (not other_is_subject or (known is not None and other in known.rivals))


def cost_and_accuracy(row: Row, word: str = "accuracy") -> str:
    """The sentence that says how many MACs a model executes, its budget, and how accurate it is; `word` is what that is
    called."""
    target = row["target"]["mean"]
    budget = "" if target is None else f" (budget {target:.2f})"
    cost = plus_minus(row["relative"], 3) if row["relative"]["n"] else "an unknown fraction"
    accuracy = f"{percent(row['accuracy'])} %" if row["accuracy"]["n"] else "unknown"
    return (
        f"{row['model']} executes {cost} of the dense MACs{budget} at {accuracy} {word}, "
        f"over {counted(row['n'], 'seed')}."
    )


def budget_verdict(row: Row) -> Verdict | None:
    """Whether the budget was met, in percentage points."""
    target, reached = row["target"]["mean"], row["relative"]["mean"]
    if target is None or reached is None:
        return None
    difference = reached - target
    outcome = "Meets its budget" if abs(difference) <= BUDGET_TOLERANCE else "Misses its budget"
    return Verdict(outcome, f"{signed_points(difference)} points from the target of {target:.2f}")


def accuracy_verdict(subject: Row, control: Row) -> Verdict | None:
    """Better, worse, or too close to call against one control."""
    ours, theirs = subject["accuracy"], control["accuracy"]
    if ours["mean"] is None or theirs["mean"] is None:
        return None
    difference = ours["mean"] - theirs["mean"]
    standing = (
        f"{percent(theirs)} % at {plus_minus(control['relative'], 3)} of the dense MACs{cost_clause(subject, control)}"
    )
    against = f"{control['model']} {signed_points(difference)}"
    if min(ours["n"], theirs["n"]) < 2:
        outcome = "Above" if difference > 0 else "Below" if difference < 0 else "Level with"
        return Verdict(
            f"{outcome} {control['model']}",
            f"{signed_points(difference)} points from a single seed, against {standing}",
            outcome,
            against,
        )
    half = welch_half(ours["std"], ours["n"], theirs["std"], theirs["n"])
    close = abs(difference) <= half
    outcome = "Too close to call against" if close else "Beats" if difference > 0 else "Loses to"
    interval = f"95 % interval {signed_points(difference - half)} to {signed_points(difference + half)}"
    return Verdict(
        f"{outcome} {control['model']}",
        f"{signed_points(difference)} points ({interval}) against {standing}",
        outcome,
        against,
    )


def time_verdict(timed: list[TimedRun]) -> Verdict | None:
    """Whether fewer MACs take less time than the compiled dense network; None where nothing was timed."""
    batches = sorted({one.batch for one in timed if one.latency})
    if not batches:
        return None
    speeds = [spread(1.0 / one.latency for one in timed if one.batch == batch and one.latency) for batch in batches]
    each = ", ".join(f"{speed['mean']:.2f} x at batch {batch}" for batch, speed in zip(batches, speeds, strict=True))
    rival = "its own layers without gates" if any(one.baseline != "dense" for one in timed) else "compiled dense"
    outcome = speed_outcome([speed["mean"] for speed in speeds])
    return Verdict(f"{outcome} {rival}", f"{each}; {counted(max(speed['n'] for speed in speeds), 'seed')}")


def speed_outcome(speeds: list[float]) -> str:
    """Faster, slower or neither, in words; speeds are those of the rival's."""
    if all(speed > 1.0 + TIME_TOLERANCE for speed in speeds):
        return "Faster than"
    if all(speed < 1.0 - TIME_TOLERANCE for speed in speeds):
        return "Slower than"
    return "As fast as" if all(abs(speed - 1.0) <= TIME_TOLERANCE for speed in speeds) else "Not always faster than"


def bottom_lines(results: Results) -> list[tuple[str, str]]:
    """For each dataset with a budget one sentence: which model is most accurate at this cost, and from which others the
    runs cannot tell it apart."""
    rows, found = summarise(results), []
    for dataset in dict.fromkeys(row["data"] for row in rows):
        here = [row for row in rows if row["data"] == dataset and row["accuracy"]["mean"] is not None]
        budget = next((row["target"]["mean"] for row in here if row["target"]["mean"] is not None), None)
        if budget is None:
            continue
        affordable = [row for row in here if (row["relative"]["mean"] or math.inf) <= budget + BUDGET_TOLERANCE]
        if len(affordable) < 2:
            continue
        best = max(affordable, key=lambda row: row["accuracy"]["mean"])
        level = [row["model"] for row in affordable if row is not best and not is_separate(best, row)]
        apart = f"; these runs cannot tell it apart from {', '.join(level)}" if level else ""
        text = (
            f"Most accurate at {budget:.2f} of the dense MACs: {best['model']}, {percent(best['accuracy'])} %{apart}."
        )
        found.append((dataset, text))
    return found


def is_separate(a: Row, b: Row) -> bool:
    """Whether the interval of the difference of two accuracies leaves out 0; never with single runs."""
    ours, theirs = a["accuracy"], b["accuracy"]
    if min(ours["n"], theirs["n"]) < 2:
        return False
    half = welch_half(ours["std"], ours["n"], theirs["std"], theirs["n"])
    return bool(abs(ours["mean"] - theirs["mean"]) > half)


def is_equal_cost(subject: Row, control: Row) -> bool:
    """Whether the control costs about as much as the subject."""
    ours, theirs = subject["relative"]["mean"], control["relative"]["mean"]
    return bool(ours) and theirs is not None and abs(theirs / ours - 1) <= EQUAL_COST


def cost_clause(subject: Row, control: Row) -> str:
    """How the control's cost compares with the subject's."""
    ours, theirs = subject["relative"]["mean"], control["relative"]["mean"]
    if not ours or theirs is None:
        return ""
    return ", about equal cost" if is_equal_cost(subject, control) else f", {theirs / ours:.1f} times the cost"


def input_verdict(runs: list[Run]) -> Verdict | None:
    """Whether the decisions depend on the input at all."""
    varying = spread(number(gate.get("varying")) for run in runs for gate in gates_in(run))
    if varying["mean"] is None:
        return None
    if varying["mean"] == 0:
        return Verdict("Ignores the input", "no unit ever changes with it: these gates are a static mask")
    return Verdict(
        "Depends on the input",
        f"{varying['mean'] * 100:.0f} % of its gated units are open for some inputs and closed for others",
    )


def stage_verdict(runs: list[Run]) -> Verdict | None:
    """Whether the inputs that open more stages are those that need them: against the same stops dealt at random."""
    dealt = spread(dealt_at_random(run) for run in runs)
    gained = spread(gain(run) for run in runs)
    if gained["mean"] is None:
        return None
    n = gained["n"]
    close = n > 1 and abs(gained["mean"]) <= t_quantile(0.975, n - 1) * gained["std"] / math.sqrt(n)
    outcome = (
        "Opens stages for the inputs that need them" if gained["mean"] > 0 else "Opens stages for the wrong inputs"
    )
    detail = f"{signed_points(gained['mean'])} points against {percent(dealt)} % if the same stops were dealt at random"
    correlation = spread(cost_error(run) for run in runs)["mean"]
    if correlation is not None:
        detail += f"; correlation of cost and error {signed(correlation)}"
    return Verdict("Too close to call against stops dealt at random" if close else outcome, detail)
