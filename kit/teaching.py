"""Guesses, claims and exercise checks: what makes a notebook answer back."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from kit import figures
from kit.measuring.records import tell_listeners
from kit.measuring.report import Comparison
from kit.measuring.verdict import Ratio, write_ratio
from kit.mode import is_quick

HOLDS, FAILS, OPEN = "✓", "✗", "?"
_EXPECTATIONS = ("faster", "slower", "more", "less", "same")


class _Told:
    """What is told in a short head and the rest, as text and as HTML."""

    _tell: Callable[[], tuple[str, str]]

    def __repr__(self) -> str:
        return "\n  ".join(self._tell()).rstrip()

    def _repr_html_(self) -> str:
        return figures.html_sentence(*self._tell())


# Claims


@dataclass(frozen=True, repr=False)
class Claim(_Told):
    """A sentence tied to a measurement: ✓ it holds, ✗ it does not, ? cannot tell."""

    sentence: str
    ratio: Ratio
    expect: str = "faster"
    at_least: float | None = None
    otherwise: str = ""
    open: bool = False
    judged: bool = True

    @property
    def verdict(self) -> str:
        """Return ✓, ✗ or ?.

        ✓ needs the expected verdict and, with `at_least`, the whole interval beyond
        it. ✗ needs another verdict, or the whole interval short of `at_least`.
        """
        ratio, bar = self.ratio, self.at_least
        if not self.judged or ratio.verdict == "cannot tell":
            return OPEN
        if ratio.verdict != self.expect or bar is None:
            return HOLDS if ratio.verdict == self.expect else FAILS
        low, high = ratio.low, ratio.high
        if self.expect in ("slower", "less"):  # how large the effect is, downward
            low, high = (1 / high, 1 / low) if ratio.unit == "×" else (-high, -low)
        return HOLDS if low >= bar else FAILS if high < bar else OPEN

    def to_dict(self) -> dict[str, object]:
        """Return the fields that a recording keeps: all but the measurement."""
        names = ("sentence", "expect", "at_least", "otherwise", "open")
        return {name: getattr(self, name) for name in names}

    def _tell(self) -> tuple[str, str]:
        head = f"{self.verdict} {self.sentence}"
        if not self.judged:
            return head, "Quick mode: judged from recordings only."
        bar = "" if self.at_least is None else f", at least {self.at_least:g}"
        found = f"Expected {self.expect}{bar}; here {self.ratio.verdict}, {self.ratio}."
        reason = self.ratio.reason
        why = {FAILS: self.otherwise, OPEN: reason and f"Not clear. {reason}"}
        return head, f"{found} {why.get(self.verdict, '')}"


def claim(
    sentence: str,
    ratio: Ratio | Comparison,
    *,
    expect: str = "faster",
    at_least: float | None = None,
    otherwise: str = "Here it does not hold; the chapter says when that happens.",
    open: bool = False,
) -> Claim:
    """Tie a sentence to a measured ratio; show whether it holds here.

    `expect` is the verdict, `at_least` how large the effect must be (a factor of 1 or
    more, or a difference). `otherwise` says what it means where the claim fails. With
    `open`, nobody minds that the claim stays "?" on every machine.

    >>> from kit.measuring.verdict import Ratio
    >>> claim("It helps.", Ratio(2.0, 1.9, 2.1, "faster"), at_least=1.5).verdict
    '✓'
    """
    if expect not in _EXPECTATIONS:
        raise ValueError(f"claim(): expect={expect!r} is not one of {_EXPECTATIONS}.")
    ratio = ratio.ratio if isinstance(ratio, Comparison) else ratio
    if not isinstance(ratio, Ratio):
        shown = figures.format_value(ratio, 60)
        raise TypeError(
            f"claim(): {shown} is not a ratio: pass comparison.ratios[label]."
        )
    judged = not is_quick()
    made = Claim(sentence, ratio, expect, at_least, otherwise, open, judged)
    tell_listeners(made)
    return made


# Guesses


@dataclass(frozen=True, repr=False)
class Guess(_Told):
    """What the reader expects before measuring, and after it how far off that was."""

    question: str
    answer: float | None
    unit: str = "×"
    measured: float | None = None

    @property
    def factor(self) -> float:
        """Return by which factor it is off, 1 or more; nan where that is undefined."""
        off = (self.answer or math.nan) / (self.measured or math.nan)
        return max(off, 1 / off) if off > 0 else math.nan

    def check(self, result: Comparison | Ratio | float) -> Guess:
        """Compare the guess with a Comparison, a Ratio, or a number."""
        ratio = result.ratio if isinstance(result, Comparison) else result
        measured = ratio.value if isinstance(ratio, Ratio) else float(ratio)
        return replace(self, measured=measured)

    def _tell(self) -> tuple[str, str]:
        told = ""
        if self.answer is not None:
            told = f"Your guess: {self.answer:g} {self.unit}"
        if self.measured is None:
            return self.question, told or "No guess yet: put a number into answer=…"
        if self.factor > 0:
            told += f", off by a factor of {self.factor:.2f}"
        return f"Measured: {write_ratio(self.measured)} {self.unit}.", told


def guess(question: str, answer: float | None = None, *, unit: str = "×") -> Guess:
    """Keep the reader's number, to be checked after measuring.

    >>> guess("How many times as fast?", answer=2)
    How many times as fast?
      Your guess: 2 ×
    """
    if answer is None:
        return Guess(question, None, unit)
    # A number of NumPy or PyTorch is one, too; an array or a list of one is none.
    is_single = hasattr(answer, "__float__") and getattr(answer, "ndim", 0) == 0
    number = float(answer) if is_single else math.nan
    if not math.isfinite(number):
        raise ValueError(f"guess(): answer={answer!r} is not a number; put 1.5, say.")
    return Guess(question, number, unit)


# Exercises


@dataclass(frozen=True, repr=False)
class ExerciseResult(_Told):
    """What a check says of an attempt: passed, not yet, or not attempted."""

    exercise: str
    passed: bool
    attempted: bool
    message: str

    def _tell(self) -> tuple[str, str]:
        mark = HOLDS if self.passed else FAILS if self.attempted else "○"
        return f"{mark} {self.exercise}", self.message


def check(exercise: str, *answers: object) -> ExerciseResult:
    """Check the reader's answers to an exercise; never raise for a wrong one.

    `exercise` is "chapter/name", as in "00/one_yield": the function `name` in
    `tutorials/checks/00.py`. It asserts behaviour, and returns what to say on success.
    An answer that is None was not attempted.
    """
    function = _load_check(exercise)
    if any(answer is None for answer in answers):
        return ExerciseResult(exercise, False, False, "not attempted")
    try:
        return ExerciseResult(exercise, True, True, function(*answers) or "done.")
    except AssertionError as error:
        said = str(error) or "not yet"
    except Exception as error:
        said = f"it raised {type(error).__name__}: {error}"
    return ExerciseResult(exercise, False, True, said)


def _load_check(exercise: str) -> Callable[..., str | None]:
    chapter, _, name = exercise.partition("/")
    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / "tutorials" / "checks" / f"{chapter}.py"
        if path.is_file() and name in (found := runpy.run_path(str(path))):
            return found[name]
    raise ValueError(
        f'check(): there is no exercise {exercise!r}.\nName it as in "00/one_yield" '
        "(chapter/exercise), and run the notebook in tutorials/."
    )


def expect(
    function: Callable[..., object],
    cases: Iterable[tuple[tuple[object, ...], object]],
    *,
    rel: float = 1e-6,
    hint: str = "",
) -> None:
    """Assert that a function returns what is right in each case.

    A case is its arguments and the right result: a number, which is met within `rel`,
    a list, tuple or dictionary of them, or anything that `==` compares. `hint` follows
    what the first wrong case says.

    >>> expect(lambda a, b: a * b, [((2, 3), 6), ((2, 0.5), 1.0)])
    """
    for arguments, right in cases:
        found = function(*arguments)
        shown = ", ".join(figures.format_value(each, 40) for each in arguments)
        assert _is_right(found, right, rel), (
            f"for {shown} it returns {figures.format_value(found, 80)}; "
            f"{figures.format_value(right, 80)} is right. {hint}".rstrip()
        )


def _is_right(found: Any, right: Any, rel: float) -> bool:
    if isinstance(right, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == right.keys()
            and all(_is_right(found[key], right[key], rel) for key in right)
        )
    if isinstance(right, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(right)
            and all(map(_is_right, found, right, [rel] * len(right)))
        )
    if isinstance(right, Real) and not isinstance(right, bool):
        is_number = hasattr(found, "__float__") and not isinstance(found, bool)
        return is_number and math.isclose(found, right, rel_tol=rel, abs_tol=1e-12)
    return bool(found == right)
