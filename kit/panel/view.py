"""A panel's controls and outputs, as widgets."""

from __future__ import annotations

import contextlib
import html
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kit.comparison.choices import is_same
from kit.figures import PANEL_STYLE
from kit.panel.choices import write_choice

if TYPE_CHECKING:
    from kit.panel.panel import Panel

_SECONDS_BETWEEN_LOOKS = 0.2
#: Choices that are so short in all stand side by side.
_LETTERS_IN_A_ROW, _MOST_BUTTONS = 22, 6
_CONTROLS_WIDTH = "236px"
_NOTHING = "Nothing has been measured yet", "Choose on the left, then press Run."
_FAILED = "The last run failed", "What it said is below. Mend it, then press Run."


class View:
    """Controls on the left, picture on the right, one status line, history below.

    Threads only set the widgets' values; nothing here prints.
    """

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        start = panel.choices.start()
        self._controls = {
            knob: _make_control(knob, values, start[knob])
            for knob, values in panel.choices.lists.items()
        }
        self._run = _button("Run", "kit-run", self._on_run)
        self._all = _button("Run all", "kit-run-all", panel.start_all)
        self._stop = _button("Stop", "kit-stop", panel.stop)
        self._clear = _button("Clear", "kit-clear", panel.clear)
        self._status, self._picture = _text("kit-status"), _text("kit-picture")
        self._summary, self._history = _text("kit-summary"), _text("kit-history")
        self._bar = widgets.FloatProgress(min=0, max=1)
        self._bar.layout = widgets.Layout(width="100%", height="6px", margin="0")
        self._bar.add_class("kit-progress")
        self._watching = threading.Lock()
        self._stored: list[Any] = []
        self._closed = False
        self._root = self._lay_out()
        for widget in (self._root, *_everything_in(self._root)):
            _route_as_asked(widget)
        self._root._view_count = 0  # from now on the front end counts
        self._root.observe(self._on_views, "_view_count")
        self.refresh()

    def _lay_out(self) -> Any:
        title = widgets.HTML(
            f"<style>{PANEL_STYLE}.{self._stored_class} {{display: none}}</style>"
            f'<div class="kit-title">{html.escape(self._panel.title)}</div>'
        )
        groups = []
        for knob, control in self._controls.items():
            label = f'<span class="kit-label">{html.escape(knob)}</span>'
            groups.append(_column([widgets.HTML(label), control], gap="3px"))
        columns = widgets.Layout(
            grid_template_columns="1fr 1fr", grid_gap="8px", width="100%"
        )
        buttons = widgets.GridBox(
            [self._run, self._all, self._stop, self._clear], layout=columns
        )
        left = _column([*groups, buttons], gap="14px", width=_CONTROLS_WIDTH)
        left.layout.flex = f"0 0 {_CONTROLS_WIDTH}"
        right = _column([self._picture, self._summary], gap="4px", width="auto")
        right.layout.flex, right.layout.min_width = "1 1 300px", "0"
        upper = widgets.HBox([left, right])
        upper.layout = widgets.Layout(flex_flow="row wrap", grid_gap="8px 20px")
        rows = [title, upper, self._bar, self._status, self._history]
        root = _column(rows, gap="10px")
        root.add_class("kit-panel")
        return root

    @property
    def _stored_class(self) -> str:
        return f"kit-stored-{id(self._panel)}"

    def _on_run(self) -> None:
        self._panel.start_run({k: c.value for k, c in self._controls.items()})

    def _on_views(self, change: Any) -> None:
        if change["old"] and change["new"] == 0:
            self._panel.stop()

    def display(self) -> None:
        """Show the controls, and what is kept where these cannot be shown again.

        While the controls are alive, their style hides the latter.
        """
        from IPython.display import display

        bundle = self._root._repr_mimebundle_()
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        display({**data, "text/plain": repr(self._panel)}, raw=True)
        kept = display(self._static(), raw=True, display_id=True)
        self._stored += [kept] if kept is not None else []

    def _static(self) -> dict[str, str]:
        kept = self._stored_class
        # Opened again without a kernel, the controls above are an error message.
        dead = f".jp-OutputArea-child:not(:has(.kit-panel)):has(+ * .{kept})"
        style = f"<style>{dead} {{display: none}}</style>"
        static = self._panel.results.static()
        body = f'{style}<div class="{kept}">{static}</div>' if static else ""
        return {"text/plain": self._panel.results.summary(), "text/html": body}

    def refresh(self) -> None:
        """Show the panel's present state; while it runs, go on showing progress."""
        driver = self._panel.driver
        if self._closed:
            return
        running = driver.running
        for button in (self._run, self._all, self._clear):
            button.disabled = running
        if len(self._panel.choices.points()) < 2:
            self._all.disabled = True
        self._stop.disabled = not running
        if not running:
            self._show_result()
            return
        self._show_progress()
        if not driver.blocking:
            threading.Thread(target=self._watch, daemon=True).start()

    def _show_result(self) -> None:
        results = self._panel.results
        self._bar.value = 0
        self.show_picture(results.picture())
        told = [results.summary() if results.trials else "", results.remark()]
        lines = [f'<div class="kit-muted">{html.escape(line)}</div>' for line in told]
        self._summary.value = "".join(lines)
        self._history.value = results.history()
        self._status.value = (
            _write_error(results.error, results.traceback)
            if results.error
            else f'<div role="status">{html.escape(self._ready())}</div>'
        )
        static = self._static() if self._stored else {}
        for kept in self._stored:
            with contextlib.suppress(Exception):  # a front end that is gone
                kept.update(static, raw=True)

    def _ready(self) -> str:
        seconds, points = self._panel.seconds_for_all, self._panel.choices.points()
        if len(points) < 2:
            return "Ready."
        long = f", about {round(seconds)} s" if seconds else ""
        return f"Ready. Run all compares {len(points)} choices{long}."

    def show_picture(self, picture: str) -> None:
        """Show this picture, or what to do where there is none."""
        first, second = _FAILED if self._panel.results.error else _NOTHING
        self._picture.value = picture or (
            f'<div class="kit-placeholder"><b>{first}</b><span>{second}</span></div>'
        )

    def _watch(self) -> None:
        if not self._watching.acquire(blocking=False):
            return
        try:
            pause = threading.Event()
            while self._panel.driver.running:
                self._show_progress()
                pause.wait(_SECONDS_BETWEEN_LOOKS)
        finally:
            self._watching.release()

    def _show_progress(self) -> None:
        progress = self._panel.driver.progress
        if progress is not None:
            # Not announced: a screen reader would read it five times a second.
            text = html.escape(self._panel.driver.tell())
            self._status.value = f"<div>{text}</div>"
            self._bar.value = progress.fraction

    def close(self) -> None:
        """Take the controls out of service; the picture and the table stay."""
        self._closed = True
        with contextlib.suppress(Exception):  # a front end that is gone
            for widget in (self._run, self._all, self._stop, self._clear):
                widget.disabled = True
            self._bar.value = 0
            self._status.value = (
                '<div role="status">This panel has ended; run its cell again.</div>'
            )


