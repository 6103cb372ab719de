"""Numbers in words: three significant digits, and a unit."""

import inspect
import math
import re
from typing import Any


def is_known(value: Any) -> bool:
    """Return whether this is a finite number."""
    return value is not None and math.isfinite(value)


def format_number(value: float | None) -> str:
    """Write a number with three significant digits and every digit before the point.

    From a trillion on, digits are no longer counted.

    >>> format_number(1523.4), format_number(0.98), format_number(None)
    ('1,523', '0.980', 'unknown')
    >>> format_number(5.6e21)
    '5.60e+21'
    """
    if not is_known(value):
        return "unknown"
    if abs(value) >= 1e12:
        return f"{value:.2e}".replace("-", "−")
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = f"{value:,.{decimals}f}" if decimals < 6 else f"{value:.2e}"
    return text.replace("-", "−")


def format_rate(value: float | None, unit: str) -> str:
    """Write a number with its unit.

    >>> format_rate(1523.4, "items/s")
    '1,523 items/s'
    """
    return f"{format_number(value)} {unit}" if is_known(value) else "unknown"


def format_ratio(value: float | None) -> str:
    """Write how many times as much.

    >>> format_ratio(1.923)
    '1.92 ×'
    """
    return format_rate(value, "×")


def format_seconds(value: float | None) -> str:
    """Write a time in the unit that suits it, from nanoseconds to hours.

    >>> format_seconds(0.0123), format_seconds(150), format_seconds(7500)
    ('12.3 ms', '2 min 30 s', '2 h 5 min')
    """
    if not is_known(value):
        return "unknown"
    sign, value = "−" if value < 0 else "", abs(value)
    if (minutes := round(value / 60)) >= 60:
        return f"{sign}{minutes // 60:,} h {minutes % 60} min"
    if (seconds := round(value)) >= 120:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    value = float(f"{value:.3g}")
    units = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    unit, per_second = next((u for u in units if value * u[1] >= 1), units[-1])
    return f"{sign}{format_number(value * per_second)} {unit}" if value else "0 s"


def format_value(value: object, width: int = 40) -> str:
    """Write any value on one line of at most `width` characters.

    >>> format_value("a\\nb"), format_value(list(range(99)), width=12)
    ("'a\\\\nb'", '[0, 1, 2, 3…')
    >>> format_value(len)
    'len'
    """
    is_named = inspect.isroutine(value) or inspect.isclass(value)
    text = value.__name__ if is_named else " ".join(repr(value).split())
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def format_bytes(value: float | None) -> str:
    """Write an amount of memory in decimal units: 1 GB is 10⁹ bytes.

    >>> format_bytes(1.5e9), format_bytes(64_000_000), format_bytes(512)
    ('1.5 GB', '64 MB', '512 B')
    """
    if not is_known(value):
        return "unknown"
    value, units = float(f"{value:.3g}"), ["PB", "TB", "GB", "MB", "kB", "B"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{round(value, 2):,.10g} {units[-1]}".replace("-", "−")
