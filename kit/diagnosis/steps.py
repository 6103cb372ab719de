"""What the steps of a run took: rare long ones, and those that take ever longer."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import psutil

from kit import clock
from kit.diagnosis.tracing import list_lines
from kit.diagnosis.wrapping import StepTime, Work

#: A step is long where it takes so many times the median, and so many seconds …
_LONG, _LONG_SECONDS = 10.0, 0.1
#: … and where at most this share of the steps does.
_MOST_LONG = 0.05
#: Rare long steps are told where they take this share of the time.
_WORTH_TELLING = 0.05
_SECONDS_BETWEEN_LOOKS = 0.02
#: Lines are told that so many of the looks into long steps have seen.
_SHARES = 0.8, 0.5
#: Steps grow where of so many parts of them each takes longer than the one before, and
#: the last one so many times as long as the first.
_PARTS, _GROWS = 6, 1.3
_LEAST_STEPS = 30
#: Memory grows where so much is added in all, nearly always upwards.
_LEAST_BYTES, _MOSTLY = 50e6, 0.8


@dataclass(frozen=True)
class LongSteps:
    """Rare long steps: how many, of how many, how long, and what they execute."""

    count: int
    steps: int
    seconds: float
    share: float
    lines: list[str]

    def __str__(self) -> str:
        if self.count == 1:
            return (
                f"One step of {self.steps} took {self.seconds:.3g} s; whether that "
                "happens again is not known."
            )
        every = round(self.steps / self.count)
        lines = f", at {'; '.join(self.lines)}" if self.lines else ""
        return (
            f"1 step in {every} takes about {self.seconds:.3g} s; {self.share:.0%} of "
            f"the time lies in such rare long steps{lines}."
        )


class StepWatch:
    """Watches the steps of a run from another thread; use it as a context manager.

    Where a step lasts long, it notes which lines are executed.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._lines: list[list[str]] = []
        self._memory: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def watching(self) -> Generator[None, None, None]:
        """Watch until the end of the context."""
        looker = threading.Thread(target=self._look, name="kit steps", daemon=True)
        looker.start()
        try:
            yield
        finally:
            self._over.set()
            looker.join()

    def _look(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            begun = self.work.step_begun
            if not begun or not self.work.is_plain:
                continue
            if not self.is_long(clock.CLOCK.wall() - begun):
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                self._lines.append(list_lines(frame))

    def is_long(self, seconds: float) -> bool:
        """Return whether a step of so many seconds is a rare long one.

        Where others are as long, it is a usual one: batches may come in gushes. Where a
        device computes, the host's time says little about a step's.
        """
        if seconds < _LONG_SECONDS or clock.find_initialised():
            return False
        plain = [step.seconds for step in self.work.steps if step.is_plain]
        if len(plain) < 1 / _MOST_LONG:
            return False
        limit = max(_LONG * statistics.median(plain), _LONG_SECONDS)
        are_rare = sum(each > limit for each in plain) <= _MOST_LONG * len(plain)
        return seconds > limit and are_rare

    @property
    def plain_seconds(self) -> float:
        """How long all unchanged steps took."""
        return sum(step.seconds for step in self.work.steps if step.is_plain)

    def note_memory(self) -> None:
        """Note how much memory the process has now."""
        self._memory.append((len(self.work.steps), psutil.Process().memory_info().rss))

    def find_long_steps(self) -> LongSteps | None:
        """Return what is known of rare long steps, None where they matter little."""
        plain = [step.seconds for step in self.work.steps if step.is_plain]
        long = [seconds for seconds in plain if self.is_long(seconds)]
        if not long:
            return None
        share = sum(long) / sum(plain)
        if share < _WORTH_TELLING:
            return None
        lines = find_common_lines(self._lines)
        return LongSteps(len(long), len(plain), sum(long) / len(long), share, lines)

    def find_growth(self) -> str:
        """Say that steps, or memory, grow and grow; "" where they do not."""
        remarks = [find_growing_steps(self.work.steps), self._find_growing_memory()]
        return " ".join(filter(None, remarks))

    def _find_growing_memory(self) -> str:
        pairs = itertools.pairwise(self._memory)
        rises = [later[1] > earlier[1] for earlier, later in pairs]
        if len(rises) < 5 or sum(rises) < _MOSTLY * len(rises):
            return ""
        (first, before), (last, after) = self._memory[0], self._memory[-1]
        if after - before < _LEAST_BYTES or last <= first:
            return ""
        per_step = (after - before) / (last - first) / 1e6
        return (
            f"Memory grows by {per_step:.2g} MB per step: something keeps what each "
            "step makes, such as losses that keep their graph (append loss.item())."
        )


def find_common_lines(stacks: Sequence[Sequence[str]]) -> list[str]:
    """Return the innermost line of nearly all stacks, and that of half of them.

    >>> find_common_lines([["main", "evaluate", "a"], ["main", "evaluate", "b"]])
    ['evaluate']
    """
    found = []
    counts = Counter(line for stack in stacks for line in {*stack})
    depths = {line: depth for stack in stacks for depth, line in enumerate(stack)}
    for share in _SHARES:
        common = [line for line, n in counts.items() if n > share * len(stacks)]
        if common:
            found.append(max(common, key=lambda line: depths[line]))
    return list(dict.fromkeys(found))


def find_growing_steps(steps: Sequence[StepTime]) -> str:
    """Say that each step takes longer than the last, "" where it does not."""
    plain = [step.seconds for step in steps if step.is_plain]
    if len(plain) < _LEAST_STEPS:
        return ""
    size = len(plain) // _PARTS
    parts = [plain[n * size : (n + 1) * size] for n in range(_PARTS)]
    medians = [statistics.median(part) for part in parts]
    first, last = medians[0], medians[-1]
    rises = all(one < following for one, following in itertools.pairwise(medians))
    if not rises or last < _GROWS * first:
        return ""
    return (
        f"Steps take longer and longer: {last / first:.1f} × as long in the end as at "
        "the beginning. Something grows, such as a history that is kept, a graph that "
        "is never let go, or the length of episodes. Look at that first: it makes all "
        "savings less reliable."
    )
