"""`explore`: a control for each choice, Run and Stop, and a picture of what came of it.

A run has a thread of its own, so that the kernel goes on answering. ipywidgets is
imported when a panel is shown.
"""

from __future__ import annotations

import contextlib
import html
import itertools
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kit import figures, system
from kit.cells import computing_as_cells
from kit.errors import ExperimentError, naming
from kit.figures import format_number, format_value
from kit.measuring import request as choices
from kit.measuring.comparison import Comparison
from kit.measuring.measurement import compare_watched, measure_watched
from kit.measuring.plot import Point, Quantity, plot_points, predict_points
from kit.measuring.quantity import MEMORY, SPEED, quantity_of, unit_of
from kit.measuring.request import Request, check_places, find
from kit.measuring.variant import Place
from kit.mode import is_quick, is_static
from kit.progress import Progress
from kit.recording import find_recorded
from kit.records import Trial

if TYPE_CHECKING:
    from kit.widgets import View

Model = Callable[..., float]

#: Run all compares: each choice beside the baseline, which is measured with each.
_SECONDS_PER_CHALLENGER = 2.0
#: Without a front end so many choices are compared in rounds; of more, the first ones
#: are measured one after the other.
_MOST_COMPARED, _MOST_MEASURED = 6, 6
_MOST_LINES, _MOST_BARS, _MOST_ROWS = 6, 12, 10
_WIDTH = 5.6  # inches: beside the controls, in a window of 900 pixels
#: A step that has not ended so long after Stop may never end.
_LATE_SECONDS, _SECONDS_BETWEEN_LOOKS = 2.0, 0.2
_UNKNOWN: Quantity = (math.nan,) * 3
_ONE_AFTER_ANOTHER = (
    "<p>Measured one after another, so a small difference may be the machine's: "
    "Run all compares in rounds.</p>"
)


