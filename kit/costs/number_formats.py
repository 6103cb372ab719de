"""Number formats of training, taken apart: how many bits, and what they can hold."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kit.figures import format_number


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format: a sign, then an exponent, then a mantissa.

    A normal number is ± 1.mantissa · 2^(exponent - bias). Exponent 0 is for zero and
    the subnormal numbers, ± 0.mantissa · 2^(1 - bias); the largest exponent is for
    infinity and what is not a number. A format that is `finite_only` gives that
    exponent to numbers, too: it has no infinity, and its one pattern of ones is not a
    number. Sources: IEEE 754-2019, section 3.4, and for 8 bits the OCP 8-bit Floating
    Point Specification (OFP8), Rev. 1.0.

    >>> half = NumberFormat("float16", exponent_bits=5, mantissa_bits=10)
    >>> half.bits, half.bias, half.largest, half.epsilon
    (16, 15, 65504.0, 0.0009765625)
    >>> half.round(0.1), half.round(1e6), half.gap(4000)
    (0.0999755859375, inf, 2.0)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    finite_only: bool = False

    def __post_init__(self) -> None:
        # Python's own floats, with 11 and 52 bits, have to hold every number.
        for knob, least, most in (("exponent_bits", 2, 8), ("mantissa_bits", 1, 23)):
            given = getattr(self, knob)
            if not (isinstance(given, int) and least <= given <= most):
                raise ValueError(
                    f"NumberFormat({self.name!r}): {knob}={given!r} is not a whole "
                    f"number from {least} to {most}"
                )

    @property
    def bits(self) -> int:
        """The bits of a number. (One of tfloat32's lies in 32 bits of memory.)"""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is taken from the stored exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return self.decode(self._largest_pattern)

    @property
    def smallest_normal(self) -> float:
        """The smallest number above 0 with all bits of precision."""
        return math.ldexp(1, 1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above 0, a subnormal one with a single bit left."""
        return math.ldexp(1, 1 - self.bias - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """The gap between 1 and the next larger number."""
        return math.ldexp(1, -self.mantissa_bits)

    def gap(self, value: float) -> float:
        """Return the distance of neighbours at |value|, up to the next larger number.

        At the largest number it is the distance to the one before, which is the same;
        beyond it the gap is infinite.

        >>> FORMATS["bfloat16"].gap(256), FORMATS["bfloat16"].gap(-255.5)
        (2.0, 1.0)
        """
        size = abs(read_number(f"{self.name}.gap", value))
        if not size <= self.largest:
            return math.nan if math.isnan(size) else math.inf
        return math.ldexp(1, self._find_exponent(size) - self.mantissa_bits)

    def round(self, value: float, *, saturate: bool | None = None) -> float:
        """Return the nearest number of the format; of two equally near, the even one.

        The even one is that whose last bit is 0. What is too large becomes infinite, or
        with `saturate` the largest number; a `finite_only` format without it has only
        "not a number" for it. By default it is what the PyTorch that is
        installed does: `tensor.to(torch.float8_e4m3fn)` saturates in PyTorch 2.15, and
        made it not a number before.

        The result equals `torch.tensor(value).to(dtype)` wherever `value` is a float32.
        Of any other value PyTorch makes a float32 first, and so rounds twice.

        >>> half = FORMATS["float16"]
        >>> half.round(65520), half.round(65520, saturate=True)
        (inf, 65504.0)
        """
        return self.decode(self.encode(value, saturate=saturate))

    def encode(self, value: float, *, saturate: bool | None = None) -> int:
        """Return the bits of the number that `round` finds, as a whole number.

        >>> f"{FORMATS['float16'].encode(-2):016b}"
        '1100000000000000'
        """
        value = read_number(f"{self.name}.encode", value)
        if saturate is None:
            saturate = self.finite_only and _pytorch_saturates()
        sign = (math.copysign(1, value) < 0) << (self.bits - 1)
        if math.isnan(value):
            return sign | self._nan_pattern
        if math.isinf(value):
            pattern = self._largest_pattern + 1
        else:
            exponent = self._find_exponent(abs(value))
            # Whole gaps below |value|: scaling by a power of two is exact in Python's
            # floats, and its round() gives ties to the even number.
            gaps = round(math.ldexp(abs(value), self.mantissa_bits - exponent))
            # The leading 1 of a normal number, which is not stored, adds the 1 that is
            # missing in the exponent; so does a mantissa that is rounded up to 2.
            pattern = ((exponent + self.bias - 1) << self.mantissa_bits) + gaps
        if pattern > self._largest_pattern:
            beyond = self._nan_pattern if self.finite_only else self._infinity
            pattern = self._largest_pattern if saturate else beyond
        return sign | pattern

    def decode(self, pattern: int) -> float:
        """Return the number that these bits are.

        >>> FORMATS["float8_e5m2"].decode(0b0_01111_10)
        1.5
        """
        if not 0 <= pattern < 2**self.bits:
            raise ValueError(
                f"{self.name}.decode(): {pattern} is not a pattern of {self.bits} "
                f"bits: give a whole number from 0 to {2**self.bits - 1}"
            )
        negative, pattern = divmod(pattern, 2 ** (self.bits - 1))
        exponent, mantissa = divmod(pattern, 2**self.mantissa_bits)
        if pattern > self._largest_pattern:
            size = math.inf if pattern == self._infinity else math.nan
        else:
            leading = 2**self.mantissa_bits if exponent else 0
            power = max(exponent, 1) - self.bias - self.mantissa_bits
            size = math.ldexp(leading + mantissa, power)
        return -size if negative else size

    def take_apart(self, value: float) -> Parts:
        """Return the sign, exponent and mantissa of the number that is stored.

        >>> FORMATS["float16"].take_apart(0.1)
        float16 0 01011 1001100110 = 0.0999755859375 (gap 6.1e-05, off by 0.024 %)
        """
        value = read_number(f"{self.name}.take_apart", value)
        pattern = self.encode(value)
        bits, stored = f"{pattern:0{self.bits}b}", self.decode(pattern)
        if math.isfinite(stored):
            normal = abs(stored) >= self.smallest_normal
            kind = "normal" if normal else "subnormal" if stored else "zero"
        else:
            kind = "not a number" if math.isnan(stored) else "infinite"
        return Parts(
            format=self.name,
            value=value,
            sign=int(bits[0]),
            exponent=bits[1 : 1 + self.exponent_bits],
            mantissa=bits[1 + self.exponent_bits :],
            stored=stored,
            kind=kind,
            gap=self.gap(stored),
        )

    def step(self, value: float, by: int = 1) -> float:
        """Return the number of the format that is `by` numbers above, or below, one.

        It ends at infinity, or where there is none at the largest number.

        >>> half = FORMATS["float16"]
        >>> half.step(1), half.step(1, -1), half.step(0.1) > 0.1, half.step(65504)
        (1.0009765625, 0.99951171875, True, inf)
        """
        value = read_number(f"{self.name}.step", value)
        if math.isnan(value) or not by:
            return self.round(value)
        start = self._find_place(value, up=by < 0)
        most = self._largest_pattern + (not self.finite_only)
        return self._decode_place(max(-most, min(most, start + by)))

    def count_numbers(self, low: float, high: float) -> int:
        """Return how many finite numbers there are from `low` to `high`.

        >>> FORMATS["float16"].count_numbers(1, 2)
        1025
        """
        return len(self._find_places(low, high))

    def list_numbers(self, low: float, high: float) -> list[float]:
        """Return the finite numbers from `low` to `high`, which may be many.

        >>> FORMATS["float8_e5m2"].list_numbers(1, 2)
        [1.0, 1.25, 1.5, 1.75, 2.0]
        """
        return list(map(self._decode_place, self._find_places(low, high)))

    def _find_places(self, low: float, high: float) -> range:
        """Return the places of all numbers in a stretch: 0 is 0, 1 the smallest one."""
        if not low <= high:
            raise ValueError(f"{self.name}: {low} to {high} is not from low to high")
        most = self._largest_pattern
        first = max(self._find_place(low, up=True), -most)
        last = min(self._find_place(high, up=False), most)
        return range(first, last + 1)

    def _find_place(self, value: float, *, up: bool) -> int:
        """Return the place of a value, or of the next number that is above or below."""
        pattern = self.encode(abs(value), saturate=False)
        if self.finite_only and pattern == self._nan_pattern:
            pattern = self._largest_pattern + 1
        place = -pattern if value < 0 else pattern
        nearest = self._decode_place(place)
        return place + (nearest < value) if up else place - (nearest > value)

    def _decode_place(self, place: int) -> float:
        beyond = abs(place) > self._largest_pattern
        size = math.inf if beyond else self.decode(abs(place))
        return -size if place < 0 else size

    @property
    def _infinity(self) -> int:
        """The pattern of infinity; none where the format has only finite numbers."""
        ones = (2**self.exponent_bits - 1) << self.mantissa_bits
        return -1 if self.finite_only else ones

    @property
    def _nan_pattern(self) -> int:
        """A pattern that is not a number: the only one, or the one hardware makes."""
        if self.finite_only:
            return 2 ** (self.bits - 1) - 1
        return self._infinity | 1 << (self.mantissa_bits - 1)

    @property
    def _largest_pattern(self) -> int:
        return (self._nan_pattern if self.finite_only else self._infinity) - 1

    def _find_exponent(self, size: float) -> int:
        """Return the power of two below a size, or that of the subnormal numbers."""
        power = math.frexp(size)[1] - 1 if size else -math.inf
        return int(max(power, 1 - self.bias))


#: The formats that PyTorch trains with, by its names, from the most bits on. All but
#: tfloat32 are dtypes. That one is what NVIDIA's Tensor Cores make of float32, on their
#: way in, where `torch.backends.cuda.matmul.fp32_precision` is "tf32": in memory it
#: stays float32, and products are added up in float32. Here it is rounded as the other
#: formats are; hardware may treat a tie otherwise, or cut off the bits.
#: Source: NVIDIA A100 Tensor Core GPU Architecture, 2020, "TF32".
FORMATS: dict[str, NumberFormat] = {
    format.name: format
    for format in (
        NumberFormat("float32", 8, 23),
        NumberFormat("tfloat32", 8, 10),
        NumberFormat("bfloat16", 8, 7),
        NumberFormat("float16", 5, 10),
        NumberFormat("float8_e4m3fn", 4, 3, finite_only=True),
        NumberFormat("float8_e5m2", 5, 2),
    )
}


@dataclass(frozen=True, repr=False)
class Parts:
    """A number as a format stores it: its bits, and what they are.

    `value` is what was asked for, `stored` what there is instead. `sign` is 0 or 1,
    `exponent` and `mantissa` are stored bits, highest first. `kind` is "normal",
    "subnormal", "zero", "infinite" or "not a number"; `gap` is the distance from
    |stored| to the next larger number.
    """

    format: str
    value: float
    sign: int
    exponent: str
    mantissa: str
    stored: float
    kind: str
    gap: float

    @property
    def relative_error(self) -> float:
        """How far the stored number is off, as a share of the value.

        Infinite where a finite value is stored as infinity, nan where either is not a
        number.

        >>> FORMATS["bfloat16"].take_apart(1.25 + 2**-10).relative_error  # of 1.25
        0.00078064...
        """
        if self.stored == self.value:
            return 0.0
        if math.isinf(self.value) and math.isfinite(self.stored):
            return 1.0  # what |stored - value| / |value| comes to for large values
        return abs(self.stored - self.value) / abs(self.value)

    @property
    def pattern(self) -> int:
        """All bits, as a whole number."""
        return int(f"{self.sign}{self.exponent}{self.mantissa}", 2)

    @property
    def error_text(self) -> str:
        """How far the stored number is off, in words.

        >>> [FORMATS["float16"].take_apart(x).error_text for x in (1, 0.1, 1e9, 1e-9)]
        ['exact', 'off by 0.024 %', 'overflow', 'underflow to 0']
        """
        if self.kind == "not a number":
            return "overflow" if not math.isnan(self.value) else "not a number"
        if self.stored == self.value:
            return "exact"
        if self.kind == "infinite":
            return "overflow"
        if self.kind == "zero":
            return "underflow to 0"
        if abs(self.stored) < abs(self.value) - self.gap / 2:
            return "overflow, cut to the largest"
        return f"off by {format_short(100 * self.relative_error)} %"

    def __repr__(self) -> str:
        bits = f"{self.format} {self.sign} {self.exponent} {self.mantissa}"
        # What is not finite has no neighbours.
        gap = f"gap {format_short(self.gap)}, " if math.isfinite(self.gap) else ""
        return f"{bits} = {format_exactly(self.stored)} ({gap}{self.error_text})"


def find_formats(
    asker: str, formats: Mapping[str, NumberFormat] | Iterable[str] | None
) -> dict[str, NumberFormat]:
    """Return formats by their names; all where none are given.

    Raises ValueError, in the name of the function that asks, for unknown names.

    >>> list(find_formats("take_apart", ["float16"]))
    ['float16']
    """
    if formats is None:
        return dict(FORMATS)
    names = [formats] if isinstance(formats, str) else list(formats)
    known = formats if isinstance(formats, Mapping) else FORMATS
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wrong = f"{unknown[0]!r} is not there" if unknown else "none is given"
        raise ValueError(
            f"{asker}(): formats: {wrong}.\nThere are: {', '.join(FORMATS)}"
        )
    return {name: known[name] for name in names}


@functools.cache
def _pytorch_saturates() -> bool:
    """Return whether PyTorch cuts what is too large for float8_e4m3fn."""
    import torch

    return not torch.tensor(1e6).to(torch.float8_e4m3fn).float().isnan().item()


def format_exactly(value: float) -> str:
    """Write a float with as many digits as tell it from its neighbours.

    >>> format_exactly(65504.0), format_exactly(0.1), format_exactly(-0.0)
    ('65504', '0.1', '-0')
    """
    return repr(float(value)).removesuffix(".0")


def format_short(value: float) -> str:
    """Write a float with two digits.

    >>> format_short(2**-14), format_short(32.0), format_short(2**-10)
    ('6.1e-05', '32', '0.00098')
    """
    return f"{value:.2g}" if abs(value) < 100 else format_number(value)


def read_number(asker: str, value: Any) -> float:
    """Return a value as Python's float; raise ValueError where it is none."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{asker}(): value={value!r:.60} is not a number: give one such as 0.1"
        ) from error
