"""What drives one run of an experiment: set-up, warm-up, timed blocks, close."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import operator
import threading
import time
from collections.abc import Callable
from typing import Any

from kit import clock, statistics, system
from kit.errors import ExperimentError
from kit.measuring import failures, settings, state
from kit.measuring.experiment import parse_yield
from kit.measuring.silence import silencing
from kit.measuring.variant import Variant
from kit.mode import is_quick
from kit.progress import Progress, Stopped
from kit.records import Block, Run

#: Blocks aim a little higher than they must last.
_AIM = 1.1
#: Warm-up ends when windows agree, or at its limit after so many windows.
_WINDOWS_AGREE, _LEAST_WINDOWS = 0.10, 4
#: So many bare yields may follow each other; without any step before, fewer: then
#: somebody has forgotten to say how many items.
_MOST_BARE_YIELDS, _MOST_AT_FIRST = 1000, 20
_MOST_STEPS_IN_QUICK_MODE = 20
_AGAIN = "The first yield ends set-up; then yield once per step. Is its loop empty?"
#: Children have so long to end after the generator was closed.
_GRACE_SECONDS, _GRACE_AFTER_INTERRUPT = 2.0, 0.7
#: Who computes for longer than this in a pause goes on with something of their own.
_PAUSE_SECONDS, _MOST_IN_PAUSE = 0.030, 0.003
_RENEWED = "torch.compile was reset between runs: each of them compiles something anew."


def drive(
    variant: Variant,
    round: int,
    progress: Progress,
    *,
    seed: int = 0,
    partner: Driver | None = None,
) -> Driver:
    """Return what drives a new run of a variant; `partner` drives one that goes on."""
    if partner is None and state.renew_dynamo() and _RENEWED not in variant.notes:
        variant.notes.append(_RENEWED)
    kind: type[Driver] = variant.driver or Driver
    return kind(variant, round, progress, seed=seed, partner=partner)


class Driver:
    """Drives one run, by the thread that made it; what it measures is in `run`.

    Use it as a context manager: `open`, `warm_up`, then `time_block` again and again,
    or `run_to_end`. A `partner` drives another run that goes on between the blocks of
    this one. On ranks, `note_surroundings`, `start`, `time` and `close` are others.
    """

    def __init__(
        self,
        variant: Variant,
        round: int,
        progress: Progress,
        *,
        seed: int = 0,
        partner: Driver | None = None,
    ) -> None:
        self.variant = variant
        self.progress = progress
        self.run = Run(round)
        self.seed = seed
        self.partner = partner
        if partner is not None:
            self.run.interleaved = partner.run.interleaved = True
        #: When it was opened, and when warm-up was over.
        self.opened_at = self.ready_at = 0.0
        #: Whether nothing of it goes on between its steps.
        self.is_idle = True
        #: Whether it has children or Python threads, which go on while it waits.
        self._has_company = False
        #: Whether nothing can be queued on a device since it was waited for.
        self._is_drained = False
        #: Whether the other run went on since the last step.
        self._was_changed_over = False
        self._steps_done = 0
        self._warm_up_steps = 0
        #: Whether steps were skipped since the generator was started.
        self._has_skipped = False
        self._random: state.Random = {}
        self._memory_watch: system.MemoryWatch | None = None
        self._surroundings: state.Surroundings | None = None
        self._generator: Any = None
        #: Runs a step in a context of the run's own: what `numpy.errstate`, `decimal`
        #: and others keep in context variables stays there. Not so on ranks, where each
        #: call has a cell of its own to print to.
        self._call: Callable[..., Any] = operator.call

    def __enter__(self) -> Driver:
        self.progress.find_children = self.find_children
        return self

    def __exit__(self, kind: object, error: Any, trace: object) -> None:
        # After an error, PyTorch's handler of ended children may raise one more.
        with contextlib.suppress(*([Exception] if error else [])):
            self.close(error)

    def open(self, *, watch_memory: bool = False) -> None:
        """Start the generator and run it to its first yield."""
        self.progress.doing = f"setting up {self.variant.call}"
        self.progress.hear()
        self.note_surroundings()
        self._call = contextvars.copy_context().run
        if watch_memory:
            self._memory_watch = system.MemoryWatch(in_a_hurry=is_quick())
            self._memory_watch.__enter__()
        self.opened_at = clock.CLOCK.wall()
        seconds = self.start(self.seed)
        if seconds is None:
            call = self.variant.call
            raise ExperimentError(f"{call} ended without a single `yield n`.\n{_AGAIN}")
        self.run.setup_seconds = seconds
        self.variant.runs.append(self.run)
        if self.progress.stopping:
            raise Stopped
        self.progress.doing = "measuring"

    def read_memory(self) -> None:
        """Stop watching memory, and note how much was added."""
        if (watch := self._stop_watching()) is not None:
            self.run.memory_bytes = watch.increase

    def _stop_watching(self) -> system.MemoryWatch | None:
        watch, self._memory_watch = self._memory_watch, None
        if watch is not None:
            watch.__exit__(None, None, None)
        return watch

    def warm_up(self, limit_seconds: float, skip: int = 0) -> None:
        """Run steps until windows of them agree within 10 %, or the limit is reached.

        Also finds how many steps make a block. Then so many more steps are skipped.
        """
        self.progress.doing = f"warming up {self.variant.call}"
        step_seconds = self._find_step_seconds(limit_seconds)
        variant = self.variant
        variant.step_seconds = step_seconds
        if not is_quick():
            variant.steps_per_block = 1
            if step_seconds < variant.block_seconds:
                wanted = _AIM * variant.block_seconds / step_seconds
                variant.steps_per_block = math.ceil(wanted)
        self.check_idle()
        self.read_memory()
        self.ready_at = clock.CLOCK.wall()
        self.progress.doing = "measuring"
        self.skip(skip)

    def _find_step_seconds(self, limit_seconds: float) -> float:
        """Run windows of steps until the latest ones agree; return a step's seconds."""
        variant, begun = self.variant, clock.CLOCK.wall()
        times: list[float] = []
        # An earlier run took longer to settle, and found how long blocks are.
        steps = math.ceil(variant.steps_per_block / 2)
        while True:
            window = self.time_at_least(steps)
            self._warm_up_steps += window.steps
            times.append(window.seconds / window.steps)
            if is_quick():
                return times[-1]
            least = variant.block_seconds
            if window.seconds < least and variant.steps_per_block == 1:
                # Too short to be a window; the next one has more steps.
                per_step = max(times.pop(), 1e-9)
                wanted = max(_AIM * least / per_step, steps + 1)
                steps = math.ceil(min(wanted, 10 * steps))
                continue
            agreed = statistics.find_agreement(times, _WINDOWS_AGREE)
            if agreed is not None:
                return agreed
            is_late = clock.CLOCK.wall() - begun > limit_seconds
            if is_late and len(times) >= _LEAST_WINDOWS:
                self.run.settled = False
                return times[-1]

    def skip(self, steps: int) -> None:
        """Run steps that nobody counts; a generator may also end before them."""
        if steps:
            self.time(steps)
            self._has_skipped = True

    def time_block(self) -> Block:
        """Time one block of steps and keep it."""
        if self._was_changed_over and not is_quick():
            self.time_at_least(1)  # the first step after a change-over is not timed
        self._was_changed_over = False
        least_seconds = 0.0 if is_quick() else self.variant.block_seconds
        block = self.time_at_least(self.variant.steps_per_block, least_seconds)
        self.run.add(block)
        self.check_idle()
        return block

    def run_to_end(self) -> None:
        """Run until the generator ends and keep the complete run as one block."""
        whole = Block()
        most = _MOST_STEPS_IN_QUICK_MODE if is_quick() else None
        while not whole.ended and (most is None or whole.steps < most):
            whole.extend(self.time(most))
            self.progress.hear()
        if not whole.steps:
            call = self.variant.call
            raise ExperimentError(f"{call} ended after its first yield.\n{_AGAIN}")
        self.run.add(whole)

    def time_at_least(self, count: int, least_seconds: float = 0.0) -> Block:
        """Time at least so many steps and so much time, as one block.

        A generator that ends is started again, and as many steps dropped as warm-up
        took.
        """
        block, goal = Block(), count
        while True:
            block.extend(self.time(goal - block.steps))
            if block.ended:
                self._start_again()
            elif block.seconds >= least_seconds:
                break
            else:
                # Batches that were ready may have made the first steps very fast.
                per_step = max(block.seconds / block.steps, 1e-9)
                missing = math.ceil((least_seconds - block.seconds) / per_step)
                goal = block.steps + min(missing, block.steps)
        self.progress.hear()
        return block

    def _start_again(self) -> None:
        """Start a generator that has ended, and drop as many steps as warm-up took."""
        has_lasted = bool(self.run.blocks) or self._has_skipped
        self._has_skipped = False
        has_lasted = has_lasted and self.start(self.seed) is not None
        if not has_lasted or self.time(self._warm_up_steps).ended:
            raise ExperimentError(
                f"{self.variant.call} ended after {self._steps_done + 1} steps, before "
                "warm-up and one block were done.\nPut `while True:` around its loop, "
                "or measure complete runs: seconds=None."
            )

    # In this process: before the first start, at each start, for a stretch of steps

    def note_surroundings(self) -> None:
        """Note what is there before the first start, and take some memory."""
        _ = self.variant.shared  # its copies are no memory of the experiment's
        other = self.partner._surroundings if self.partner else None
        self._surroundings = state.Surroundings(other)

    def start(self, seed: int) -> float | None:
        """Start the generator, and run it to its first yield; return run seconds.

        It starts as the reader's settings and the seed are. None where it ended without
        a yield. It can be started again where it has ended.
        """
        variant = self.variant
        assert self._surroundings is not None
        settings.restore(self._surroundings.settings)
        self._put_back()
        state.seed_everything(seed)
        variant.shared.seed(seed)
        quiet = silencing() if variant.has_started else contextlib.nullcontext()
        variant.has_started = True
        clock.synchronize()
        begun = clock.CLOCK.begin()
        try:
            with quiet:
                self._generator = variant.experiment.start(variant.knobs)
                value = self._call(next, self._generator)
        except StopIteration:
            return None
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            raise self._explain(error, "set-up") from error
        clock.synchronize()
        end = clock.CLOCK.end()
        if value is not None:
            self._parse(value, 1)
        return self._run_seconds(begun, end)

    def time(self, count: int | None) -> Block:
        """Run steps between two readings of the clock, then read their metrics.

        So many steps, or until the generator ends where count is None; `ended` says
        whether it did. Devices are waited for at the end; at the begin only where
        something may be queued there.
        """
        progress, wall = self.progress, clock.CLOCK.wall
        advance = functools.partial(self._call, next, self._generator)
        block, bare_yields = Block(), 0
        most_bare = _MOST_BARE_YIELDS if self._steps_done else _MOST_AT_FIRST
        if not self._is_drained:
            clock.synchronize()
        self._is_drained = False
        start = clock.CLOCK.begin()
        previous = start.wall
        try:
            while count is None or block.steps < count:
                value = advance()
                now = wall()
                if value is None and bare_yields < most_bare:
                    block.excluded_seconds += now - previous
                    bare_yields += 1
                else:
                    if value.__class__ is int and value > 0:
                        block.items += value
                    else:
                        self._take(value, block)
                    block.steps += 1
                    bare_yields, most_bare = 0, _MOST_BARE_YIELDS
                previous = now
                if count is None:  # until the end, which may be far
                    progress.hear()
                if progress.stopping:
                    raise Stopped
        except StopIteration:
            block.ended = True
        except (KeyboardInterrupt, ExperimentError, Stopped):
            raise
        except BaseException as error:
            step = self._steps_done + block.steps + 2
            raise self._explain(error, f"step {step}") from error
        clock.synchronize()
        end = clock.CLOCK.end()
        self._finish(block, start, end)
        return block

    def _take(self, value: object, block: Block) -> None:
        """Add what a step has yielded, if it is more than a number, to its block."""
        items, row = self._parse(value, self._steps_done + block.steps + 2)
        block.items += items
        if row:
            block.metrics.append((block.steps, row))

    def _parse(self, value: object, step: int) -> tuple[float, dict[str, Any]]:
        """Return how many items a step has yielded, and its metrics, not read yet.

        Reading them would wait for the device.
        """
        try:
            least = 0 if self.variant.may_be_empty else 1
            items, row = parse_yield(value, least=least)
        except ValueError as error:
            raise ExperimentError(
                f"{self.variant.call} yielded {error} (step {step}).\n"
                'Yield items, as in `yield len(images)`, or `yield n, {"loss": loss}`.'
            ) from None
        for name, metric in row.items():
            if hasattr(metric, "detach"):  # the next step may change it in place
                row = {**row, name: metric.detach().clone()}
        return items, row

    def _finish(self, block: Block, start: clock.Ticks, end: clock.Ticks) -> None:
        """Note how long a block took, and read its metrics."""
        self._is_drained = not block.metrics  # reading them may queue a copy
        for _, row in block.metrics:
            row.update({name: float(value) for name, value in row.items()})
        self._steps_done += block.steps
        elapsed = end.wall - start.wall
        share = 1.0
        if elapsed > 0:
            share -= min(block.excluded_seconds / elapsed, 1.0)
        block.seconds = self._run_seconds(start, end) * share
        block.wall_seconds = elapsed * share

    def _run_seconds(self, start: clock.Ticks, end: clock.Ticks) -> float:
        """Return run time; wall time where children or threads of its own go on."""
        if not self._has_company and self._surroundings is not None:
            self._has_company = self._surroundings.has_company()
        if self._has_company:
            self.is_idle = False
            return max(end.wall - start.wall, 1e-9)
        return clock.run_seconds(start, end)

    def _explain(self, error: BaseException, at: str) -> Exception:
        """Return the error that says where the experiment itself has raised one."""
        if self.progress.abandoned:  # it came of ending the experiment's processes
            return Stopped()
        variant = self.variant
        return failures.explain(variant.experiment, variant.knobs, error, at)

    # Whether it is idle between its steps

    def check_idle(self) -> None:
        """See whether it still is: no setting of its own, no open `with` block.

        Children and threads are seen where time is read.
        """
        if not self.is_idle or self._surroundings is None:
            return
        holds_settings = settings.is_inside_with(self._generator)
        if holds_settings or self._surroundings.has_changed_settings():
            self.is_idle = False

    def check_idle_in_pause(self) -> None:
        """See whether anything of the process computes while nothing is asked of it."""
        self.check_idle()
        if is_quick() or not self.is_idle:
            return
        self.progress.hushed = True
        self.is_idle = clock.compute_in_pause(_PAUSE_SECONDS) < _MOST_IN_PAUSE
        self.progress.hushed = False

    def find_children(self) -> dict[int, str]:
        """Return the names of its child processes by process id."""
        return self._surroundings.find_children() if self._surroundings else {}

    def pause(self) -> None:
        """Let the partner go on."""
        self._random = state.capture_random()

    def resume(self) -> None:
        """Go on; the next step is the first after a change-over."""
        state.restore_random(self._random)
        self._is_drained = False
        self._was_changed_over = True

    # Its end

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator, then end child processes that are still alive.

        They have two seconds, less after an interrupt. `because` is the error that
        ended the run, if one did. Raises ExperimentError where the generator raises on
        closing, or has changed what cannot be put back.
        """
        if because is None:
            self.read_memory()
        self._stop_watching()  # a start that did not come to its end tells nothing
        if self._surroundings is None:
            return
        was_interrupted = isinstance(because, KeyboardInterrupt)
        grace = _GRACE_AFTER_INTERRUPT if was_interrupted else _GRACE_SECONDS
        timer = threading.Timer(grace, self._end_children)
        timer.name, timer.daemon = "kit timer", True
        timer.start()
        state.end_loaders(because)
        with contextlib.ExitStack() as stack:  # the last one comes first
            stack.callback(state.restore_random, self._surroundings.random)
            if self.partner is None:  # else the other run goes on under its settings
                stack.callback(settings.restore, self._surroundings.settings)
            stack.callback(self._wait_for_children, timer)
            stack.callback(self._put_back, because)
            try:
                if self._generator is not None:
                    self._call(self._generator.close)
            except (KeyboardInterrupt, ExperimentError):
                raise
            except BaseException as error:
                if not was_interrupted:
                    raise self._explain(error, "closing (its `finally:`)") from error
        self._surroundings = None  # lets the memory go that was taken
        self._generator = None
        self._call = operator.call

    def _wait_for_children(self, timer: threading.Timer) -> None:
        while timer.is_alive() and self.find_children():
            time.sleep(0.01)
        timer.cancel()

    def _end_children(self) -> None:
        """End children that are left, unless another cell may have started them."""
        left = self.find_children()
        self.variant.ended_children += [f"{left[pid]} ({pid})" for pid in sorted(left)]
        if not self.progress.disturbed:
            system.end(left)

    def _put_back(self, because: BaseException | None = None) -> None:
        """Put back what is shared; who has changed it is not idle between steps.

        Raises ExperimentError for what cannot be put back, unless there is a reason.
        """
        try:
            if self.variant.shared.put_back():
                self.is_idle = False
        except ValueError as error:
            if because is None:
                raise ExperimentError(f"{self.variant.call} {error}") from None
