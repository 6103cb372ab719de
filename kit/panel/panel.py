"""`explore` and the `Panel` that it returns."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from typing import Any

from kit import figures
from kit.clock.experiment import ExperimentError
from kit.clock.log import smoke
from kit.clock.measuring import check_arguments, measure_watched
from kit.comparison import Comparison
from kit.comparison.choices import check_quantity, make_variants
from kit.comparison.comparing import compare_watched
from kit.comparison.quantities import SPEED
from kit.panel import drawing
from kit.panel.choices import EXPERIMENT, Choices
from kit.panel.drawing import Entry, Model
from kit.panel.driver import Driver, Watched
from kit.recording import find_recorded
from kit.trial import Trial


class Panel:
    """Controls for an experiment's choices, and a picture of what was measured.

    `run(**knobs)` measures one point and `run_all()` compares all of them, from code
    as from the buttons; `trials` are those measured since the last `clear()`.
    """

    def __init__(
        self,
        choices: Choices,
        *,
        of: str,
        within: float | None,
        seconds: float | None,
        model: Model | None,
    ) -> None:
        self._choices, self._of, self._within = choices, of, within
        self._seconds, self._model = seconds, model
        self._entries: list[Entry] = []
        self._comparison: Comparison | None = None
        self._error = ""
        self._recorded = [
            trial
            for chosen in choices.experiments.values()
            for trial in find_recorded(chosen)
        ]
        self._driver = Driver()
        self._driver.on_replaced(self.close)
        self._view: Any = None

    @property
    def trials(self) -> list[Trial]:
        """Everything measured since the last `clear()`, the newest last."""
        return [entry.trial for entry in self._entries if entry.trial is not None]

    def run(self, **knobs: object) -> Trial:
        """Measure one point and return its trial; what is left out stays at its start.

        Raises ExperimentError for what cannot be chosen, and where the run fails.
        """
        point = self._choices.check(knobs)
        self._driver.run(self._title(point), lambda p: self._measure(point, p))
        self._refresh()
        newest = self._entries[-1]
        if newest.trial is None:
            raise ExperimentError(newest.error)
        return newest.trial

    def run_all(self) -> Comparison:
        """Compare all points by turns; the first is the baseline."""
        self._driver.run("comparing all", self._compare)
        self._refresh()
        if self._comparison is None:
            raise ExperimentError(self._error)
        return self._comparison

    def stop(self) -> None:
        """Stop the run after its current step; what was measured is kept."""
        self._driver.stop()

    def clear(self) -> None:
        """Forget what was measured."""
        self._entries, self._comparison, self._error = [], None, ""
        self._refresh()

    def close(self) -> None:
        """Stop, and take the controls away."""
        self._driver.close()
        if self._view is not None:
            self._view.close()

    # What the buttons do

    def start_run(self, point: Mapping[str, Any]) -> None:
        """Measure one point in the background."""
        self._start(self._title(point), lambda p: self._measure(point, p))

    def start_all(self) -> None:
        """Compare all points in the background."""
        self._start("comparing all", self._compare)

    def _start(self, title: str, task: Any) -> None:
        if not self._driver.running:
            self._driver.start(title, task, self._refresh)
            self._refresh()

    def _title(self, point: Mapping[str, Any]) -> str:
        return f"measuring {self._choices.label(point)}"

    def _measure(self, point: Mapping[str, Any], progress: Watched) -> None:
        label = self._choices.label(point)
        self._error = ""
        try:
            trial = measure_watched(
                self._choices.experiment(point),
                self._choices.knobs(point),
                progress,
                self._seconds,
                5 if self._seconds is None and not smoke() else 1,
            )
        except Exception as error:
            self._fail(label, point, error)
        else:
            self._entries.append(Entry(label, dict(point), trial))

    def _compare(self, progress: Watched) -> None:
        points = self._choices.points()
        self._error, self._comparison = "", None
        lists = {k: v for k, v in self._choices.lists.items() if k != EXPERIMENT}
        functions = {k: v.function for k, v in self._choices.experiments.items()}
        several = len(functions) > 1
        experiments = functions if several else next(iter(functions.values()))
        try:
            if len(points) < 2:
                raise ExperimentError(
                    "Panel.run_all: there is one choice only, so nothing to compare.\n"
                    "Give explore() a list, as in batch_size=[32, 64]."
                )
            variants = make_variants(
                experiments,
                {**self._choices.fixed, **lists},
                whole_runs=self._seconds is None,
            )
            made = compare_watched(
                variants,
                progress,
                self._of,
                self._within,
                self._seconds and 2 * self._seconds * (len(variants) - 1),
                5,
                False,
            )
        except Exception as error:
            self._fail("all", {}, error)
            return
        self._comparison = made
        ratios = [None, *made.ratios.values()]
        for point, trial, ratio in zip(points, made.trials, ratios, strict=True):
            verdict = f"{ratio} {ratio.verdict}" if ratio else "baseline"
            label = self._choices.label(point)
            self._entries.append(Entry(label, point, trial, verdict))

    def _fail(self, label: str, point: Mapping[str, Any], error: Exception) -> None:
        said = str(error) if isinstance(error, ExperimentError) else repr(error)
        self._error = said
        self._entries.append(Entry(label, dict(point), error=said.splitlines()[0]))

    # What is shown

    def summary(self) -> str:
        """Return in words what the picture shows."""
        compared = self._comparison
        return drawing.summarise(
            self._entries, self._of, compared.sentence() if compared else ""
        )

    def picture(self) -> str:
        """Return the picture as an HTML image with alt text, empty without results."""
        if not drawing.latest(self._entries):
            return ""
        figure = drawing.draw(
            self._choices,
            self._entries,
            self._recorded,
            self._of,
            self.summary(),
            self._model,
        )
        return figures.to_html(figure, figures.show(figure).alt)

    def history(self) -> str:
        """Return the history as an HTML table, empty without any."""
        return drawing.write_history(self._entries, self._of) if self._entries else ""

    @property
    def error(self) -> str:
        """What went wrong in the latest run, or nothing."""
        return self._error

    @property
    def driver(self) -> Driver:
        """What runs the measurements."""
        return self._driver

    @property
    def choices(self) -> Choices:
        """What can be chosen."""
        return self._choices

    def _refresh(self) -> None:
        if self._view is not None:
            self._view.refresh()

    def __repr__(self) -> str:
        names = ", ".join(self._choices.experiments)
        return f"Panel of {names}: {', '.join(self._choices.lists) or 'no choices'}"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        # Stored in a notebook, a widget would be an error message: what `kit record`
        # and other runs without a front end keep is a picture and a table.
        if os.environ.get("KIT_STATIC") == "1":
            return self._static()
        from kit.panel.view import View

        if self._view is None:
            self._view = View(self)
        return self._view.mimebundle(repr(self), **options)

    def _static(self) -> dict[str, str]:
        if not self._entries:
            self.run_all() if len(self._choices.points()) > 1 else self.run()
        error = f"<pre>{html.escape(self._error)}</pre>" if self._error else ""
        words = f"<p>{html.escape(self.summary())}</p>"
        return {
            "text/plain": repr(self),
            "text/html": f"{self.picture()}{error}{words}{self.history()}",
        }


def explore(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 2.0,
    within: float | None = None,
    on: None = None,
    model: Model | None = None,
    **choices: object,
) -> Panel:
    """Turn an experiment's knobs, measure, and look.

    Lists and ranges become controls, everything else is a fixed value. `experiment` may
    also be a dict of experiments by name. Run measures one point for `seconds`, Run all
    compares all of them by turns; `seconds=None` runs each to its end. `of` names what
    is shown; `model` maps the choices to a predicted quantity, drawn over them. Raises
    ExperimentError for what cannot be explored.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> explore(add, upto=[1000, 2000])
    Panel of add: upto
    """
    check_arguments("explore()", seconds, 1, on)
    check_quantity(of, seconds, within, caller="explore()")
    found = Choices.of(experiment, choices)
    return Panel(found, of=of, within=within, seconds=seconds, model=model)
