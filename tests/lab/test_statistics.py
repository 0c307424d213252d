"""Student's t without a statistics package, against values from its tables."""

from __future__ import annotations

import pytest

from dynamicgate.lab.statistics import interval, paired, t_cdf, t_quantile


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)])
def test_the_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=1e-4)
    assert t_cdf(t_quantile(0.975, degrees), degrees) == pytest.approx(0.975, abs=1e-12)
    assert t_cdf(-quantile, degrees) == pytest.approx(0.025, abs=1e-5)
    assert t_cdf(0.0, degrees) == 0.5


def test_an_interval_is_mean_spread_and_half_width() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found[:2] == pytest.approx((3.0, 1.5811388))
    assert found.half == pytest.approx(2.7764451 * 1.5811388 / 5**0.5)
    assert interval([7.0]) == (7.0, 0.0, None, 1)


def test_a_paired_test_uses_the_differences_within_pairs() -> None:
    found = paired([1.0, 2.0, 3.5], [0.5, 2.2, 3.0])
    assert found.difference == pytest.approx(0.8 / 3)
    assert found.p == pytest.approx(0.37146064)
    assert paired([1.0], [0.0]) == (1.0, None, 1)
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0
