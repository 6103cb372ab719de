"""`diagnose`: where a step's time goes, what removing each cost would save."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import clock, figures
from kit.diagnosis import causes
from kit.diagnosis.causes import CAUSES, Cause, is_estimate, saved, write_saving
from kit.diagnosis.counterfactuals import Change, change, other_threads
from kit.diagnosis.profiling import Profile, record
from kit.errors import ExperimentError, naming
from kit.figures import format_value
from kit.machine import this_machine
from kit.measuring.comparison import Comparison
from kit.measuring.doubt import find_doubt
from kit.measuring.experiment import Experiment, describe, resolve
from kit.measuring.measurement import compare, compare_watched
from kit.measuring.quantity import SPEED
from kit.measuring.ratio import Ratio
from kit.measuring.request import Request, check_place, make_variant
from kit.measuring.variant import Place, Variant
from kit.progress import Progress, Stopped, take_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of the time, leaving causes out gets at least this share.
_LEAST_SHARE = 0.5
_MOST_SUSPECTS = 3
#: Recorded steps that are longer than plain ones by more show what disturbed them.
_BLURRED = 1.0
#: Ratios below this are not shown: nothing is saved.
_LEAST_SHOWN = 1.01
#: Phases that are not called as their cause.
_PHASES = {"transfer": "copies"}


def diagnose(
    experiment: object,
    /,
    *,
    seconds: float = 20.0,
    on: Place | None = None,
    **knobs: object,
) -> Diagnosis:
    """Find where a training step's time goes, and what removing each cost would save.

    Profiles a second or so of steps, then runs the experiment beside itself without
    each cost that is suspected, three at most: batches kept from before, another number
    of threads, no update … `seconds` is about how long all of it takes. With
    `on=ranks` it runs on all of these processes, and the first is profiled. Raises
    ExperimentError where the experiment cannot be run or profiled.

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
            f"diagnose(): seconds={format_value(seconds)} is not a time that it may "
            "take.\nA diagnosis looks at single steps: say how many seconds, 20 as a "
            "rule."
        )
    with naming("diagnose()"):
        check_place(on)
        resolved = resolve(experiment)
        bound = resolved.bind(knobs)
        title = f"diagnosing {describe(resolved.name, bound)}"
        with Progress(title, at_once=True) as progress, take_turn(progress):
            begun = clock.CLOCK.wall()
            progress.begin(0, 1, seconds)
            profile = record(resolved, bound, progress, seconds=seconds, on=on)[0]
            suspects = find_suspects(profile)
            left = max(seconds + begun - clock.CLOCK.wall(), _LEAST_SHARE * seconds)
            progress.begin(0, 1, left)
            variants = [make_variant(change(resolved), bound, on, "as it is")]
            for cause, what in suspects.items():
                variants.append(make_variant(change(resolved, what), bound, on, cause))
            savings = _leave_out(variants, progress, left) if suspects else {}
            if without := suspects.get("communication"):
                asked = {"seconds": 1.0, "steps": 1, "without": [without]}
                left_in = record(resolved, bound, progress, on=on, **asked)
                savings |= _check_exchange(left_in)
            if progress.stopping:  # half a diagnosis is none
                raise Stopped
    savings |= judge_shares(profile, savings)
    verdict, reason = causes.decide(savings, profile)
    return Diagnosis(resolved, bound, verdict, reason, savings, profile, on)


def find_suspects(profile: Profile) -> dict[str, Change]:
    """Return what to leave out, by cause: three at most, the largest shares first.

    Threads have no share; they come first, since nothing is as simple to change.
    """
    found = [name for name, cause in CAUSES.items() if cause.suspected(profile)]
    weights = {"threads": 1.0, **profile.shares}
    found.sort(key=lambda name: -weights.get(_PHASES.get(name, name), 0.0))
    suspects = {name: CAUSES[name].leave_out for name in found[:_MOST_SUSPECTS]}
    if "threads" in suspects:
        number = find_other_number(profile)
        suspects["threads"] = functools.partial(other_threads, threads=number)
    return suspects


def find_other_number(profile: Profile) -> int:
    """Return which number of threads to try: the cores', or one."""
    return profile.cores if profile.threads != profile.cores else 1


def _leave_out(
    variants: Sequence[Variant], progress: Progress, seconds: float
) -> dict[str, Ratio]:
    """Run the experiment as it is beside those without a suspect, in rounds."""
    for variant in variants:  # what set-up prints was heard when it was profiled
        variant.has_started = True
    # Changed experiments are not recorded.
    found = compare_watched(variants, progress, Request(SPEED, seconds, is_kept=False))
    whole = [dataclasses.replace(trial, outcome="finished") for trial in found.trials]
    doubts = [find_doubt(trial, SPEED) for trial in whole]
    return {c: causes.settle(ratio, doubts) for c, ratio in found.ratios.items()}


def _check_exchange(profiles: Sequence[Profile]) -> dict[str, Ratio]:
    """Return that nobody can tell what an exchange costs which cannot be left out."""
    left = sorted({name for profile in profiles for name in profile.exchanges})
    why = causes.unknown(f"{', '.join(left)} cannot be left out")
    return {"communication": why} if left else {}


