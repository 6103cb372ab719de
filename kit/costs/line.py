"""What grows with the batch along a straight line: seconds per step, bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """An amount with a fixed part, and a part that each sample of a batch adds.

    A step's seconds t(b) = t₀ + b / r, and its bytes m(b) = m₀ + c b, are such lines.

    >>> Line(fixed=0.5, each=0.25).predict(2)
    1.0
    """

    fixed: float
    each: float

    def predict(self, size: float) -> float:
        """Return the amount at a batch size."""
        return self.fixed + self.each * size

    def find_size(self, amount: float) -> float:
        """Return the batch size, not rounded, at which an amount is reached.

        Infinite where samples add nothing.

        >>> Line(fixed=0.5, each=0.25).find_size(1.0)
        2.0
        """
        return (amount - self.fixed) / self.each if self.each > 0 else math.inf

    def find_knee(self, share: float = 0.95) -> float:
        """Return the batch size, not rounded, that reaches a share of the best rate.

        Of seconds per step: b / t(b) comes to `share` of 1 / each, which it never
        reaches, at b = share / (1 - share) · fixed / each. 0 where nothing is fixed,
        infinite where samples add nothing.

        >>> round(Line(fixed=0.5, each=0.25).find_knee(0.8), 6)
        8.0
        """
        if self.fixed <= 0:
            return 0.0
        if self.each <= 0:
            return math.inf
        return share / (1 - share) * self.fixed / self.each


def fit_line(sizes: Sequence[float], amounts: Sequence[float]) -> Line:
    """Fit a line to amounts at batch sizes: least squares of the relative errors.

    Through two points it goes exactly. An error of a tenth counts the same at every
    size, so that the largest does not decide alone. Raises ValueError for fewer than
    two different sizes, and for sizes and amounts that are not above 0.

    >>> line = fit_line([1, 4], [0.75, 1.5])
    >>> round(line.fixed, 6), round(line.each, 6)
    (0.5, 0.25)
    """
    import numpy

    if len(sizes) != len(amounts) or len(set(sizes)) < 2:
        raise ValueError(
            f"fit_line(): sizes={list(sizes)} with {len(amounts)} amounts: "
            "give an amount for each of two or more different sizes"
        )
    if not all(0 < number < math.inf for number in (*sizes, *amounts)):
        raise ValueError(
            "fit_line(): sizes and amounts are finite and above 0, not "
            f"{list(sizes)} and {list(amounts)}"
        )
    weights = 1 / numpy.asarray(amounts, dtype=float)
    columns = numpy.stack([weights, weights * numpy.asarray(sizes, dtype=float)], 1)
    # Columns of like size, so that the solver tells nothing from nearly nothing.
    scale = numpy.linalg.norm(columns, axis=0)
    found, *_ = numpy.linalg.lstsq(columns / scale, numpy.ones(len(sizes)), rcond=None)
    fixed, each = (found / scale).tolist()
    return Line(fixed, each)
