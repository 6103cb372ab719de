"""A number as several formats store it: a sentence, a table and a picture."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.costs.number_formats import (
    FORMATS,
    NumberFormat,
    Parts,
    find_formats,
    format_exactly,
    format_short,
    read_number,
)
from kit.figures import BIT_LOOKS, draw_bits, html_table, show, text_table, to_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: More marks than these in a row cannot be told apart.
_MOST_MARKS = 120


@dataclass(frozen=True, repr=False)
class Apart:
    """A number as several formats store it: `parts` by the formats' names."""

    value: float
    formats: Mapping[str, NumberFormat]

    @property
    def parts(self) -> dict[str, Parts]:
        """The number's parts in each format, by its name."""
        formats = self.formats.items()
        return {name: format.take_apart(self.value) for name, format in formats}

    @property
    def title(self) -> str:
        """What there is to see, in a sentence."""
        parts, value = list(self.parts.values()), format_exactly(self.value)
        kinds = {"overflow": [], "underflow": []}
        for part in parts:
            kinds.setdefault(part.error_text.split()[0].strip(","), []).append(part)
        if math.isnan(self.value):
            return "Every format can store what is not a number"
        if names := _list(kinds["overflow"]):
            return f"{value} is too large for {names}"
        if names := _list(kinds["underflow"]):
            return f"{value} is too small for {names}"
        if all(part.stored == self.value for part in parts):
            return f"{value} is stored exactly, in {_list(parts)}"
        worst = max(parts, key=lambda part: part.relative_error)
        return f"{value} is {worst.error_text} in {worst.format}"

    def __repr__(self) -> str:
        return f"{self.title}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        return html_table(*self._table(), title=self.title, looks=BIT_LOOKS)

    @functools.cached_property
    def picture(self) -> str:
        """The plot as an HTML image with alt text, drawn once."""
        figure = self.plot()
        return to_html(figure, show(figure).alt)

    def plot(self) -> Figure:
        """Draw the bits, and below them the numbers that there are around the value.

        The stretch is three gaps of the widest format; where a format has more numbers
        there than a picture can show, they are drawn as a band.

        >>> take_apart(0.1, ["float16", "float8_e5m2"]).plot().axes[1].get_xlabel()
        'value'
        """
        parts = self.parts.values()
        bits = {p.format: (str(p.sign), p.exponent, p.mantissa) for p in parts}
        stored = {p.format: format_exactly(p.stored) for p in parts}
        gaps = [f.gap(self.value) for f in self.formats.values()]
        widest = max(filter(math.isfinite, gaps), default=0.0)
        if not widest:
            return draw_bits(bits, stored, title=self.title)
        window = self.value - 1.5 * widest, self.value + 1.5 * widest
        formats = self.formats.items()
        counts = {name: form.count_numbers(*window) for name, form in formats}
        numbers = {
            name: form.list_numbers(*window)
            for name, form in formats
            if counts[name] <= _MOST_MARKS
        }
        return draw_bits(
            bits,
            stored,
            title=self.title,
            value=self.value,
            window=window,
            numbers=numbers,
            counts=counts,
        )

    def _table(self) -> tuple[list[str], list[list[object]]]:
        head = ["format", "sign", "exponent", "mantissa", "stored", "gap", "error"]
        rows = [
            [
                *(part.format, str(part.sign), part.exponent, part.mantissa),
                *(format_exactly(part.stored), format_short(part.gap)),
                part.error_text.removeprefix("off by ")
                + ", subnormal" * (part.kind == "subnormal"),
            ]
            for part in self.parts.values()
        ]
        return head, rows


def take_apart(
    value: float, formats: Mapping[str, NumberFormat] | Iterable[str] = FORMATS
) -> Apart:
    """Store a number in several formats, and show the bits of each.

    `formats` are formats, or names of those in FORMATS. Raises ValueError for what is
    no number, for names that are not there, and for none.

    >>> take_apart(1.25, ["bfloat16", "float16"])
    1.25 is stored exactly, in bfloat16 and float16
    format    sign  exponent    mantissa  stored      gap  error
    bfloat16     0  01111111     0100000    1.25   0.0078  exact
    float16      0     01111  0100000000    1.25  0.00098  exact
    """
    value = read_number("take_apart", value)
    return Apart(value, find_formats("take_apart", formats))


def _list(parts: list[Parts]) -> str:
    """Name some parts' formats: "a, b and c"."""
    *names, last = [part.format for part in parts] or [""]
    return f"{', '.join(names)} and {last}" if names else last