def judge_shares(profile: Profile, measured: Mapping[str, Ratio]) -> dict[str, Ratio]:
    """Return what the causes might save that cannot be left out, by their shares."""
    shares = {"python": "python", "overhead": "overhead", "optimizer": "loops"}
    blurred = causes.unknown(f"recording made steps {profile.inflation:.0%} longer")
    # To record what a device does may take as long as the steps themselves.
    alike = profile.inflation <= _BLURRED or profile.trace.devices
    return {
        cause: causes.estimate(own) if alike else blurred
        for cause, name in shares.items()
        if cause not in measured and max(own := profile.across[name]) > 0
    }


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `diagnose` found; its repr is the report.

    `verdict` names the cause, "healthy" where there is none, None where none is sure;
    `reason` says why. `savings` maps each cause to the ratio of speeds without and with
    it: measured, or where it cannot be left out an estimate, which has no interval.
    """

    experiment: Experiment
    knobs: dict[str, object]
    verdict: str | None
    reason: str
    savings: dict[str, Ratio]
    profile: Profile
    on: Place | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The fractions of the main thread's wall time by phase; they add up to one."""
        return self.profile.shares

    @property
    def advice(self) -> Cause | None:
        """What to do: a sentence, a line of code, a chapter."""
        if self.verdict is None:
            return None
        cause = CAUSES[self.verdict]
        if self.verdict == "threads":
            number = find_other_number(self.profile)
            return dataclasses.replace(cause, code=f"torch.set_num_threads({number})")
        return cause

    @property
    def call(self) -> str:
        """What was diagnosed, as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    def sentence(self) -> str:
        """Return the finding in one sentence."""
        ratio = self.savings.get(self.verdict or "")
        if ratio is None:
            verdict = f"{self.verdict}; " if self.verdict else ""
            return f"{self.call}: {verdict}{self.reason}"
        saving = write_saving(ratio)
        if is_estimate(ratio):
            saving = f"{saving}, {ratio.reason}"
        return f"Removing {CAUSES[self.verdict].removed} saves {self.call} {saving}"

    def plot(self) -> Figure:
        """Draw the step as a bar of phases, and what removing each cause would save."""
        rows = [
            (CAUSES[c].removed + " (estimate)" * is_estimate(ratio), *saved(ratio))
            for c, ratio in self._sorted()
        ]
        said, overhead = self.sentence(), self.profile.mean("overhead")
        look = {"title": said if self.verdict else said.split(";")[0]}
        look |= {"step_seconds": self.profile.step_seconds, "overhead": overhead}
        return figures.draw_step(self.shares, rows, **look)

    def verify(self, fixed: object, *, seconds: float = 8.0) -> Comparison:
        """Measure whether a repaired experiment gains what was predicted.

        It is compared with the diagnosed one, with the same knobs where it has them,
        and where that was diagnosed. The title of the Comparison says both.
        """
        with naming("verify()"):
            repaired = resolve(fixed)
            known = repaired.defaults.keys() - repaired.fixed.keys()
            own = {k: v for k, v in self.knobs.items() if k in known}
            repaired.bind(own)
        free = {k: v for k, v in self.knobs.items() if k not in self.experiment.fixed}
        before = functools.partial(self.experiment.function, **free)
        names = {"before": before, "repaired": functools.partial(fixed, **own)}
        found = compare(names, seconds=seconds, on=self.on)
        predicted = self.savings.get(self.verdict or "")
        title = "Cannot tell; the" if found.ratio.verdict == "cannot tell" else "The"
        title += f" repair saves {write_saving(found.ratio)}; predicted: "
        title += write_saving(predicted) if predicted else "nothing"
        return dataclasses.replace(found, title=title)

    def _sorted(self) -> list[tuple[str, Ratio]]:
        """Return the causes that may save something, the largest saving first."""
        some = [(c, r) for c, r in self.savings.items() if not r.value < _LEAST_SHOWN]
        return sorted(some, key=lambda item: (math.isnan(x := item[1].value), -x))

    def remarks(self) -> list[str]:
        """Return what else a reader should know, a sentence each."""
        profile, phase = self.profile, _PHASES.get(self.verdict or "", self.verdict)
        told = [self.advice.advise()] if self.advice else []
        if lines := profile.lines.get(phase or ""):
            told.append(f"Your lines there: {'; '.join(lines)}.")
        told.append(
            f"Starting operations takes {profile.mean('overhead'):.0%} of the step; "
            f"recording made steps {profile.inflation:.0%} longer, which is taken off."
        )
        return told

    def _tables(self) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        seconds = self.profile.step_seconds
        phases = [
            (figures.PHASES[p], f"{x:.1%}", figures.format_seconds(x * seconds))
            for p, x in self.shares.items()
        ]
        savings = [
            (CAUSES[c].removed, write_saving(ratio), ratio.reason)
            for c, ratio in self._sorted()
        ]
        tables = [(("phase", "share", "per step"), phases)]
        return tables + [(("without", "saves", ""), savings)] * bool(savings)

    def __repr__(self) -> str:
        pace = figures.format_seconds(self.profile.step_seconds)
        lines = [self.sentence(), f"{self.call}, {pace} a step"]
        for headers, rows in self._tables():
            lines += ["", figures.text_table(headers, rows)]
        if self.advice:
            lines += ["", f"try  {self.advice.code}"]
        return "\n".join([*lines, "", *(f"  {note}" for note in self.remarks())])

    def _repr_html_(self) -> str:
        picture = self.plot()
        headers, rows = self._tables()[-1]
        title = f"try  {self.advice.code}" if self.advice else self.reason
        said = {"title": title, "note": " ".join(self.remarks())}
        table = figures.html_table(headers, rows, **said)
        return figures.to_html(picture, picture.alt) + table

    def to_html(self) -> str:
        """Return the report as a page of its own, with what this machine is."""
        title, parts = f"Diagnosis of {self.call}", (self, this_machine())
        pages = (part._repr_html_() for part in parts)
        return figures.html_page(title, *pages, text=repr(self))
