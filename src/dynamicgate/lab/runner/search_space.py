"""What a sweep searches: hyperparameters with a range or a list of choices, written as `lr=0.001:0.01:log` or
`block=1,2,4`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dynamicgate.lab.methods.hyperparameters import Settings, given
from dynamicgate.lab.methods.ranges import Range

NOT_SEARCHED = ("data", "data_options", "model", "seed", "budget", "epochs", "patience")
"""A sweep is on one dataset, at one budget, with runs of one length."""
GATED = ("gate", "gate+rigl", "static")
WHOLE = ("batch", "block", "rank", "accumulate", "every")
Value = float | int | str


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter: from `low` to `high`, or one of `choices`. log: equal steps are equal factors."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        if not self.choices and not self.low < self.high:
            raise ValueError(
                f"the range of {self.name} must go up, received {self.low:g}:{self.high:g}: give it as LOW:HIGH"
            )
        if self.log and not self.low > 0:
            raise ValueError(f"a logarithmic range starts above 0, received {self.name}={self.low:g}:{self.high:g}:log")

    @property
    def is_whole(self) -> bool:
        """Whether its range is of whole numbers."""
        return self.name in WHOLE

    def at(self, place: float) -> Value:
        """The value at a place between 0 and 1."""
        if self.choices:
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        if self.is_whole:  # so that the first and the last value are as likely as the others
            low, high = self.low - 0.5, self.high + 0.5
            value = math.exp(_between(math.log(low), math.log(high), place)) if self.log else _between(low, high, place)
            return round(min(max(value, self.low), self.high))
        if self.log:
            return math.exp(_between(math.log(self.low), math.log(self.high), place))
        return _between(self.low, self.high, place)

    def start(self, settings: Settings) -> Value:
        """What resolved settings have; the middle where they have nothing in the range."""
        value: Any = getattr(settings, self.name)
        if self.name == "hidden":
            value = "x".join(map(str, given(settings.hidden)))
        inside = value in self.choices if self.choices else value in Range(self.low, self.high)
        return value if inside else self.at(0.5)

    def to_json(self) -> dict[str, Any]:
        """As results hold it."""
        if self.choices:
            return {"name": self.name, "choices": list(self.choices)}
        return {"name": self.name, "low": self.low, "high": self.high, "log": self.log}


def _between(low: float, high: float, place: float) -> float:
    return low + (high - low) * place


def usual_space(settings: Settings) -> tuple[Parameter, ...]:
    """What is searched where nothing is said, for resolved settings."""
    lr = given(settings.lr)
    dropout = "dense_dropout" if settings.model in ("dense", "small") else "dropout"
    found = (
        Parameter("lr", lr / 4, lr * 4, log=True),
        Parameter("weight_decay", 0.005, 0.5, log=True),
        Parameter(dropout, 0.0, 0.5),
    )
    return (*found, Parameter("gate_lr_scale", 0.1, 1.0, log=True)) if settings.model in GATED else found


def read_parameter(text: str) -> Parameter:
    """From `NAME=LOW:HIGH`, `NAME=LOW:HIGH:log` or `NAME=VALUE,VALUE`."""
    name, sign, values = text.partition("=")
    name = name.strip().replace("-", "_")
    known = [field.name for field in fields(Settings) if field.name not in NOT_SEARCHED]
    if name not in known:
        raise ValueError(f"a sweep cannot search {name!r}; it can search {', '.join(sorted(known))}")
    if not sign or not values:
        raise ValueError(f"--search takes NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=VALUE,VALUE, received {text!r}")
    if ":" not in values:
        texts = [value.strip() for value in values.split(",")]
        return Parameter(name, choices=tuple(texts if name == "hidden" else map(_value, texts)))
    low, _, rest = values.partition(":")
    high, _, scale = rest.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError as error:
        raise ValueError(f"the range of {name} takes two numbers, LOW:HIGH, received {values!r}") from error
    if scale not in ("", "log") or name == "hidden":
        raise ValueError(f"--search takes {name}=LOW:HIGH or LOW:HIGH:log, or values for hidden, received {text!r}")
    return Parameter(name, *ends, log=scale == "log")


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def with_values(settings: Settings, values: dict[str, Any]) -> Settings:
    """The settings of a trial."""
    chosen = dict(values)
    if "hidden" in chosen:
        try:
            chosen["hidden"] = tuple(int(width) for width in str(chosen["hidden"]).split("x"))
        except ValueError as error:
            raise ValueError(f"hidden takes widths such as 128 or 128x64, received {chosen['hidden']!r}") from error
    return replace(settings, **chosen)


def check_space(space: Sequence[Parameter]) -> None:
    """Each hyperparameter once, and at least one."""
    names = [parameter.name for parameter in space]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        raise ValueError(f"{', '.join(twice)} is searched twice: name it once" if twice else "nothing is searched")
