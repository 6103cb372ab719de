"""A life is one start of an experiment: set-up, warm-up, timed blocks, close."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kit import clock, system
from kit.experiment import ExperimentError, smoke
from kit.progress import Stopped

#: The turn of the first life of each variant, which is cold and alone.
COLD = -1
#: A block lasts at least this long, in seconds; it aims a little higher.
BLOCK_SECONDS, _AIM = 0.020, 1.1
_WINDOWS_AGREE, _LEAST_WINDOWS = 0.10, 4


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
        self.seconds += other.seconds
        self.wall_seconds += other.wall_seconds
        self.items += other.items
        self.steps += other.steps
        self.excluded_seconds += other.excluded_seconds
        earlier = self.rank_seconds or [0.0] * len(other.rank_seconds)
        self.rank_seconds = list(map(operator.add, earlier, other.rank_seconds))
        self.ended = other.ended


@dataclass
class Life:
    """One start of an experiment, and what was measured until its close.

    `turn` is equal for lives that were measured together; `beside` says that another
    one went on between its blocks. `setup_seconds` is run time to the first yield,
    `memory_bytes` what the start added, where that was watched. `metrics` has one float
    per timed step. The thread that makes a life drives it: `open`, `settle`, `block`.
    """

    turn: int
    setup_seconds: float = math.nan
    memory_bytes: int | None = None
    settled: bool = True
    beside: bool = False
    blocks: list[Block] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seed: int = field(default=0, repr=False, compare=False)
    variant: Any = field(default=None, repr=False, compare=False)
    progress: Any = field(default=None, repr=False, compare=False)
    partner: Life | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.begun = self.ready = 0.0
        self.rests, self._switched = True, False
        self._steps_done = self._skipped = 0
        self._watch: system.MemoryWatch | None = None

    def __enter__(self) -> Life:
        self.progress.find_children = self.find_children
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is None:
            self.close()
        else:
            # PyTorch's handler of ended children may raise at any moment, too.
            with contextlib.suppress(Exception):
                self.close(error)

    def open(self, *, watch: bool | system.MemoryWatch = False) -> None:
        """Start the generator and run it to its first yield.

        Where it is to `watch`, the memory is read that this and warm-up add; a watch of
        one's own can be looked at meanwhile.
        """
        self.progress.doing = f"setting up {self.variant.call}"
        self.progress.hear()
        self.look_around()
        if watch:
            usual = system.MemoryWatch(in_a_hurry=smoke())
            self._watch = usual if watch is True else watch
            self._watch.__enter__()
        self.begun = clock.CLOCK.wall()
        seconds = self.start(self.seed)
        if seconds is None:
            raise ExperimentError(
                f"{self.variant.call} ended without a single `yield n`.\n"
                "Yield once per step; is its loop over something empty?"
            )
        self.setup_seconds = seconds
        self.variant.lives.append(self)
        if self.progress.stopping:
            raise Stopped
        self.ready = clock.CLOCK.wall()
        self.progress.doing = "measuring"

    def read_memory(self) -> None:
        """Stop watching, and note how much memory was added."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self.memory_bytes, self._watch = self._watch.increase, None

    def settle(self, limit_seconds: float) -> None:
        """Run steps until windows of them agree within 10 %, or the limit is reached.

        Also finds how many steps make a block.
        """
        variant, least = self.variant, self.variant.block_seconds
        self.progress.doing = f"warming up {variant.call}"
        begun, times = clock.CLOCK.wall(), []
        # An earlier life took longer to settle, and found how long blocks are.
        steps = math.ceil(variant.steps / 2)
        while (now := _find_agreement(times)) is None:
            late = clock.CLOCK.wall() - begun > limit_seconds
            if times and (smoke() or (late and len(times) >= _LEAST_WINDOWS)):
                now, self.settled = times[-1], smoke()
                break
            window = self.run(steps)
            self._skipped += window.steps
            times.append(window.seconds / window.steps)
            if window.seconds < least and variant.steps == 1 and not smoke():
                wanted = max(_AIM * least / max(times.pop(), 1e-9), steps + 1)
                steps = math.ceil(min(wanted, 10 * steps))
        variant.step_seconds = now
        if not smoke():
            variant.steps = 1 if now >= least else math.ceil(_AIM * least / now)
        self.look()
        self.read_memory()
        self.ready = clock.CLOCK.wall()
        self.progress.doing = "measuring"

    def skip(self, steps: int) -> None:
        """Run steps that nobody counts; a generator may also end before them."""
        self.progress.hear()
        if steps:
            self._skipped += self.time(steps).steps

    def block(self) -> Block:
        """Time one block of steps and keep it."""
        if self._switched and not smoke():
            self.run(1)
        self._switched = False
        block = self.run(
            self.variant.steps, 0.0 if smoke() else self.variant.block_seconds
        )
        self._keep(block)
        self.look()
        return block

    def to_the_end(self, most_steps: float = math.inf) -> None:
        """Run until the generator ends and keep the whole run as one block."""
        whole = Block()
        while not whole.ended and whole.steps < most_steps:
            self.progress.hear()
            whole.extend(self.time(None if most_steps == math.inf else int(most_steps)))
        self.progress.hear()
        if not whole.steps:
            raise ExperimentError(
                f"{self.variant.call} ended after its first yield.\n"
                "The first yield ends set-up; each step after it needs one of its own."
            )
        self._keep(whole)

    def _keep(self, block: Block) -> None:
        done = sum(earlier.steps for earlier in self.blocks)
        self.blocks.append(block)
        for name in {*self.metrics, *(n for _, row in block.metrics for n in row)}:
            column = self.metrics.setdefault(name, [])
            column += [math.nan] * (done + block.steps - len(column))
        for step, row in block.metrics:
            for name, value in row.items():
                self.metrics[name][done + step] = value

    def run(self, count: int, least_seconds: float = 0.0) -> Block:
        """Time at least so many steps and so much time, as one block.

        A generator that ends is started again, and as many steps dropped as warm-up
        took.
        """
        self.progress.hear()
        block, goal = Block(), count
        while True:
            block.extend(self.time(goal - block.steps))
            if block.ended:
                self._restart(block.steps)
            elif block.seconds >= least_seconds:
                break
            else:
                # Batches that were ready may have made the first steps very fast.
                per_step = max(block.seconds / block.steps, 1e-9)
                missing = math.ceil((least_seconds - block.seconds) / per_step)
                goal = block.steps + min(missing, block.steps)
        self.progress.hear()
        return block

    def _restart(self, steps: int) -> None:
        lasted = self.blocks and self.start(self.seed) is not None
        if not lasted or self.time(self._skipped).ended:
            ended = self._steps_done + 1
            raise ExperimentError(
                f"{self.variant.call} ended after {ended} steps, before "
                "warm-up and one block were done.\n"
                "A rate needs a generator that goes on: put `while True:` around its "
                "loop,\nor measure whole runs: seconds=None."
            )

    # What depends on where it lives

    def look_around(self) -> None:
        """Note what is there before the first start."""
        raise NotImplementedError

    def start(self, seed: int) -> float | None:
        """Start the generator, and run it to its first yield; return run seconds."""
        raise NotImplementedError

    def time(self, count: int | None) -> Block:
        """Run so many steps between two readings of the clock, or all that follow."""
        raise NotImplementedError

    def close(self, because: BaseException | None = None) -> None:
        """Close the generator; `because` is the error that ended the life, if any."""
        raise NotImplementedError

    def look(self) -> None:
        """See whether it still rests between its steps."""

    def pause_to_look(self) -> None:
        """Find out whether it rests, in a pause after the first warm-up."""
        self.rests = False

    def find_children(self) -> dict[int, str]:
        """Return the names of its child processes by process id."""
        return {}


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
