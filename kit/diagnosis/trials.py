"""Trials of switches inside one run: blocks in groups A B B A, and what they save."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

from kit import clock
from kit.diagnosis import saving
from kit.diagnosis.batches import Loaders
from kit.diagnosis.once import RunEnded
from kit.diagnosis.saving import Saving
from kit.diagnosis.switches import Switch
from kit.diagnosis.wrapping import StepTime, Work
from kit.measuring.run import Driver
from kit.mode import is_quick

#: A block lasts so long at least; where there is time for all trials, up to so long.
_BLOCK_SECONDS = 0.15
_LONGEST_BLOCK_SECONDS = 0.4
#: Groups of four blocks; fewer than three say little.
_MOST_GROUPS = 6
_LEAST_GROUPS = 3
_QUICK_GROUPS = 2
#: Where a step takes so many times as long, so many groups are enough to see it.
_LOSES = 2.0
_GROUPS_OF_A_LOSER = 2
#: A step is long where it takes so many times the median, and so many seconds …
_LONG = 10.0
_LONG_SECONDS = 0.1
#: … and where at most this share of the steps does.
_MOST_LONG = 0.05
#: So many plain steps say how long a step takes; before, those around the profile do.
_LEAST_PLAIN = 20
#: Rare long steps are told where they take this share of the time.
_WORTH_TELLING = 0.05


class Trials:
    """Alternates blocks of a run with a switch off and on, one switch after another.

    There are `count` of them, which end before the moment `until`; each may take its
    part of the time that is left. `show` is called after each group.
    """

    def __init__(
        self,
        driver: Driver,
        work: Work,
        loaders: Loaders,
        until: float,
        show: Callable[[], object],
        count: int,
    ) -> None:
        self._driver = driver
        self._work = work
        self._loaders = loaders
        self._until = until
        self._show = show
        self._pace = 0.0
        self._left = 1
        self._dice = random.Random(0)  # the reader's random numbers stay as they are
        each = (until - clock.CLOCK.wall()) / max(1, count) / (4 * (_MOST_GROUPS + 1))
        longest = min(each, _LONGEST_BLOCK_SECONDS)
        self._block_seconds = max(longest, _BLOCK_SECONDS)

    def make(self, switch: Switch, pace: float, left: int) -> Saving:
        """Make the groups of one trial; return what was saved.

        `pace` is how many seconds a step takes; `left` trials, with this one, share the
        time. Where the switch fails, the saving is
        not known, and says why. Raises RunEnded where the run has ended, by an error or
        otherwise.
        """
        self._pace = pace
        self._left = left
        values: list[float] = []
        try:
            self._make_groups(switch, values)
        except RunEnded:
            if len(values) < _LEAST_GROUPS:
                raise
        except Exception as error:
            if error is self._driver.error:
                raise RunEnded(f"{type(error).__name__}: {error}") from None
            # Else it is the switch's own.
            return saving.unknown(f"it cannot be tried ({type(error).__name__})")
        finally:
            if switch.is_on:
                switch.turn(False)
            switch.end()
            self._work.is_plain = True
        if switch.obstacle:
            return saving.unknown(switch.obstacle)
        if self._loses(values):
            found = [1 - math.exp(value) for value in values]
            middle = statistics.fmean(found)
            return Saving(middle, min(found), max(found), reason="of a few steps")
        if len(values) < (_QUICK_GROUPS if is_quick() else _LEAST_GROUPS):
            need = self.find_seconds(switch, pace)
            return saving.unknown(f"it takes about {math.ceil(need)} more seconds")
        return saving.from_groups(values)

    def find_seconds(self, switch: Switch, pace: float) -> float:
        """Return how many seconds a trial needs at least."""
        return (_LEAST_GROUPS + 0.5) * self._find_group_seconds(switch, pace)

    def fits(self, switch: Switch, pace: float) -> bool:
        """Return whether there is time for a trial."""
        until = clock.CLOCK.wall() + self.find_seconds(switch, pace)
        return is_quick() or until <= self._until

    def _find_group_seconds(self, switch: Switch, pace: float) -> float:
        return (4 * self._count_steps(pace) + 2 * switch.dropped + 1) * pace

    def _count_steps(self, pace: float) -> int:
        if is_quick():
            return 1
        epoch, workers = self._loaders.find_epoch(), self._loaders.workers
        return count_steps(self._block_seconds, pace, epoch, workers)

    def _make_groups(self, switch: Switch, values: list[float]) -> None:
        """Add the log-ratio of times of each group."""
        steps = self._count_steps(self._pace)
        most = self._count_groups(switch)
        switch.prime()
        if switch.obstacle:
            return
        self._time_block(switch, steps)  # the first blocks of both sides never count
        self._turn(switch, True)
        if switch.obstacle:
            return
        loses = self._time_block(switch, 1) > _LOSES * self._pace
        if not loses:
            self._time_block(switch, steps)
        self._turn(switch, False)
        while len(values) < most and not switch.obstacle:
            if clock.CLOCK.wall() > self._until and not is_quick():
                return
            values.append(self._make_group(switch, 1 if loses else steps))
            self._show()
            loses = loses and values[-1] > math.log(_LOSES)
            if self._loses(values):
                return

    def _loses(self, values: Sequence[float]) -> bool:
        """Return whether two groups were enough to see that a step takes far longer."""
        is_early = len(values) == _GROUPS_OF_A_LOSER and not is_quick()
        return is_early and min(values) > math.log(_LOSES)

    def _count_groups(self, switch: Switch) -> int:
        """Return how many groups there are time for, if later trials get theirs."""
        if is_quick():
            return _QUICK_GROUPS
        seconds = (self._until - clock.CLOCK.wall()) / self._left
        groups = seconds / self._find_group_seconds(switch, self._pace) - 0.5
        return min(_MOST_GROUPS, max(_LEAST_GROUPS, math.floor(groups)))

    def _make_group(self, switch: Switch, steps: int) -> float:
        """Return the log-ratio of times, with and without, of blocks A B B A."""
        seconds = []
        for on in (False, True, True, False):
            if switch.is_on != on:
                self._turn(switch, on)
            seconds.append(self._time_block(switch, steps))
        first, one, other, last = seconds
        return math.log((one + other) / (first + last))

    def _time_block(self, switch: Switch, steps: int) -> float:
        """Return the seconds of a step; the time of rare long ones is left out."""
        work = self._work
        begun = len(work.steps)
        switch.begin_block()
        block = self._driver.time(steps)
        switch.end_block()
        own = work.steps[begun:]
        plain = [step.seconds for step in work.steps if step.is_plain]
        least = find_long_seconds(plain)
        ends = self._loaders.ends  # what the end of an epoch takes, loading takes
        long = [
            step.seconds
            for number, step in enumerate(own, begun)
            if step.seconds >= least and number not in ends
        ]
        # On a device, the host's time says nothing of a step's.
        if clock.has_queue() or len(long) == len(own):
            return max(block.seconds, 1e-9) / block.steps
        return max(block.seconds - math.fsum(long), 1e-9) / (len(own) - len(long))

    def _turn(self, switch: Switch, on: bool) -> None:
        """Turn a switch, and drop the steps that still feel the change."""
        self._work.is_plain = False
        switch.turn(on)
        if not switch.obstacle:
            # Not always as many, or an update every eighth step would keep in time.
            more = self._dice.randint(0, 1)
            self._driver.time(1 if is_quick() else switch.dropped + more)
        self._work.is_plain = not on


def count_steps(
    seconds: float, step_seconds: float, epoch: int | None, workers: int = 0
) -> int:
    """Return how many steps a block has: whole epochs, or whole rounds of workers.

    Workers that began together end together, so that one step in so many waits.

    >>> [count_steps(0.15, 0.010, epoch) for epoch in (None, 6, 100)]
    [15, 18, 15]
    >>> count_steps(0.15, 0.5, None, workers=8)
    8
    """
    steps = max(1, math.ceil(seconds / max(step_seconds, 1e-6) - 1e-9))
    if epoch and epoch < 2 * steps:
        return math.ceil(steps / epoch) * epoch
    return math.ceil(steps / workers) * workers if workers else steps


def find_long_seconds(plain: Sequence[float]) -> float:
    """Return from how many seconds on a step is a rare long one; inf where none is.

    >>> find_long_seconds([0.01] * 80), find_long_seconds([0.01] * 9 + [0.2] * 3)
    (0.1, inf)
    """
    if not plain:
        return math.inf
    least = max(_LONG_SECONDS, _LONG * statistics.median(plain))
    longer = sum(each >= least for each in plain)
    return least if longer <= max(1, _MOST_LONG * len(plain)) else math.inf


def find_typical_seconds(steps: Sequence[StepTime]) -> float | None:
    """Return the mean of plain steps without rare long ones; None where few were made.

    They lie between those of all trials, long after the first steps of the run.
    """
    plain = [step.seconds for step in steps if step.is_plain]
    least = find_long_seconds(plain)
    typical = [seconds for seconds in plain if seconds < least]
    return statistics.fmean(typical) if len(typical) >= _LEAST_PLAIN else None


def describe_long_steps(steps: Sequence[StepTime]) -> str:
    """Say how much time lies in rare long steps, "" where that is little."""
    plain = [step.seconds for step in steps if step.is_plain]
    least = find_long_seconds(plain)
    long = [seconds for seconds in plain if seconds >= least]
    if len(long) < 2 or sum(long) < _WORTH_TELLING * sum(plain):
        return ""
    every, share = round(len(plain) / len(long)), sum(long) / sum(plain)
    return (
        f"1 step in {every} takes about {statistics.fmean(long):.3g} s: {share:.0%} of "
        "the time is spent in such rare long steps."
    )
