"""`diagnose`: where a step's time goes, what removing each cost would save.

The experiment is started once. In this one run it is warmed up and profiled; then
switches leave suspected causes out of some blocks, and not out of others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit import clock
from kit.diagnosis import repairs, saving
from kit.diagnosis.advice import describe_competition
from kit.diagnosis.batches import Loaders, Loading
from kit.diagnosis.causes import CAUSES, PHASE_OF_CAUSE
from kit.diagnosis.modules import Training
from kit.diagnosis.named import Named, find_named
from kit.diagnosis.once import OnceVariant, RunEnded, refuse_short_run
from kit.diagnosis.profiling import Profile, record
from kit.diagnosis.repairs import REPAIRS, Facts
from kit.diagnosis.report import Diagnosis
from kit.diagnosis.saving import LEAST_SAVING, Saving
from kit.diagnosis.switches import BatchesInMemory, NoUpdate, Switch
from kit.diagnosis.trials import Trials, describe_long_steps, find_typical_seconds
from kit.diagnosis.verdict import decide
from kit.diagnosis.wrapping import Work, change, labels
from kit.errors import ExperimentError, naming
from kit.figures import format_seconds, format_value
from kit.measuring.experiment import Experiment, describe, resolve
from kit.measuring.run import Driver
from kit.mode import is_quick
from kit.progress import Progress

#: Trials end after this share of the seconds: some steps take longer than it seems.
_SHARE_OF_TRIALS = 0.8
#: Rare long steps are looked for in so many seconds of unchanged steps.
_PLAIN_SECONDS = 10.0
#: Gradients are looked at before an update; it comes within so many steps.
_MOST_STEPS_TO_AN_UPDATE = 16
#: Causes that save their share at most where they were not left out.
_BY_SHARE = ("input", "transfer", "python", "overhead", "sync", "optimizer")


def diagnose(
    experiment: object,
    /,
    *,
    seconds: float = 60.0,
    try_compile: bool = False,
    **knobs: object,
) -> Diagnosis:
    """Find where a training step's time goes, and what removing each cost would save.

    Starts the experiment once, and profiles a second or so of its steps. Then it leaves
    out the wait for data and the update, each in some blocks of steps and not in
    others, and tries repairs in the same way: another number of threads, a fused
    update, bfloat16, a slow setting switched off; with `try_compile=True` also
    `torch.compile`, which may take minutes. The answer comes within `seconds` after
    set-up; with more of them, more is tried. Raises ExperimentError where the
    experiment cannot be run or profiled. An interrupt keeps what is known, and says
    where.

    >>> def train(*, size=64):
    ...     import torch
    ...     model = torch.nn.Linear(size, size)
    ...     while True:
    ...         model(torch.ones(8, size)).sum().backward()
    ...         yield 8
    >>> sorted(diagnose(train, seconds=3.0).shares)[:2]
    ['backward', 'forward']
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):
        raise ExperimentError(
            f"diagnose(): seconds={format_value(seconds)} is not a valid time "
            "limit.\nA diagnosis looks at single steps: pass a number of seconds, such "
            "as 60."
        )
    with naming("diagnose()"):
        resolved = resolve(experiment)
        bound = resolved.bind(knobs)
        title = f"diagnosing {describe(resolved.name, bound)}"
        with Progress(title) as progress:
            return _Observation(resolved, bound, progress, seconds, try_compile).make()


