"""Who lives: one experiment with its knobs, and its lives in this process."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
import traceback
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from kit import clock, state, system
from kit.experiment import (
    Experiment,
    ExperimentError,
    describe,
    parse_yield,
    referred_objects,
    smoke,
    source_of,
)
from kit.hints import find_hint, name_dead_worker, split_error
from kit.life import BLOCK_SECONDS, Block, Life
from kit.progress import Progress, Stopped
from kit.silence import silencing

_MOST_BARE_YIELDS = 1000
_GRACE_SECONDS, _GRACE_AFTER_INTERRUPT = 2.0, 0.7
#: Who computes for longer than this in a pause goes on with something of their own.
_PAUSE_SECONDS, _MOST_IN_PAUSE = 0.030, 0.003
#: So many tensors, each of at most so many bytes, shift the addresses of a life.
_SHIFTS, _LARGEST_SHIFT = 4, 12_000_000
#: Threads that belong to all: the kit's own, and those that compile for PyTorch.
_COMMON_THREADS = ("kit ", "InductorSubproc")


class LocalLife(Life):
    """One life of an experiment in this process, driven by the thread that makes it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._generator: Generator[Any, None, None] | None = None
        self._outside: state.Settings | None = None
        self._has_company = False
        #: Whether nothing can have been queued on a device since it was waited for.
        self._drained = False
        self._shifts: list[Any] = []

    def pause_to_look(self) -> None:
        """Find out whether it rests: nothing of the process computes in a pause."""
        self.variant.settings = state.capture()
        if not smoke() and self.rests:
            self.progress.hushed = True
            self.rests = clock.compute_in_pause(_PAUSE_SECONDS) < _MOST_IN_PAUSE
            self.progress.hushed = False

    def start(self, seed: int) -> float | None:
        """Start the generator, and run it to its first yield; return run seconds.

        It starts as the reader's settings and the seed are. None where it ended without
        a yield. It can be started again where it has ended.
        """
        assert self._outside is not None
        state.restore(self._outside)
        if (refusal := self._put_back()) is not None:
            raise refusal
        state.seed_everything(seed)
        clock.synchronize()
        variant, begun = self.variant, clock.CLOCK.begin()
        quiet = silencing() if variant.has_lived else contextlib.nullcontext()
        variant.has_lived = True
        try:
            with quiet:
                self._generator = variant.experiment.start(variant.knobs)
                value = next(self._generator)
        except StopIteration:
            return None
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            raise self._failure(error, "set-up") from error
        clock.synchronize()
        end = clock.CLOCK.end()
        self._look_for_company()
        if value is not None:
            self._parse(value, Block(steps=-1))
        return self._seconds(begun, end)

    def look_around(self) -> None:
        """Note what is there before the first start, and take some memory."""
        self._shared = self.variant.shared  # copies are no memory of the experiment's
        self._outside = self.partner._outside if self.partner else state.capture()
        self._random = state.capture_random()
        self._threads_before = set(threading.enumerate())
        others = self._threads_before - {threading.current_thread()}
        self._besides = {thread.native_id or 0 for thread in others}
        self._children_before = system.find_children(self._besides)
        self._shifts = _shift_addresses()

    def time(self, count: int | None) -> Block:
        """Run steps between two readings of the clock, then read their metrics.

        So many steps, or until the generator ends where count is None; `ended` says
        whether it did. Devices are waited for at the end; at the begin only where
        something may be queued there.
        """
        generator, wall, progress = self._generator, clock.CLOCK.wall, self.progress
        assert generator is not None
        block, bare_yields = Block(), 0
        if not self._drained:
            clock.synchronize()
        self._drained = False
        start = clock.CLOCK.begin()
        previous = start.wall
        try:
            while count is None or block.steps < count:
                value = next(generator)
                now = wall()
                if value is None:
                    block.excluded_seconds += now - previous
                    bare_yields += 1
                    if bare_yields > _MOST_BARE_YIELDS:
                        raise self._only_bare_yields()
                else:
                    if value.__class__ is int and value > 0:
                        block.items += value
                    else:
                        block.items += self._parse(value, block)
                    block.steps += 1
                    bare_yields = 0
                previous = now
                if progress.stopping:
                    raise Stopped
        except StopIteration:
            block.ended = True
        except (KeyboardInterrupt, ExperimentError, Stopped):
            raise
        except BaseException as error:
            where = f"step {self._steps_done + block.steps + 2}"
            raise self._failure(error, where) from error
        clock.synchronize()
        return self._finish(block, start, clock.CLOCK.end())

    def _finish(self, block: Block, start: clock.Ticks, end: clock.Ticks) -> Block:
        """Note how long a block took, and read its metrics."""
        self._drained = not block.metrics  # reading them may queue a copy
        for number, (step, row) in enumerate(block.metrics):
            read = {name: float(value) for name, value in row.items()}
            block.metrics[number] = step, read
        self._steps_done += block.steps
        self._look_for_company()
        stretch = end.wall - start.wall
        share = 1 - min(block.excluded_seconds / stretch, 1.0) if stretch > 0 else 1.0
        block.seconds = self._seconds(start, end) * share
        block.wall_seconds = stretch * share
        return block

    def _seconds(self, start: clock.Ticks, end: clock.Ticks) -> float:
        """Return run time; wall time where children or threads go on meanwhile."""
        if self._has_company:
            return max(end.wall - start.wall, 1e-9)
        return clock.run_seconds(start, end)

    def look(self) -> None:
        """See whether it still rests: no child, no thread, no setting of its own."""
        known = self.variant.settings
        if self.rests and known is not None:
            self.rests = state.capture() == known

    def _look_for_company(self) -> None:
        """See whether children or threads of its own go on between its steps."""
        if not self._has_company:
            new = set(threading.enumerate()) - self._threads_before
            own = [thread for thread in new if not _is_common(thread)]
            self._has_company = bool(own or self.find_children())
            self.rests = self.rests and not self._has_company

    def pause(self) -> None:
        """Let another life go on."""
        self._own_random = state.capture_random()

    def resume(self) -> None:
        """Go on; the next step is the first after a switch."""
        state.restore_random(self._own_random)
        self._drained, self._switched = False, True

    def find_children(self) -> dict[int, str]:
        """Return the names of its child processes by process id."""
        new = system.find_children(self._besides) - self._children_before
        return {pid: system.name_process(pid) for pid in new}

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
        try:
            self._close_generator(because)
        finally:
            refusal = self._put_back()
            self._shifts.clear()
            while timer.is_alive() and self.find_children():
                time.sleep(0.01)
            timer.cancel()
            if self.partner is None:
                state.restore(self._outside)
            state.restore_random(self._random)
        if refusal is not None and because is None:
            raise refusal
        self.variant = self.progress = self.partner = None

    def _close_generator(self, because: BaseException | None) -> None:
        generator, self._generator = self._generator, None
        # Only the one that raised holds frames: workers hang on them.
        if because is not None and (generator is None or generator.gi_frame is None):
            let_go(because)
        try:
            if generator is not None:
                generator.close()
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            if not isinstance(because, KeyboardInterrupt):
                raise self._failure(error, "closing (its `finally:`)") from error

    def _end_children(self) -> None:
        """End children that are left, unless another cell may have started them."""
        left = self.find_children()
        self.variant.ended_children += [f"{left[pid]} ({pid})" for pid in sorted(left)]
        if not self.progress.disturbed:
            system.end(left)

    def _put_back(self) -> ExperimentError | None:
        """Put back what is shared; who has changed it does not rest.

        Returns the error that says what cannot be put back.
        """
        try:
            if self._shared.put_back():
                self.rests = False
        except ValueError as error:
            return ExperimentError(f"{self.variant.call} {error}")
        return None

    def _parse(self, value: object, block: Block) -> float:
        """Return how many items were yielded; keep metrics as the block's."""
        try:
            items, row = parse_yield(value, least=0 if self.variant.may_idle else 1)
        except ValueError as error:
            raise ExperimentError(
                f"{self.variant.call} yielded {error} "
                f"(step {self._steps_done + block.steps + 2}).\n"
                "Yield the number of items of the step, as in `yield len(images)`, or "
                '`yield n, {"loss": loss}`.'
            ) from None
        if row:  # not read yet, which would wait for the device
            block.metrics.append((block.steps, {k: _detach(v) for k, v in row.items()}))
        return items

    def _failure(self, error: BaseException, where: str) -> Exception:
        """Make the error that names the experiment which raised one itself."""
        if self.progress.abandoned:  # it came of ending the experiment's processes
            return Stopped()
        error = name_dead_worker(error)
        kind, worker, said = split_error(error)
        where, hint = f"{where}, {worker}" if worker else where, find_hint(error)
        call = self.variant.call
        return ExperimentError(
            f"{call} raised {kind} in {where}: {said}\n"
            + (f"{hint}\n" if hint else "")
            + f"The traceback shows the line. Try it without the kit: next({call})."
        )

    def _only_bare_yields(self) -> ExperimentError:
        return ExperimentError(
            f"{self.variant.call} said a bare `yield` {_MOST_BARE_YIELDS} times.\n"
            "A bare `yield` leaves time out; a step is `yield n`, n items handled."
        )


