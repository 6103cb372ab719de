"""`Diagnosis`: where the time goes, what removing each cost saves, what to do."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.comparison import Comparison
from kit.diagnosis.advice import Advice
from kit.diagnosis.causes import (
    REMOVED,
    Estimated,
    bound,
    explain_saving,
    saved,
    write_saving,
)
from kit.diagnosis.phases import list_shares
from kit.diagnosis.profiling import Profile
from kit.diagnosis.timeline import check_steps, draw
from kit.experiment import Experiment, describe, named, resolve
from kit.measurement import compare
from kit.ratio import Ratio
from kit.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `diagnose` found; its repr is the report.

    `verdict` names the cause, None where there is none or none is sure; `reason` says
    why. `shares` are fractions of the main thread's wall time by phase; they add up to
    one. `savings` maps each cause to the ratio of speeds without and with it: measured,
    or where it cannot be left out an estimate, which has no interval. `repairs` are
    those that can be written into the loop. `overhead` is the fraction of the step
    that operations cost before they do anything, a cross-cut of the shares. `rates` are
    the fractions of this machine's peaks that arithmetic and memory traffic reach.
    """

    experiment: Experiment
    knobs: dict[str, object]
    verdict: str | None
    reason: str
    shares: dict[str, float]
    savings: dict[str, Ratio]
    advice: Advice | None
    repairs: dict[str, Ratio]
    step_seconds: float
    overhead: float
    rates: dict[str, float]
    profile: Profile
    trials: list[Trial] = field(default_factory=list)

    @property
    def call(self) -> str:
        """What was diagnosed, as a reader would write it."""
        return describe(self.experiment.name, self.knobs)

    def sentence(self) -> str:
        """Return the finding in one sentence."""
        if self.verdict is None:
            return f"{self.call}: {self.reason}"
        if self.verdict in ("compute", "memory"):
            return f"{self.call}: {self.verdict}; {self.reason}"
        ratio = self.savings[self.verdict]
        saving = explain_saving(ratio)
        for repair, gained in self.repairs.items():
            if gained == ratio:
                return f"With {repair}, {self.call} saves {saving} of its time"
        return f"Removing {REMOVED[self.verdict]} saves {self.call} {saving}"

    def headline(self) -> str:
        """Return the finding without the reason why there is no verdict."""
        return self.sentence() if self.verdict else self.sentence().partition(";")[0]

    def plot(self) -> Figure:
        """Draw the step as a bar of phases, and what removing each cause would save."""
        rows = [
            (
                REMOVED[cause] + " (estimate)" * isinstance(ratio, Estimated),
                *saved(ratio),
            )
            for cause, ratio in self._sorted()
        ]
        return figures.draw_step(
            self.shares,
            rows,
            title=self.headline(),
            step_seconds=self.step_seconds,
            overhead=self.overhead,
        )

    def timeline(self, steps: int = 3) -> Figure:
        """Draw who was busy when, over some of the recorded steps."""
        check_steps(steps)
        return draw([self.profile], self.call, steps)

    def verify(self, fixed: object, *, seconds: float = 8.0) -> Verification:
        """Measure whether a repaired experiment gains what was predicted.

        It is compared with the diagnosed one, with the same knobs where it has them.
        """
        with named("verify()"):
            repaired = resolve(fixed)
            known = repaired.defaults.keys() - repaired.fixed.keys()
            own = repaired.bind({k: v for k, v in self.knobs.items() if k in known})
        names = {
            "before": _bind(self.experiment, self.knobs),
            "repaired": _bind(repaired, own),
        }
        comparison = compare(names, seconds=seconds)
        predicted = self.savings.get(self.verdict or "")
        return Verification(predicted, comparison)

    def _sorted(self) -> list[tuple[str, Ratio]]:
        """Return the causes that may save something, the largest saving first."""
        some = [(c, r) for c, r in self.savings.items() if not bound(r).high < 0.01]
        return sorted(some, key=lambda item: -item[1].value)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table of phases as text: phase, share, time per step."""
        return list_shares(self.shares, self.step_seconds)

    def remarks(self) -> list[str]:
        """Return what else a reader should know, a sentence each."""
        told = []
        if self.advice is not None:
            told.append(f"{self.advice.sentence} Chapter {self.advice.chapter}.")
        if self.profile.lines and self.shares.get("python", 0) > 0.05:
            places = "; ".join(
                f"{line.place} ({line.share:.0%})" for line in self.profile.lines
            )
            told.append(f"The code outside PyTorch: {places}.")
        reads = [call for call in self.profile.reads if call.times >= 1]
        if reads:
            first = reads[0]
            told.append(
                f"{first.name} reads a tensor {first.times:.3g} times a step "
                f"at {first.place}."
            )
        told.append(
            f"Eager overhead, operations times what one costs here, is "
            f"{self.overhead:.0%} of the step; it lies within the phases above."
        )
        inflation = self.profile.trace.inflation
        if not self.profile.notes:
            told.append(f"Recording made the steps {inflation:.0%} longer.")
        return told + list(self.profile.notes)

    def _saving_rows(self) -> list[tuple[str, str, str]]:
        rows = [
            (REMOVED[cause], write_saving(ratio), ratio.reason)
            for cause, ratio in self._sorted()
        ]
        for name, ratio in self.repairs.items():
            rows.append((f"with {name}", write_saving(ratio), ratio.reason))
        return rows

    def __repr__(self) -> str:
        lines = [self.sentence(), f"{self.call}, {self._pace()}", ""]
        lines.append(figures.text_table(("phase", "share", "per step"), self.rows()))
        headers = ("without", "saves", "")
        rows = self._saving_rows()
        lines += ["", figures.text_table(headers, rows)] if rows else []
        if self.advice is not None:
            lines += ["", f"try  {self.advice.code}"]
        return "\n".join([*lines, "", *(f"  {note}" for note in self.remarks())])

    def _pace(self) -> str:
        return f"{figures.format_seconds(self.step_seconds)} a step"

    def _repr_html_(self) -> str:
        picture = self.plot()
        advice = self.advice.code if self.advice else ""
        rows = [*self._saving_rows()]
        return figures.to_html(picture, picture.alt) + figures.html_table(
            ("without", "saves", "remark"),
            rows,
            title=f"try  {advice}" if advice else self.reason,
            note=" ".join(self.remarks()),
        )

    def to_html(self) -> str:
        """Return the report as a page of its own."""
        timeline = self.timeline()
        return figures.html_page(
            f"Diagnosis of {self.call}",
            self._repr_html_(),
            figures.to_html(timeline, timeline.alt),
            text=repr(self),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as what JSON can hold."""
        ratios: Mapping[str, Mapping[str, Ratio]] = {
            "savings": self.savings,
            "repairs": self.repairs,
        }
        written = {
            name: {
                label: {
                    "speed": [ratio.value, ratio.low, ratio.high],
                    "saved": list(saved(ratio)),
                    "verdict": ratio.verdict,
                    "reason": ratio.reason,
                }
                for label, ratio in found.items()
            }
            for name, found in ratios.items()
        }
        found = {
            "experiment": self.call,
            "verdict": self.verdict,
            "sentence": self.sentence(),
            "reason": self.reason,
            "step_seconds": self.step_seconds,
            "shares": self.shares,
            "overhead": self.overhead,
            **written,
            "rates": self.rates,
            "advice": self.advice._asdict() if self.advice else None,
            "lines": [line._asdict() for line in self.profile.lines],
            "reads": [call._asdict() for call in self.profile.reads],
            "inflation": self.profile.trace.inflation,
            "notes": list(self.profile.notes),
        }
        plain: dict[str, Any] = make_plain(found)
        return plain


