"""A panel's controls and outputs, as widgets."""

from __future__ import annotations

import contextlib
import html
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kit import figures
from kit.figures import format_value

if TYPE_CHECKING:
    from kit.panel.panel import Panel

_SECONDS_BETWEEN_LOOKS = 0.15
#: Choices of so few letters in all stand side by side, others in a list.
_LETTERS_IN_A_ROW = 18


class View:
    """Controls on the left, picture on the right, one status line, history below.

    Threads only set the widgets' values; nothing here prints.
    """

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._controls = {
            knob: _make_control(knob, values, panel.choices.start()[knob])
            for knob, values in panel.choices.lists.items()
        }
        self._run = self._button("Run", "kit-run", self._on_run, "primary")
        self._all = self._button("Run all", "kit-run-all", panel.start_all)
        self._stop = self._button("Stop", "kit-stop", panel.stop)
        self._clear = self._button("Clear", "kit-clear", panel.clear)
        self._status, self._picture = _text("kit-status"), _text("kit-picture")
        self._summary, self._history = _text("kit-summary"), _text("kit-history")
        self._bar = widgets.FloatProgress(
            min=0, max=1, layout=widgets.Layout(width="100%", height="6px")
        )
        self._bar.add_class("kit-progress")
        self._busy = threading.Event()
        self._watching = threading.Lock()
        self.root = self._lay_out()
        self.refresh()

    def _lay_out(self) -> Any:
        labelled = []
        for knob, control in self._controls.items():
            label = widgets.HTML(f"<b>{html.escape(knob)}</b>")
            labelled.append(_column([label, control], gap="2px"))
        buttons = widgets.GridBox(
            [self._run, self._all, self._stop, self._clear],
            layout=widgets.Layout(
                grid_template_columns="1fr 1fr", grid_gap="6px", width="100%"
            ),
        )
        left = _column([*labelled, buttons], gap="14px", width="240px")
        left.layout.flex = "0 0 auto"
        right = _column([self._picture, self._summary], gap="6px", width="auto")
        right.layout.flex = "1 1 420px"
        right.layout.min_width = "0"
        upper = widgets.HBox(
            [left, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="24px")
        )
        rows = [upper, self._status, self._bar, self._history]
        root = _column(rows, gap="8px", width="100%")
        root.layout.padding = "8px 0"
        root.add_class("kit-panel")
        return root

    def _button(
        self, text: str, name: str, act: Callable[[], None], style: str = ""
    ) -> Any:
        button = widgets.Button(
            description=text,
            button_style=style,
            layout=widgets.Layout(width="auto", margin="0"),
        )
        button.add_class(name)
        button.on_click(lambda _: act())
        return button

    def _on_run(self) -> None:
        point = {knob: control.value for knob, control in self._controls.items()}
        self._panel.start_run(point)

    def refresh(self) -> None:
        """Show the panel's present state; while it runs, go on showing progress."""
        panel = self._panel
        running = panel.driver.running
        for button in (self._run, self._all, self._clear):
            button.disabled = running
        self._all.disabled = running or len(panel.choices.points()) < 2
        self._stop.disabled = not running
        if running:
            self._show_progress()
            if not panel.driver.blocking:
                threading.Thread(target=self._watch, daemon=True).start()
            return
        self._bar.value = 0
        self._picture.value = panel.picture() or _placeholder()
        self._summary.value = f"<p>{html.escape(panel.summary())}</p>"
        self._history.value = panel.history()
        error = panel.error
        self._status.value = _status(error or "Ready.", failed=bool(error))

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
            self._status.value = _status(progress.text())
            self._bar.value = progress.fraction

    def mimebundle(self, text: str, **options: Any) -> Any:
        """Return what a front end with widgets shows, and a constant text."""
        bundle = self.root._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/plain"] = text
        return bundle

    def close(self) -> None:
        """Take the controls away; the picture and the table stay."""
        with contextlib.suppress(Exception):
            for widget in (self._run, self._all, self._stop, self._clear):
                widget.disabled = True
            self._status.value = _status("This panel has ended; run its cell again.")


def _make_control(knob: str, values: list[Any], start: Any) -> Any:
    options = [(format_value(value).strip("'"), value) for value in values]
    index = values.index(start)
    numbers = all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
    )
    letters = sum(len(label) for label, _ in options) + 2 * len(options)
    layout = widgets.Layout(width="100%", margin="0")
    more = {"options": options, "index": index, "layout": layout, "tooltip": knob}
    if letters <= _LETTERS_IN_A_ROW:
        control = widgets.ToggleButtons(
            options=options,
            index=index,
            layout=layout,
            style={"button_width": f"{max(36, 200 // len(options) - 8)}px"},
            tooltips=[f"{knob}={label}" for label, _ in options],
        )
    elif numbers:
        control = widgets.SelectionSlider(**more)
    else:
        control = widgets.Dropdown(**more)
    control.add_class(f"kit-knob-{knob}")
    return control


def _text(name: str) -> Any:
    widget = widgets.HTML(layout=widgets.Layout(margin="0", width="100%"))
    widget.add_class(name)
    return widget


def _column(children: list[Any], *, gap: str, width: str = "100%") -> Any:
    return widgets.VBox(children, layout=widgets.Layout(grid_gap=gap, width=width))


def _status(text: str, *, failed: bool = False) -> str:
    role = "alert" if failed else "status"
    lines = "<br>".join(html.escape(line) for line in text.splitlines())
    return f'<div role="{role}" aria-live="polite">{lines}</div>'


def _placeholder() -> str:
    return figures.html_sentence(
        "Nothing has been measured yet.", "Choose on the left, then press Run."
    )
