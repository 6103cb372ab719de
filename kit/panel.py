"""`explore`: a control for each list of choices, Run, Run all, and what came of it.

What a button starts runs on the kernel's main thread, as cells do: an interrupt (■)
reaches it, and it computes with their settings. ipywidgets is imported when a panel is
shown.
"""

from __future__ import annotations

import asyncio
import html
import inspect
import itertools
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit import figures
from kit.errors import ExperimentError, naming
from kit.figures import format_value
from kit.measuring import compare as measuring
from kit.measuring.experiment import RANKS, Choice, list_choices
from kit.measuring.records import Trial, tell_listeners
from kit.measuring.report import Comparison
from kit.measuring.run import make_trial
from kit.measuring.verdict import SPEED
from kit.mode import is_static

Model = Callable[..., float]

#: Run all measures so many choices at most: more take long, and nobody reads them.
_MOST_CHOICES = 6
#: A picture has so many lines at most; beyond that bars are clearer.
_MOST_LINES = 3
#: Run all takes as long as so many Runs for each choice beside the baseline.
_RUNS_PER_CHALLENGER = 2.0
#: Names with so many letters in all fit side by side, as buttons.
_MOST_LETTERS = 40
#: What was pressed during a run arrives so soon after it, and is refused.
_SECONDS_TO_ARRIVE = 0.2
_RUNNING = "<p role='status'>Running; to stop it, interrupt the kernel (■).</p>"
_STOPPED = "<p role='status'>Stopped; a comparison keeps the rounds that it made.</p>"


