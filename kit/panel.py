"""`explore`: a control for each list of choices, Run, Run all, and what came of it.

What a button starts runs on the kernel's main thread, as cells do: an interrupt (■)
reaches it, and it computes with their settings. ipywidgets is imported when a panel is
shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import math
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit import figures
from kit.errors import ExperimentError, naming
from kit.figures import format_value
from kit.measuring import compare as measuring
from kit.measuring.experiment import RANKS, Choice, list_choices
from kit.measuring.records import Trial, tell_listeners
from kit.measuring.report import Comparison
from kit.measuring.run import Variant, make_trial
from kit.measuring.verdict import SPEED
from kit.mode import is_static

Model = Callable[..., float]

#: Run all measures so many choices at most: more take long, and nobody reads them.
_MOST_CHOICES = 6
#: Run all takes as long as so many Runs for each choice beside the baseline.
_RUNS_PER_CHALLENGER = 2.0
#: Names with so many letters in all fit side by side, as buttons.
_MOST_LETTERS = 40
#: The second press of a double click arrives so soon after a run, and is refused.
_SECONDS_TO_ARRIVE = 0.2
_RUNNING = "<p role='status'>Running; to stop it, interrupt the kernel (■).</p>"
_STOPPED = "<p role='status'>Stopped; {} was measured until then.</p>"


class Panel:
    """Controls for an experiment's choices, and what was measured of them."""

    def __init__(
        self,
        asked: tuple[object, object, Mapping[str, object]],
        request: measuring.Request,
        predict: Model | None,
        title: str | None,
    ) -> None:
        self._asked = asked
        self._request = request
        self._predict = predict
        self._title = title
        #: Every combination, in the order of the lists.
        self._choices = list_choices(*asked)
        self._few = self._choices[:_MOST_CHOICES]
        self._lists = _name_lists(*asked)
        #: What came of the latest run; of one choice it has one trial.
        self._latest: Comparison | None = None
        self._widget: Any = None
        self._prediction = self._draw_prediction()

    @property
    def result(self) -> Trial | Comparison | None:
        """What came of the latest run: a Trial of Run, a Comparison of Run all."""
        made = self._latest
        return made.baseline if made and len(made.trials) == 1 else made

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
            self._latest = getattr(interrupt, "comparison", None)
            raise
        tell_listeners(*made.trials, made)
        self._latest = made
        return made

    def _run(self, choice: Choice) -> None:
        """Measure one choice; whatever stops it, the runs until then are kept."""
        variant = measuring.make_variant(choice)
        request = self._request
        effort = request.seconds, request.repeats, request.of
        try:
            measuring.measure_variant(variant, *effort)
        except BaseException:
            variant.outcome = "stopped"
            made = self._put_together([variant])
            self._latest = None if math.isnan(made.show(made.baseline)[0]) else made
            raise
        self._latest = self._put_together([variant])
        tell_listeners(self._latest.baseline)

    def _put_together(self, variants: Sequence[Variant]) -> Comparison:
        request = self._request
        is_complete = request.seconds is None
        trials = [make_trial(each, complete_runs=is_complete) for each in variants]
        labels = [variant.label for variant in variants]
        return Comparison(trials, labels, request.of, request.within, request.unit)

    # What it shows

    def __repr__(self) -> str:
        names = dict.fromkeys(choice.experiment.name for choice in self._choices)
        return f"Panel of {', '.join(names)}: {', '.join(self._lists) or 'no choices'}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if is_static():
            # Without a kernel, a widget in a stored notebook is an error message.
            if len(self._few) > 1:
                self.run_all()
            else:
                self._run(self._few[0])
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
            return self._draw(made, made.labels[0]) + words
        finding = figures.html_sentence(made.sentence()) if self._title else ""
        return self._draw(made, self._title) + finding + made.html_table()

    def _draw_prediction(self) -> str:
        """Draw trials without runs, with what is predicted of them."""
        if self._predict is None:
            return ""
        variants = [measuring.make_variant(choice) for choice in self._few]
        return self._draw(self._put_together(variants), "Predicted")

    def _draw(self, made: Comparison, title: str | None) -> str:
        x = _find_axis([trial.knobs for trial in made.trials])
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

        controls = [_make_control(*each) for each in self._lists.items()]

        def run() -> None:
            number = 0
            for control in controls:
                number = number * len(control.options) + control.index
            self._run(self._choices[number])

        one = widgets.Button(description="Run", button_style="primary")
        every = widgets.Button(description="Run all")
        one.on_click(lambda _: self._press(run))
        every.on_click(lambda _: self._press(self.run_all))
        self._buttons = [one, every] if len(self._few) > 1 else [one]
        self._status = widgets.HTML(self._count_choices())
        self._output = widgets.Output()
        if page := self._write():
            data = {"text/html": page, "text/plain": ""}
            shown = {"output_type": "display_data", "data": data, "metadata": {}}
            self._output.outputs = (shown,)
        titles = dict.fromkeys(choice.experiment.title for choice in self._choices)
        title = widgets.HTML(f"<b>{html.escape(' · '.join(titles))}</b>")
        buttons = widgets.HBox(self._buttons)
        return widgets.VBox([title, *controls, buttons, self._status, self._output])

    def _press(self, act: Callable[[], object]) -> None:
        """Do what a button asks for, unless something runs, and wait for its end."""
        if self._buttons[0].disabled:
            return
        self._disable(True)
        try:
            _call_on_main_thread(lambda: self._follow(act))
        finally:
            self._status.value = self._count_choices()
            loop = asyncio.get_running_loop()
            loop.call_later(_SECONDS_TO_ARRIVE, self._disable, False)

    def _disable(self, is_running: bool) -> None:
        for button in self._buttons:
            button.disabled = is_running

    def _follow(self, act: Callable[[], object]) -> None:
        """Run to the end, to an error, or to an interrupt; show what came of it."""
        from IPython.display import display

        self._latest = None
        # Who interrupts twice still sees what was measured.
        with _on_interrupt(signal.SIG_IGN), self._output:
            self._output.clear_output(wait=True)
            said = ""
            try:
                with _on_interrupt(signal.default_int_handler):
                    self._status.value = _RUNNING  # from now on, ■ stops it
                    act()
            except KeyboardInterrupt:
                said = _STOPPED.format("this" if self._latest else "nothing")
            except (Exception, SystemExit) as error:
                said = _write_error(error)
            page = {"text/html": said + self._write(), "text/plain": ""}
            display(page, raw=True)


