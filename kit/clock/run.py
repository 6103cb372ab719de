"""One life of an experiment: start, warm-up, timed blocks, close."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections.abc import Generator, Mapping, Sequence

from kit.clock import snapshot
from kit.clock.experiment import Experiment, ExperimentError, describe
from kit.clock.log import Block, Log, Start, smoke
from kit.clock.shared import SharedObjects
from kit.clock.stepping import Stepper, failure
from kit.clock.surroundings import Surroundings
from kit.machine import devices, memory, processes, ticks
from kit.progress import Progress, Stopped

#: A block lasts at least this long, in seconds, unless a run is told otherwise.
BLOCK_SECONDS = 0.020
#: Blocks aim a little higher, so that few of them turn out too short.
_AIM = 1.1
_WINDOWS_AGREE = 0.10
_LEAST_WINDOWS = 4
_GRACE_SECONDS = 2.0
_GRACE_AFTER_INTERRUPT = 0.7


class Run:
    """One life of an experiment, driven by the thread that makes it.

    `open` starts it, `warm_up` settles it, `block` times steps, `suspend` lets another
    variant run, `close` ends it and its child processes. A block lasts at least
    `block_seconds`; `steps_per_block` is how many steps an earlier life found that to
    take.
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
        shared: SharedObjects | None = None,
        block_seconds: float = BLOCK_SECONDS,
        steps_per_block: int = 1,
    ) -> None:
        self.experiment, self.knobs = experiment, knobs
        self.call = describe(experiment.name, knobs)
        self.log, self.progress = log, progress
        self.setup, self.seed, self.shared = setup, seed, shared
        self.block_seconds = block_seconds
        self.step_seconds = 0.0
        self.begun = self.ready = 0.0
        self.steps_per_block = steps_per_block
        self.warm_up_steps = 0
        self._stepper = Stepper(self.call, progress)
        self._around = Surroundings()
        self._outside: snapshot.State | None = None
        self._switched = self._had_block = False

    def open(self) -> None:
        """Start the generator and run it to its first yield."""
        self.progress.find_children = self._name_children
        self.progress.hear()
        with self.active():
            self.begun = ticks.CLOCK.wall()
            try:
                value = self._start()
            except StopIteration:
                raise ExperimentError(
                    f"{self.call} ended without a single `yield n`.\n"
                    "Yield once per step; is its loop over something empty?"
                ) from None
        if value is not None:
            self._stepper.parse(value, -1)

    def _start(self) -> object:
        """Start afresh, as the reader's state and the seed are; log the time.

        Returns the first yield.
        """
        if self._outside is None:
            self._outside = snapshot.capture()
        snapshot.restore(self._outside)
        if self.shared is not None:
            self.shared.restore()
        snapshot.seed_everything(self.seed)
        devices.synchronize()
        start = ticks.CLOCK.begin()
        self._stepper.generator = self.experiment.start(self.knobs)
        value = self._stepper.advance("set-up")
        devices.synchronize()
        seconds = ticks.run_seconds(start, ticks.CLOCK.end())
        self.log.starts.append(Start(self.setup, seconds))
        return value

    @property
    def can_be_suspended(self) -> bool:
        """Whether nothing of it would go on while another variant runs.

        Child processes can be suspended; threads and shared modules cannot.
        """
        shares = self.shared is not None and bool(self.shared.names)
        return self._around.can_rest and not shares

    def warm_up(self, limit_seconds: float) -> None:
        """Run steps until two windows agree within 10 %, or the limit is reached.

        Also finds how many steps make a block.
        """
        with self.active():
            if smoke():
                self.step_seconds = self._window(1)
                return
            begun, aim = ticks.CLOCK.wall(), _AIM * self.block_seconds
            # An earlier life took longer to settle, and found how long blocks are.
            known = self.steps_per_block > 1
            window = math.ceil(self.steps_per_block / 2) if known else 1
            last = self._window(window)
            while last * window < self.block_seconds and not known:
                wanted = max(aim / max(last, 1e-9), window + 1)
                window = math.ceil(min(wanted, 10 * window))
                last = self._window(window)
            times = [last]
            while (now := _find_agreement(times)) is None:
                late = ticks.CLOCK.wall() - begun > limit_seconds
                if len(times) >= _LEAST_WINDOWS and late:
                    self.log.unsettled_starts += 1
                    now = times[-1]
                    break
                times.append(self._window(window))
            self.step_seconds = now
            enough = now >= self.block_seconds
            self.steps_per_block = 1 if enough else math.ceil(aim / now)

    def _window(self, steps: int) -> float:
        """Run untimed steps; return run seconds per step."""
        block = self._time(steps)
        self.warm_up_steps += steps
        return block.seconds / block.steps

    def _time(self, count: int | None, least_seconds: float = 0.0) -> Block:
        self.progress.hear()
        block = self._stepper.time(count, least_seconds, self._restart)
        self.progress.hear()
        return block

    def block(self, round: int = 0) -> None:
        """Time one block of steps and keep it in the log."""
        with self.active():
            if self._switched and not smoke():
                self._time(1)
            self._switched = False
            least = 0.0 if smoke() else self.block_seconds
            block = self._time(self.steps_per_block, least)
        self._keep(block, round)

    def to_the_end(self) -> None:
        """Run until the generator ends and keep the whole run as one block."""
        with self.active():
            block = self._time(None)
        self._keep(block, 0)

    def _keep(self, block: Block, round: int) -> None:
        """Read the metrics, now that the clock has stopped, and log the block."""
        block.setup, block.round = self.setup, round
        for _, metrics in block.metrics:
            for name, value in metrics.items():
                if hasattr(value, "detach"):
                    self._stepper.drained = False  # reading may queue a copy
                metrics[name] = float(value)
        self.log.blocks.append(block)
        self._had_block = True

    def _restart(self, steps: int) -> None:
        """Start a generator that ended again, and drop as many steps as warm-up took.

        Raises ExperimentError where it was too short for warm-up and one block.
        """
        too_short = not self._had_block
        if not too_short:
            try:
                self._start()
                dropped = 0
                while dropped < self.warm_up_steps:
                    dropped += self._stepper.advance("warm-up") is not None
                devices.synchronize()
            except StopIteration:
                too_short = True
        if too_short:
            ended = self._stepper.steps_done + steps + 1
            raise ExperimentError(
                f"{self.call} ended after {ended} steps, before "
                "warm-up and one block were done.\n"
                "A rate needs a generator that goes on: put `while True:` around its "
                "loop,\nor measure whole runs: seconds=None."
            )

    @contextlib.contextmanager
    def active(self) -> Generator[None, None, None]:
        """Swap in this variant's state and let its children go on.

        Blocks that follow each other share one such stretch: what lies between them is
        then too short for workers to gain from it.
        """
        if self._around.entered:
            yield
            return
        self._stepper.drained = False  # others had the devices
        with self._around.enter():
            yield

    def suspend(self) -> None:
        """Let another variant run: the next step will be the first after a switch."""
        self._switched = True

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator, then end child processes that are still alive.

        They have two seconds, less after an interrupt. `because` is the error that
        ended the run, if one did. Raises ExperimentError where the generator raises on
        closing.
        """
        if self._stepper.generator is None:
            return
        processes.resume(self._around.children)
        interrupted = isinstance(because, KeyboardInterrupt)
        grace = _GRACE_AFTER_INTERRUPT if interrupted else _GRACE_SECONDS
        timer = threading.Timer(grace, self._end_children)
        timer.daemon = True
        timer.start()
        generator, self._stepper.generator = self._stepper.generator, None
        try:
            with self._around.enter_last():
                # Only the one that raised: workers of the other are still suspended.
                if because is not None and generator.gi_frame is None:
                    _let_go(because)
                generator.close()
        except (KeyboardInterrupt, ExperimentError):
            raise
        except BaseException as error:
            if not interrupted:
                where = "closing (its `finally:`)"
                raise failure(self.call, error, where) from error
        finally:
            del generator
            self._wait_for_children(timer)

    def _wait_for_children(self, timer: threading.Timer) -> None:
        while timer.is_alive() and processes.alive(self._around.children):
            time.sleep(0.01)
        timer.cancel()

    def _name_children(self) -> dict[int, str]:
        found = self._around.find_children()
        return {pid: processes.name(pid) for pid in found}

    def _end_children(self) -> None:
        left = processes.alive(self._around.children)
        self.log.ended_children += [f"{processes.name(p)} ({p})" for p in sorted(left)]
        processes.end(left)


def _find_agreement(times: Sequence[float]) -> float | None:
    """Return the step time on which the latest windows agree, or None.

    One with one, two with two, or four with four: steps of a loader come in gushes.
    """
    for count in (1, 2, 4):
        if len(times) < 2 * count:
            break
        now, before = (
            max(math.fsum(part) / count, 1e-12)
            for part in (times[-count:], times[-2 * count : -count])
        )
        if abs(math.log(now / before)) < _WINDOWS_AGREE:
            return now
    return None


def _let_go(error: BaseException) -> None:
    """Clear the frames of a traceback: they hold the loader, which holds its workers.

    Left to the garbage collector, shutting them down takes seconds.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


@contextlib.contextmanager
def started(
    run: Run, *, warm_up_seconds: float | None, cold: bool = False
) -> Generator[Run, None, None]:
    """Open a run, warm it up unless that is None, and close it whatever happens.

    A cold start is watched for the memory that it adds.
    """
    watch = memory.MemoryWatch(in_a_hurry=smoke()) if cold else None
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
        # PyTorch's handler of ended children may raise at any moment, too.
        with contextlib.suppress(Exception):
            run.close(because=error)
        raise
    else:
        run.close()
