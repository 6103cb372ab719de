"""`Formats`: a number as training's formats store it, to change and look at."""

from __future__ import annotations

import ast
import html
import math
import operator
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kit.costs.apart import Apart
from kit.costs.number_formats import (
    NumberFormat,
    Parts,
    find_formats,
    format_exactly,
    format_short,
)
from kit.experiment import ExperimentError
from kit.figures import format_value
from kit.panel.static import is_static, show_static

if TYPE_CHECKING:
    from kit.panel.formats_view import FormatsView

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_EXAMPLES = "Type one, such as 0.1, 1/3, 2**-24, 65520, nan or inf."
_LONGEST = 100  # letters of a number that is typed
#: More bits than these have no buttons: a row of them would not fit.
MOST_BITS = 19


class Formats:
    """A panel that takes a number apart, live.

    `value` is a number, or a text that a reader might type; `formats` are names of
    `kit.costs.FORMATS`, by default all, or formats by name. `set(value)` changes the
    number from code, `parts` maps the formats' names to its parts. Raises
    ExperimentError for what is no number, and ValueError for formats that are not
    there.

    >>> panel = Formats("1/3")
    >>> panel.parts["float16"]
    float16 0 01101 0101010101 = 0.333251953125 (gap 0.00024, off by 0.024 %)
    >>> panel
    Number formats: float32, tfloat32, bfloat16, float16, float8_e4m3fn, float8_e5m2
    """

    def __init__(
        self,
        value: float | str = 0.1,
        formats: Mapping[str, NumberFormat] | Iterable[str] | None = None,
    ) -> None:
        self.formats = find_formats("Formats", formats)
        self._value, self._flipped = read_number(value), -1
        # The first one with room for its bits: there is most to press on.
        few = [name for name, f in self.formats.items() if f.bits <= MOST_BITS]
        preferred = [name for name in few if name == "float16"]
        self._chosen = [*preferred, *few, *self.formats][0]
        self._told = Told(Apart(self._value, self.formats), self._chosen)
        self._one_at_a_time = threading.RLock()
        self._view: FormatsView | None = None

    @property
    def value(self) -> float:
        """The number that is asked for."""
        return self._value

    @property
    def parts(self) -> dict[str, Parts]:
        """What each format stores of it."""
        return self.results.apart.parts

    @property
    def chosen(self) -> str:
        """The format whose bits and neighbours the buttons are for."""
        return self._chosen

    @property
    def bits(self) -> str:
        """The bits that the chosen format stores."""
        form = self.formats[self._chosen]
        # Several patterns are not a number: the one that a reader made is shown.
        flipped = math.isnan(self._value) and self._flipped >= 0
        pattern = self._flipped if flipped else form.encode(self._value)
        return f"{pattern:0{form.bits}b}"

    def set(self, value: float | str) -> None:
        """Take this number, or what this text says; show it.

        Raises ExperimentError for what is no number.
        """
        self._change(read_number(value))

    def choose(self, name: str) -> None:
        """Choose the format whose bits and neighbours the buttons are for."""
        if name not in self.formats:
            raise ExperimentError(
                f"Formats.choose(): {format_value(name)} is not a format of this "
                f"panel.\nChoose one of {', '.join(self.formats)}."
            )
        with self._one_at_a_time:
            self._chosen, self._flipped = name, -1
            self._show(replace(self._told, chosen=name, error=""))

    def scale(self, by: float) -> None:
        """Multiply the number."""
        with self._one_at_a_time:
            self._change(self._value * by)

    def step(self, by: int) -> None:
        """Go to a neighbour that the chosen format has: 1 is the next larger one."""
        with self._one_at_a_time:
            self._change(self.formats[self._chosen].step(self._value, by))

    def flip(self, place: int) -> None:
        """Flip a bit of the chosen format; 0 is the sign, the last one the finest."""
        form = self.formats[self._chosen]
        if not 0 <= place < form.bits:
            raise ExperimentError(
                f"Formats.flip(): {self._chosen} has no bit {place!r}.\n"
                f"Its bits are 0 to {form.bits - 1}."
            )
        with self._one_at_a_time:
            flipped = int(self.bits, 2) ^ 1 << (form.bits - 1 - place)
            self._change(form.decode(flipped), flipped)

    def try_to_set(self, text: str) -> None:
        """Take what was typed, or show why that cannot be."""
        try:
            self.set(text)
        except ExperimentError as error:
            self._show(replace(self._told, error=str(error)))

    def _change(self, value: float, flipped: int = -1) -> None:
        with self._one_at_a_time:
            self._value, self._flipped = value, flipped
            self._show(Told(Apart(value, self.formats), self._chosen))

    def _show(self, told: Told) -> None:
        with self._one_at_a_time:
            self._told = told
            if self._view is not None:
                self._view.refresh()

    # What the view asks for

    @property
    def title(self) -> str:
        """What there is to do."""
        return "What becomes of a number? Change it, or flip its bits"

    @property
    def results(self) -> Told:
        """What becomes of the number, as a picture, words and a table."""
        return self._told

    def close(self) -> None:
        """Take the controls out of service."""
        if self._view is not None:
            self._view.close()

    def __repr__(self) -> str:
        return f"Number formats: {', '.join(self.formats)}"

    def _ipython_display_(self) -> None:
        # A stored widget would be an error message.
        if is_static():
            show_static(repr(self), self.results.static())
            return
        from kit.panel.formats_view import FormatsView

        if self._view is None:
            self._view = FormatsView(self)
        self._view.display()