def _everything_in(widget: Any) -> Iterator[Any]:
    for child in getattr(widget, "children", ()):
        yield child
        yield from _everything_in(child)


def _route_as_asked(widget: Any) -> None:
    """Let messages of a widget go where the front end sends them.

    ipykernel 7 sends them to the shell that last spoke to the widget: a button that has
    not been pressed before would wait until the running cell has ended, and controls
    would overtake each other.
    """
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda data, default: default


def _button(text: str, name: str, act: Callable[[], None]) -> Any:
    button = widgets.Button(description=text)
    button.layout = widgets.Layout(width="auto", margin="0")
    button.add_class(name)
    button.on_click(lambda _: act())
    return button


def _make_control(knob: str, values: list[Any], start: Any) -> Any:
    """Make buttons for few short choices, a slider for numbers, a list for others."""
    names = list(map(write_choice, values))
    more: dict[str, Any] = {
        "options": list(zip(names, values, strict=True)),
        "index": next(i for i, value in enumerate(values) if is_same(value, start)),
        "equals": is_same,  # arrays cannot be compared as others can
        "layout": widgets.Layout(width="100%", margin="0"),
    }
    numbers = all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
    )
    few = len(names) <= _MOST_BUTTONS and sum(map(len, names)) <= _LETTERS_IN_A_ROW
    control: Any
    if few:
        control = widgets.ToggleButtons(
            **more,
            style={"button_width": "auto"},
            tooltips=[f"{knob}={name}" for name in names],
        )
    elif numbers:
        control = widgets.SelectionSlider(**more, tooltip=knob, continuous_update=True)
    else:
        control = widgets.Dropdown(**more, tooltip=knob)
    control.add_class(f"kit-knob-{knob}")
    return control


def _text(name: str) -> Any:
    widget = widgets.HTML(layout=widgets.Layout(margin="0", width="100%"))
    widget.add_class(name)
    return widget


def _column(children: list[Any], *, gap: str, width: str = "100%") -> Any:
    return widgets.VBox(children, layout=widgets.Layout(grid_gap=gap, width=width))


def _write_error(error: str, traceback: str) -> str:
    lines = html.escape(traceback)
    return (
        f'<div role="alert" class="kit-failed">{html.escape(error)}</div>'
        f"<details><summary>Traceback</summary><pre>{lines}</pre></details>"
    )
