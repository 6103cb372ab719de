"""A life is one start of an experiment: set-up, warm-up, timed blocks, close."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
import operator
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kit import clock, settings, state, stats, system
from kit.experiment import ExperimentError, is_quick
from kit.progress import Stopped
from kit.silence import silencing

#: The turn of the first life of each variant, which is cold and alone.
COLD = -1
#: A block lasts at least this long, in seconds; it aims a little higher.
BLOCK_SECONDS, _AIM = 0.020, 1.1
_WINDOWS_AGREE, _LEAST_WINDOWS = 0.10, 4
#: So many bare yields may follow each other; without any step before, fewer: then
#: somebody has forgotten to say how many items.
_MOST_BARE_YIELDS, _MOST_AT_FIRST = 1000, 20
_MOST_STEPS_IN_QUICK_MODE = 20
_AGAIN = "The first yield ends set-up; then yield once per step. Is its loop empty?"
_GRACE_SECONDS, _GRACE_AFTER_INTERRUPT = 2.0, 0.7
#: Who computes for longer than this in a pause goes on with something of their own.
_PAUSE_SECONDS, _MOST_IN_PAUSE = 0.030, 0.003


@dataclass
class Block:
    """A stretch of timed steps; `seconds` are run time, `wall_seconds` wall time.

    `rank_seconds` is each rank's wall time where there are several; `ended` says that
    the generator ended, `metrics` are those of its steps, by the step's number.
    """

    seconds: float = 0.0
    wall_seconds: float = 0.0
    items: float = 0.0
    steps: int = 0
    excluded_seconds: float = 0.0
    rank_seconds: list[float] = field(default_factory=list)
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    ended: bool = False

    def extend(self, other: Block) -> None:
        """Add a stretch that follows.

        >>> block = Block(1.0, 1.0, items=8, steps=2)
        >>> block.extend(Block(0.5, 0.5, items=4, steps=1))
        >>> block.seconds, block.items, block.steps
        (1.5, 12, 3)
        """
        self.metrics += [(self.steps + step, row) for step, row in other.metrics]
        for name in ("seconds", "wall_seconds", "items", "steps", "excluded_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        both = itertools.zip_longest(self.rank_seconds, other.rank_seconds, fillvalue=0)
        self.rank_seconds = [mine + following for mine, following in both]
        self.ended = other.ended


@dataclass
class Life:
    """One start of an experiment, and what was measured until its close.

    `turn` is equal for lives that were measured together; `beside` says that another
    one went on between its blocks. `setup_seconds` is run time to the first yield,
    `memory_bytes` what the start added, where that was watched. `metrics` has one float
    per timed step, None where it was not given. The thread that makes a life drives it:
    `open`, `settle`, `block`. On ranks, `look_around`, `start`, `time` and `close` are
    others.
    """

    turn: int
    setup_seconds: float = math.nan
    memory_bytes: int | None = None
    settled: bool = True
    beside: bool = False
    blocks: list[Block] = field(default_factory=list)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    seed: int = field(default=0, repr=False, compare=False)
    variant: Any = field(default=None, repr=False, compare=False)
    progress: Any = field(default=None, repr=False, compare=False)
    partner: Life | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.partner is not None:
            self.beside = self.partner.beside = True
        self.begun = self.ready = 0.0
        #: Whether nothing of it goes on between its steps, or whether what does are
        #: children or threads.
        self.rests, self._has_company = True, False
        #: Whether nothing can have been queued on a device since it was waited for.
        self._drained = self._switched = False
        self._steps_done = self._skipped = 0
        self._watch: system.MemoryWatch | None = None
        self._generator: Any = None
        #: Runs a step. In this process it does so in a context of the life's own:
        #: what `numpy.errstate`, `decimal` and others keep in context variables stays
        #: there. On ranks each call has a cell of its own to print to, so it does not.
        self._call: Callable[..., Any] = operator.call
        self._outside: state.Outside | None = None

    def __enter__(self) -> Life:
        self.progress.find_children = self.find_children
        return self

    def __exit__(self, kind: object, error: Any, trace: object) -> None:
        # After an error, PyTorch's handler of ended children may raise one more.
        with contextlib.suppress(*([Exception] if error else [])):
            self.close(error)

    def open(self, *, watch: bool = False) -> None:
        """Start the generator and run it to its first yield.

        Where it is to `watch`, the memory is read that this and warm-up add.
        """
        self.progress.doing = f"setting up {self.variant.call}"
        self.progress.hear()
        self.look_around()
        self._call = contextvars.copy_context().run
        if watch:
            self._watch = system.MemoryWatch(in_a_hurry=is_quick())
            self._watch.__enter__()
        self.begun = clock.CLOCK.wall()
        seconds = self.start(self.seed)
        if seconds is None:
            call = self.variant.call
            raise ExperimentError(f"{call} ended without a single `yield n`.\n{_AGAIN}")
        self.setup_seconds = seconds
        self.variant.lives.append(self)
        if self.progress.stopping:
            raise Stopped
        self.progress.doing = "measuring"

    def read_memory(self) -> None:
        """Stop watching, and note how much memory was added."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self.memory_bytes, self._watch = self._watch.increase, None

    def settle(self, limit_seconds: float, skip: int = 0) -> None:
        """Run steps until windows of them agree within 10 %, or the limit is reached.

        Also finds how many steps make a block. Then so many more are skipped.
        """
        variant, least = self.variant, self.variant.block_seconds
        self.progress.doing = f"warming up {variant.call}"
        begun, times = clock.CLOCK.wall(), []
        # An earlier life took longer to settle, and found how long blocks are.
        steps = math.ceil(variant.steps / 2)
        while (now := stats.find_agreement(times, _WINDOWS_AGREE)) is None:
            late = clock.CLOCK.wall() - begun > limit_seconds
            if times and (is_quick() or (late and len(times) >= _LEAST_WINDOWS)):
                now, self.settled = times[-1], is_quick()
                break
            window = self.run(steps)
            self._skipped += window.steps
            times.append(window.seconds / window.steps)
            if window.seconds < least and variant.steps == 1 and not is_quick():
                wanted = max(_AIM * least / max(times.pop(), 1e-9), steps + 1)
                steps = math.ceil(min(wanted, 10 * steps))
        variant.step_seconds = now
        if not is_quick():
            variant.steps = 1 if now >= least else math.ceil(_AIM * least / now)
        self.look()
        self.read_memory()
        self.ready = clock.CLOCK.wall()
        self.progress.doing = "measuring"
        self.skip(skip)

    def skip(self, steps: int) -> None:
        """Run steps that nobody counts; a generator may also end before them."""
        if steps:
            self._skipped += self.time(steps).steps

    def block(self) -> Block:
        """Time one block of steps and keep it."""
        if self._switched and not is_quick():
            self.run(1)
        self._switched = False
        least = 0.0 if is_quick() else self.variant.block_seconds
        block = self.run(self.variant.steps, least)
        self._keep(block)
        self.look()
        return block

    def to_the_end(self) -> None:
        """Run until the generator ends and keep the whole run as one block."""
        whole, most = Block(), _MOST_STEPS_IN_QUICK_MODE if is_quick() else None
        while not whole.ended and (most is None or whole.steps < most):
            whole.extend(self.time(most))
            self.progress.hear()
        if not whole.steps:
            call = self.variant.call
            raise ExperimentError(f"{call} ended after its first yield.\n{_AGAIN}")
        self._keep(whole)

    def _keep(self, block: Block) -> None:
        done = sum(earlier.steps for earlier in self.blocks)
        self.blocks.append(block)
        for step, row in block.metrics:
            for name, value in row.items():
                column = self.metrics.setdefault(name, [])
                column += [None] * (done + step - len(column)) + [value]
        for column in self.metrics.values():
            column += [None] * (done + block.steps - len(column))

    def last_value(self, metric: str) -> float | None:
        """Return the last value that was given of a metric; None where none was."""
        given = (v for v in reversed(self.metrics.get(metric, [])) if v is not None)
        return next(given, None)

    def run(self, count: int, least_seconds: float = 0.0) -> Block:
        """Time at least so many steps and so much time, as one block.

        A generator that ends is started again, and as many steps dropped as warm-up
        took.
        """
        block, goal = Block(), count
        while True:
            block.extend(self.time(goal - block.steps))
            if block.ended:
                lasted = self.blocks and self.start(self.seed) is not None
                if not lasted or self.time(self._skipped).ended:
                    raise ExperimentError(
                        f"{self.variant.call} ended after {self._steps_done + 1} "
                        "steps, before warm-up and one block were done.\nPut `while "
                        "True:` around its loop, or measure whole runs: seconds=None."
                    )
            elif block.seconds >= least_seconds:
                break
            else:
                # Batches that were ready may have made the first steps very fast.
                per_step = max(block.seconds / block.steps, 1e-9)
                missing = math.ceil((least_seconds - block.seconds) / per_step)
                goal = block.steps + min(missing, block.steps)
        self.progress.hear()
        return block

    # In this process: before the first start, at each start, for a stretch of steps

    def look_around(self) -> None:
        """Note what is there before the first start, and take some memory."""
        self._shared = self.variant.shared  # copies are no memory of the experiment's
        self._outside = state.Outside(self.partner and self.partner._outside)

    def start(self, seed: int) -> float | None:
        """Start the generator, and run it to its first yield; return run seconds.

        It starts as the reader's settings and the seed are. None where it ended without
        a yield. It can be started again where it has ended.
        """
        assert self._outside is not None
        settings.restore(self._outside.settings)
        self._put_back()
        state.seed_everything(seed)
        self._shared.seed(seed)
        clock.synchronize()
        variant, begun = self.variant, clock.CLOCK.begin()
        quiet = silencing() if variant.has_lived else contextlib.nullcontext()
        variant.has_lived = True
        try:
            with quiet:
                self._generator = variant.experiment.start(variant.knobs)
                value = self._call(next, self._generator)
        except StopIteration:
            return None
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            raise self.variant.explain(error, "set-up", self.progress) from error
        clock.synchronize()
        end = clock.CLOCK.end()
        if value is not None:
            self.variant.parse(value, 1)
        return self._seconds(begun, end)

    def time(self, count: int | None) -> Block:
        """Run steps between two readings of the clock, then read their metrics.

        So many steps, or until the generator ends where count is None; `ended` says
        whether it did. Devices are waited for at the end; at the begin only where
        something may be queued there.
        """
        wall, progress = clock.CLOCK.wall, self.progress
        advance = functools.partial(self._call, next, self._generator)
        block, bare_yields = Block(), 0
        most_bare = _MOST_BARE_YIELDS if self._steps_done else _MOST_AT_FIRST
        if not self._drained:
            clock.synchronize()
        self._drained = False
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
                        self._parse(value, block)
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
            where = f"step {self._steps_done + block.steps + 2}"
            raise self.variant.explain(error, where, progress) from error
        clock.synchronize()
        return self._finish(block, start, clock.CLOCK.end())

    def _parse(self, value: object, block: Block) -> None:
        """Add what a step has yielded, if it is more than a number, to its block."""
        step = self._steps_done + block.steps + 2
        items, row = self.variant.parse(value, step)
        block.items += items
        if row:
            block.metrics.append((block.steps, row))

    def _finish(self, block: Block, start: clock.Ticks, end: clock.Ticks) -> Block:
        """Note how long a block took, and read its metrics."""
        self._drained = not block.metrics  # reading them may queue a copy
        for _, row in block.metrics:
            row.update({name: float(value) for name, value in row.items()})
        self._steps_done += block.steps
        stretch = end.wall - start.wall
        share = 1 - min(block.excluded_seconds / stretch, 1.0) if stretch > 0 else 1.0
        block.seconds = self._seconds(start, end) * share
        block.wall_seconds = stretch * share
        return block

    def _seconds(self, start: clock.Ticks, end: clock.Ticks) -> float:
        """Return run time; wall time where children or threads of its own go on."""
        if not self._has_company and self._outside and self._outside.has_company():
            self._has_company, self.rests = True, False
        if self._has_company:
            return max(end.wall - start.wall, 1e-9)
        return clock.run_seconds(start, end)

    # Whether it rests

    def look(self) -> None:
        """See whether it still rests: no child, no thread, no setting of its own.

        A setting that no getter tells may be held by an open `with` block.
        """
        if self.rests and self._outside is not None:
            holds_settings = settings.is_inside_with(self._generator)
            self.rests = not (holds_settings or self._outside.has_changed_settings())

    def pause_to_look(self) -> None:
        """Find out whether it rests: nothing of the process computes in a pause."""
        self.look()
        if not is_quick() and self.rests:
            self.progress.hushed = True
            self.rests = clock.compute_in_pause(_PAUSE_SECONDS) < _MOST_IN_PAUSE
            self.progress.hushed = False

    def find_children(self) -> dict[int, str]:
        """Return the names of its child processes by process id."""
        return self._outside.find_children() if self._outside else {}

    def pause(self) -> None:
        """Let another life go on."""
        self._own_random = state.capture_random()

    def resume(self) -> None:
        """Go on; the next step is the first after a switch."""
        state.restore_random(self._own_random)
        self._drained, self._switched = False, True

    # Its end

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator, then end child processes that are still alive.

        They have two seconds, less after an interrupt. `because` is the error that
        ended the life, if one did. Raises ExperimentError where the generator raises on
        closing, or has changed what cannot be put back.
        """
        self.read_memory()
        if self._outside is None:
            return
        interrupted = isinstance(because, KeyboardInterrupt)
        grace = _GRACE_AFTER_INTERRUPT if interrupted else _GRACE_SECONDS
        timer = threading.Timer(grace, self._end_children)
        timer.name, timer.daemon = "kit timer", True
        timer.start()
        state.let_go(because)
        with contextlib.ExitStack() as stack:  # the last one comes first
            stack.callback(state.restore_random, self._outside.random)
            if self.partner is None:
                stack.callback(settings.restore, self._outside.settings)
            stack.callback(self._wait_for_children, timer)
            stack.callback(self._put_back, because)
            try:
                if self._generator is not None:
                    self._call(self._generator.close)
            except (KeyboardInterrupt, ExperimentError):
                raise
            except BaseException as error:
                if not interrupted:
                    where = "closing (its `finally:`)"
                    raise self.variant.explain(error, where, self.progress) from error
        # Trials keep lives; the memory that was taken and the experiment go.
        self.variant = self.progress = self.partner = None
        self._outside = self._generator = None
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
        """Put back what is shared; who has changed it does not rest.

        Raises ExperimentError for what cannot be put back, unless there is a reason.
        """
        try:
            self.rests = not self._shared.put_back() and self.rests
        except ValueError as error:
            if because is None:
                raise ExperimentError(f"{self.variant.call} {error}") from None
