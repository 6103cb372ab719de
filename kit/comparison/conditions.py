"""Under which conditions a comparison is made: load and quota."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence

from kit.clock.run import BLOCK_SECONDS
from kit.comparison.alternation import Variant
from kit.machine import load

#: Under a quota, blocks span several of its periods (100 ms as a rule): who uses it up
#: is then who waits.
_BLOCK_SECONDS_UNDER_QUOTA = 0.25
_THROTTLED = 0.01

Look = Callable[[], dict[str, float]]


@contextlib.contextmanager
def watched(variants: Sequence[Variant]) -> Generator[Look, None, None]:
    """Give every variant the conditions of the whole comparison in the end.

    Yields a function that returns the conditions so far.
    """
    before = load.read()

    def look() -> dict[str, float]:
        return load.describe(before, load.read())

    try:
        yield look
    finally:
        conditions = look()
        for variant in variants:
            variant.conditions = conditions


def choose_block_seconds(variants: Sequence[Variant], look: Look) -> None:
    """Make blocks long where the cold starts were stopped by a quota."""
    throttled = look().get("throttled", 0.0) > _THROTTLED
    for variant in variants:
        variant.block_seconds = (
            _BLOCK_SECONDS_UNDER_QUOTA if throttled else BLOCK_SECONDS
        )
