"""Schedules: their values over the course of training, printing, copying, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamicgate import schedule
from dynamicgate.schedule import as_schedule, constant, cosine, exponential, linear, phases, three_phase

SCHEDULES = [linear, cosine, exponential]
values = st.floats(0.01, 10.0)
progress = st.floats(0.0, 1.0)


@pytest.mark.parametrize("make", SCHEDULES)
@given(start=values, stop=values, begin=st.floats(0.0, 0.4), end=st.floats(0.5, 1.0))
def test_a_schedule_goes_from_start_to_stop(make, start: float, stop: float, begin: float, end: float) -> None:
    f = make(start, stop, begin=begin, end=end)
    assert f(0.0) == f(begin) == pytest.approx(start)
    assert f(end) == f(1.0) == pytest.approx(stop)


@pytest.mark.parametrize("make", SCHEDULES)
@given(start=values, stop=values, a=progress, b=progress)
def test_a_schedule_is_monotonic(make, start: float, stop: float, a: float, b: float) -> None:
    f = make(start, stop, begin=0.2, end=0.9)
    rise = (f(max(a, b)) - f(min(a, b))) * (stop - start)
    assert rise >= -1e-12


def test_the_shape_between_the_ends_is_what_the_name_says() -> None:
    assert linear(0.0, 4.0)(0.25) == pytest.approx(1.0)
    assert cosine(0.0, 4.0)(0.5) == pytest.approx(2.0)
    assert cosine(0.0, 4.0)(0.25) == pytest.approx(2.0 - 2.0**0.5)
    assert exponential(4.0, 1.0)(0.5) == pytest.approx(2.0)
    assert constant(3.0)(0.7) == 3.0


def test_a_number_becomes_a_constant_schedule() -> None:
    assert as_schedule(2)(0.3) == 2.0
    rising = linear(0.0, 1.0)
    assert as_schedule(rising) is rising


def test_phases_are_constant_with_smooth_transitions() -> None:
    f = phases((3.0, 2.0, 0.0), (0.3, 0.6), blend=0.2)
    assert [f(t) for t in (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)] == pytest.approx(
        [3.0, 3.0, 2.5, 2.0, 2.0, 1.0, 0.0, 0.0]
    )


def test_phases_with_a_blend_of_0_are_steps() -> None:
    f = phases((3.0, 2.0, 0.0), (0.3, 0.6), blend=0.0)
    assert [f(t) for t in (0.0, 0.29, 0.3, 0.59, 0.6, 1.0)] == [3.0, 3.0, 2.0, 2.0, 0.0, 0.0]


def test_the_three_phases_start_and_end_where_the_paper_says() -> None:
    plan = three_phase()
    for name, (first, last) in {"target_rate": (0.9, 0.3), "theta": (0.55, 0.75), "weight": (0.0, 1.0)}.items():
        assert getattr(plan, name)(0.0) == first
        assert getattr(plan, name)(1.0) == pytest.approx(last)
    assert plan.weight(0.3) == 0.0  # phase 1 has no penalty
    assert plan.target_rate(0.5) == pytest.approx(0.55)


@given(t=st.floats(0.0, 0.99))
def test_the_three_phases_change_gradually(t: float) -> None:
    plan = three_phase()
    # a half cosine of height d over 20 % of training moves at most d * pi / 2 / 20 per 1 % of it
    for name, height in {"target_rate": 0.35, "theta": 0.15, "weight": 1.0}.items():
        change = abs(getattr(plan, name)(t + 0.01) - getattr(plan, name)(t))
        assert change <= height * 3.1416 / 2 / 20 + 1e-12


def test_schedules_print_their_arguments_and_can_be_copied_and_pickled() -> None:
    rising = schedule.cosine(0.0, 0.5, begin=0.1)
    assert "stop=0.5" in repr(rising)
    assert copy.deepcopy(rising)(0.4) == pickle.loads(pickle.dumps(rising))(0.4) == rising(0.4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: linear(0.0, 1.0, begin=0.5, end=0.5), "a schedule needs 0 <= begin < end <= 1, received begin=0.5"),
        (lambda: cosine(0.0, 1.0, begin=-0.1), "a schedule needs 0 <= begin"),
        (lambda: linear(0.0, 1.0, end=1.2), "received begin=0.0, end=1.2"),
        (
            lambda: exponential(0.0, 1.0),
            "needs positive values, received start=0.0 and stop=1.0",
        ),
        (lambda: exponential(1.0, -1.0), "needs positive values"),
        (lambda: phases((1.0, 2.0), (0.3, 0.6)), "2 boundaries separate 3 values, received 2"),
        (
            lambda: phases((1.0, 2.0, 3.0), (0.6, 0.3)),
            r"must be in ascending order, received \[0.6, 0.3\]",
        ),
        (lambda: phases((1.0, 2.0), (0.95,), blend=0.2), "the last value is never reached"),
        (lambda: phases((1.0, 2.0), (0.5,), blend=-0.1), "blend=-0.1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
