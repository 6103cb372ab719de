"""One life of an experiment: start, warm-up, timed blocks, close."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Sequence

from kit.clock.experiment import ExperimentError, describe
from kit.clock.log import Block, Log, Start, smoke
from kit.clock.stage import Stage
from kit.machine import memory, ticks
from kit.progress import Progress, Stopped

#: A block lasts at least this long, in seconds, unless a run is told otherwise.
BLOCK_SECONDS = 0.020
#: Blocks aim a little higher, so that few of them turn out too short.
_AIM = 1.1
_WINDOWS_AGREE = 0.10
_LEAST_WINDOWS = 4


class Run:
    """One life of an experiment, driven by the thread that makes it.

    `open` starts it, `warm_up` settles it, `block` times steps, `suspend` lets another
    variant run, `close` ends it and its child processes. A block lasts at least
    `block_seconds`; `steps_per_block` is how many steps an earlier life found that to
    take. Where it lives is the stage's business; how long, and when, is decided here.
    """

    def __init__(
        self,
        stage: Stage,
        log: Log,
        progress: Progress,
        *,
        setup: int = 0,
        seed: int = 0,
        block_seconds: float = BLOCK_SECONDS,
        steps_per_block: int = 1,
    ) -> None:
        self.call = describe(stage.experiment.name, stage.knobs)
        self.log, self.progress = log, progress
        self.setup, self.seed = setup, seed
        self.block_seconds = block_seconds
        self.step_seconds = 0.0
        self.begun = self.ready = 0.0
        self.steps_per_block = steps_per_block
        self.warm_up_steps = 0
        self._life = stage.live(progress)
        self._steps_done = 0
        self._switched = self._had_block = False

    def open(self) -> None:
        """Start the generator and run it to its first yield."""
        self.progress.find_children = self._life.find_children
        self.progress.hear()
        with self.active():
            self.begun = ticks.CLOCK.wall()
            if not self._start():
                raise ExperimentError(
                    f"{self.call} ended without a single `yield n`.\n"
                    "Yield once per step; is its loop over something empty?"
                )

    def _start(self) -> bool:
        """Start afresh and log the time; return whether there was a yield."""
        seconds = self._life.start(self.seed)
        if seconds is not None:
            self.log.starts.append(Start(self.setup, seconds))
        return seconds is not None

    @property
    def can_be_suspended(self) -> bool:
        """Whether nothing of it would go on while another variant runs."""
        return self._life.can_be_suspended

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Swap in this variant's state and let its children go on."""
        return self._life.active()

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

    def _time(self, count: int, least_seconds: float = 0.0) -> Block:
        """Time at least so many steps and so much time, as one block."""
        self.progress.hear()
        block, goal = Block(), count
        while True:
            block.extend(self._life.time(goal - block.steps))
            if block.ended:
                self._restart(block.steps)
            elif block.seconds >= least_seconds:
                break
            else:
                # Batches that were ready may have made the first steps very fast.
                per_step = max(block.seconds / block.steps, 1e-9)
                missing = math.ceil((least_seconds - block.seconds) / per_step)
                goal = block.steps + min(missing, block.steps)
        self._steps_done += block.steps
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

    def skip_step(self) -> None:
        """Run one step that nobody counts; a generator may also end before it."""
        with self.active():
            self.progress.hear()
            self._life.time(1)

    def to_the_end(self) -> None:
        """Run until the generator ends and keep the whole run as one block."""
        block = Block()
        with self.active():
            while not block.ended:
                self.progress.hear()
                block.extend(self._life.time(None))
            self.progress.hear()
        if not block.steps:
            raise ExperimentError(
                f"{self.call} ended after its first yield.\n"
                "The first yield ends set-up; each step after it needs one of its own."
            )
        self._keep(block, 0)

    def _keep(self, block: Block, round: int) -> None:
        block.setup, block.round = self.setup, round
        self.log.blocks.append(block)
        self._had_block = True

    def _restart(self, steps: int) -> None:
        """Start a generator that ended again, and drop as many steps as warm-up took.

        Raises ExperimentError where it was too short for warm-up and one block.
        """
        lasted = self._had_block and self._start()
        if not lasted or self._life.time(self.warm_up_steps).ended:
            ended = self._steps_done + steps + 1
            raise ExperimentError(
                f"{self.call} ended after {ended} steps, before "
                "warm-up and one block were done.\n"
                "A rate needs a generator that goes on: put `while True:` around its "
                "loop,\nor measure whole runs: seconds=None."
            )

    def suspend(self) -> None:
        """Let another variant run: the next step will be the first after a switch."""
        self._switched = True

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator, then end child processes that are still alive.

        `because` is the error that ended the run, if one did. Raises ExperimentError
        where the generator raises on closing.
        """
        self.log.ended_children += self._life.close(because)


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