class Panel:
    """Controls for an experiment's choices, and what was measured of them.

    `run(**knobs)` measures one choice and `run_all()` compares the first six, from code
    as from the buttons. `trials` are all trials so far, `comparison` is the latest one.
    """

    def __init__(
        self,
        asked: tuple[object, object, Mapping[str, object]],
        request: measuring.Request,
        predict: Model | None,
        title: str | None,
    ) -> None:
        self.trials: list[Trial] = []
        self.comparison: Comparison | None = None
        self._asked = asked
        self._request = request
        self._shown = {"of": request.of, "within": request.within, "unit": request.unit}
        self._predict = predict
        self._title = title
        choices = list_choices(*asked)
        self._few = choices[:_MOST_CHOICES]
        self._lists = _name_lists(*asked)
        numbers = [range(len(values)) for values in self._lists.values()]
        #: Each choice by its number in each list.
        self._choices = dict(zip(itertools.product(*numbers), choices, strict=True))
        self._defaults = _find_defaults(choices[0], self._lists)
        self._x = _find_axis(self._lists, len(choices))
        #: What came of the latest run, and is shown; of one choice it has one trial.
        self._latest: Comparison | None = None
        self._is_running = False
        self._widget: Any = None
        self._prediction = self._draw_prediction()

    def run(self, **knobs: object) -> Trial:
        """Measure one choice and return its trial; what is left out is at its default.

        Raises ExperimentError for what cannot be chosen.
        """
        numbers = dict(self._defaults)
        for knob, value in knobs.items():
            number = _find(self._lists.get(knob, ()), value)
            if number is None:
                raise ExperimentError(
                    f"Panel.run(): {knob}={format_value(value)} cannot be chosen here."
                    f"\nIts choices: {self._lists}. Name it in explore({knob}=[…])."
                )
            numbers[knob] = number
        return self._measure(self._choices[tuple(numbers.values())])

    def _measure(self, choice: Choice) -> Trial:
        variant = measuring.make_variant(choice)
        request = self._request
        trial = measuring.measure_variant(
            variant, request.seconds, request.repeats, request.of
        )
        tell_listeners(trial)
        self.trials.append(trial)
        self._latest = Comparison([trial], [choice.label], **self._shown)
        return trial

    def run_all(self) -> Comparison:
        """Compare the first six choices in rounds; the first is the baseline.

        Raises ExperimentError where there is only one.
        """
        with naming("Panel.run_all()"):
            variants = measuring.make_variants(*self._asked)[:_MOST_CHOICES]
        request = self._request
        if request.seconds is not None:
            times = _RUNS_PER_CHALLENGER * (len(variants) - 1)
            request = replace(request, seconds=times * request.seconds)
        try:
            made = measuring.compare_variants(variants, request)
        except KeyboardInterrupt as interrupt:
            if hasattr(interrupt, "comparison"):
                self._keep(interrupt.comparison)
            raise
        tell_listeners(*made.trials, made)
        self._keep(made)
        return made

    def _keep(self, made: Comparison) -> None:
        self.trials += made.trials
        self.comparison = self._latest = made

    # What it shows

    def __repr__(self) -> str:
        names = dict.fromkeys(each.experiment.name for each in self._choices.values())
        return f"Panel of {', '.join(names)}: {', '.join(self._lists) or 'no choices'}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if is_static():
            # Without a kernel, a widget in a stored notebook is an error message.
            measure = self.run_all if len(self._few) > 1 else self.run
            measure()
            shown = {"text/html": self._write() + self._count_choices()}
        else:
            self._widget = self._widget or self._build()
            shown = self._widget._repr_mimebundle_()
        display({**shown, "text/plain": repr(self)}, raw=True)

    def _write(self) -> str:
        """Write what came of the latest run as HTML; before it, what is predicted."""
        made = self._latest
        if made is None:
            return self._prediction
        if len(made.trials) == 1:
            words = f"<pre>{html.escape(repr(made.baseline))}</pre>"
            return self._draw(made, None, made.labels[0]) + words
        return self._draw(made, self._x, self._title) + made._repr_html_()

    def _draw_prediction(self) -> str:
        """Draw trials without runs, with what is predicted of them."""
        if self._predict is None:
            return ""
        variants = [measuring.make_variant(choice) for choice in self._few]
        trials = [make_trial(each, complete_runs=False) for each in variants]
        labels = [choice.label for choice in self._few]
        made = Comparison(trials, labels, **self._shown)
        return self._draw(made, self._x, "Predicted")

    def _draw(self, made: Comparison, x: str | None, title: str | None) -> str:
        figure: Any = made.plot(x, self._predict, title).figure
        return figures.to_html(figure, figure.alt)

    def _count_choices(self) -> str:
        """Say how many choices Run all leaves out, if it does."""
        count = len(self._choices)
        if count <= _MOST_CHOICES:
            return ""
        return f"<p>Run all compares the first {_MOST_CHOICES} of {count} choices.</p>"

    # Its widgets

    def _build(self) -> Any:
        """Make the widgets, whose buttons call this panel."""
        import ipywidgets as widgets

        controls = [
            _make_control(name, values, self._defaults[name])
            for name, values in self._lists.items()
        ]

        def run() -> None:
            self._measure(self._choices[tuple(each.index for each in controls)])

        one = widgets.Button(description="Run", button_style="primary")
        every = widgets.Button(description="Run all")
        one.on_click(lambda _: self._press(run))
        every.on_click(lambda _: self._press(self.run_all))
        self._buttons = [one, every] if len(self._few) > 1 else [one]
        self._status = widgets.HTML(self._count_choices())
        self._output = widgets.Output()
        if page := self._write():
            bundle = {"text/html": page, "text/plain": ""}
            kind = {"output_type": "display_data", "metadata": {}}
            self._output.outputs = ({**kind, "data": bundle},)
        title = widgets.HTML(f"<b>{html.escape(self._few[0].experiment.title)}</b>")
        buttons = widgets.HBox(self._buttons)
        return widgets.VBox([title, *controls, buttons, self._status, self._output])

    def _press(self, act: Callable[[], object]) -> None:
        """Do what a button asks for, unless something runs, and wait for its end."""
        if self._is_running:
            return
        self._set_running(True)
        _call_on_main_thread(lambda: self._follow(act))
        # What was pressed meanwhile is handled first, and refused.
        loop = asyncio.get_running_loop()
        loop.call_later(_SECONDS_TO_ARRIVE, self._set_running, False)

    def _set_running(self, is_running: bool) -> None:
        self._is_running = is_running
        self._status.value = _RUNNING if is_running else self._count_choices()
        for button in self._buttons:
            button.disabled = is_running

    def _follow(self, act: Callable[[], object]) -> None:
        """Run to the end, to an error, or to an interrupt; show what came of it."""
        from IPython.display import display

        self._latest = None
        with self._output:
            self._output.clear_output(wait=True)
            said = _run_interruptibly(act)
            page = said + self._write()
            display({"text/html": page, "text/plain": ""}, raw=True)


def _call_on_main_thread(act: Callable[[], None]) -> None:
    """Call a function on the kernel's main thread, and wait for its end.

    Kernels may handle buttons on a thread of their own (a subshell), which an interrupt
    does not reach, and where the settings of cells do not count. As long as it waits,
    the panel shows what the main thread prints.
    """
    if threading.current_thread() is threading.main_thread():
        act()
        return
    from IPython import get_ipython

    async def call() -> None:
        act()

    loop = get_ipython().kernel.io_loop.asyncio_loop
    asyncio.run_coroutine_threadsafe(call(), loop).result()