@contextlib.contextmanager
def _on_interrupt(handler: Any) -> Generator[None, None, None]:
    """Let interrupts do something else; between cells a kernel ignores them."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _call_on_main_thread(act: Callable[[], None]) -> None:
    """Call a function on the kernel's main thread, and wait for its end.

    Kernels may handle a button on a thread of their own (a subshell), which an
    interrupt does not reach, and where the settings of cells do not count. Which thread
    it is changes from one press to the next: ipykernel 7.4 sends a widget's messages to
    whoever has changed it last. As long as this waits, a page takes what the main
    thread prints for the panel's.
    """
    if threading.current_thread() is threading.main_thread():
        act()
        return
    from IPython import get_ipython

    async def call() -> None:
        act()

    loop = get_ipython().kernel.io_loop.asyncio_loop
    asyncio.run_coroutine_threadsafe(call(), loop).result()


def _write_error(error: BaseException) -> str:
    """Write an error with its notes as HTML; its traceback is folded."""
    kind = "" if isinstance(error, ExperimentError) else f"{type(error).__name__}: "
    said = "\n".join([f"{kind}{error}", *getattr(error, "__notes__", [])])
    lines = "".join(traceback.format_exception(error))
    return (
        f"<pre role='alert'>{html.escape(said)}</pre><details><summary>Traceback"
        f"</summary><pre>{html.escape(lines)}</pre></details>"
    )


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


def _find_axis(choices: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the first knob with three numbers or more: they are clearer as a line."""
    for knob in choices[0]:
        values = [choice.get(knob) for choice in choices]
        are_numbers = all(type(value) in (int, float) for value in values)
        if are_numbers and len({*values}) >= 3:
            return knob
    return None


def _make_control(name: str, values: Sequence[Any]) -> Any:
    """Make a slider for a range, buttons for few short names, a list for others."""
    import ipywidgets as widgets

    names = [each if isinstance(each, str) else format_value(each) for each in values]
    kind = widgets.Dropdown
    if isinstance(values, range):
        kind = widgets.SelectionSlider
    elif len("".join(names)) <= _MOST_LETTERS:
        kind = widgets.ToggleButtons
    control = kind(options=names, index=0, description=name)
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
                f"predict={format_value(predict)} is not a function.\n"
                "Pass a function of knobs: predict=lambda batch_size: 9 / batch_size."
            )
        return Panel((experiment, on, choices), request, predict, title)
