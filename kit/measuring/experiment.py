"""What an experiment is: a callable that returns a generator, and its knobs."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.errors import ExperimentError
from kit.figures import format_value
from kit.measuring.source import (
    bound_arguments,
    inner_function,
    name_of,
    returns_nothing,
)

#: Names that `measure`, `compare` and `explore` take for themselves.
RESERVED = ("seconds", "repeats", "of", "within", "on", "patient", "title")
RESERVED += ("predict", "unit")


@dataclass(frozen=True)
class Experiment:
    """A callable that returns a generator, with the names that reports use.

    `fixed` are the arguments that partials have bound, `defaults` all knobs with their
    defaults; where it is `open_ended`, any other name is a knob, too. `written` is what
    the reader wrote, where `function` does something around it.
    """

    function: Callable[..., Any]
    name: str
    title: str
    fixed: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    open_ended: bool = False
    written: Callable[..., Any] | None = None

    @property
    def own(self) -> Callable[..., Any]:
        """What the reader wrote."""
        return self.written or self.function

    @property
    def is_script(self) -> bool:
        """Whether it is a whole program, which another would disturb."""
        return getattr(getattr(self.own, "func", self.own), "is_script", False)

    def bind(self, knobs: Mapping[str, object]) -> dict[str, object]:
        """Check the knobs against the signature; return all of them, set or default.

        Raises ExperimentError for a knob that does not exist, is fixed by a partial,
        or has no value.
        """
        for knob, value in knobs.items():
            is_known = knob in self.defaults or self.open_ended
            if knob in self.fixed or not is_known:
                raise self._refuse(knob, value)
        bound = {**self.defaults, **self.fixed, **knobs}
        for knob, value in bound.items():
            if value is inspect.Parameter.empty:
                raise ExperimentError(
                    f"{self.name} needs a value for its knob {knob!r}.\n"
                    f"Pass {knob}=…, or give it a default in its definition."
                )
        return bound

    def _refuse(self, knob: str, value: object) -> ExperimentError:
        """Return the error for a knob that cannot be set."""
        known = [name for name in self.defaults if name not in self.fixed]
        wrong = f"{self.name} has no knob for {knob}={format_value(value)}."
        if meant := difflib.get_close_matches(knob, [*known, *RESERVED], 1):
            wrong += f" Did you mean {meant[0]}=?"
        advice = f"one more is (*, {knob}=…)"
        if self.fixed:
            fixed = [f"{name}={format_value(v)}" for name, v in self.fixed.items()]
            advice = f"a partial has fixed {', '.join(fixed)}"
        return ExperimentError(
            f"{wrong}\nIts knobs: {', '.join(known) or 'none'}; {advice}."
        )

    def start(self, knobs: Mapping[str, object]) -> Generator[Any, None, None]:
        """Call the function and return its generator, not yet started."""
        free = {name: v for name, v in knobs.items() if name not in self.fixed}
        generator = self.function(**free)
        is_new = (
            isinstance(generator, Generator)
            and inspect.getgeneratorstate(generator) == inspect.GEN_CREATED
        )
        if not is_new:
            raise ExperimentError(
                f"{self.name} returned {type(generator).__name__}, no new generator; "
                "one that has already been started cannot be restarted.\n"
                "Say `yield n` after each step of its loop (n: items handled)."
            )
        return generator


def resolve(experiment: object, name: str | None = None) -> Experiment:
    """Make an Experiment of a generator function, lambda, partial, method or object.

    `name` is what reports call it, by default the function's own name. Raises
    ExperimentError where it cannot be one, without calling it.
    """
    function = inner_function(experiment)
    is_partial = isinstance(experiment, functools.partial)
    called = name_of(experiment.func if is_partial else experiment)
    wrong = ""
    is_async = inspect.iscoroutinefunction(function)
    is_async = is_async or inspect.isasyncgenfunction(function)
    if function is None or is_async:
        wrong = "is no ordinary function"
    elif returns_nothing(function):
        wrong = "has no `yield`"
    if wrong:
        has_name = called != type(experiment).__name__
        shown = called if has_name else format_value(experiment)
        if name:
            shown += f" ({name!r})"
        raise ExperimentError(
            f"{shown} {wrong}, so it is no experiment.\n"
            "Say `yield n` in its loop where n items are done. "
            "Pass the function itself: a generator cannot be restarted."
        )
    fixed = bound_arguments(experiment) if is_partial else {}
    defaults, open_ended = _find_knobs(called, experiment, fixed)
    label = name or ("experiment" if called == "<lambda>" else called)
    docstring = (inspect.getdoc(function) or "").strip()
    title = (docstring or label).splitlines()[0]
    return Experiment(experiment, label, title, fixed, defaults, open_ended)


def _find_knobs(
    called: str, experiment: Callable[..., Any], fixed: Mapping[str, object]
) -> tuple[dict[str, object], bool]:
    """Return all knobs with their defaults, and whether any other name goes, too."""
    try:
        parameters = inspect.signature(experiment).parameters.values()
    except ValueError:
        raise ExperimentError(
            f"{called} has other parameters than what a partial has fixed.\n"
            "Mend the partial."
        ) from None
    defaults: dict[str, object] = {}
    open_ended = False
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        if kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            star = "*" if kind is parameter.VAR_POSITIONAL else ""
            raise ExperimentError(
                f"{called} has the parameter {star}{name}, which has no name to set it "
                f"by.\nWrite def {called}(*, {name}=…), or fix it: "
                f"functools.partial({called}, {name}=…)."
            )
        elif name in RESERVED and name not in fixed:
            raise ExperimentError(
                f"{called} has the knob {name!r}, a name that says how to measure.\n"
                f"Rename it, or fix it: functools.partial({called}, {name}=…)."
            )
        else:
            defaults[name] = parameter.default
    return defaults, open_ended


def parse_yield(value: object, *, least: int = 1) -> tuple[float, dict[str, Any]]:
    """Split what was yielded into items and metrics.

    `least` is 0 where a step may handle no items. Raises ValueError with what is wrong,
    in words.
    """
    items, metrics = value, {}
    if isinstance(value, tuple) and len(value) == 2:
        items, metrics = value
    count = _read_number(items)
    if not (math.isfinite(count) and (count > 0 or count == least)):
        shown = "only bare `yield`s" if value is None else format_value(items)
        raise ValueError(f"{shown}; a step handles a number of items")
    if not isinstance(metrics, dict) or not all(k.__class__ is str for k in metrics):
        raise ValueError(f"{format_value(metrics)}; metrics are a dict of names")
    for name, metric in metrics.items():
        has_many = hasattr(metric, "numel") and metric.numel() != 1
        if has_many or not _is_single_number(metric):
            raise ValueError(f"a metric {name!r} that is not a single number")
    return count, metrics


def _is_single_number(value: object) -> bool:
    """Return whether this is a number; of NumPy's arrays, one with a single value."""
    size = getattr(value, "size", 1)  # of a tensor it is a method
    return hasattr(value, "__float__") and (callable(size) or size == 1)


def _read_number(items: Any) -> float:
    """Return a number of items; nan for what is none.

    A tensor is none: to read it would wait for its device.
    """
    is_tensor = callable(getattr(items, "size", None))
    if is_tensor or isinstance(items, bool) or not _is_single_number(items):
        return math.nan
    return float(items)


def describe(name: str, knobs: Mapping[str, object]) -> str:
    """Return a call as a reader would write it, at most 100 characters.

    >>> describe("train", {"batch_size": 64})
    'train(batch_size=64)'
    >>> describe("train.py --epochs 3", {})
    'train.py --epochs 3'
    """
    inside = ", ".join(f"{k}={format_value(v, 30)}" for k, v in knobs.items())
    text = f"{name}({inside})" if knobs or name.isidentifier() else name
    if len(text) <= 100:
        return text
    return f"{text[:98]}…)" if knobs else f"{text[:98]}…"