def _run_interruptibly(act: Callable[[], object]) -> str:
    """Run to an end, and say how it ended, if by an interrupt or an error.

    Between cells a kernel ignores interrupts.
    """
    try:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            act()
        finally:
            signal.signal(signal.SIGINT, before)
    except KeyboardInterrupt:
        return _STOPPED
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ExperimentError) else f"{type(error).__name__}: "
        said = "\n".join([f"{kind}{error}", *getattr(error, "__notes__", [])])
        lines = "".join(traceback.format_exception(error))
        return (
            f"<pre role='alert'>{html.escape(said)}</pre><details><summary>Traceback"
            f"</summary><pre>{html.escape(lines)}</pre></details>"
        )
    return ""


# Choices and their controls


def _name_lists(
    experiment: object, on: object, knobs: Mapping[str, object]
) -> dict[str, Sequence[Any]]:
    """Return what can be chosen by its name, in the order of `list_choices`."""
    lists: dict[str, Sequence[Any]] = {}
    if isinstance(experiment, Mapping) and len(experiment) > 1:
        lists["experiment"] = [str(name) for name in experiment]
    if isinstance(on, list) and len(on) > 1:
        lists[RANKS] = [len(place or [0]) for place in on]
    for knob, values in knobs.items():
        if isinstance(values, (list, range)):
            lists[knob] = values
    return lists


def _find(values: Sequence[Any], wanted: object) -> int | None:
    """Return where a value stands: arrays cannot be compared, what they print can."""
    texts = [repr(value) for value in values]
    return texts.index(repr(wanted)) if repr(wanted) in texts else None


def _find_defaults(
    choice: Choice, lists: Mapping[str, Sequence[Any]]
) -> dict[str, int]:
    """Return where controls stand at first: at the default, or at the first choice."""
    parameters = inspect.signature(choice.experiment.own).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {
        name: _find(values, defaults.get(name)) or 0 for name, values in lists.items()
    }


def _find_axis(lists: Mapping[str, Sequence[Any]], count: int) -> str | None:
    """Return the first knob with three numbers or more, in order, for a few lines."""
    for name, values in lists.items():
        if len(values) < 3 or any(type(value) not in (int, float) for value in values):
            continue
        is_ordered = [*values] in (sorted(values), sorted(values, reverse=True))
        if is_ordered and count <= _MOST_LINES * len(values):
            return name
    return None


def _make_control(name: str, values: Sequence[Any], start: int) -> Any:
    """Make a slider for a range, buttons for few short names, a list for others."""
    import ipywidgets as widgets

    names = [each if isinstance(each, str) else format_value(each) for each in values]
    kind = widgets.Dropdown
    if isinstance(values, range):
        kind = widgets.SelectionSlider
    elif len("".join(names)) <= _MOST_LETTERS:
        kind = widgets.ToggleButtons
    control = kind(options=names, index=start, description=name)
    control.style.description_width = "initial"
    if kind is widgets.ToggleButtons:
        control.style.button_width = "auto"
    return control


def explore(
    experiment: object,
    /,
    *,
    of: str = SPEED,
    seconds: float | None = 2.0,
    repeats: int = 6,
    within: float | None = None,
    on: Any = None,
    predict: Model | None = None,
    title: str | None = None,
    unit: str | None = None,
    **choices: object,
) -> Panel:
    """Turn an experiment's knobs, measure, and look.

    Takes what `compare` takes. Each list, range, or dict of experiments has a control;
    Run measures one choice for `seconds`, Run all compares the first six, which takes
    twice as long for each beside the first. The interrupt of the kernel (■) stops a
    run. `predict` maps the choices that it has names for to a predicted quantity in the
    unit that is shown, drawn over what was measured. `title` stands above a comparison
    in place of the finding. Raises ExperimentError for what cannot be explored.

    >>> def add(*, upto=1000):
    ...     while True:
    ...         yield sum(range(upto)) and 1
    >>> explore(add, upto=[1000, 2000])
    Panel of add: upto
    """
    request = measuring.Request(of, seconds, repeats, within, unit)
    with naming("explore()"):
        request.check()
        if predict is not None and not callable(predict):
            raise ExperimentError(
                f"predict={format_value(predict)} is no function.\n"
                "Pass one of knobs, such as predict=lambda batch_size: 9 / batch_size."
            )
        return Panel((experiment, on, choices), request, predict, title)
