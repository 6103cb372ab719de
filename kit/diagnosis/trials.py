"""Trials of switches inside one run: blocks in groups A B B A, and what they save."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kit import clock
from kit.diagnosis import saving
from kit.diagnosis.batches import Loaders
from kit.diagnosis.modules import count_compilations
from kit.diagnosis.once import RunEnded
from kit.diagnosis.saving import Saving
from kit.diagnosis.steps import StepWatch
from kit.diagnosis.switches import Switch
from kit.measuring.run import Driver
from kit.mode import is_quick
from kit.progress import Progress

#: A block lasts at least so long; six groups are planned, fewer than four say little.
_BLOCK_SECONDS = 0.15
_GROUPS, _LEAST_GROUPS = 6, 4
_BLOCKS = 4
#: Where an epoch has fewer steps, a block is a whole number of epochs; also where a
#: block is more than this share of an epoch: its ends would disturb too many.
_SHORT_EPOCH, _MOST_OF_EPOCH = 10, 0.5
#: A block that was disturbed is made again, so many times in all.
_TRIES = 4
#: Where a step takes so many times as long, a few of them are enough.
_LOSES, _GROUPS_OF_A_LOSER = 2.0, 2
#: A trial may take so many times as long as planned.
_MOST_OVER = 1.5
#: After so many recompilations, a switch is given up.
_MOST_COMPILATIONS = 4


@dataclass(frozen=True)
class Planned:
    """A trial that will be made: of how many groups, with how many steps a block.

    Where its blocks hold whole epochs, the ends of these are part of them.
    """

    name: str
    switch: Switch
    steps: int
    holds_epochs: bool
    groups: int
    seconds: float


@dataclass
class Plan:
    """Which trials there are, and what was left out, with the seconds it would take."""

    trials: list[Planned] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long all trials take."""
        return sum(trial.seconds for trial in self.trials)


def plan(
    switches: Mapping[str, Switch],
    step_seconds: float,
    seconds: float,
    loaders: Loaders,
) -> Plan:
    """Plan as many trials as the seconds allow, the first ones first."""
    found, left = Plan(), seconds
    epoch = loaders.find_epoch()
    for name, switch in switches.items():
        steps = count_steps(step_seconds, epoch, loaders.workers)
        if is_quick():
            steps = 1
        changes = 2 * switch.dropped
        per_group = (_BLOCKS * steps + changes) * step_seconds
        first = (2 * steps + changes) * step_seconds
        groups = min(_GROUPS, math.floor((left - first) / per_group))
        if is_quick():
            groups = 2
        if groups < _LEAST_GROUPS and not is_quick():
            found.left[name] = first + _GROUPS * per_group
            continue
        takes = first + groups * per_group
        left -= takes
        holds_epochs = epoch is not None and steps % epoch == 0
        trial = Planned(name, switch, steps, holds_epochs, groups, takes)
        found.trials.append(trial)
    return found


def count_steps(step_seconds: float, epoch: int | None, workers: int = 0) -> int:
    """Return how many steps a block has: whole epochs, or whole rounds of workers.

    Workers that began together end together, so that one step in so many waits.

    >>> count_steps(0.010, None), count_steps(0.010, 6), count_steps(0.010, 100)
    (15, 18, 15)
    >>> count_steps(0.5, None, workers=8)
    8
    """
    steps = max(1, math.ceil(_BLOCK_SECONDS / max(step_seconds, 1e-6) - 1e-9))
    if epoch and (epoch < _SHORT_EPOCH or steps > _MOST_OF_EPOCH * epoch):
        return math.ceil(steps / epoch) * epoch
    return math.ceil(steps / workers) * workers if workers else steps


