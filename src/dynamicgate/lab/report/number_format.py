"""How numbers are written: the same digits in the page, in the terminal and in the sentences."""

from datetime import datetime

from dynamicgate.lab.report.summary import Spread

ABSENT = "–"


def plus_minus(value: Spread, digits: int, scale: float = 1.0) -> str:
    """``mean ± std``; the mean alone where there is only one run or all runs agree."""
    if value["mean"] is None:
        return ABSENT
    rounded = round(value["mean"] * scale, digits) + 0.0  # + 0.0: turns -0.0 into 0.0
    mean = f"{rounded:,.{digits}f}".replace("-", "−")
    return f"{mean} ± {value['std'] * scale:,.{digits}f}" if value["std"] else mean


def percent(value: Spread) -> str:
    """A fraction as a percentage with two decimals, without the percent sign."""
    return plus_minus(value, 2, 100)


def rounded_percent(value: Spread) -> str:
    """A fraction as a percentage with one decimal, without the percent sign."""
    return plus_minus(value, 1, 100)


def fixed(value: float | None, digits: int) -> str:
    """A number with so many decimals."""
    return ABSENT if value is None else f"{value:,.{digits}f}"


def signed_points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return f"{difference * 100:+.2f}".replace("-", "−")


def signed(value: float) -> str:
    """A correlation, with its sign."""
    return f"{value:+.2f}".replace("-", "−")


def quantity(value: Spread) -> str:
    """A count of operations or parameters; the mean and its deviation share one unit."""
    if value["mean"] is None:
        return ABSENT
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e5, " k")):
        if abs(value["mean"]) >= size:
            divisor = 1e3 if unit == " k" else size
            return plus_minus(value, 1 if unit == " k" else 2, 1 / divisor) + unit
    return plus_minus(value, 0)


def shorten(name: str, length: int) -> str:
    """The name, cut with an ellipsis if it is longer than `length`."""
    return name if len(name) <= length else name[: length - 1] + "…"


def shorten_middle(name: str, length: int) -> str:
    """The name, with an ellipsis in its middle if it is longer than `length`."""
    head = (length - 1) // 2
    return name if len(name) <= length else name[:head] + "…" + name[head + 1 - length :]


def format_date(created: object) -> str:
    """An ISO date and time, to the minute; anything else as it is."""
    try:
        moment = datetime.fromisoformat(str(created).replace("Z", "+00:00"))
    except ValueError:
        return str(created)
    return moment.strftime("%Y-%m-%d %H:%M %Z").strip()


def counted(count: int, noun: str) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
