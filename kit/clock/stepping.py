"""Times the steps of a generator; how it was started is not its business."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kit.clock.experiment import ExperimentError, parse_yield
from kit.clock.hints import find_hint, name_dead_worker, split_error
from kit.clock.log import Block
from kit.machine import devices, ticks
from kit.progress import Progress, Stopped

_MOST_BARE_YIELDS = 1000


class Stepper:
    """Advances a generator step by step, and times stretches of steps.

    `generator` is the one at work, None before the first and after the last.
    `may_idle` says that a step may handle no items.
    """

    def __init__(
        self, call: str, progress: Progress, *, may_idle: bool = False
    ) -> None:
        self.call, self.progress, self.may_idle = call, progress, may_idle
        self.generator: Generator[Any, None, None] | None = None
        self.steps_done = 0
        #: Whether nothing can have been queued on a device since it was waited for.
        self.drained = False

    def advance(self, where: str) -> object:
        """Go on to the next yield, off the clock; name the experiment if it raises."""
        assert self.generator is not None
        try:
            return next(self.generator)
        except (StopIteration, KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            self._raise_stopped(error)
            raise failure(self.call, error, where) from error

    def time(self, count: int | None) -> Block:
        """Run steps between two readings of the clock, then read their metrics.

        So many steps, or until the generator ends where count is None; `ended` says
        whether it did. Devices are waited for at the end; at the begin only where
        something may be queued there.
        """
        generator, wall = self.generator, ticks.CLOCK.wall
        assert generator is not None
        items = excluded = 0.0
        steps = bare_yields = 0
        metrics: list[tuple[int, dict[str, Any]]] = []
        ended = idle = False
        if not self.drained:
            devices.synchronize()
        self.drained = False
        device = devices.Stopwatch()
        start = ticks.CLOCK.begin()
        device.begin()
        previous = start.wall
        try:
            while count is None or steps < count:
                value = next(generator)
                now = wall()
                if value.__class__ is int and value > 0:
                    items += value
                elif value is None:
                    excluded += now - previous
                    # A device goes on while the process does something else.
                    idle = True
                    previous = now
                    bare_yields += 1
                    if bare_yields > _MOST_BARE_YIELDS:
                        raise self._only_bare_yields()
                    if self.progress.stopping:
                        raise Stopped
                    continue
                else:
                    count_items, kept = self.parse(value, steps)
                    items += count_items
                    if kept:
                        metrics.append((steps, _detach(kept)))
                previous = now
                steps += 1
                bare_yields = 0
                if self.progress.stopping:
                    raise Stopped
        except StopIteration:
            ended = True
        except (KeyboardInterrupt, ExperimentError, Stopped):
            raise
        except BaseException as error:
            self._raise_stopped(error)
            where = f"step {self.steps_done + steps + 2}"
            raise failure(self.call, error, where) from error
        device.end()
        devices.synchronize()
        end = ticks.CLOCK.end()
        self.drained = True
        self.steps_done += steps
        stretch = end.wall - start.wall
        share = 1 - min(excluded / stretch, 1.0) if stretch > 0 else 1.0
        return Block(
            seconds=ticks.run_seconds(start, end) * share,
            wall_seconds=stretch * share,
            items=items,
            steps=steps,
            excluded_seconds=excluded,
            metrics=[(step, self._read(kept)) for step, kept in metrics],
            device_seconds=None if idle else device.seconds(),
            ended=ended,
        )

    def _read(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Read metrics, now that the clock has stopped."""
        if any(hasattr(value, "detach") for value in metrics.values()):
            self.drained = False  # reading may queue a copy
        return {name: float(value) for name, value in metrics.items()}

    def parse(self, value: object, steps: int) -> tuple[float, dict[str, Any]]:
        """Split a yield into items and metrics; `steps` were timed before it.

        Raises ExperimentError where it is neither.
        """
        try:
            return parse_yield(value, least=0 if self.may_idle else 1)
        except ValueError as error:
            raise ExperimentError(
                f"{self.call} yielded {error} (step {self.steps_done + steps + 2}).\n"
                "Yield the number of items of the step, as in `yield len(images)`, or "
                '`yield n, {"loss": loss}`.'
            ) from None

    def _raise_stopped(self, error: BaseException) -> None:
        """Raise Stopped where the error came of ending the experiment's processes."""
        if self.progress.abandoned:
            raise Stopped from error

    def _only_bare_yields(self) -> ExperimentError:
        return ExperimentError(
            f"{self.call} said a bare `yield` {_MOST_BARE_YIELDS} times in a row.\n"
            "A bare `yield` leaves time out; a step is `yield n`, n items handled."
        )


def failure(call: str, error: BaseException, where: str) -> ExperimentError:
    """Make the error that names an experiment which raised one itself."""
    error = name_dead_worker(error)
    kind, worker, said = split_error(error)
    where, hint = f"{where}, {worker}" if worker else where, find_hint(error)
    return ExperimentError(
        f"{call} raised {kind} in {where}: {said}\n"
        + (f"{hint}\n" if hint else "")
        + f"The traceback shows the line. Try it without the kit: next({call})."
    )


def _detach(metrics: dict[str, Any]) -> dict[str, Any]:
    """Keep metrics without reading them, which would wait for the device."""
    return {
        name: value.detach().clone() if hasattr(value, "detach") else value
        for name, value in metrics.items()
    }