@dataclass(eq=False)
class Variant:
    """One experiment with one set of knobs, and the lives that it has led.

    `rests` says whether nothing goes on between its steps, so that it can live beside
    another one that rests; None where that is not known yet.
    """

    #: Where it lives decides how its lives are led.
    kind_of_life: ClassVar[type[Life]] = LocalLife
    experiment: Experiment
    knobs: Mapping[str, object]
    label: str = ""
    may_idle: bool = False
    lives: list[Life] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conditions: dict[str, float] = field(default_factory=dict)
    outcome: str = "complete"
    is_inner: bool = False
    rests: bool | None = None
    settings: state.Settings | None = None
    block_seconds: float = BLOCK_SECONDS
    #: How many steps a block has, and how long a step takes, as far as is known.
    steps: int = 1
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    #: How many blocks it took at most to come to a slow one.
    stretch: int = 0
    has_lived: bool = False
    ended_children: list[str] = field(default_factory=list)
    started: str = field(
        default_factory=lambda: datetime.now().astimezone().isoformat("T", "seconds")
    )

    @property
    def call(self) -> str:
        """The call as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    @functools.cached_property
    def source(self) -> str:
        """The source of the experiment."""
        return source_of(self.experiment.own)

    @functools.cached_property
    def shared(self) -> state.Shared:
        """What it closes over and has state."""
        return state.Shared(referred_objects(self.experiment.own, self.knobs))

    @property
    def block_cost(self) -> float:
        """What a block costs, with its share of the steps dropped after switches."""
        return max(self.block_seconds, self.step_seconds) + self.step_seconds / 2

    def lead(
        self,
        turn: int,
        progress: Progress,
        *,
        seed: int = 0,
        beside: Life | None = None,
    ) -> Life:
        """Make a life, which is not yet started; `beside` is one that goes on."""
        life = self.kind_of_life(
            turn, seed=seed, variant=self, progress=progress, partner=beside
        )
        if beside is not None:
            life.beside = beside.beside = True
        return life

    def close(self) -> None:
        """Put back what is shared."""
        with contextlib.suppress(ValueError):  # it was told when it happened
            self.shared.put_back()


def _is_common(thread: threading.Thread) -> bool:
    """Return whether a thread belongs to nobody's steps."""
    # A thread of C++ that has run Python is a dummy.
    dummy = isinstance(thread, threading._DummyThread)
    return dummy or thread.name.startswith(_COMMON_THREADS)


def _detach(metric: Any) -> Any:
    return metric.detach().clone() if hasattr(metric, "detach") else metric


def _shift_addresses() -> list[Any]:
    """Take memory of random size, so that what a life allocates lies elsewhere.

    In one process the same code finds the same memory in every life, and how that suits
    the caches would become the verdict. The sizes come from the system: a reader's
    seeds, and the order of their random numbers, have nothing to do with it.
    """
    import torch

    sizes = random.SystemRandom()
    return [
        torch.ones(sizes.randint(1, _LARGEST_SHIFT), dtype=torch.uint8, device="cpu")
        for _ in range(_SHIFTS)
    ]


def let_go(error: BaseException | None) -> None:
    """Clear the frames behind an error: they hold its tensors, and loaders' workers.

    Left to the garbage collector, shutting workers down takes seconds; those that are
    forked later would inherit them.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