@dataclass
class _Observation:
    """One run of an experiment, and what it has shown so far."""

    experiment: Experiment
    knobs: Mapping[str, object]
    progress: Progress
    seconds: float
    try_compile: bool
    profile: Profile | None = None
    savings: dict[str, Saving] = field(default_factory=dict)
    tried: dict[str, Saving] = field(default_factory=dict)
    #: Why repairs were not tried that may help.
    untried: dict[str, str] = field(default_factory=dict)
    named: dict[str, Named] = field(default_factory=dict)
    #: The line that fuses the update of the loop's own optimizer.
    update: str = ""
    #: Trials that are still to be made, and the seconds that they need.
    left: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = Work()
        self.loaders = Loaders(self.work)
        self.training = Training()
        self.causes: dict[str, Switch] = {
            "input": BatchesInMemory(self.loaders),
            "optimizer": NoUpdate(),
        }
        self.repairs = repairs.make_switches(self.training)

    def make(self) -> Diagnosis:
        """Start the experiment, and return what its run has shown."""
        switches = [*self.causes.values(), *self.repairs.values()]
        changes = [self.loaders.install, self.training.install]
        changes += [switch.install for switch in switches]
        changed = change(self.experiment, labels, *changes, work=self.work)
        variant = OnceVariant(changed, self.knobs)
        interrupt: KeyboardInterrupt | None = None
        is_over = False
        try:
            with variant.drive(0) as driver:
                self._look_to_the_end(driver)
                is_over = True
        except KeyboardInterrupt as error:
            if self.profile is None:
                raise
            interrupt = error
            self.notes.append("It was interrupted: anything missing was not measured.")
        except BaseException as error:
            if not is_over:
                raise
            # What it has shown is known all the same.
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            self.notes.append(f"While it was being stopped, it raised {said}")
        if not variant.runs[0].settled:
            self.notes.append("Step times did not settle during the warm-up.")
        diagnosis = self._conclude()
        if interrupt is not None:
            kept: Any = KeyboardInterrupt(
                "diagnose() was interrupted. What was found so far is kept as "
                f"`sys.last_value.diagnosis`:\n{diagnosis.sentence()}"
            )
            kept.diagnosis = diagnosis
            raise kept from None
        return diagnosis

    def _look_to_the_end(self, driver: Driver) -> None:
        """Look at the run until all is measured, or it ends."""
        try:
            self._look(driver)
        except RunEnded as end:
            if self.profile is None:
                steps = len(self.work.steps)
                raise refuse_short_run(driver.variant, steps) from None
            self._note_end(str(end))
        except Exception as error:
            if self.profile is None or error is not driver.error:
                raise
            self._note_end(f"{type(error).__name__}: {error}")

    def _note_end(self, error: str) -> None:
        """Note that the run has ended before all was measured."""
        if error:
            first, doing = error.partition("\n")[0], self.progress.doing
            self.notes.append(
                f"It could not continue while the kit was {doing}: {first}"
            )
            return
        steps = len(self.work.steps)
        self.notes.append(f"It ended after {steps} steps, before all was measured.")

    def _look(self, driver: Driver) -> None:
        """Warm up, profile, and make the trials that there is time for."""
        self.work.is_plain = False  # in the first steps, something may be compiled
        self._tell("warming up")
        driver.open()
        begun = clock.CLOCK.wall()
        driver.warm_up()
        self._tell("profiling")
        self.profile = record(driver)[0]
        self.work.is_plain = True
        facts = Facts(self.profile, self.training, self.repairs)
        self._look_at_gradients(driver, facts)
        due = repairs.find_due(facts, try_compile=self.try_compile)
        self.untried = {name: why for name, why in due.items() if why}
        fused: Any = self.repairs["fused"]
        self.update = fused.write_code()
        threads: Any = self.repairs["threads"]
        threads.number = self.profile.other_threads
        possible = [name for name, why in due.items() if not why]
        repairing = {name: self.repairs[name] for name in possible}
        pairs = itertools.zip_longest(self._find_suspects().items(), repairing.items())
        switches = dict(filter(None, itertools.chain(*pairs)))
        until = begun + _SHARE_OF_TRIALS * self.seconds
        pace = self.profile.step_seconds

        def show() -> None:
            done = (clock.CLOCK.wall() - begun) / self.seconds
            self.progress.show(min(1.0, done))

        left = len(switches)
        trials = Trials(driver, self.work, self.loaders, until, show, left)
        self.left = {
            name: trials.find_seconds(switch, pace) for name, switch in switches.items()
        }
        for name, switch in switches.items():
            if trials.fits(switch, pace):
                self._tell(f"trying {self._name(name)}")
                found = trials.make(switch, pace, left)
                del self.left[name]
                self._keep(name, switch, found)
            left -= 1
        self._tell("looking for rare long steps")
        self._look_for_long_steps(driver, until)

    def _tell(self, doing: str) -> None:
        """Show what is done now."""
        self.progress.doing = doing
        self.progress.show(0.0)

    def _look_for_long_steps(self, driver: Driver, until: float) -> None:
        """Make plain steps, unless enough of them have been made."""
        if is_quick() or clock.has_queue():  # a device's long step is not seen
            return
        made = sum(step.seconds for step in self.work.steps if step.is_plain)
        wanted = min(_PLAIN_SECONDS, self.seconds / 4) - made
        rest = min(wanted, until - clock.CLOCK.wall())
        if rest > 0:
            driver.time(1, rest)

    def _look_at_gradients(self, driver: Driver, facts: Facts) -> None:
        """Make steps up to an update; find what is named while gradients are there."""

        def look() -> None:
            self.training.look = None  # once is enough
            self.named |= find_named(facts)

        self.work.is_plain = False
        self.training.look = look
        for _ in range(_MOST_STEPS_TO_AN_UPDATE):
            if self.training.look is not None:
                driver.time(1)
        self.training.look = None
        self.work.is_plain = True

    def _find_suspects(self) -> dict[str, Switch]:
        """Return what to leave out, the largest share first.

        Workers may take the cores from the training: then input is suspected, too.
        """
        assert self.profile is not None
        shares = {cause: self.profile.shares.get(cause, 0.0) for cause in self.causes}
        found = [cause for cause, share in shares.items() if share > LEAST_SAVING]
        if self.profile.children and "input" not in found:
            found.append("input")
        found.sort(key=lambda cause: -shares[cause])
        return {cause: self.causes[cause] for cause in found}

    def _keep(self, name: str, switch: Switch, found: Saving) -> None:
        if name in self.causes:
            self.savings[name] = found
        elif switch.obstacle:
            self.untried[name] = switch.obstacle
        else:
            self.tried[name] = found

    def _name(self, name: str) -> str:
        """Return what is tried: a repair, or a step without a cause."""
        assert self.profile is not None
        if name in REPAIRS:
            return f"a step with {repairs.fill(REPAIRS[name].label, self.profile)}"
        return f"a step without {CAUSES[name]}"

    def _conclude(self) -> Diagnosis:
        profile = self.profile
        assert profile is not None
        if not clock.has_queue():  # a device's steps end later
            seconds = find_typical_seconds(self.work.steps) or profile.step_seconds
            profile = profile._replace(step_seconds=seconds)
        self._add_shares(profile)
        verdict, reason = decide(
            self.savings, self.tried, self.named, profile, self.left
        )
        loading: Loading = self.loaders.find_loading()
        said = [
            describe_long_steps(self.work.steps),
            describe_competition(self.savings, profile),
        ]
        self.notes = [*filter(None, said), *self.notes]
        if clock.find_initialised() and not profile.trace.devices:
            self.notes.append(
                "The accelerator's work was not recorded: forward, backward and update "
                "are times on the host, which starts operations and waits."
            )
        for name, seconds in self.left.items():
            need = format_seconds(seconds)
            self.notes.append(f"Not measured: {self._name(name)} (about {need} more).")
        return Diagnosis(
            experiment=self.experiment,
            knobs=dict(self.knobs),
            verdict=verdict,
            reason=reason,
            savings=self.savings,
            tried=self.tried,
            untried=self.untried,
            named=self.named,
            profile=profile._replace(trace=profile.trace._replace(written="")),
            loading=loading,
            update=self.update,
            notes=self.notes,
        )

    def _add_shares(self, profile: Profile) -> None:
        """Add what was not measured: it saves its share at most."""
        for cause in _BY_SHARE:
            known = self.savings.get(cause)
            if known is not None and known.is_known:
                continue
            phase = PHASE_OF_CAUSE.get(cause, cause)
            share = profile.across.get(phase, profile.shares.get(phase, 0.0))
            if share > LEAST_SAVING or known is not None:
                reason = known.reason if known else ""
                self.savings[cause] = saving.from_share(share, reason)
