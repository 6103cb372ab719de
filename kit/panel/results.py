"""What a panel has measured, and how it is told."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kit import figures
from kit.comparison import Comparison
from kit.panel.choices import Choices
from kit.panel.drawing import Drawing, Entry, latest
from kit.panel.failures import describe_error, describe_traceback
from kit.trial import Trial


class Results:
    """Trials by point, the latest comparison of all, the latest error."""

    def __init__(self, choices: Choices, drawing: Drawing) -> None:
        self._choices, self._drawing = choices, drawing
        #: Which point a comparison's label means.
        self.points_by_label: dict[str, dict[str, Any]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self._entries: list[Entry] = []
        self._drawing.compared.clear()
        self.compared: Comparison | None = None
        self.exception: Exception | None = None

    @property
    def trials(self) -> list[Trial]:
        """All trials, the newest last."""
        return [entry.trial for entry in self._entries if entry.trial is not None]

    def add(self, point: Mapping[str, Any], trial: Trial) -> None:
        """Keep what was measured of one point."""
        self.compared, self.exception = None, None
        self._entries.append(Entry(self._choices.label(point), point, trial))

    def add_all(self, points: Sequence[Mapping[str, Any]], made: Comparison) -> None:
        """Keep a comparison of all points."""
        self.compared, self.exception = made, None
        ratios = [None, *made.ratios.values()]
        for point, trial, ratio in zip(points, made.trials, ratios, strict=True):
            verdict = ratio.verdict if ratio else "baseline"
            if ratio and not math.isnan(ratio.value):
                verdict = f"{ratio} {verdict}"
            label = self._choices.label(point)
            self._drawing.compared[id(trial)] = made.quantity(trial)
            self._entries.append(Entry(label, point, trial, verdict))

    def fail(self, point: Mapping[str, Any] | None, error: Exception) -> None:
        """Keep an error in place of the old result; without a point, of all results."""
        self.compared, self.exception = None, error
        label = "all" if point is None else self._choices.label(point)
        first_line = self.error.partition("\n")[0]
        self._entries.append(Entry(label, point, error=first_line))

    @property
    def error(self) -> str:
        """What went wrong in the latest run, or nothing."""
        return describe_error(self.exception)

    @property
    def traceback(self) -> str:
        """Where it went wrong, in the reader's own code."""
        return describe_traceback(self.exception)

    def raise_error(self) -> None:
        """Raise what went wrong in the latest run, with its cause."""
        if self.exception is not None:
            raise self.exception

    def summary(self) -> str:
        """Return in words what the picture shows."""
        said = self.compared.sentence() if self.compared else ""
        return said or self._drawing.summarise(self._entries)

    def remark(self) -> str:
        """Return what a reader should know about the results beside each other."""
        told = self.compared.remarks() if self.compared else []
        if self.compared is None and len(latest(self._entries)) > 1:
            told.append(
                "Measured one after another, so a small difference may be the "
                "machine's: Run all compares by turns."
            )
        return " ".join([*told, *filter(None, [self._drawing.complain(self._entries)])])

    def picture(self, partial: Mapping[str, Trial] | None = None) -> str:
        """Return the picture as an HTML image with alt text, empty without results.

        `partial` are a comparison's results so far, by label.
        """
        entries, title = self._entries, self.summary()
        if self.compared:
            title = self.compared.headline()
        if partial:
            points = self.points_by_label
            entries = [Entry(label, points[label], t) for label, t in partial.items()]
            title = f"So far, of {len(points)} choices"
        elif not self.trials:
            title = "Predicted or recorded; press Run to measure here"
        if self._drawing.is_empty(entries):
            return ""
        baseline = self.compared is not None or bool(partial)
        figure = self._drawing.draw(entries, title, baseline)
        return figures.to_html(figure, figures.show(figure).alt)

    def history(self) -> str:
        """Return the history as an HTML table, empty without any."""
        return self._drawing.history(self._entries) if self._entries else ""

    def static(self) -> str:
        """Return picture, words and table as HTML that needs nothing else."""
        if not self._entries:
            return ""
        error = f"<pre>{html.escape(self.error)}</pre>" if self.error else ""
        words = html.escape(self._words())
        return f"{self.picture()}{error}<p>{words}</p>{self.history()}"

    def _words(self) -> str:
        return ". ".join(filter(None, (self.summary(), self.remark())))