class Panel:
    """Controls for an experiment's choices, and a picture of what was measured.

    `run(**knobs)` measures one choice and `run_all()` compares all of them, from code
    as from the buttons; `trials` are those measured since the last `clear()`.
    """

    def __init__(
        self,
        experiment: object,
        places: Sequence[Place | None],
        given: Mapping[str, object],
        request: Request,
        predict: Model | None,
    ) -> None:
        found = choices.resolve_all(experiment)
        self.lists = lists = choices.list_choices(found, places, given)
        self._make = choices.plan_variants(found, places, given)
        self.variants, self._request = [make() for make in self._make], request
        #: Where each variant stands in the lists, and where the controls stand first.
        numbers = itertools.product(*(range(len(values)) for values in lists.values()))
        self._at = [dict(zip(lists, at, strict=True)) for at in numbers]
        defaults = found[0].defaults
        self.start = {k: find(v, defaults.get(k)) or 0 for k, v in lists.items()}
        self.names = {k: choices.name_choices(v, _write) for k, v in lists.items()}
        self._x = next((k for k, v in lists.items() if _is_ordered(v)), None)
        name = choices.EXPERIMENT
        told = [{name: v.experiment.name, **v.knobs} for v in self.variants]
        labels, unknown = [v.label for v in self.variants], [_UNKNOWN] * len(told)
        self._points = list(
            map(Point, labels, told, unknown, predict_points(predict, told))
        )
        self._recorded = find_recorded(self.variants)
        self.title = " · ".join({chosen.title: 0 for chosen in found}).rstrip(".")
        self.progress: Progress | None = None
        self.view: View | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self.trials: list[Trial] = []
        self._shown: dict[int, Quantity] = {}
        self._rows: list[tuple[str, ...]] = []
        self._compared: Comparison | None = None
        self._error: Exception | None = None
        self._refresh()

    def run(self, **knobs: object) -> Trial:
        """Measure one choice and return its trial; what is left out stays at its start.

        Raises ExperimentError for what cannot be chosen, and where the run fails.
        """
        at = {k: find(self.lists.get(k, []), v) for k, v in knobs.items()}
        for knob in (knob for knob, number in at.items() if number is None):
            raise ExperimentError(
                f"Panel.run: {knob}={format_value(knobs[knob])} cannot be chosen here."
                f"\nWhat can be chosen: {self.lists}. Name it in explore({knob}=[…])."
            )
        self._follow(self._at.index({**self.start, **at}), _Run(self))
        return self.trials[-1]

    def run_all(self) -> Comparison:
        """Compare all choices in rounds; the first is the baseline.

        Raises ExperimentError where there is only one, and where a run fails.
        """
        self._follow(None, _Run(self))
        assert self._compared is not None
        return self._compared

    def stop(self) -> None:
        """Stop the run after its current step; what was measured is kept.

        Asked again because the step does not end, end the processes that it waits for.
        """
        if (progress := self.progress) is not None:
            if _is_late(progress):
                progress.abandoned = True
                system.end(progress.find_children())
            progress.stop()

    # How it is run

    def begin(self, at: Mapping[str, int] | None) -> None:
        """Measure one choice, or compare all, in the background; a button asks so."""
        if self.progress is not None:
            return
        number = None if at is None else self._at.index(dict(at))
        self.progress = progress = _Run(self)

        def follow(place: contextlib.AbstractContextManager[None]) -> None:
            # There is no other Stop than an interrupt where this blocks.
            with contextlib.suppress(Exception, KeyboardInterrupt), place:
                self._follow(number, progress)

        if _is_blocking():
            follow(contextlib.nullcontext())
        else:
            place = [computing_as_cells(progress.notice_cell)]
            thread = threading.Thread(target=follow, args=place, daemon=True)
            thread.name = "kit panel"
            thread.start()

    def _follow(self, number: int | None, progress: _Run) -> None:
        """Work, show how far it is, and keep what came of it, or the error."""
        self.progress = progress
        progress.title = f"comparing {len(self._at)} choices"
        if number is not None:
            progress.title = f"measuring {self.variants[number].call}"
        self._refresh()
        try:
            with progress:
                self._work(number, progress)
        except Exception as error:
            self._compared, self._error = None, error
            gone = [*self._shown] if number is None else [number]
            self._shown = {n: v for n, v in self._shown.items() if n not in gone}
            self._note(number, _UNKNOWN, _describe(error).partition("\n")[0])
            raise
        finally:
            self.progress = None
            self._refresh()

    def _work(self, number: int | None, progress: Progress) -> None:
        asked = self._request
        if number is not None:
            variant = self._make[number]()
            repeats = 1 if is_quick() else choices.REPEATS
            trial = measure_watched(variant, progress, asked.seconds, repeats)
            self._compared, self._error = None, None
            self._keep(number, trial, quantity_of(trial, asked.of), "")
            return
        variants = [make() for make in self._make]
        choices.check_several(variants)
        asked = replace(asked, seconds=self.seconds_for_all)
        made = compare_watched(variants, progress, asked)
        self._compared, self._error = made, None
        remarks = ["baseline", *(f"{r} {r.verdict}" for r in made.ratios.values())]
        for n, trial in enumerate(made.trials):
            self._keep(n, trial, made.quantity(trial), remarks[n])

    @property
    def seconds_for_all(self) -> float | None:
        """How long comparing all choices takes; unknown for complete runs."""
        seconds, pairs = self._request.seconds, max(1, len(self._at) - 1)
        return seconds and max(seconds, 1.0) * _SECONDS_PER_CHALLENGER * pairs

    def _keep(self, number: int, trial: Trial, value: Quantity, remark: str) -> None:
        self.trials.append(trial)
        if trial.block_seconds:
            self._shown.pop(number, None)  # the newest comes last
            self._shown[number] = value
        odd = trial.outcome if trial.outcome != "finished" else ""
        self._note(number, value, ", ".join(filter(None, (remark, odd))))

    def _note(self, number: int | None, value: Quantity, remark: str) -> None:
        at = {} if number is None else self._at[number]
        names = [v[at[k]] if at else "all" for k, v in self.names.items()]
        middle, *ends = (format_number(v) if v == v else "–" for v in value)
        span = "" if math.isnan(value[1]) else f"[{', '.join(ends)}]"
        self._rows.append((f"{len(self._rows) + 1}", *names, middle, span, remark))

    def _refresh(self) -> None:
        if self.view is not None:
            self.view.refresh()

    # What came of it

    def report(self) -> tuple[str, str, str]:
        """Return picture, words and error as HTML, for all who show them."""
        rows, title, words = self._rows, "Predicted or recorded, not measured here", ""
        if self._compared is not None:
            title, words = self._compared.headline(), self._compared._repr_html_()
            rows = rows[: -len(self._compared.trials)]
        elif self._shown:
            number, (value, *_) = [*self._shown.items()][-1]
            said = f"{format_number(value)} {unit_of(self._request.of)}"
            if self._request.of == MEMORY:
                said = f"{figures.format_bytes(value)} of peak memory"
            title = f"{self._points[number].label}: {said}"
            words = _ONE_AFTER_ANOTHER * (len(self._shown) > 1)
        if rows:
            heads = (
                "",
                *self.lists,
                unit_of(self._request.of),
                "interval or range",
                "",
            )
            said = f"Measured so far, {len(rows)} in all, the newest first"
            words += figures.html_table(heads, rows[: -_MOST_ROWS - 1 : -1], title=said)
        return self.draw(self._shown, title), words, _write_error(self._error)

    def draw_partial(self, trials: Mapping[str, Trial]) -> str:
        """Return a picture of a comparison's results so far, by label."""
        labels, of = [point.label for point in self._points], self._request.of
        found = {labels.index(k): quantity_of(t, of) for k, t in trials.items()}
        return self.draw(found, f"So far, of {len(labels)} choices")

    def draw(self, shown: Mapping[int, Quantity], title: str) -> str:
        """Return lines over ordered numbers, with all that is predicted, or bars."""
        lines = [{**self._at[n], self._x: 0} for n in shown]
        lines = lines or [{**self.start, self._x: 0}]
        is_predicted = any(point.predicted == point.predicted for point in self._points)
        apart = len({repr(line) for line in lines}) * (1 + is_predicted)
        x = self._x if apart <= _MOST_LINES else None
        numbers = sorted([*shown][-_MOST_BARS:]) or [*range(len(self._at))][:_MOST_BARS]
        if x is not None:
            numbers = [n for n, at in enumerate(self._at) if {**at, x: 0} in lines]
        here, of = self._points, self._request.of
        points = [replace(here[n], quantity=shown.get(n, _UNKNOWN)) for n in numbers]
        for number, trial in self._recorded:
            if number in numbers:
                origin = f"{trial.machine.name}, {trial.started[:10]}"
                values = {"quantity": quantity_of(trial, of), "predicted": math.nan}
                points.append(replace(here[number], origin=origin, **values))
        if not shown and not is_predicted and len(points) == len(numbers):
            return ""
        baseline = numbers.index(0) if self._compared and 0 in numbers else None
        look = {"baseline": baseline, "width": _WIDTH}
        figure = plot_points(points, title, unit_of(of), x, **look)
        return figures.to_html(figure, figures.show(figure).alt)

    def __repr__(self) -> str:
        names = dict.fromkeys(variant.experiment.name for variant in self.variants)
        return f"Panel of {', '.join(names)}: {', '.join(self.lists) or 'no choices'}"

    def _ipython_display_(self) -> None:
        if not is_static():
            from kit.widgets import View

            self.view = self.view or View(self)
            self.view.display(repr(self))
            self._refresh()
            return
        # A stored widget would be an error message: where there is no front end, what
        # the notebook keeps is a picture and a table.
        from IPython.display import display

        if not self.trials and 1 < len(self._at) <= _MOST_COMPARED:
            self.run_all()
        elif not self.trials:
            for number in range(len(self._at))[:_MOST_MEASURED]:
                self._follow(number, _Run(self))
        page = "".join(self.report())
        display({"text/plain": repr(self), "text/html": page}, raw=True)


