"""Guesses, claims and exercise checks: what makes a notebook answer back."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kit import data, figures
from kit.clock.log import smoke
from kit.comparison import Comparison, Ratio
from kit.trial import JOURNAL

HOLDS, FAILS, OPEN = "✓", "✗", "?"
_EXPECTATIONS = ("faster", "slower", "more", "less", "same")
#: Off by at most this factor: so many points.
_POINTS = ((1.1, 3), (1.5, 2), (2.0, 1))


@dataclass(frozen=True)
class Claim:
    """A sentence tied to a measurement: ✓ it holds, ✗ it does not, ? cannot tell."""

    sentence: str
    ratio: Ratio = field(repr=False)
    expect: str = "faster"
    at_least: float | None = None
    otherwise: str = ""
    judged: bool = True

    @property
    def verdict(self) -> str:
        """Return ✓, ✗ or ?.

        ✓ needs the expected verdict and, with `at_least`, the whole interval beyond
        it. ✗ needs another verdict, or the whole interval short of `at_least`.
        """
        ratio = self.ratio
        if not self.judged or ratio.verdict == "cannot tell":
            return OPEN
        if ratio.verdict != self.expect:
            return FAILS
        if self.at_least is None:
            return HOLDS
        low, high = self._size()
        return (
            HOLDS if low >= self.at_least else FAILS if high < self.at_least else OPEN
        )

    def _size(self) -> tuple[float, float]:
        """Return the interval of how large the effect is, whichever its direction."""
        low, high = self.ratio.low, self.ratio.high
        if self.expect in ("faster", "more", "same"):
            return low, high
        return (1 / high, 1 / low) if self.ratio.unit == "×" else (-high, -low)

    def explanation(self) -> str:
        """Return what was measured, and what it means where the claim fails."""
        if not self.judged:
            return "A smoke run: judged on recordings only."
        bar = f", at least {self.at_least:g}" if self.at_least is not None else ""
        measured = (
            f"Expected {self.expect}{bar}; here {self.ratio.verdict}, {self.ratio}."
        )
        if self.verdict == OPEN and self.ratio.reason:
            reason = self.ratio.reason
            return f"{measured} {reason[0].upper()}{reason[1:]}."
        return f"{measured} {self.otherwise}" if self.verdict == FAILS else measured

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that a recording keeps: all but the measurement."""
        fields = asdict(self)
        del fields["ratio"], fields["judged"]
        return fields

    def __repr__(self) -> str:
        return f"{self.verdict} {self.sentence}\n  {self.explanation()}".rstrip()

    def _repr_html_(self) -> str:
        return figures.html_sentence(
            f"{self.verdict} {self.sentence}", self.explanation().strip()
        )


def claim(
    sentence: str,
    ratio: Ratio | Comparison,
    *,
    expect: str = "faster",
    at_least: float | None = None,
    otherwise: str = "Here it does not hold; the chapter says when that happens.",
) -> Claim:
    """Tie a sentence to a measured ratio; show whether it holds here.

    `expect` is the verdict, `at_least` how large the effect must be (a factor of 1 or
    more, or a difference). `otherwise` says what it means where the claim fails.

    >>> from kit.comparison import Ratio
    >>> claim("It helps.", Ratio(2.0, 1.9, 2.1, "faster"), at_least=1.5).verdict
    '✓'
    """
    if expect not in _EXPECTATIONS:
        raise ValueError(
            f"claim(): expect={expect!r} is no verdict; it is one of "
            f"{', '.join(_EXPECTATIONS)}."
        )
    if isinstance(ratio, Comparison):
        ratio = ratio.ratio
    if not isinstance(ratio, Ratio):
        raise TypeError(
            f"claim(): {figures.format_value(ratio, 60)} is not a Ratio.\n"
            "Pass comparison.ratio, or comparison.ratios[label] of one challenger."
        )
    made = Claim(sentence, ratio, expect, at_least, otherwise, judged=not smoke())
    JOURNAL.append(made)
    return made


@dataclass(frozen=True)
class Guess:
    """What the reader expects before measuring."""

    question: str
    answer: float | None
    unit: str = "×"

    def check(self, result: object) -> GuessCheck:
        """Compare the guess with a Comparison, a Ratio, or a number.

        The first check of a question is scored: 3 points within 10 %, 2 within a
        factor of 1.5, 1 within a factor of 2. The score is kept over the series.
        """
        if isinstance(result, Comparison):
            result = result.ratio
        measured = result.value if isinstance(result, Ratio) else float(result)  # type: ignore[arg-type]
        if self.answer is None:
            return GuessCheck(self, measured, None, *_total(_read_scores()))
        factor = _factor(self.answer, measured)
        scores = _read_scores()
        if not smoke() and self.question not in scores and not math.isnan(factor):
            points = next((p for limit, p in _POINTS if factor <= limit), 0)
            scores[self.question] = points
            _write_scores(scores)
        return GuessCheck(self, measured, factor, *_total(scores))

    def __repr__(self) -> str:
        if self.answer is None:
            return f"{self.question}\n  No guess yet: put a number into answer=…"
        return f"{self.question}\n  Your guess: {self.answer:g} {self.unit}"

    def _repr_html_(self) -> str:
        question, _, rest = repr(self).partition("\n")
        return figures.html_sentence(question, rest.strip())


