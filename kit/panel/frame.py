"""What the views of panels that measure share: Stop, progress, a watch on the run."""

from __future__ import annotations

import contextlib
import html
import threading
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kit.panel.controls import make_button
from kit.panel.face import Face

if TYPE_CHECKING:
    from kit.panel.panel import Panel

_SECONDS_BETWEEN_LOOKS = 0.2


class Frame(Face):
    """A face with a progress bar, of a panel whose buttons start and stop runs.

    A view names in `_starters` the controls that wait while a run is under way.
    """

    def __init__(self, panel: Panel) -> None:
        super().__init__(panel)
        self._framed: Panel = panel
        self._stop = make_button("Stop", "kit-stop", panel.stop)
        self._bar = widgets.FloatProgress(min=0, max=1)
        self._bar.layout = widgets.Layout(width="100%", height="6px", margin="0")
        self._bar.add_class("kit-progress")
        self._watching = threading.Lock()

    def _enclose(
        self, controls: list[Any], beside: list[Any], below: list[Any]
    ) -> None:
        super()._enclose(controls, beside, below)
        self._root.observe(self._on_views, "_view_count")

    def _list_rows(self) -> list[Any]:
        return [self._bar, self._status]

    def _on_views(self, change: Any) -> None:
        if change["old"] and change["new"] == 0:
            self._framed.stop()

    def refresh(self) -> None:
        """Show the panel's present state; while it runs, go on showing progress."""
        driver = self._framed.driver
        if self._closed:
            return
        running = driver.running
        for control in self._starters:
            control.disabled = running
        self._stop.disabled = not running
        if not running:
            self._bar.value = 0
            self._show_result()
            return
        self._show_progress()
        if not driver.blocking:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        if not self._watching.acquire(blocking=False):
            return
        try:
            pause = threading.Event()
            while self._framed.driver.running:
                self._show_progress()
                pause.wait(_SECONDS_BETWEEN_LOOKS)
        finally:
            self._watching.release()

    def _show_progress(self) -> None:
        progress = self._framed.driver.progress
        if progress is not None and not (self._closed or progress.hushed):
            # Not announced: a screen reader would read it five times a second.
            text = html.escape(self._framed.driver.tell())
            self._status.value = f"<div>{text}</div>"
            self._bar.value = progress.fraction

    def close(self) -> None:
        """Take the controls out of service; the picture and the table stay."""
        super().close()
        with contextlib.suppress(Exception):  # a front end that is gone
            self._stop.disabled = True
            self._bar.value = 0
