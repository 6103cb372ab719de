"""`explore` and the `Panel` that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kit.choices import (
    RANKS,
    REPEATS,
    Place,
    Request,
    check_places,
    is_same,
    make_variants,
)
from kit.comparison import Comparison
from kit.experiment import ExperimentError, named, smoke
from kit.machine import this_machine
from kit.measurement import compare_watched, measure_watched
from kit.panel.choices import Choices
from kit.panel.drawing import Drawing
from kit.panel.driver import Driver
from kit.panel.prediction import Model, Prediction
from kit.panel.results import Results
from kit.panel.static import is_static, show_static
from kit.progress import Progress
from kit.ratio import SPEED
from kit.recording import find_recorded
from kit.trial import Trial

if TYPE_CHECKING:
    from kit.panel.view import View

#: Run all compares: each choice beside the baseline, which is measured with each.
_SECONDS_PER_CHALLENGER = 2.0
#: Without a front end up to so many choices are compared by turns; of more, the first
#: ones are measured one after the other.
_MOST_COMPARED, _MOST_MEASURED = 6, 12


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
        self._seconds = seconds
        recorded = [
            trial
            for chosen in choices.experiments.values()
            for trial in find_recorded(chosen, choices.find_fixed(chosen))
            if trial.machine.name != this_machine().name
        ]
        prediction = None if model is None else Prediction(model, choices.ordered)
        drawing = Drawing(choices, of, prediction, recorded)
        self._results = Results(choices, drawing)
        self._view: View | None = None
        self._driver = Driver(self._show, self._show_partial, self.close)

    @property
    def trials(self) -> list[Trial]:
        """Everything measured since the last `clear()`, the newest last."""
        return self._results.trials

    def run(self, **knobs: object) -> Trial:
        """Measure one point and return its trial; what is left out stays at its start.

        Raises ExperimentError for what cannot be chosen, and where the run fails.
        """
        point = self._choices.check(knobs)
        self._driver.run(self._title(point), lambda p: self._measure(point, p))
        self._results.raise_error()
        return self.trials[-1]

    def run_all(self) -> Comparison:
        """Compare all points by turns; the first is the baseline.

        Raises ExperimentError where there is only one, and where a run fails.
        """
        self._driver.run(self._title_of_all, self._compare)
        self._results.raise_error()
        assert self._results.compared is not None
        return self._results.compared

    def stop(self) -> None:
        """Stop the run after its current step; what was measured is kept."""
        self._driver.stop()

    def clear(self) -> None:
        """Forget what was measured."""
        self._results.clear()
        self._show()

    def close(self) -> None:
        """Stop the run, and take the controls out of service."""
        self._driver.close()
        if self._view is not None:
            self._view.close()

    # What the buttons do

    def start_run(self, point: Mapping[str, Any]) -> None:
        """Measure one point in the background."""
        self._driver.start(self._title(point), lambda p: self._measure(point, p))

    def start_all(self) -> None:
        """Compare all points in the background."""
        self._driver.start(self._title_of_all, self._compare)

    @property
    def _title_of_all(self) -> str:
        return f"comparing {len(self._choices.points())} choices"

    def _title(self, point: Mapping[str, Any]) -> str:
        return f"measuring {self._choices.call(point)}"

    def _measure(self, point: Mapping[str, Any], progress: Progress) -> None:
        try:
            trial = measure_watched(
                self._choices.variant(point),
                progress,
                self._seconds,
                1 if smoke() else REPEATS,
            )
        except Exception as error:
            self._results.fail(point, error)
        else:
            self._results.add(point, trial)

    def _compare(self, progress: Progress) -> None:
        points = self._choices.points()
        try:
            if len(points) < 2:
                raise ExperimentError(
                    "Panel.run_all: there is one choice only, so nothing to compare.\n"
                    "Give explore() a list, as in batch_size=[32, 64]."
                )
            made = self._compare_points(points, progress)
        except Exception as error:
            self._results.fail(None, error)
        else:
            self._results.add_all(points, made)

    def _compare_points(
        self, points: list[dict[str, Any]], progress: Progress
    ) -> Comparison:
        lists = {
            k: v
            for k, v in self._choices.lists.items()
            if k not in (self._choices.selector, RANKS)
        }
        variants = make_variants(
            self._choices.given,
            self._choices.places,
            {**self._choices.fixed, **lists},
        )
        labels = [variant.label for variant in variants]
        self._results.points_by_label = dict(zip(labels, points, strict=True))
        request = Request(self._of, self.seconds_for_all, within=self._within)
        return compare_watched(variants, progress, request)

    @property
    def seconds_for_all(self) -> float | None:
        """How long comparing all points takes; unknown for whole runs."""
        if self._seconds is None:
            return None
        challengers = len(self._choices.points()) - 1
        return max(self._seconds, 1.0) * _SECONDS_PER_CHALLENGER * challengers

    # What the view asks for

    @property
    def title(self) -> str:
        """The experiments' titles."""
        found = {e.title: None for e in self._choices.experiments.values()}
        return " · ".join(found).rstrip(".")

    @property
    def results(self) -> Results:
        """What was measured, as pictures, words and tables."""
        return self._results

    @property
    def driver(self) -> Driver:
        """What runs the measurements."""
        return self._driver

    @property
    def choices(self) -> Choices:
        """What can be chosen."""
        return self._choices

    def _show(self) -> None:
        if self._view is not None:
            self._view.refresh()

    def _show_partial(self, partial: Mapping[str, Trial]) -> None:
        if self._view is not None:
            self._view.show_picture(self._results.picture(partial))

    def __repr__(self) -> str:
        names = ", ".join(self._choices.experiments)
        return f"Panel of {names}: {', '.join(self._choices.lists) or 'no choices'}"

    def _ipython_display_(self) -> None:
        # A stored widget would be an error message: where there is no front end, what
        # the notebook keeps is a picture and a table.
        if is_static():
            self._measure_without_buttons()
            show_static(repr(self), self._results.static())
            return
        from kit.panel.view import View

        if self._view is None:
            self._view = View(self)
        self._view.display()

    def _measure_without_buttons(self) -> None:
        points, start = self._choices.points(), self._choices.start()
        if self.trials:
            return
        if 1 < len(points) <= _MOST_COMPARED:
            self.run_all()
            return
        rest = list(self._choices.lists)[2:]
        near = [p for p in points if all(is_same(p[k], start[k]) for k in rest)]
        for point in near[:_MOST_MEASURED]:
            self.run(**point)


def explore(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 2.0,
    within: float | None = None,
    on: Place | list[Place] | None = None,
    model: Model | None = None,
    **choices: object,
) -> Panel:
    """Turn an experiment's knobs, measure, and look.

    Lists and ranges become controls, everything else is a fixed value. `experiment` may
    also be a dict of experiments by name. Run measures one point for `seconds`, Run all
    compares all of them by turns; `seconds=None` runs each to its end. `of` names what
    is shown; `model` maps the choices that it has names for to a predicted quantity,
    drawn over them. `on` is where it runs, `ranks` for one, or a choice. Raises
    ExperimentError for what cannot be explored.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> explore(add, upto=[1000, 2000])
    Panel of add: upto
    """
    with named("explore()"):
        Request(of, seconds, within=within).check()
        found = Choices.of(experiment, check_places(on), choices)
    return Panel(found, of=of, within=within, seconds=seconds, model=model)