@dataclass(frozen=True)
class GuessCheck:
    """A guess beside what was measured, and the score so far."""

    guess: Guess
    measured: float
    factor: float | None
    points: int
    guesses: int

    def __repr__(self) -> str:
        unit = self.guess.unit
        measured = f"Measured: {self.measured:.3g} {unit}."
        if self.factor is None:
            return f"{measured} You made no guess."
        off = "nothing to compare" if math.isnan(self.factor) else f"{self.factor:.2f}"
        return (
            f"{measured} You guessed {self.guess.answer:g} {unit}, off by a factor of "
            f"{off}. Your score: {self.points} of {3 * self.guesses} points."
        )

    def _repr_html_(self) -> str:
        first, _, rest = repr(self).partition(". ")
        return figures.html_sentence(f"{first}.", rest)


def guess(question: str, answer: float | None = None, *, unit: str = "×") -> Guess:
    """Keep the reader's number, to be checked after measuring.

    >>> guess("How many times as fast?", answer=2)
    How many times as fast?
      Your guess: 2 ×
    """
    number = isinstance(answer, (int, float)) and not isinstance(answer, bool)
    if answer is not None and not (number and math.isfinite(answer)):
        raise ValueError(
            f"guess(): answer={figures.format_value(answer)} is not a number.\n"
            "Put a number there, as in answer=1.5, or None for no guess."
        )
    return Guess(question, answer, unit)


def _factor(a: float, b: float) -> float:
    """Return by which factor two numbers differ, 1 or more; nan where undefined."""
    if a == b:
        return 1.0
    if not (a * b > 0) or math.isnan(a * b):
        return math.nan
    return max(a / b, b / a)


def _score_path() -> Path:
    return data.cache_folder() / "guesses.json"


def _read_scores() -> dict[str, int]:
    with contextlib.suppress(OSError, ValueError):
        scores = json.loads(_score_path().read_text(encoding="utf-8"))
        if isinstance(scores, dict):
            return {k: v for k, v in scores.items() if isinstance(v, int)}
    return {}


def _write_scores(scores: dict[str, int]) -> None:
    path = _score_path()
    with contextlib.suppress(OSError):  # a score is not worth an error
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(scores, ensure_ascii=False), encoding="utf-8")
        part.replace(path)


def _total(scores: dict[str, int]) -> tuple[int, int]:
    return sum(scores.values()), len(scores)


class NotAttempted(Exception):
    """Raised by an exercise's check when the reader has not begun."""


@dataclass(frozen=True)
class ExerciseResult:
    """What a check says of an attempt: passed, not yet, or not attempted."""

    exercise: str
    passed: bool
    attempted: bool
    message: str

    def __repr__(self) -> str:
        mark = HOLDS if self.passed else FAILS if self.attempted else "○"
        return f"{mark} {self.exercise}: {self.message}"

    def _repr_html_(self) -> str:
        head, _, rest = repr(self).partition(": ")
        return figures.html_sentence(head, rest)


def check(exercise: str, attempt: object) -> ExerciseResult:
    """Check the reader's attempt at an exercise; never raises for a wrong one.

    `exercise` is "chapter/name", as in "00/one_yield": the function `name` in
    `tutorials/checks/00.py`. It asserts behaviour, and returns what to say on success.
    """
    function = _load_check(exercise)
    try:
        if attempt is None:
            raise NotAttempted
        message = str(function(attempt) or "done.")
    except NotAttempted:
        return ExerciseResult(exercise, False, False, "not attempted")
    except AssertionError as error:
        return ExerciseResult(exercise, False, True, str(error) or "not yet")
    except Exception as error:
        kind = type(error).__name__
        return ExerciseResult(exercise, False, True, f"it raised {kind}: {error}")
    return ExerciseResult(exercise, True, True, message)


def _load_check(exercise: str) -> Callable[[object], object]:
    chapter, _, name = exercise.partition("/")
    for parent in (Path.cwd(), *Path.cwd().parents):
        for path in (
            parent / "checks" / f"{chapter}.py",
            parent / "tutorials" / "checks" / f"{chapter}.py",
        ):
            if path.is_file():
                spec = importlib.util.spec_from_file_location(f"check_{chapter}", path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                if hasattr(module, name):
                    return getattr(module, name)
    raise ValueError(
        f"check(): there is no exercise {exercise!r}.\n"
        'Name it as "chapter/exercise", as in "00/one_yield", and run the notebook '
        "in tutorials/."
    )
