"""Schedules: functions of progress."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamicgate import schedule
from dynamicgate.schedule import as_schedule, constant, cosine, exponential, linear, phases, three_phase

RAMPS = [linear, cosine, exponential]
values = st.floats(0.01, 10.0)
progress = st.floats(0.0, 1.0)


@pytest.mark.parametrize("ramp", RAMPS)
@given(start=values, stop=values, begin=st.floats(0.0, 0.4), end=st.floats(0.5, 1.0))
def test_a_ramp_starts_at_start_and_stops_at_stop(ramp, start: float, stop: float, begin: float, end: float) -> None:
    f = ramp(start, stop, begin=begin, end=end)
    assert f(0.0) == f(begin) == pytest.approx(start)
    assert f(end) == f(1.0) == pytest.approx(stop)


@pytest.mark.parametrize("ramp", RAMPS)
@given(start=values, stop=values, a=progress, b=progress)
def test_a_ramp_never_turns_back(ramp, start: float, stop: float, a: float, b: float) -> None:
    f = ramp(start, stop, begin=0.2, end=0.9)
    rise = (f(max(a, b)) - f(min(a, b))) * (stop - start)
    assert rise >= -1e-12


def test_the_middle_of_each_ramp_is_what_its_name_says() -> None:
    assert linear(0.0, 4.0)(0.25) == pytest.approx(1.0)
    assert cosine(0.0, 4.0)(0.5) == pytest.approx(2.0)
    assert cosine(0.0, 4.0)(0.25) == pytest.approx(2.0 - 2.0**0.5)
    assert exponential(4.0, 1.0)(0.5) == pytest.approx(2.0)
    assert constant(3.0)(0.7) == 3.0


def test_a_number_is_the_schedule_that_stays_there() -> None:
    assert as_schedule(2)(0.3) == 2.0
    ramp = linear(0.0, 1.0)
    assert as_schedule(ramp) is ramp


def test_phases_are_plateaus_with_blends_between_them() -> None:
    f = phases((3.0, 2.0, 0.0), (0.3, 0.6), blend=0.2)
    assert [f(t) for t in (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)] == pytest.approx(
        [3.0, 3.0, 2.5, 2.0, 2.0, 1.0, 0.0, 0.0]
    )


def test_phases_without_a_blend_are_steps() -> None:
    f = phases((3.0, 2.0, 0.0), (0.3, 0.6), blend=0.0)
    assert [f(t) for t in (0.0, 0.29, 0.3, 0.59, 0.6, 1.0)] == [3.0, 3.0, 2.0, 2.0, 0.0, 0.0]


def test_the_three_phases_start_and_end_where_the_paper_says() -> None:
    plan = three_phase()
    for knob, (first, last) in {"keep": (0.9, 0.3), "theta": (0.55, 0.75), "weight": (0.0, 1.0)}.items():
        assert getattr(plan, knob)(0.0) == first
        assert getattr(plan, knob)(1.0) == pytest.approx(last)
    assert plan.weight(0.3) == 0.0  # phase 1 has no penalty
    assert plan.keep(0.5) == pytest.approx(0.55)


@given(t=st.floats(0.0, 0.99))
def test_no_boundary_of_the_three_phases_is_a_shock(t: float) -> None:
    plan = three_phase()
    # a half cosine of height d over 20 % of training moves at most d * pi / 2 / 20 per 1 % of it
    for knob, highest_step in {"keep": 0.35, "theta": 0.15, "weight": 1.0}.items():
        change = abs(getattr(plan, knob)(t + 0.01) - getattr(plan, knob)(t))
        assert change <= highest_step * 3.1416 / 2 / 20 + 1e-12


def test_schedules_print_their_arguments_and_survive_copying_and_pickling() -> None:
    ramp = schedule.cosine(0.0, 0.5, begin=0.1)
    assert "stop=0.5" in repr(ramp)
    assert copy.deepcopy(ramp)(0.4) == pickle.loads(pickle.dumps(ramp))(0.4) == ramp(0.4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: linear(0.0, 1.0, begin=0.5, end=0.5), "a ramp needs 0 <= begin < end <= 1, received begin=0.5"),
        (lambda: cosine(0.0, 1.0, begin=-0.1), "a ramp needs 0 <= begin"),
        (lambda: linear(0.0, 1.0, end=1.2), "received begin=0.0, end=1.2"),
        (lambda: exponential(0.0, 1.0), "an exponential schedule needs positive ends, received 0.0 and 1.0"),
        (lambda: exponential(1.0, -1.0), "needs positive ends"),
        (lambda: phases((1.0, 2.0), (0.3, 0.6)), "2 boundaries separate 3 values, received 2"),
        (lambda: phases((1.0, 2.0, 3.0), (0.6, 0.3)), r"phase boundaries must rise, received \[0.6, 0.3\]"),
        (lambda: phases((1.0, 2.0), (0.95,), blend=0.2), "the last value is never reached"),
        (lambda: phases((1.0, 2.0), (0.5,), blend=-0.1), "a blend of -0.1"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_answered_with_a_sentence(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
