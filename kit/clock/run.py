"""Drives one generator: start, warm up, timed blocks, close."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
import traceback
from collections.abc import Generator, Mapping
from typing import Any

from kit.clock import snapshot
from kit.clock.experiment import Experiment, ExperimentError, describe, parse_yield
from kit.clock.log import Block, Log, Start, smoke
from kit.clock.progress import Progress, Stopped
from kit.machine import devices, memory, processes, ticks

#: A block lasts at least this long, in seconds.
BLOCK_SECONDS = 0.020
_AIM_SECONDS = 0.024
_WINDOWS_AGREE = 0.10
_LEAST_WINDOWS = 4
_GRACE_SECONDS = 2.0
_GRACE_AFTER_INTERRUPT = 0.7
_MOST_BARE_YIELDS = 1000
#: Threads that queues between processes need; they add nothing while both ends rest.
_QUIET_THREADS = ("QueueFeederThread", "pin_memory")


class Run:
    """One life of an experiment, driven by the thread that makes it.

    `open` starts it, `warm_up` settles it, `block` times steps, `suspend` lets another
    variant run, `close` ends it and its child processes.
    """

    def __init__(
        self,
        experiment: Experiment,
        knobs: Mapping[str, object],
        log: Log,
        progress: Progress,
        *,
        setup: int = 0,
        seed: int = 0,
        shared: snapshot.SharedObjects | None = None,
    ) -> None:
        self.experiment, self.knobs = experiment, knobs
        self.call = describe(experiment.name, knobs)
        self.log, self.progress = log, progress
        self.setup, self.seed, self.shared = setup, seed, shared
        self.step_seconds = 0.0
        self.begun = self.ready = 0.0
        self.steps_per_block = 1
        self.warm_up_steps = 0
        self.steps_done = 0
        self._generator: Generator[Any, None, None] | None = None
        self._state: snapshot.State | None = None
        self._outside: snapshot.State | None = None
        self._children: set[int] = set()
        self._threads: set[threading.Thread] = set()
        self._switched = self._active = False
        self.can_stop_children = True
        self._had_block = False

    def open(self) -> None:
        """Start the generator and run it to its first yield."""
        with self.active():
            self._prepare()
            start = ticks.CLOCK.begin()
            self.begun = start.wall
            self._generator = self.experiment.start(self.knobs)
            try:
                value = self._next("set-up")
            except StopIteration:
                raise ExperimentError(
                    f"{self.call} ended without a single `yield n`.\n"
                    "Yield once per step; is its loop over something empty?"
                ) from None
            devices.synchronize()
            self._log_start(start)
        if value is not None:
            self._parse(value, -1)

    def _prepare(self) -> None:
        """Go back to the reader's own state, freshly seeded."""
        if self._outside is None:
            self._outside = snapshot.capture()
        snapshot.restore(self._outside)
        if self.shared is not None:
            self.shared.restore()
        snapshot.seed_everything(self.seed)

    def _log_start(self, start: ticks.Ticks) -> None:
        seconds = ticks.run_seconds(start, ticks.CLOCK.end())
        self.log.starts.append(Start(self.setup, seconds))

    @property
    def can_be_suspended(self) -> bool:
        """Whether nothing of it would go on while another variant runs.

        Child processes can be suspended; threads and shared modules cannot.
        """
        busy = [
            thread
            for thread in self._threads
            if thread.is_alive()
            and not any(quiet in thread.name for quiet in _QUIET_THREADS)
        ]
        shares = self.shared is not None and bool(self.shared.names)
        return self.can_stop_children and not busy and not shares

    def warm_up(self, limit_seconds: float) -> None:
        """Run steps until two windows agree within 10 %, or the limit is reached.

        Also finds how many steps make a block.
        """
        with self.active():
            if smoke():
                self.step_seconds = self._window(1)
                return
            begun = ticks.CLOCK.wall()
            last = self._window(self.steps_per_block)
            while last * self.steps_per_block < BLOCK_SECONDS:
                wanted = max(_AIM_SECONDS / max(last, 1e-9), self.steps_per_block + 1)
                self.steps_per_block = math.ceil(min(wanted, 10 * self.steps_per_block))
                last = self._window(self.steps_per_block)
            for windows in itertools.count(2):
                now = self._window(self.steps_per_block)
                if abs(math.log(max(now, 1e-12) / max(last, 1e-12))) < _WINDOWS_AGREE:
                    break
                late = ticks.CLOCK.wall() - begun > limit_seconds
                if windows >= _LEAST_WINDOWS and late:
                    self.log.unsettled_starts += 1
                    break
                last = now
            self.step_seconds = now
            enough = now >= BLOCK_SECONDS
            self.steps_per_block = 1 if enough else math.ceil(_AIM_SECONDS / now)

    def _window(self, steps: int) -> float:
        """Run untimed steps; return run seconds per step."""
        block = self._steps(steps, least_seconds=0.0)
        self.warm_up_steps += steps
        return block.seconds / block.steps

    def block(self, round: int = 0) -> None:
        """Time one block of steps and keep it in the log."""
        with self.active():
            if self._switched and not smoke():
                self._steps(1, least_seconds=0.0)
            self._switched = False
            least = 0.0 if smoke() else BLOCK_SECONDS
            block = self._steps(self.steps_per_block, least_seconds=least)
        self._keep(block, round)

    def to_the_end(self) -> None:
        """Run until the generator ends and keep the whole run as one block."""
        with self.active():
            block = self._steps(None, least_seconds=0.0)
        self._keep(block, 0)

    def _keep(self, block: Block, round: int) -> None:
        """Read the metrics, now that the clock has stopped, and log the block."""
        block.setup, block.round = self.setup, round
        block.metrics = [
            (step, {name: float(value) for name, value in metrics.items()})
            for step, metrics in block.metrics
        ]
        self.log.blocks.append(block)
        self._had_block = True

    def _steps(self, count: int | None, least_seconds: float) -> Block:
        """Run steps between two readings of the clock.

        At least `count` of them and `least_seconds` of time, or until the generator
        ends where count is None. A generator that ends is started again, off the
        clock.
        """
        generator, wall = self._generator, ticks.CLOCK.wall
        assert generator is not None
        seconds = wall_seconds = items = excluded = 0.0
        steps, goal = 0, count or 0
        excluded_before = 0.0
        bare_yields = 0
        metrics: list[tuple[int, dict[str, Any]]] = []
        devices.synchronize()
        start = ticks.CLOCK.begin()
        previous = start.wall
        while True:
            ended = False
            try:
                while count is None or steps < goal:
                    value = next(generator)
                    now = wall()
                    if value.__class__ is int and value > 0:
                        items += value
                    elif value is None:
                        excluded += now - previous
                        previous = now
                        bare_yields += 1
                        if bare_yields > _MOST_BARE_YIELDS:
                            raise self._only_bare_yields()
                        if self.progress.stopping:
                            raise Stopped
                        continue
                    else:
                        count_items, kept = self._parse(value, steps)
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
                raise self._failure(error, f"step {self.steps_done + steps + 2}") from (
                    error
                )
            devices.synchronize()
            end = ticks.CLOCK.end()
            stretch = end.wall - start.wall
            left_out = excluded - excluded_before
            excluded_before = excluded
            share = 1 - min(left_out / stretch, 1.0) if stretch > 0 else 1.0
            seconds += ticks.run_seconds(start, end) * share
            wall_seconds += stretch * share
            if ended and count is None:
                if not steps:
                    raise ExperimentError(
                        f"{self.call} ended after its first yield.\n"
                        "The first yield ends set-up; each step after it needs one "
                        "of its own."
                    )
                break
            if ended:
                self._restart(steps)
                generator = self._generator
                assert generator is not None
            elif seconds >= least_seconds:
                break
            else:
                per_step = max(seconds / steps, 1e-9)
                goal = steps + math.ceil((least_seconds - seconds) / per_step)
            start = ticks.CLOCK.begin()
            previous = start.wall
        self.steps_done += steps
        return Block(seconds, wall_seconds, items, steps, excluded, metrics)

    def _restart(self, steps: int) -> None:
        """Start a generator that ended again, and drop as many steps as warm-up took.

        Raises ExperimentError where it was too short for warm-up and one block.
        """
        too_short = not self._had_block
        if not too_short:
            self._prepare()
            start = ticks.CLOCK.begin()
            self._generator = self.experiment.start(self.knobs)
            try:
                self._next("set-up")
                devices.synchronize()
                self._log_start(start)
                dropped = 0
                while dropped < self.warm_up_steps:
                    dropped += self._next("warm-up") is not None
                devices.synchronize()
            except StopIteration:
                too_short = True
        if too_short:
            raise ExperimentError(
                f"{self.call} ended after {self.steps_done + steps + 1} steps, before "
                "warm-up and one block were done.\n"
                "A rate needs a generator that goes on: put `while True:` around its "
                "loop,\nor measure whole runs: seconds=None."
            )

    def _next(self, where: str) -> object:
        """Advance by one yield, off the clock; name the experiment if it raises."""
        assert self._generator is not None
        try:
            return next(self._generator)
        except (StopIteration, KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            raise self._failure(error, where) from error

    def _failure(self, error: BaseException, where: str) -> ExperimentError:
        kind, said = type(error).__name__, " ".join(str(error).split())
        return ExperimentError(
            f"{self.call} raised {kind} in {where}: {said[:200]}\n"
            "The traceback above shows the line. Try it without the kit: "
            f"next({self.call})."
        )

    def _only_bare_yields(self) -> ExperimentError:
        return ExperimentError(
            f"{self.call} said a bare `yield` {_MOST_BARE_YIELDS} times in a row.\n"
            "A bare `yield` leaves time out; a step is `yield n`, n items handled."
        )

    def _parse(self, value: object, steps: int) -> tuple[float, dict[str, Any]]:
        try:
            return parse_yield(value)
        except ValueError as error:
            raise ExperimentError(
                f"{self.call} yielded {error} (step {self.steps_done + steps + 2}).\n"
                "Yield the number of items of the step, as in `yield len(images)`, or "
                '`yield n, {"loss": loss}`.'
            ) from None

    @contextlib.contextmanager
    def active(self) -> Generator[None, None, None]:
        """Swap in this variant's state and let its children go on.

        Blocks that follow each other share one such stretch: what lies between them is
        then too short for workers to gain from it.
        """
        if self._active:
            yield
            return
        outside = snapshot.capture()
        before = processes.descendants()
        threads_before = set(threading.enumerate())
        self._active = True
        if self._state is not None:
            snapshot.restore(self._state)
        processes.resume(self._children)
        try:
            yield
        finally:
            self._active = False
            # Workers that went on while the clock stands still would work for free.
            stopped = processes.suspend(self._children)
            new = processes.descendants() - before
            stopped = processes.suspend(new) and stopped
            self.can_stop_children = stopped and self.can_stop_children
            children = processes.alive(self._children | new)
            self._children = processes.leave_out_shared(children)
            processes.resume(children - self._children)
            self._state = snapshot.capture()
            snapshot.restore(outside)
            self._threads |= set(threading.enumerate()) - threads_before

    def suspend(self) -> None:
        """Let another variant run: the next step will be the first after a switch."""
        self._switched = True

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator, then end child processes that are still alive.

        They have two seconds, less after an interrupt. `because` is the error that
        ended the run, if one did. Raises ExperimentError where the generator raises on
        closing.
        """
        if self._generator is None:
            return
        processes.resume(self._children)
        interrupted = isinstance(because, KeyboardInterrupt)
        grace = _GRACE_AFTER_INTERRUPT if interrupted else _GRACE_SECONDS
        timer = threading.Timer(grace, self._end_children)
        timer.daemon = True
        timer.start()
        generator, self._generator = self._generator, None
        outside = snapshot.capture()
        if self._state is not None:
            snapshot.restore(self._state)
        try:
            # Only the one that raised: workers of the other are still suspended.
            if because is not None and generator.gi_frame is None:
                _let_go(because)
            generator.close()
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            if not interrupted:
                raise self._failure(error, "closing (its `finally:`)") from error
        finally:
            snapshot.restore(outside)
            del generator
            self._wait_for_children(timer)

    def _wait_for_children(self, timer: threading.Timer) -> None:
        while timer.is_alive() and processes.alive(self._children):
            time.sleep(0.01)
        timer.cancel()

    def _end_children(self) -> None:
        left = processes.alive(self._children)
        self.log.ended_children += [f"{processes.name(p)} ({p})" for p in sorted(left)]
        processes.end(left)


def _let_go(error: BaseException) -> None:
    """Clear the frames of a traceback: they hold the loader, which holds its workers.

    Left to the garbage collector, shutting them down takes seconds.
    """
    for link in (error, error.__cause__):
        if link is not None:
            traceback.clear_frames(link.__traceback__)


def _detach(metrics: dict[str, Any]) -> dict[str, Any]:
    """Keep metrics without reading them, which would wait for the device."""
    return {
        name: value.detach().clone() if hasattr(value, "detach") else value
        for name, value in metrics.items()
    }


@contextlib.contextmanager
def started(
    run: Run, *, warm_up_seconds: float | None, cold: bool = False
) -> Generator[Run, None, None]:
    """Open a run, warm it up unless that is None, and close it whatever happens.

    A cold start is watched for the memory that it adds.
    """
    watch = memory.MemoryWatch() if cold else None
    try:
        with watch or contextlib.nullcontext():
            run.progress.doing = f"setting up {run.call}"
            run.open()
            if run.progress.stopping:
                raise Stopped
            if warm_up_seconds is not None:
                run.progress.doing = f"warming up {run.call}"
                run.warm_up(warm_up_seconds)
            run.ready = ticks.CLOCK.wall()
        if watch is not None:
            run.log.starts[-1].memory_bytes = watch.increase
        run.progress.doing = "measuring"
        yield run
    except BaseException as error:
        with contextlib.suppress(ExperimentError):
            run.close(because=error)
        raise
    else:
        run.close()
