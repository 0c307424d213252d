"""Engines are chosen by name, and options that mean nothing to them are refused."""

from __future__ import annotations

import pytest

from dynamicgate.lab.runner.engines import open_engine
from dynamicgate.lab.runner.pool import ProcessPool

pytest.importorskip("ray")


def test_the_pool_is_the_default() -> None:
    with open_engine(jobs=3) as engine:
        assert engine == ProcessPool(3)
        assert engine.workers == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "spark"}, "the engine must be one of pool, ray, received 'spark'"),
        ({"name": "pool", "address": "auto"}, "address auto is for a Ray cluster: choose the engine ray"),
        ({"name": "pool", "gpus": 1.0}, "gpus 1 is for a Ray cluster"),
        ({"name": "pool", "jobs": 0}, "at least one job at a time is needed, received 0"),
        ({"name": "ray", "jobs": 0}, "at least one job at a time is needed, received 0"),
        ({"name": "ray", "address": "127.0.0.1:9"}, "no Ray cluster answers at 127.0.0.1:9: start one with"),
        ({"name": "ray", "gpus": -1.0}, "the number of GPUs of each job, 0 or more, received -1"),
    ],
)
def test_options_of_engines_that_mean_nothing_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence), open_engine(**options):  # type: ignore[arg-type]
        pass
