"""A gallery's controls and outputs, as widgets."""

from __future__ import annotations

import html
import inspect
from typing import TYPE_CHECKING

import ipywidgets as widgets

from kit.experiment import Experiment, inner_function
from kit.panel.controls import (
    label_control,
    make_button,
    make_control,
    make_grid,
    make_text,
)
from kit.panel.findings import CAUSES
from kit.panel.frame import Frame

if TYPE_CHECKING:
    from kit.panel.gallery import Gallery

_NO_GUESS = ""


class GalleryView(Frame):
    """Which loop, and what may be its cause; beside them its code, below what it is."""

    def __init__(self, gallery: Gallery) -> None:
        super().__init__(gallery)
        self._gallery = gallery
        names = list(gallery.loops)
        self._loop = make_control("loop", names, names[0])
        self._guess = widgets.Select(
            options=[("no guess", _NO_GUESS), *((w, c) for c, w in CAUSES.items())],
            rows=len(CAUSES) + 1,
            description="your guess",
            layout=widgets.Layout(width="100%", margin="0"),
        )
        self._guess.add_class("kit-guess")
        self._loop.observe(self._on_loop, "value")
        run = make_button("Diagnose", "kit-run", self._on_run)
        self._starters = [run]
        self._source, self._summary = make_text("kit-source"), make_text("kit-summary")
        self._picture, self._advice = make_text("kit-picture"), make_text("kit-advice")
        controls = [label_control("loop", self._loop), self._guess]
        self._enclose(
            [*controls, make_grid([run, self._stop])],
            [self._source],
            [self._summary, self._picture, self._advice],
        )
        self._root.add_class("kit-gallery")

    def _on_run(self) -> None:
        self._gallery.start(self._loop.value, self._guess.value or None)

    def _on_loop(self, change: object) -> None:
        self._guess.value = _NO_GUESS  # what was guessed of another loop
        self._show_findings()

    def _show_findings(self) -> None:
        name, results = self._loop.value, self._gallery.results
        code = html.escape(read_source(self._gallery.loops[name]))
        label = html.escape(f"source of loop {name}")
        self._source.value = (
            f'<pre tabindex="0" role="region" aria-label="{label}">{code}</pre>'
        )
        told = [html.escape(line) for line in results.told(name)]
        lines = "".join(f"<div>{line}</div>" for line in told)
        self._summary.value = f'<div role="status">{lines}</div>' if told else ""
        self._picture.value = results.picture(name)
        self._advice.value = results.advice(name)

    def _say_ready(self) -> str:
        seconds = self._gallery.seconds
        return f"Ready. A diagnosis takes about {seconds:g} s."


def read_source(experiment: Experiment) -> str:
    """Return the code of an experiment, or that it cannot be read."""
    function = inner_function(experiment.function)
    try:
        return inspect.getsource(function) if function else ""
    except (OSError, TypeError):
        return f"# The code of {experiment.name} cannot be read."
