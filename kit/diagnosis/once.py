"""A run that is started once: what has ended is not started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.errors import ExperimentError
from kit.measuring.run import Driver, Variant


class RunEnded(Exception):
    """Raised where the one run has ended; says by which error, if by one."""


class OnceDriver(Driver):
    """Drives a run that is started once."""

    def on_each(self, function: Callable[[Driver], Any]) -> list[Any]:
        """Call a function with the driver in each process of the run: this one."""
        return [function(self)]

    def restart(self) -> None:
        """Say that the run has ended."""
        raise RunEnded


class OnceVariant(Variant):
    """An experiment that is started once."""

    driver = OnceDriver


def refuse_short_run(variant: Variant, steps: int) -> ExperimentError:
    """Return the error for a run that has ended before it was profiled."""
    longer = "Put `while True:` around its loop"
    if variant.experiment.is_script:
        longer = "Let it train longer, through its own arguments, which come after `--`"
    ended = f"{variant.call} ended after {steps} step{'s' * (steps != 1)}"
    return ExperimentError(f"{ended}, too few to see where its time goes.\n{longer}.")
