"""The three ways in which gates die, told apart from p and g (sec 4.1(1))."""

from __future__ import annotations

import pytest

from dynamicgate.budget import Collapse, diagnose
from dynamicgate.budget.collapse import Reading


def run(steps: int = 101, **knobs) -> list[Reading]:
    """Readings over the whole of training; every knob is a number or a function of progress."""
    values = {"p": 0.8, "g": 0.9, "theta": 0.5, "tau": 1.0, "weight": 0.1, "target_rate": 0.5} | knobs
    times = [i / (steps - 1) for i in range(steps)]
    return [Reading(t, **{name: v(t) if callable(v) else v for name, v in values.items()}) for t in times]


def first_collapse(readings: list[Reading], **kwargs) -> Collapse | None:
    found = (diagnose("2", readings[:end], **kwargs) for end in range(1, len(readings) + 1))
    return next((collapse for collapse in found if collapse), None)


def step(before: float, after: float, at: float = 0.5):
    return lambda t: before if t < at else after


def slope(before: float, after: float, begin: float = 0.0, end: float = 1.0):
    return lambda t: before + (after - before) * min(1.0, max(0.0, (t - begin) / (end - begin)))


def test_high_p_and_no_open_gate_is_a_threshold_that_is_too_high() -> None:
    found = first_collapse(run(theta=slope(0.5, 0.85, 0.3, 0.9), g=step(0.8, 0.0, at=0.8)))
    assert found is not None
    assert (found.name, found.site, found.progress) == ("threshold-too-high", "2", 0.8)
    assert "mean p is 0.80 but theta is 0.79" in found.evidence
    assert "lower theta" in found.remedy


def test_a_threshold_that_jumps_alone_is_named_as_the_threshold() -> None:
    found = first_collapse(run(theta=step(0.5, 0.95), g=step(0.9, 0.0)))
    assert found is not None
    assert found.name == "threshold-too-high"


def test_p_that_drops_is_a_probability_collapse() -> None:
    fall = slope(0.8, 0.01, 0.4, 0.46)
    found = first_collapse(run(p=fall, g=lambda t: max(0.0, fall(t) - 0.01), weight=5.0))
    assert found is not None
    assert found.name == "probability-collapse"
    assert found.progress == pytest.approx(0.46)
    assert "fell from 0.80 to 0.01" in found.evidence
    assert "anneal it more slowly" in found.remedy
    assert "raise tau" in found.remedy


@pytest.mark.parametrize(
    "moving",
    [("target_rate", "theta"), ("theta", "weight"), ("target_rate", "weight"), ("target_rate", "theta", "weight")],
)
def test_knobs_that_jump_together_are_a_phase_shock(moving: tuple[str, ...]) -> None:
    jumps = {"target_rate": step(0.55, 0.2), "theta": step(0.6, 0.9), "weight": step(0.1, 2.0)}
    found = first_collapse(run(p=step(0.7, 0.05), g=step(0.6, 0.0), **{knob: jumps[knob] for knob in moving}))
    assert found is not None
    assert found.name == "phase-shock"
    names = [
        {"weight": "lambda", "target_rate": "target rate"}.get(knob, knob)
        for knob in ("target_rate", "theta", "weight")
        if knob in moving
    ]
    assert ", ".join(names) in found.evidence
    assert "one setting at a time" in found.remedy


@pytest.mark.parametrize(
    "readings",
    [
        run(),
        run(p=0.3, g=0.25, target_rate=0.3),
        run(p=slope(0.8, 0.1), g=slope(0.9, 0.05)),  # a slow closing, as ordered
        run(p=slope(0.8, 0.1), g=slope(0.9, 0.03), theta=slope(0.5, 0.75), weight=slope(0.0, 1.0)),
        run(
            theta=step(0.5, 0.7), weight=step(0.0, 1.0), target_rate=step(0.9, 0.5), g=step(0.9, 0.4)
        ),  # a shock survived
        run(g=lambda t: 0.3 if int(t * 100) % 2 else 0.05),  # noisy, and alive
    ],
)
def test_gates_that_are_alive_are_left_alone(readings: list[Reading]) -> None:
    assert first_collapse(readings) is None


def test_one_reading_proves_nothing() -> None:
    assert diagnose("2", []) is None
    assert diagnose("2", [Reading(0.0, 0.01, 0.0, 0.5, 1.0, 0.0, 0.5)]) is None


def test_gates_that_never_opened_did_not_collapse() -> None:
    assert first_collapse(run(p=0.1, g=0.0)) is None


def test_a_fall_long_ago_is_not_reported_again() -> None:
    readings = run(g=step(0.9, 0.0, at=0.3))
    assert diagnose("2", readings) is None
    assert first_collapse(readings) is not None


def test_the_floor_says_what_counts_as_dead() -> None:
    readings = run(g=step(0.9, 0.04))
    assert first_collapse(readings, floor=0.02) is None
    assert first_collapse(readings, floor=0.05) is not None


def test_a_collapse_reads_as_a_sentence_with_its_remedy() -> None:
    text = str(first_collapse(run(theta=step(0.5, 0.95), g=step(0.9, 0.0))))
    assert text.startswith("threshold-too-high at '2', 50% of training: mean p is 0.80 but theta is 0.95")
    assert "Remedy: lower theta" in text