@dataclass(frozen=True)
class Told:
    """What becomes of a number, and what was wrong with the last text."""

    apart: Apart
    chosen: str
    error: str = ""
    traceback: str = ""

    def summary(self) -> str:
        """Return what the chosen format makes of the number, in a sentence or two."""
        return describe(self.apart.formats[self.chosen], self.apart.value)

    def picture(self) -> str:
        """Return the picture as an HTML image with alt text."""
        return self.apart.picture

    def history(self) -> str:
        """Return the same as an HTML table."""
        return self.apart._repr_html_()

    def static(self) -> str:
        """Return picture, words and table as HTML that needs nothing else."""
        return f"{self.picture()}<p>{html.escape(self.summary())}</p>{self.history()}"


def describe(form: NumberFormat, value: float) -> str:
    """Say what a format makes of a number: overflow, underflow, subnormal, or how near.

    >>> from kit.costs.number_formats import FORMATS
    >>> describe(FORMATS["float16"], 65520)
    'In float16, 65520 overflows to inf: the largest number is 65504.'
    >>> describe(FORMATS["bfloat16"], 1)
    'In bfloat16, 1 is exact. The next larger number is 0.0078 away.'
    """
    part = form.take_apart(value)
    stored, asked = format_exactly(part.stored), format_exactly(value)
    begin = f"In {form.name}, {asked}"
    if math.isnan(value):
        return f"{begin} is not a number: {form.name} has bits for that."
    if part.error_text.startswith("overflow"):
        largest = format_exactly(form.largest)
        to = "is cut" if math.isfinite(part.stored) else "overflows"
        return f"{begin} {to} to {stored}: the largest number is {largest}."
    if math.isinf(value):
        return f"{begin} is infinite: {form.name} has bits for that."
    near = "is exact" if part.stored == value else f"is {stored}, {part.error_text}"
    said = f"{begin} {near}. The next larger number is {format_short(part.gap)} away."
    if part.kind == "zero" and value:
        smallest = format_short(form.smallest)
        return f"{begin} underflows to 0: the smallest number is {smallest}."
    if part.kind == "subnormal":
        left = part.mantissa.lstrip("0")
        bits = "1 bit is" if len(left) == 1 else f"{len(left)} bits are"
        said += (
            f" It is subnormal, below {format_short(form.smallest_normal)}: of "
            f"{form.mantissa_bits + 1} bits of precision {bits} left."
        )
    return said


def read_number(value: Any) -> float:
    """Return the number that a reader means: a number, or a text with a calculation.

    Only numbers, + - * / **, brackets, nan and inf are understood; nothing is run.

    >>> read_number("2**-24 * 3"), read_number("-inf")
    (1.7881393432617188e-07, -inf)
    """
    try:
        if not isinstance(value, str):
            return float(value)
        text = value.strip().replace("−", "-").replace("×", "*").replace("^", "**")
        if not 0 < len(text) <= _LONGEST:
            raise ValueError("nothing, or too long")
        return _calculate(ast.parse(text, mode="eval").body)
    except OverflowError as error:
        raise ExperimentError(
            f"Formats: number={format_value(value)} is larger than any number that "
            f"Python can write.\nType a smaller one, or inf."
        ) from error
    except (TypeError, ValueError, SyntaxError, ZeroDivisionError) as error:
        raise ExperimentError(
            f"Formats: number={format_value(value)} is not a number.\n{_EXAMPLES}"
        ) from error


def _calculate(node: ast.expr) -> float:
    """Work out a calculation in floats, so that none takes long."""
    match node:
        case ast.Constant(value=int() | float() as number) if number is not True:
            return float(number)
        case ast.Name(id=name) if name.lower() in ("nan", "inf"):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_calculate(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _calculate(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            found = _OPERATORS[type(op)](_calculate(left), _calculate(right))
            if isinstance(found, float):  # and not complex, as (-1) ** 0.5 is
                return found
    raise ValueError("not understood")
