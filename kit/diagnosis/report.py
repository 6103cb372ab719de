"""What a diagnosis found, as text, as a picture and as a page."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit import figures
from kit.diagnosis.advice import Advice, count_workers_to_try, find_advice
from kit.diagnosis.batches import Loading
from kit.diagnosis.causes import CAUSES, PHASE_OF_CAUSE
from kit.diagnosis.named import Named
from kit.diagnosis.profiling import Profile
from kit.diagnosis.repairs import FOLLOWING, REPAIRS, fill, list_remedies
from kit.diagnosis.saving import Saving
from kit.errors import naming
from kit.machine import this_machine
from kit.measuring.compare import compare
from kit.measuring.experiment import Experiment, describe, resolve
from kit.measuring.report import Comparison
from kit.mode import is_quick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Savings below this are not shown.
_LEAST_SHOWN = 0.01
#: What the cause "python" is called where the code is not the reader's own.
_FRAMEWORK = "the framework's own code outside forward, backward and update"


@dataclass(frozen=True, repr=False)
class Verification(Comparison):
    """A comparison of a loop with its repaired one, and what was predicted."""

    finding: str = ""

    def sentence(self, label: str | None = None) -> str:
        """Return what the repair saves, and what was predicted."""
        return self.finding


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `diagnose` found; its repr is the report.

    `verdict` names the cause, "healthy" where there is none, None where none is sure;
    `reason` says why. `savings` maps each cause to the fraction of a step's time that
    leaving it out saves: measured, or the most that its share of the profile allows.
    `tried` maps each repair that was tried to what it saves, `untried` others that may
    help to why they were not; `named` has what was recognized and not tried.
    """

    experiment: Experiment
    knobs: dict[str, object]
    verdict: str | None
    reason: str
    savings: dict[str, Saving]
    tried: dict[str, Saving]
    profile: Profile
    untried: dict[str, str] = field(default_factory=dict)
    named: dict[str, Named] = field(default_factory=dict)
    loading: Loading = field(default_factory=lambda: Loading("loader"))
    #: The line that fuses the update of the loop's own optimizer, "" for none.
    update: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def shares(self) -> dict[str, float]:
        """The fractions of the main thread's wall time by phase; they add up to one."""
        return self.profile.shares

    @property
    def step_seconds(self) -> float:
        """How long a step takes."""
        return self.profile.step_seconds

    @property
    def call(self) -> str:
        """What was diagnosed, as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    @property
    def advice(self) -> Advice | None:
        """What to do: a sentence, a line of code, a chapter.

        No line of code is there if that was tried and gains nothing, or cannot gain.
        """
        advice = find_advice(self)
        if advice is None:
            return None
        if winner := self._find_winner():
            code, effect = REPAIRS[winner].code, REPAIRS[winner].effect
        elif advice.remedy in [*self.tried, *self.untried]:
            code, effect = "", ""
        else:
            code, effect = advice.code, advice.effect
        return dataclasses.replace(advice, code=self._fill(code), effect=effect)

    def _fill(self, text: str) -> str:
        """Fill numbers and names of this loop into a label or a line of code."""
        text = text.replace("{workers}", str(count_workers_to_try(self)))
        return fill(text.replace("{update}", self.update), self.profile)

    def _find_winner(self) -> str:
        """Return which repair for the verdict surely saves most, "" for none."""
        return self.find_best(list_remedies(self.verdict or ""))

    def find_best(self, names: list[str]) -> str:
        """Return which of these repairs surely saves most, "" for none."""
        sure = [name for name in names if name in self.tried]
        sure = [name for name in sure if self.tried[name].is_sure]
        return max(sure, key=lambda name: self.tried[name].value, default="")

    def _name(self, cause: str) -> str:
        """Return what leaving a cause out would leave out, in words."""
        is_framework = cause == "python" and self.profile.inner.get("python")
        return _FRAMEWORK if is_framework else CAUSES[cause]

    def sentence(self) -> str:
        """Return the finding in a sentence."""
        if self.verdict is None and self.reason.endswith("cost about the same"):
            return f"{self.reason[0].upper()}{self.reason[1:]}."
        if self.verdict is None:
            return f"Cannot tell what takes the time: {self.reason}."
        winner = self._find_winner()
        if self.verdict == "healthy":
            winner = self.find_best([*self.tried])
        if winner and self.verdict in (*FOLLOWING, "healthy"):
            name, saved = self._fill(REPAIRS[winner].label), self.tried[winner]
            return f"With {name}, a step takes {saved} less time."
        saving = self.savings.get(self.verdict)
        if saving is None:
            return f"{self.verdict.capitalize()}: {self.reason}."
        how = "takes" if saving.measured else "would take"
        return f"Without {self._name(self.verdict)}, a step {how} {saving} less time."

    def verify(self, fixed: object, *, seconds: float = 8.0) -> Comparison:
        """Measure whether a repaired experiment gains what was predicted.

        It is compared with the diagnosed one, over several runs of each, with the same
        knobs where it has them. The first sentence says what was predicted.
        """
        with naming("verify()"):
            repaired = resolve(fixed)
            parameters = inspect.signature(repaired.function).parameters
            takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            bound = getattr(repaired.function, "keywords", {})  # by a partial
            own = {
                knob: value
                for knob, value in self.knobs.items()
                if knob not in bound and (takes_any or knob in parameters)
            }
            repaired.bind(own)
        before = functools.partial(self.experiment.function, **self.knobs)
        names = {"before": before, "repaired": functools.partial(fixed, **own)}
        found = compare(names, seconds=seconds)
        ratio = found.ratio
        gained = Saving(*(1 - 1 / x for x in (ratio.value, ratio.low, ratio.high)))
        winner = self._find_winner() or self.find_best([*self.tried])
        predicted = self.savings.get(self.verdict or "")
        if winner and (predicted is None or self._find_winner()):
            predicted = self.tried[winner]
        title = f"The repair saves {gained}"
        if ratio.verdict == "cannot tell":
            title = f"Cannot tell whether the repair saves time: {gained}"
        elif ratio.verdict == "slower":
            title = f"The repair costs time: {gained}"
        title += f"; predicted: {predicted or 'nothing'}"
        return Verification(found.trials, found.labels, finding=title)

    # What is shown

    def _list_shown(self) -> list[tuple[str, Saving]]:
        """Return causes, the largest first, and repairs, with what they save."""
        causes = sorted(self.savings.items(), key=lambda item: -item[1].value)
        shown = [
            (f"without {self._name(cause)}", each)
            for cause, each in causes
            if each.value >= _LEAST_SHOWN
        ]
        tried = [
            (f"with {self._fill(REPAIRS[repair].label)}", each)
            for repair, each in self.tried.items()
            if each.is_known
        ]
        return shown + tried

    def _describe_trial(self, repair: str) -> str:
        """Say what a repair that was tried does here."""
        saving, name = self.tried[repair], self._fill(REPAIRS[repair].label)
        if not saving.is_known:
            return f"What {name} saves is unknown: {saving.reason}."
        if saving.is_sure:
            effect = f" {REPAIRS[repair].effect}".rstrip()
            return f"Tried: with {name}, a step takes {saving} less time.{effect}"
        if saving.costs:
            longer = figures.format_saving(-saving.value, -saving.high, -saving.low)
            if saving.value < -1:
                longer = f"{1 - saving.value:.2g} × as long"
            else:
                longer = f"{longer} longer"
            return f"Tried: with {name}, a step takes {longer}; don't use it here."
        if saving.low > 0:
            return f"Tried: with {name}, the gain may be too small, {saving}."
        return f"Tried: with {name}, there is no clear gain, {saving}."

    def remarks(self) -> list[str]:
        """Return what else a reader should know, a sentence each."""
        profile = self.profile
        phase = PHASE_OF_CAUSE.get(self.verdict or "", self.verdict) or ""
        remarks = [self.advice.advise()] if self.advice else []
        if lines := profile.lines.get(phase):
            remarks.append(f"Most of that time is at these lines: {'; '.join(lines)}.")
        if lines := profile.inner.get(phase):
            remarks.append(f"The framework's lines below them: {'; '.join(lines)}.")
        remarks += [self._describe_trial(repair) for repair in self.tried]
        for repair, why in self.untried.items():
            name = self._fill(REPAIRS[repair].label)
            remarks.append(f"Not tried: {name}; {why}.")
        for each in self.named.values():
            remarks.append(f"{each.sentence} {each.effect}".rstrip())
        remarks += self.notes
        if is_quick():
            remarks.append("Quick mode: a few steps say nothing about speed.")
        remarks.append(
            "Brackets are 95 % intervals from blocks of steps in this one run; another "
            "run may differ. Starting operations takes "
            f"{profile.across['overhead']:.0%} of the step."
        )
        return remarks

    def next_steps(self) -> list[str]:
        """Return what to change and where, what to try, and how to verify it.

        What helps against a verdict that was measured comes first.
        """
        named = [
            f"try     {each.code}  (not tried here)" for each in self.named.values()
        ]
        own = self._find_winner()
        winner = own or self.find_best([*self.tried])
        change = []
        if winner:
            place = _write_place(self._find_line()) if own else ""
            code = self._fill(REPAIRS[winner].code)
            change = [f"change  {code}  ({place}tried: saves {self.tried[winner]})"]
        advice = []
        if not own and (code := self._write_advice()):
            advice = [f"try     {code}"]
        saved = self.savings.get(self.verdict or "")
        if saved is not None and saved.measured and saved.is_sure:
            lines = [*advice, *change, *named]
        else:
            lines = [*change, *named, *advice]
        if not lines or (self.verdict == "healthy" and not (winner or self.named)):
            return lines
        if self.experiment.is_script:
            pace = figures.format_seconds(self.step_seconds)
            verify = f"diagnose a changed copy of the script: a step takes {pace} now"
        else:
            both = f'{{"before": {self.experiment.name}, "repaired": repaired}}'
            verify = f"kit.compare({both})"
        return [*lines, f"verify  {verify}"]

    def _write_advice(self) -> str:
        """Return a line that was not tried, or how to try it; "" for none."""
        if self.advice is None or not self.advice.code:
            return ""
        if self.advice.remedy == "compile":
            how = "--try-compile" if self.experiment.is_script else "try_compile=True"
            return f"{self.advice.code}  (it may help or hurt: {how} shows which)"
        if self.verdict == "healthy" and self.experiment.is_script:
            return "--seconds 120  # more seconds see smaller savings"
        if self.verdict == "healthy":
            return self.advice.code
        return f"{self.advice.code}  ({_write_place(self._find_line())}not tried here)"

    def _find_line(self) -> str:
        """Return the reader's line that takes most of what the verdict names."""
        phase = PHASE_OF_CAUSE.get(self.verdict or "", self.verdict) or ""
        return next(iter(self.profile.lines.get(phase, [])), "")

    def _list_phases(self) -> list[tuple[str, str, str]]:
        return [
            (figures.PHASES[phase], f"{share:.1%}", self._format_share(share))
            for phase, share in self.shares.items()
        ]

    def _format_share(self, share: float) -> str:
        return figures.format_seconds(share * self.step_seconds)

    def _list_savings(self) -> list[tuple[str, str, str]]:
        return [(name, str(each), each.reason) for name, each in self._list_shown()]

    def __repr__(self) -> str:
        pace = figures.format_seconds(self.step_seconds)
        phases = figures.text_table(("phase", "share", "per step"), self._list_phases())
        lines = [self.sentence(), f"{self.call}, {pace} a step", "", phases]
        if savings := self._list_savings():
            lines += ["", figures.text_table(("a step", "saves", ""), savings)]
        lines += ["", *(f"  {remark}" for remark in self.remarks())]
        if steps := self.next_steps():
            lines += ["", *steps]
        return "\n".join(lines)

    def plot(self) -> Figure:
        """Draw the step as a bar of phases, and what removing each cause would save."""
        rows = []
        for name, saving in self._list_shown():
            label = name if saving.measured else f"{name} (at most)"
            rows.append((label, saving.value, saving.low, saving.high))
        return figures.draw_step(
            self.shares,
            rows,
            title=self.sentence().removesuffix("."),
            step_seconds=self.step_seconds,
            overhead=self.profile.across["overhead"],
        )

    def _repr_html_(self) -> str:
        picture = self.plot()
        headers, rows = ("a step", "saves", ""), self._list_savings()
        if not rows:
            headers, rows = ("phase", "share", "per step"), self._list_phases()
        steps = self.next_steps()
        title = steps[0] if steps else self.sentence()
        details = [f"{self.call}.", *self.remarks()]
        table = figures.html_table(headers, rows, title=title, details=details)
        others = "".join(map(figures.html_sentence, steps[1:]))
        return figures.to_html(picture, picture.alt) + table + others

    def to_html(self) -> str:
        """Return the report as a page of its own, with what this machine is."""
        title, text = f"Diagnosis of {self.call}", f"{self!r}\n\n{this_machine()!r}"
        return figures.html_page(title, self._repr_html_(), text=text)


def _write_place(line: str) -> str:
    """Write where a line is, before what is said of it."""
    return f"at {line.partition(': ')[0]}, " if line else ""
