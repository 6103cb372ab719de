"""What a gallery has found: verdicts beside guesses, in words, pictures and a table."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from kit import figures
from kit.diagnosis import Diagnosis
from kit.diagnosis.causes import write_saving
from kit.experiment import ExperimentError
from kit.panel.failures import describe_error, describe_traceback
from kit.teaching import FAILS, HOLDS

#: The guess that there is no cause to find.
NOTHING = "nothing"
#: What a reader may guess, and what it may turn out to be.
CAUSES = {
    "input": "waiting for data",
    "transfer": "copies to the device",
    "python": "Python beside the training",
    "overhead": "many tiny operations",
    "sync": "waiting for the device",
    "optimizer": "updating the parameters",
    "threads": "threads that do not fit the cores",
    "communication": "waiting for other ranks",
    "memory": "reading and writing memory",
    "compute": "useful arithmetic",
    NOTHING: "nothing to repair",
}
_MOST_ROWS = 12


@dataclass(frozen=True)
class Finding:
    """One line of the history: a loop, what was guessed, and what came of it.

    Without a `verdict` no cause is sure, unless a `failure` says why there is no
    diagnosis.
    """

    loop: str
    guess: str | None
    verdict: str | None = None
    saving: str = "–"
    failure: str = ""

    @property
    def is_right(self) -> bool | None:
        """Whether the guess was right; None where that cannot be said.

        Useful arithmetic is nothing to repair.
        """
        if self.guess is None or self.verdict is None:
            return None
        return self.verdict == ("compute" if self.guess == NOTHING else self.guess)

    @property
    def mark(self) -> str:
        """The sign of a right or a wrong guess, empty for others."""
        return {True: HOLDS, False: FAILS, None: ""}[self.is_right]

    @property
    def found(self) -> str:
        """What was found, in a few words."""
        return self.failure or CAUSES.get(self.verdict or "", "no sure cause")

    def sentence(self) -> str:
        """Return guess and verdict, as one sentence."""
        if self.guess is None:
            return f"Found: {self.found}."
        guessed = f"{self.mark} You guessed {CAUSES[self.guess]}".strip()
        if self.guess == self.verdict:
            return f"{guessed}, and so it is."
        return f"{guessed}; {'it is' if self.verdict else 'there is'} {self.found}."


class Findings:
    """The latest diagnosis of each loop, the history, the latest error."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._history: list[Finding] = []
        self._pictures: dict[str, str] = {}
        self.diagnoses: dict[str, Diagnosis] = {}
        self.exception: Exception | None = None

    def add(self, name: str, guess: str | None, found: Diagnosis) -> None:
        """Keep a diagnosis of one loop."""
        ratio = found.savings.get(found.verdict or "")
        saving = write_saving(ratio) if ratio else "–"
        self.exception, self.diagnoses[name] = None, found
        self._pictures.pop(name, None)
        self._history.append(Finding(name, guess, found.verdict, saving))

    def stop(self, name: str, guess: str | None) -> None:
        """Keep that a diagnosis was stopped; an earlier one of the loop stays."""
        self.exception = None
        self._history.append(Finding(name, guess, failure="stopped"))

    def fail(self, name: str, guess: str | None, error: Exception) -> None:
        """Keep an error in place of an earlier diagnosis of the loop."""
        self.exception = error
        self.diagnoses.pop(name, None)
        first_line = self.error.partition("\n")[0]
        self._history.append(Finding(name, guess, failure=first_line))

    @property
    def error(self) -> str:
        """What went wrong in the latest run, or nothing."""
        return describe_error(self.exception)

    @property
    def traceback(self) -> str:
        """Where it went wrong, in the reader's own code."""
        return describe_traceback(self.exception)

    def last(self, name: str) -> Diagnosis:
        """Return what the latest run found; raise why it found nothing."""
        if self.exception is not None:
            raise self.exception
        if self._history[-1].failure:
            raise ExperimentError(
                f"Gallery.run: the diagnosis of {name} was stopped before its end.\n"
                "Call it again, and let it end."
            )
        return self.diagnoses[name]

    def told(self, name: str) -> list[str]:
        """Return guess and verdict, then what the picture's title does not tell."""
        if name not in self.diagnoses:
            return []
        found = self.diagnoses[name]
        mine = [f for f in self._history if f.loop == name and not f.failure]
        more = "" if found.verdict else f"{found.sentence()}."
        return [mine[-1].sentence(), *filter(None, [more])]

    def picture(self, name: str) -> str:
        """Return the picture of a loop's step as HTML; empty without a diagnosis."""
        if name not in self.diagnoses:
            return ""
        if name not in self._pictures:
            drawn = figures.show(self.diagnoses[name].plot())
            self._pictures[name] = figures.to_html(drawn.figure, drawn.alt)
        return self._pictures[name]

    def advice(self, name: str) -> str:
        """Return what to do about a loop, as HTML; empty where there is no advice."""
        found = self.diagnoses.get(name)
        if found is None or found.advice is None:
            return ""
        told = html.escape(f"{found.advice.sentence} Chapter {found.advice.chapter}.")
        code = html.escape(found.advice.code)
        return f"<div>{told}</div><div>Try <code>{code}</code></div>"

    def summary(self) -> str:
        """Return the newest result in words."""
        if not self._history:
            return "Nothing has been diagnosed yet"
        newest = self._history[-1]
        return f"{newest.loop}: {newest.failure or newest.sentence()}"

    def history(self) -> str:
        """Return the history as an HTML table, the newest first; empty without any."""
        if not self._history:
            return ""
        rows = []
        numbered = list(enumerate(self._history, 1))
        for number, row in reversed(numbered[-_MOST_ROWS:]):
            guess = CAUSES[row.guess] if row.guess else "no guess"
            cells = (row.loop, guess, row.found, row.saving, row.mark)
            rows.append((str(number), *cells))
        judged = [f.is_right for f in self._history if f.is_right is not None]
        told = [f"{sum(judged)} of {len(judged)} guesses were right."] * bool(judged)
        earlier = len(self._history) - len(rows)
        told += [f"And {earlier} earlier."] * bool(earlier)
        headers = ("", "loop", "your guess", "found", "removing it saves", "")
        title = "Diagnosed so far, the newest first"
        return figures.html_table(headers, rows, title=title, note=" ".join(told))

    def invitation(self) -> str:
        """Return, as HTML, which loops there are, and what to do with them."""
        names = ", ".join(self._names)
        return figures.html_sentence(
            f"{len(self._names)} training loops: {names}",
            "Run this cell in JupyterLab: read a loop, guess what takes its time, and "
            "press Diagnose.",
        )

    def static(self) -> str:
        """Return what needs no controls: the invitation and the history, as HTML."""
        return self.invitation() + self.history()