class _Run(Progress):
    """The progress of a panel's run, shown in the panel if that is shown itself.

    A cell that runs beside it makes what is measured *disturbed*.
    """

    def __init__(self, panel: Panel) -> None:
        super().__init__("starting", at_once=panel.view is not None)
        self._panel = panel

    def show(self, text: str) -> float:
        """Show a line in the panel, or where the cell's output is."""
        if (view := self._panel.view) is None:
            return super().show(text)
        count = len(self.find_children()) if _is_late(self) else 0
        again = f" · Stop again ends its {count} child processes" if count else ""
        view.show_progress(text + again, self.fraction)
        return _SECONDS_BETWEEN_LOOKS

    def expect(self, share: float) -> None:
        """Say how much is done; show it where no other thread can."""
        super().expect(share)
        if _is_blocking():
            self.show(self.text())

    def report(self, find: Callable[[], Mapping[str, Any]]) -> None:
        """Draw what was measured so far."""
        if (view := self._panel.view) is not None:
            view.show_picture(self._panel.draw_partial(find()))

    def notice_cell(self, _: Any) -> None:
        """Note that a cell begins meanwhile."""
        self.disturbed = True


def _is_ordered(values: Sequence[Any]) -> bool:
    """Return whether these are three numbers or more, in order."""
    if len(values) < 3 or any(type(value) not in (int, float) for value in values):
        return False
    return values in (sorted(values), sorted(values, reverse=True))


