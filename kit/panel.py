"""`explore`: a control for each choice, Run and Stop, and a picture of what came of it.

A run has a thread of its own, so that the kernel goes on answering. ipywidgets is
imported when a panel is shown.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kit import system
from kit.cells import computing_as_cells
from kit.errors import ExperimentError, naming
from kit.figures import format_value
from kit.measuring import request as choices
from kit.measuring.comparison import Comparison
from kit.measuring.measurement import compare_watched, measure_watched
from kit.measuring.plot import predict_points
from kit.measuring.quantity import SPEED
from kit.measuring.request import (
    Choice,
    Request,
    check_places,
    find,
    label_choices,
)
from kit.measuring.variant import Place
from kit.mode import is_quick, is_static
from kit.progress import Progress
from kit.recording import find_recorded
from kit.records import Trial
from kit.results import Results

if TYPE_CHECKING:
    from kit.widgets import Widgets

Model = Callable[..., float]

#: Run all compares: each choice beside the baseline, which is measured with each.
_SECONDS_PER_CHALLENGER = 2.0
#: A picture of nothing measured yet, and the one that a notebook stores, have so many.
_FEW = 6
#: A step that has not ended so long after Stop may never end.
_LATE_SECONDS, _SECONDS_BETWEEN_LOOKS = 2.0, 0.2


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
        experiments = choices.resolve_all(experiment)
        self._request = request
        self._lists = choices.list_choices(experiments, places, given)
        self._choices = choices.plan_choices(experiments, places, given)
        self._few = choices.choose_few(self._choices, _FEW)
        variants = {choice: choice.make() for choice in self._choices}
        knobs = {
            choice: {choices.EXPERIMENT: choice.experiment.name, **variant.knobs}
            for choice, variant in variants.items()
        }
        self._results = Results(
            self._lists,
            self._few,
            knobs,
            dict(zip(knobs, predict_points(predict, [*knobs.values()]), strict=True)),
            find_recorded([variants[choice] for choice in self._few]),
            request,
        )
        # Where the controls stand first.
        defaults = experiments[0].defaults
        self._start = {
            name: find(values, defaults.get(name)) or 0
            for name, values in self._lists.items()
        }
        titles = dict.fromkeys(experiment.title for experiment in experiments)
        self._heading = " · ".join(titles).rstrip(".")
        self.progress: Progress | None = None
        self._widgets: Widgets | None = None
        self._copies: list[Any] = []
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self._results.clear()
        self._error: Exception | None = None
        self._refresh()

    @property
    def trials(self) -> list[Trial]:
        """What was measured since the last `clear()`."""
        return self._results.trials

    def run(self, **knobs: object) -> Trial:
        """Measure one choice and return its trial; what is left out stays at its start.

        Raises ExperimentError for what cannot be chosen, and where the run fails.
        """
        numbers = dict(self._start)
        for knob, value in knobs.items():
            number = find(self._lists.get(knob, []), value)
            if number is None:
                raise ExperimentError(
                    f"Panel.run: {knob}={format_value(value)} cannot be chosen here.\n"
                    f"What can be chosen: {self._lists}. Name it in "
                    f"explore({knob}=[…])."
                )
            numbers[knob] = number
        self._follow([self._find_choice(numbers)], _Run(self))
        return self.trials[-1]

    def run_all(self) -> Comparison:
        """Compare all choices in rounds; the first is the baseline.

        Raises ExperimentError where there is only one, and where a run fails.
        """
        choices.check_several([choice.make() for choice in self._choices])
        self._follow(self._choices, _Run(self))
        assert self._results.compared is not None
        return self._results.compared

    def stop(self) -> None:
        """Stop the run after its current step; what was measured is kept.

        Asked again because the step does not end, end the processes that it waits for.
        """
        progress = self.progress
        if progress is None:
            return
        if _is_late(progress):
            progress.abandoned = True
            system.end(progress.find_children())
        progress.stop()

    @property
    def is_shown(self) -> bool:
        """Whether its widgets are shown."""
        return self._widgets is not None

    # How it is run

    def _find_choice(self, numbers: Mapping[str, int]) -> Choice:
        return next(each for each in self._choices if each.numbers == numbers)

    def _begin(self, chosen: Sequence[Choice]) -> None:
        """Measure one choice, or compare several, in the background: a button asks."""
        if self.progress is not None:
            return
        self.progress = progress = _Run(self)

        def follow(place: contextlib.AbstractContextManager[None]) -> None:
            # There is no other Stop than an interrupt where this blocks.
            with contextlib.suppress(Exception, KeyboardInterrupt), place:
                self._follow(chosen, progress)

        if _is_blocking():
            follow(contextlib.nullcontext())
        else:
            place = [computing_as_cells(progress.notice_cell)]
            thread = threading.Thread(target=follow, args=place, daemon=True)
            thread.name = "kit panel"
            thread.start()

    def _follow(self, chosen: Sequence[Choice], progress: _Run) -> None:
        """Work, show how far it is, and keep what came of it, or the error."""
        self.progress = progress
        progress.title = f"comparing {len(chosen)} choices"
        if len(chosen) == 1:
            progress.title = f"measuring {chosen[0].make().call}"
        self._refresh()
        try:
            with progress:
                if len(chosen) == 1:
                    self._measure(chosen[0], progress)
                else:
                    self._compare(chosen, progress)
        except Exception as error:
            self._error = error
            self._results.drop(chosen, _describe(error).partition("\n")[0])
            raise
        finally:
            self.progress = None
            self._refresh()

    def _measure(self, choice: Choice, progress: Progress) -> None:
        request = self._request
        repeats = 1 if is_quick() else choices.REPEATS
        trial = measure_watched(
            choice.make(), progress, request.seconds, repeats, request.of
        )
        self._error = None
        self._results.keep(choice, trial)

    def _compare(self, chosen: Sequence[Choice], progress: _Run) -> None:
        labels = label_choices(chosen)
        variants = [
            choice.make(label) for choice, label in zip(chosen, labels, strict=True)
        ]
        progress.compared = chosen
        seconds = self._count_seconds(len(chosen))
        request = replace(self._request, seconds=seconds)
        made = compare_watched(variants, progress, request)
        self._error = None
        self._results.keep_comparison(chosen, made)

    def _count_seconds(self, count: int) -> float | None:
        """Return how long comparing so many takes; unknown for complete runs."""
        if self._request.seconds is None:
            return None
        each = max(self._request.seconds, 1.0) * _SECONDS_PER_CHALLENGER
        return each * max(1, count - 1)

    # How it is shown

    def _report(self) -> tuple[str, str, str]:
        """Return picture, words and error as HTML."""
        results = self._results
        return results.draw(), results.write(), _write_error(self._error)

    def _refresh(self) -> None:
        """Let those buttons be pressed that can do something; show what came of it.

        It is kept, too, for who has the notebook and no kernel.
        """
        shown = self._widgets
        if shown is None:
            return
        several = len(self._choices) > 1
        for name, button in shown.buttons.items():
            button.disabled = (self.progress is None) == (name == "stop")
        shown.buttons["run-all"].disabled |= not several
        if self.progress is not None:
            return
        picture, words, error = self._report()
        self._show_picture(picture)
        shown.words.value, shown.bar.value = words, 0
        ready = "Ready."
        if several:
            seconds = self._count_seconds(len(self._choices))
            about = f", about {seconds:.0f} s" if seconds else ""
            ready += f" Run all compares {len(self._choices)} choices{about}."
        shown.status.value = error or f'<div role="status">{ready}</div>'
        page = shown.wrap_copy(f"{picture}{words}{error}")
        for copy in filter(None, self._copies):
            with contextlib.suppress(Exception):  # a front end that is gone
                copy.update({"text/plain": "", "text/html": page}, raw=True)

    def _show_picture(self, picture: str) -> None:
        if self._widgets is not None:
            hint = "Choose on the left, then press Run."
            self._widgets.picture.value = picture or hint

    def show_progress(self, text: str, fraction: float) -> bool:
        """Show how far a run is; return whether the panel is there to show it.

        It is not announced, for it changes five times a second.
        """
        if self._widgets is None:
            return False
        self._widgets.status.value = f"<div>{html.escape(text)}</div>"
        self._widgets.bar.value = fraction
        return True

    def show_partial(
        self, chosen: Sequence[Choice], find: Callable[[], Mapping[str, Trial]]
    ) -> None:
        """Draw what was measured so far, if the panel is shown."""
        if self._widgets is not None:
            self._show_picture(self._results.draw_partial(chosen, find()))

    def __repr__(self) -> str:
        names = dict.fromkeys(choice.experiment.name for choice in self._choices)
        return f"Panel of {', '.join(names)}: {', '.join(self._lists) or 'no choices'}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if is_static():
            # A stored widget would be an error message: where there is no front end,
            # what the notebook keeps is a picture and a table.
            if not self.trials:
                self._follow(self._few, _Run(self))
            page = "".join(self._report())
            display({"text/plain": repr(self), "text/html": page}, raw=True)
            return
        if self._widgets is None:
            self._widgets = self._build()
        display(self._widgets.bundle(repr(self)), raw=True)
        copy = display({"text/plain": ""}, raw=True, display_id=True)
        self._copies.append(copy)
        self._refresh()

    def _build(self) -> Widgets:
        """Make the widgets, whose buttons call this panel."""
        from kit import widgets

        knobs = {
            name: widgets.Knob(
                values, choices.name_choices(values, _write_choice), self._start[name]
            )
            for name, values in self._lists.items()
        }
        acts = {
            "run": self._press_run,
            "run-all": lambda: self._begin(self._choices),
            "stop": self.stop,
            "clear": self.clear,
        }
        return widgets.build(self._heading, knobs, acts)

    def _press_run(self) -> None:
        assert self._widgets is not None
        self._begin([self._find_choice(self._widgets.chosen())])


class _Run(Progress):
    """The progress of a panel's run, shown in the panel if that is shown itself.

    A cell that runs beside it makes what is measured *disturbed*.
    """

    def __init__(self, panel: Panel) -> None:
        super().__init__("starting", at_once=panel.is_shown)
        self._panel = panel
        #: What is compared; empty where one choice is measured.
        self.compared: Sequence[Choice] = ()

    def show(self, text: str) -> float:
        """Show a line in the panel, or where the cell's output is."""
        if _is_late(self):
            count = len(self.find_children())
            if count:
                text += f" · Stop again ends its {count} child processes"
        if self._panel.show_progress(text, self.fraction):
            return _SECONDS_BETWEEN_LOOKS
        return super().show(text)

    def expect(self, share: float) -> None:
        """Say how much is done; show it where no other thread can."""
        super().expect(share)
        if _is_blocking():
            self.show(self.text())

    def report(self, find: Callable[[], Mapping[str, Any]]) -> None:
        """Draw what was measured so far."""
        self._panel.show_partial(self.compared, find)

    def notice_cell(self, _: Any) -> None:
        """Note that a cell begins meanwhile."""
        self.disturbed = True


def _write_choice(value: object) -> str:
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
    title: str | None = None,
    unit: str | None = None,
    **choices: object,
) -> Panel:
    """Turn an experiment's knobs, measure, and look.

    Lists and ranges become controls, everything else is a fixed value. `experiment` may
    also be a dict of experiments by name. Run measures one choice for `seconds`, Run
    all compares all of them in rounds; `seconds=None` runs each to its end. `of` names
    what is shown; `predict` maps the choices that it has names for to a predicted
    quantity in the unit that is shown, drawn over them. `on` is where it runs, `ranks`
    for one, or a choice. `title` stands above a comparison in place of the finding;
    `unit` chooses how a rate is shown: "ms per step", "GB/s", "images/s" …
    Raises ExperimentError for what cannot be explored.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> explore(add, upto=[1000, 2000])
    Panel of add: upto
    """
    with naming("explore()"):
        request = Request(of, seconds, within=within, title=title, unit=unit)
        request.check()
        return Panel(experiment, check_places(on), choices, request, predict)