class Trials:
    """Alternates blocks of a run with a switch off and on, one switch after another."""

    def __init__(
        self,
        driver: Driver,
        progress: Progress,
        watch: StepWatch,
        loaders: Loaders,
        seconds: float,
    ) -> None:
        self._driver = driver
        self._progress = progress
        self._watch = watch
        self._loaders = loaders
        #: How long all of them take, and what follows them.
        self._seconds = seconds
        self._spent = 0.0
        self._compilations = 0
        #: Of a repair that loses: what its first steps show, and the seconds of one.
        self._first_log_ratio = self._last_step = 0.0

    def make(self, planned: Planned) -> Saving:
        """Make the groups of one trial; return what was saved.

        Where the switch fails, the saving is not known, and says why. Raises RunEnded
        where the run has ended, by an error or otherwise.
        """
        values: list[float] = []
        self._compilations = 0
        try:
            return self._try(planned, values)
        except RunEnded:
            if len(values) < _LEAST_GROUPS:
                raise
            return saving.from_groups(values)
        except Exception as error:
            if error is self._driver.error:
                raise RunEnded(str(error)) from None
            # Else it is the switch's own.
            return saving.unknown(f"it cannot be tried ({type(error).__name__})")
        finally:
            if planned.switch.is_on:
                self._turn(planned.switch, False, drops=False)
            planned.switch.end()
            self._spent += planned.seconds

    def come_to_rest(self) -> None:
        """Drop the steps that still feel the last trial, if it ended early."""
        if not self._watch.work.is_plain:
            self._run(1 if is_quick() else Switch.dropped)
            self._watch.work.is_plain = True

    def _try(self, planned: Planned, values: list[float]) -> Saving:
        """Add the log-ratio of each group to the values; return what they show."""
        switch = planned.switch
        loses = not switch.obstacle and self._prime(planned)
        if switch.obstacle:  # which its first steps may have shown
            return saving.unknown(switch.obstacle)
        if loses:
            few = replace(planned, steps=1, groups=_GROUPS_OF_A_LOSER)
            values.append(self._first_log_ratio)
            if self._last_step > switch.patience:  # even a few would take too long
                return saving.from_two_groups(values)
            values.clear()
            self._make_groups(few, values)
            found = saving.from_two_groups(values) if values else None
            if found is not None and found.costs and not switch.obstacle:
                return found
            values.clear()
        why = self._make_groups(planned, values)
        if switch.obstacle:  # or later ones
            return saving.unknown(switch.obstacle)
        if len(values) < (2 if is_quick() else _LEAST_GROUPS):
            return saving.unknown(why)
        return saving.from_groups(values)

    def _make_groups(self, planned: Planned, values: list[float]) -> str:
        """Add the log-ratio of each group; say why there are no more than there are."""
        begun = clock.CLOCK.wall()
        for group in range(planned.groups):
            value = self._make_group(planned)
            if value is None and self._compilations >= _MOST_COMPILATIONS:
                return "the compiler compiles anew at each change"
            if value is None:
                return "an epoch or a long step ended in the midst of each block"
            values.append(value)
            self._tell(self._spent + planned.seconds * (group + 1) / planned.groups)
            self._watch.note_memory()
            spent = clock.CLOCK.wall() - begun
            if spent > _MOST_OVER * planned.seconds and not is_quick():
                return "its steps took longer than those that were profiled"
        return ""

    def _tell(self, spent: float) -> None:
        self._progress.show(spent / max(self._seconds, 1e-9))

    def _prime(self, planned: Planned) -> bool:
        """Run the first block of each side, which never counts.

        Returns whether steps take so much longer that a few of them are enough.
        """
        planned.switch.prime()
        if planned.switch.obstacle:
            return False
        self._watch.work.is_plain = False
        steps = self._watch.work.steps
        before = self._run(planned.steps) or 0.0
        begun = len(steps)
        self._turn(planned.switch, True)
        if planned.switch.obstacle:
            return False
        first = [step.seconds for step in steps[begun:]]
        planned.switch.first_seconds = math.fsum(first) - before * len(first)
        after = min(first)  # the first one may compile, any of them may be a long one
        loses = after > _LOSES * before > 0 and not is_quick()
        if loses:
            self._first_log_ratio, self._last_step = math.log(after / before), after
        if not (loses and after > planned.switch.patience):
            planned.switch.begin_block()
            self._run(1 if loses else planned.steps)
            planned.switch.end_block()
        self._turn(planned.switch, False)
        return loses

    def _make_group(self, planned: Planned) -> float | None:
        """Return the log-ratio of times, with and without, of blocks A B B A."""
        seconds = []
        for on in (False, True, True, False):
            if planned.switch.is_on != on:
                self._turn(planned.switch, on)
            block = self._time_block(planned)
            if block is None:
                return None
            seconds.append(block)
        first, one, other, last = seconds
        return math.log((one + other) / (first + last))

    def _time_block(self, planned: Planned) -> float | None:
        """Return the seconds of a step in an undisturbed block, None where none came.

        The time of rare long steps is left out on both sides.
        """
        for _ in range(_TRIES):
            planned.switch.begin_block()
            before = self._count_ends(planned)
            compiled = count_compilations()
            seconds = self._run(planned.steps)
            planned.switch.end_block()
            if count_compilations() != compiled:
                self._compilations += 1
                if self._compilations >= _MOST_COMPILATIONS:
                    return None
            elif seconds is not None and self._count_ends(planned) == before:
                return seconds
        return None

    def _count_ends(self, planned: Planned) -> int:
        """Return how often an epoch has ended in the midst of a block."""
        return 0 if planned.holds_epochs else len(self._loaders.ends)

    def _run(self, steps: int) -> float | None:
        """Run so many steps; return the seconds of one, without rare long ones.

        None where all of them were such.
        """
        work = self._watch.work
        begun = len(work.steps)
        block = self._driver.time(steps)
        own = [step.seconds for step in work.steps[begun:]]
        long = [seconds for seconds in own if self._watch.is_long(seconds)]
        if len(long) == len(own):
            # A repair that loses makes each of them a long one.
            return None if work.is_plain else block.seconds / len(own)
        rest = block.seconds - math.fsum(long)
        return max(rest, 1e-9) / (len(own) - len(long))

    def _turn(self, switch: Switch, on: bool, *, drops: bool = True) -> None:
        """Turn a switch, and drop the steps that still feel the change."""
        switch.turn(on)
        self._watch.work.is_plain = False
        if drops and not switch.obstacle:
            for _ in range(1 if is_quick() else switch.dropped):
                self._run(1)
                if self._watch.work.steps[-1].seconds > switch.patience:
                    break
        self._watch.work.is_plain = not on and drops
