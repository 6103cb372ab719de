"""A panel's controls and outputs, as widgets."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from kit.panel.controls import (
    label_control,
    make_button,
    make_control,
    make_grid,
    make_text,
)
from kit.panel.frame import Frame

if TYPE_CHECKING:
    from kit.panel.panel import Panel

_NOTHING = "Nothing has been measured yet", "Choose on the left, then press Run."
_FAILED = "The last run failed", "What it said is below. Mend it, then press Run."


class View(Frame):
    """A control for each choice, and beside them the picture."""

    def __init__(self, panel: Panel) -> None:
        super().__init__(panel)
        self._panel = panel
        start = panel.choices.start()
        self._controls = {
            knob: make_control(knob, values, start[knob])
            for knob, values in panel.choices.lists.items()
        }
        run = make_button("Run", "kit-run", self._on_run)
        run_all = make_button("Run all", "kit-run-all", panel.start_all)
        clear = make_button("Clear", "kit-clear", panel.clear)
        several = len(panel.choices.points()) > 1
        run_all.disabled = not several
        self._starters = [run, clear, *[run_all] * several]
        self._picture, self._summary = (
            make_text("kit-picture"),
            make_text("kit-summary"),
        )
        groups = [label_control(*group) for group in self._controls.items()]
        buttons = make_grid([run, run_all, self._stop, clear])
        self._enclose([*groups, buttons], [self._picture, self._summary], [])

    def _on_run(self) -> None:
        self._panel.start_run({k: c.value for k, c in self._controls.items()})

    def _show_findings(self) -> None:
        results = self._panel.results
        self.show_picture(results.picture())
        told = [results.summary() if results.trials else "", results.remark()]
        lines = [f'<div class="kit-muted">{html.escape(line)}</div>' for line in told]
        self._summary.value = "".join(lines)

    def _say_ready(self) -> str:
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