def _write(value: object) -> str:
    """Write a choice as a control does: a string stands for itself."""
    return value if isinstance(value, str) else format_value(value)


def _is_late(progress: Progress) -> bool:
    asked = progress.stopping and not progress.waiting
    return asked and progress.silent_seconds > _LATE_SECONDS


def _is_blocking() -> bool:
    """Return whether a run must stay in the handler of its button.

    Colab does not show what other threads change. Where handlers have a thread of
    their own, which an interrupt does not reach, there is no need to.
    """
    asked = os.environ.get("KIT_BLOCKING")
    wanted = asked == "1" if asked else "google.colab" in sys.modules
    return wanted and threading.current_thread() is threading.main_thread()


def _describe(error: Exception) -> str:
    kind = "" if isinstance(error, ExperimentError) else f"{type(error).__name__}: "
    return f"{kind}{error}"


def _write_error(error: Exception | None) -> str:
    """Write an error as HTML that is announced, the reader's own lines folded away."""
    if error is None:
        return ""
    lines = "".join(traceback.format_exception(error.__cause__ or error, chain=False))
    return (
        f'<div role="alert">{html.escape(_describe(error))}</div>'
        f"<details><summary>Traceback</summary><pre>{html.escape(lines)}</pre></details>"
    )


def explore(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 2.0,
    within: float | None = None,
    on: Place | list[Place] | None = None,
    predict: Model | None = None,
    **choices: object,
) -> Panel:
    """Turn an experiment's knobs, measure, and look.

    Lists and ranges become controls, everything else is a fixed value. `experiment` may
    also be a dict of experiments by name. Run measures one choice for `seconds`, Run
    all compares all of them in rounds; `seconds=None` runs each to its end. `of` names
    what is shown; `predict` maps the choices that it has names for to a predicted
    quantity, drawn over them. `on` is where it runs, `ranks` for one, or a choice.
    Raises ExperimentError for what cannot be explored.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> explore(add, upto=[1000, 2000])
    Panel of add: upto
    """
    with naming("explore()"):
        request = Request(of, seconds, within=within)
        request.check()
        return Panel(experiment, check_places(on), choices, request, predict)