@dataclass(frozen=True, repr=False)
class Verification:
    """What a repair was predicted to save, and what it saves."""

    predicted: Ratio | None
    comparison: Comparison

    def sentence(self) -> str:
        """Return both in one sentence."""
        ratio = self.comparison.ratio
        unsure = "Cannot tell; the" if ratio.verdict == "cannot tell" else "The"
        gained = f"{unsure} repair saves {write_saving(ratio)}"
        if self.predicted is None:
            return f"{gained}; nothing was predicted"
        return f"{gained}; predicted: {explain_saving(self.predicted)}"

    def __repr__(self) -> str:
        return f"{self.sentence()}\n{self.comparison!r}"

    def _repr_html_(self) -> str:
        return figures.html_sentence(
            self.sentence(), " ".join(self.comparison.remarks())
        )


def _bind(experiment: Experiment, knobs: Mapping[str, object]) -> object:
    """Return an experiment with these knobs fixed."""
    free = {k: v for k, v in knobs.items() if k not in experiment.fixed}
    return functools.partial(experiment.function, **free)


def make_plain(value: Any) -> Any:
    """Return what JSON can hold: a number that is not known or not finite is None.

    >>> make_plain({"saving": (0.5, float("nan"))})
    {'saving': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): make_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_plain(inner) for inner in value]
    is_lost = isinstance(value, float) and not math.isfinite(value)
    return None if is_lost else value
