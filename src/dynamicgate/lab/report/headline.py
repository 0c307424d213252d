"""The sentences on top of the page, computed from the numbers and as plain when the gate loses."""

import math
from dataclasses import dataclass

from dynamicgate.lab.report.models import subjects
from dynamicgate.lab.report.number_format import counted, percent, plus_minus, signed_points
from dynamicgate.lab.report.reading import Results, Run, parts
from dynamicgate.lab.report.summary import Row, group_runs, number, spread, summarise

EQUAL_COST = 0.05
BUDGET_PROMISE = 0.01
MOST_VERDICTS = 6


@dataclass(frozen=True)
class Verdict:
    """An outcome in a few words, and what it rests on. A comparison also has its kind and whom it is against."""

    outcome: str
    detail: str
    kind: str = ""
    against: str = ""


@dataclass(frozen=True)
class Headline:
    """What one model reached, and how it stands against its budget and each control."""

    data: str
    model: str
    claim: str
    verdicts: list[Verdict]

    @property
    def brief(self) -> list[Verdict]:
        """The verdicts, comparisons with the same outcome taken together where there are many."""
        if len(self.verdicts) <= MOST_VERDICTS:
            return self.verdicts
        kinds: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            kinds.setdefault(verdict.kind or verdict.outcome, []).append(verdict)
        return [
            Verdict(kind, ", ".join(verdict.against for verdict in alike) + " points") if alike[0].kind else alike[0]
            for kind, alike in kinds.items()
        ]


def headlines(results: Results) -> list[Headline]:
    """One headline per model and data set that the report is about; one per model, without verdicts, where it is about
    none in particular."""
    rows = summarise(results)
    groups = group_runs(results)
    chosen = subjects(results)
    if not chosen:
        return [Headline(row["data"], row["model"], claim(row), []) for row in rows]
    found = []
    for subject in rows:
        data, model = subject["data"], subject["model"]
        if (data, model) not in chosen:
            continue
        rivals = [
            row for row in rows if row["data"] == data and is_rival(model, row["model"], (data, row["model"]) in chosen)
        ]
        rivals.sort(key=lambda rival: not is_equal_cost(subject, rival))
        verdicts = [
            budget_verdict(subject),
            *(accuracy_verdict(subject, rival) for rival in rivals),
            input_verdict(groups[data, model]),
        ]
        found.append(Headline(data, model, claim(subject), [item for item in verdicts if item]))
    return found


def is_rival(model: str, other: str, other_is_subject: bool) -> bool:
    """A model is judged by every control, and a combination such as gate+rigl by each of its parts as well."""
    return other != model and (not other_is_subject or other in model.split("+"))


def claim(row: Row) -> str:
    """What it costs, what was asked, and how accurate it is."""
    asked = row["asked"]["mean"]
    wanted = "" if asked is None else f" (asked {asked:.2f})"
    cost = plus_minus(row["relative"], 3) if row["relative"]["n"] else "an unknown share"
    accuracy = f"{percent(row['accuracy'])} %" if row["accuracy"]["n"] else "unknown"
    return (
        f"{row['model']} reaches {cost} of dense MACs{wanted} at {accuracy} accuracy over {counted(row['n'], 'seed')}."
    )


def budget_verdict(row: Row) -> Verdict | None:
    """Whether the budget was kept, in points."""
    asked, reached = row["asked"]["mean"], row["relative"]["mean"]
    if asked is None or reached is None:
        return None
    missed = reached - asked
    outcome = "Keeps its budget" if abs(missed) <= BUDGET_PROMISE else "Misses its budget"
    return Verdict(outcome, f"{signed_points(missed)} points from the {asked:.2f} asked")


def accuracy_verdict(subject: Row, control: Row) -> Verdict | None:
    """Better, worse, or too close to call against one control."""
    ours, theirs = subject["accuracy"], control["accuracy"]
    if ours["mean"] is None or theirs["mean"] is None:
        return None
    difference = ours["mean"] - theirs["mean"]
    standing = (
        f"{percent(theirs)} % at {plus_minus(control['relative'], 3)} of dense MACs{cost_clause(subject, control)}"
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
    error = math.sqrt(ours["std"] ** 2 / ours["n"] + theirs["std"] ** 2 / theirs["n"])
    close = abs(difference) <= 2 * error
    outcome = "Too close to call against" if close else "Beats" if difference > 0 else "Loses to"
    return Verdict(
        f"{outcome} {control['model']}",
        f"{signed_points(difference)} points (standard error {error * 100:.2f}) against {standing}",
        outcome,
        against,
    )


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
    varying = spread(number(gate.get("varying")) for run in runs for gate in parts(run, "gates"))
    if varying["mean"] is None:
        return None
    if varying["mean"] == 0:
        return Verdict("Ignores the input", "no unit ever changes with it: these gates act as a static mask")
    return Verdict(
        "Depends on the input",
        f"{varying['mean'] * 100:.0f} % of its gated units open for some inputs and not for others",
    )
