"""Every number that is compared between runs, and how to read it from a run."""

import math
from collections.abc import Callable, Sequence

from dynamicgate.lab.report.reading import Run, gates_in, get_object


def number(value: object) -> float | None:
    """A finite number as a float; anything else, a diverged NaN included, as None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def ratio(above: float | None, below: float | None) -> float | None:
    """The quotient; None where either number is missing or the divisor is 0."""
    return None if above is None or not below else above / below


def accuracy_of(run: Run) -> float | None:
    """Fraction of the test samples that are classified correctly; of a regression, explained variance."""
    quality = run["quality"]
    return number(quality.get("r2" if is_regression(run) else "accuracy"))


def is_regression(run: Run) -> bool:
    """Whether its targets are measurements."""
    return "accuracy" not in run["quality"] and "r2" in run["quality"]


def quality_word(runs: Sequence[Run]) -> str:
    """What `accuracy_of` is called."""
    return "R²" if runs and all(map(is_regression, runs)) else "accuracy"


def relative_of(run: Run) -> float | None:
    """Executed MACs as a fraction of the dense network's."""
    stated = number(run["macs"].get("relative"))
    computed = ratio(number(run["macs"].get("executed")), number(run["macs"].get("dense")))
    return computed if stated is None else stated


def target_of(run: Run) -> float | None:
    """The budget that the run was given, as a fraction of the dense network's MACs; None without one."""
    return number(run.get("budget"))


def varying_of(run: Run) -> float | None:
    """Of the gate that depends most on the input: the fraction of its blocks that open for some samples only. 0 without
    gates."""
    return max((number(gate.get("varying")) or 0.0 for gate in gates_in(run)), default=0.0)


def _macs(key: str) -> Callable[[Run], float | None]:
    return lambda run: number(run["macs"].get(key))


def _proxy(key: str) -> Callable[[Run], float | None]:
    return lambda run: number(get_object(run, "proxies").get(key))


def _sample(key: str) -> Callable[[Run], float | None]:
    return lambda run: number(get_object(run, "samples").get(key))


METRICS: dict[str, Callable[[Run], float | None]] = {
    "accuracy": accuracy_of,
    "macro_f1": lambda run: number(run["quality"].get("macro_f1")),
    "rmse": lambda run: number(run["quality"].get("rmse")),
    "executed": _macs("executed"),
    "relative": relative_of,
    "relative_zero_skip": _macs("relative_zero_skip"),
    "structure_saved": _macs("structure_saved"),
    "gate_saved": _macs("gate_saved"),
    "gate_fraction": lambda run: ratio(number(run["macs"].get("gate")), number(run["macs"].get("executed"))),
    "gate_cost": lambda run: ratio(number(run["macs"].get("gate")), number(run["macs"].get("dense"))),
    "compute_proxy": _proxy("compute_proxy_g"),
    "relmac": _proxy("relmac_g"),
    "relmac_fuse": _proxy("relmac_fuse_g"),
    "claimed": lambda run: number(run["claimed"]) if "claimed" in run else relative_of(run),
    "varying": varying_of,
    **{key: _sample(key) for key in ("p5", "p50", "p95")},
    "params": lambda run: number(run["params"]),
    "seconds": lambda run: number(run["seconds"]),
    "seconds_relative": lambda run: number(run.get("seconds_relative")),
}
"""Name -> how to read it from a run; None where the run does not have it.

MACs and parameters are counts; `relative`, `relative_zero_skip`, `gate_cost` and what is saved are fractions of the
dense network's MACs, and so are the percentiles `p5`, `p50` and `p95` of single samples; `gate_fraction` is one of the
executed MACs; `seconds_relative` is the time of a training step relative to that of the dense network."""
