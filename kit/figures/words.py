"""Numbers, times, memory and values in words."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from typing import Any


def is_known(value: Any) -> bool:
    """Return whether this is a finite number."""
    return value is not None and math.isfinite(value)


def is_wide(xs: Sequence[float]) -> bool:
    """Return whether numbers span so much that a logarithmic axis shows them better.

    >>> is_wide([1, 2, 4]), is_wide([1, 64]), is_wide([0, 64])
    (False, True, False)
    """
    return bool(xs) and min(xs) > 0 and max(xs) > 10 * min(xs)


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
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    plain = decimals < 6 and abs(value) < 1e12
    return (f"{value:,.{decimals}f}" if plain else f"{value:.2e}").replace("-", "−")


def format_seconds(value: float | None) -> str:
    """Write a time in the unit that suits it, from nanoseconds to hours.

    >>> format_seconds(0.0123), format_seconds(1234), format_seconds(7500)
    ('12.3 ms', '20 min 34 s', '2 h 5 min')
    """
    if not is_known(value):
        return "unknown"
    sign, value = "−" if value < 0 else "", abs(value)
    if (minutes := round(value / 60)) >= 60:
        return f"{sign}{minutes // 60:,} h {minutes % 60} min"
    if value >= 119.5:
        return f"{sign}{round(value) // 60} min {round(value) % 60} s"
    value = float(f"{value:.3g}")
    units = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    unit, per_second = next((u for u in units if value * u[1] >= 1), units[-1])
    return f"{sign}{format_number(value * per_second)} {unit}" if value else "0 s"


def format_bytes(value: float | None, _: Any = None) -> str:
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


def is_bytes(unit: str) -> bool:
    """Return whether values are bytes, as the name of their axis says."""
    return unit.startswith("bytes")


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


def format_share(value: float | None, like: float | None = None) -> str:
    """Write a fraction in per cent, with a decimal where it, or `like`, is below 10 %.

    >>> format_share(0.61), format_share(0.0234), format_share(-0.004, like=0.61)
    ('61 %', '2.3 %', '0 %')
    """
    if not is_known(value):
        return "unknown"
    decimals = int(abs(value if like is None else like) < 0.0995)
    return f"{100 * value:z,.{decimals}f} %".replace("-", "−")


def format_saving(value: float | None, low: float | None, high: float | None) -> str:
    """Write a fraction that is saved, with its interval, which may not be known.

    >>> format_saving(0.61, 0.58, 0.64)
    '61 % [58, 64]'
    """
    if not (is_known(value) and is_known(low) and is_known(high)):
        return format_share(value)
    ends = (format_share(end, value).removesuffix(" %") for end in (low, high))
    return f"{format_share(value)} [{', '.join(ends)}]"
