"""What an experiment is: a callable that returns a generator, and its knobs."""

from __future__ import annotations

import dis
import functools
import inspect
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.clock.origin import inner_function
from kit.figures import format_value

#: Names that `measure`, `compare` and `explore` take for themselves.
RESERVED = ("seconds", "repeats", "of", "within", "on", "patient", "model", "title")


class ExperimentError(Exception):
    """An experiment, or the way it was asked for, cannot be measured."""


@dataclass(frozen=True)
class Experiment:
    """A callable that returns a generator, with the names that reports use.

    `written` is what the reader wrote, where `function` does something around it.
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

    def bind(self, caller: str, knobs: Mapping[str, object]) -> dict[str, object]:
        """Check the knobs against the signature; return all of them, set or default.

        Raises ExperimentError for a knob that does not exist, is fixed by a partial,
        or has no value.
        """
        for knob, value in knobs.items():
            if knob in self.fixed:
                raise ExperimentError(
                    f"{caller}: {knob}={format_value(value)} cannot be set, because a "
                    f"partial has fixed {knob}={format_value(self.fixed[knob])}.\n"
                    f"Leave {knob} out of the partial to make it a knob of {self.name}."
                )
            if knob not in self.defaults and not self.open_ended:
                known = ", ".join(k for k in self.defaults if k not in self.fixed)
                raise ExperimentError(
                    f"{caller}: {self.name} has no knob {knob!r} (asked for "
                    f"{knob}={format_value(value)}).\nIts knobs: {known or 'none'}. "
                    f"Knobs are keyword-only arguments: def {self.name}(*, {knob}=…)."
                )
        bound = {**self.defaults, **self.fixed, **knobs}
        for knob, value in bound.items():
            if value is inspect.Parameter.empty:
                raise ExperimentError(
                    f"{caller}: {self.name} needs a value for its knob {knob!r}.\n"
                    f"Pass {knob}=…, or give it a default: "
                    f"def {self.name}(*, {knob}=…)."
                )
        return bound

    def start(self, knobs: Mapping[str, object]) -> Generator[Any, None, None]:
        """Call the function and return its generator, not yet started."""
        settable = {k: v for k, v in knobs.items() if k not in self.fixed}
        generator = self.function(**settable)
        if not isinstance(generator, Generator):
            kind = type(generator).__name__
            raise ExperimentError(
                f"{self.name} returned {kind}, not a generator.\n"
                "An experiment says `yield n` after each step, n being the number of "
                f"items handled. Add that line to {self.name}'s loop."
            )
        if inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
            raise ExperimentError(
                f"{self.name} returned a generator that has already been started; it "
                "cannot be restarted.\n"
                "Let it make a new generator at each call."
            )
        return generator


def resolve(caller: str, experiment: object, name: str | None = None) -> Experiment:
    """Make an Experiment of a generator function, lambda, partial, method or object.

    `name` is what reports call it, by default the function's own name. Raises
    ExperimentError where it cannot be one, without calling it.
    """
    if isinstance(experiment, Generator):
        called = experiment.__name__
        raise ExperimentError(
            f"{caller} got the generator {called}(…), which can run only once and "
            f"cannot be restarted.\nPass the function itself: {caller.rstrip('()')}"
            f"({called}, knob=value)."
        )
    if not callable(experiment):
        raise ExperimentError(
            f"{caller} needs an experiment, a function with a `yield`, and got "
            f"{format_value(experiment)}.\n"
            "Pass the function itself, without calling it."
        )
    function, called = inner_function(experiment), _name(experiment)
    alias = f" ({name!r})" if name else ""
    if inspect.isclass(experiment) or _returns_nothing(function):
        raise ExperimentError(
            f"{caller}: {called}{alias} has no `yield`, so it is not an experiment.\n"
            "Add `yield n` after each step of its loop (n: items handled), "
            "where a step is done."
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ExperimentError(
            f"{caller}: {called} is asynchronous (`async def`), and an experiment is "
            "an ordinary generator.\n"
            "Write it with `def`, and run the event loop inside."
        )
    fixed, defaults, open_ended = _signature(caller, called, experiment)
    doc = (inspect.getdoc(function) or "").strip()
    label = name or ("experiment" if called == "<lambda>" else called)
    title = doc.splitlines()[0] if doc else label
    return Experiment(experiment, label, title, fixed, defaults, open_ended)


def _name(experiment: object) -> str:
    while isinstance(experiment, functools.partial):
        experiment = experiment.func
    return getattr(experiment, "__name__", type(experiment).__name__)


def _signature(
    caller: str, called: str, experiment: Callable[..., Any]
) -> tuple[dict[str, object], dict[str, object], bool]:
    """Return fixed knobs, all knobs with their defaults, and whether any name goes."""
    try:
        parameters = inspect.signature(experiment).parameters.values()
    except ValueError:
        raise ExperimentError(
            f"{caller}: {called} does not say which arguments it takes, so it is no "
            "experiment.\nPut your own function around it: def train(): … yield n."
        ) from None
    fixed = _bound(experiment)
    defaults: dict[str, object] = {}
    open_ended = False
    for parameter in parameters:
        name = parameter.name
        advice = f"functools.partial({called}, {name}=…)."
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
            raise ExperimentError(
                f"{caller}: {called} has the positional parameter {star}{name}; knobs "
                f"are keyword-only.\nWrite def {called}(*, {name}=…), or fix it: "
                f"{advice}"
            )
        elif name in RESERVED and name not in fixed:
            raise ExperimentError(
                f"{caller}: {called} has a knob named {name!r}, a name that {caller} "
                f"uses itself.\nRename it, or fix it: {advice}"
            )
        else:
            defaults[name] = parameter.default
    return fixed, defaults, open_ended


def _bound(experiment: object) -> dict[str, object]:
    """Return the arguments that partials have fixed, by name."""
    if not isinstance(experiment, functools.partial):
        return {}
    names = inspect.signature(experiment.func).parameters
    by_position = dict(zip(names, experiment.args, strict=False))
    return {**_bound(experiment.func), **by_position, **experiment.keywords}


def _returns_nothing(function: Callable[..., Any] | None) -> bool:
    """Return whether a plain function can only return None.

    A loop without its `yield` is the commonest mistake. Calling it to find out would
    run the reader's whole training.
    """
    if not inspect.isfunction(function) or function.__code__.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    ):
        return False
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(function):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return False
        if instruction.opname == "RETURN_VALUE" and not (
            previous is not None
            and previous.opname == "LOAD_CONST"
            and previous.argval is None
        ):
            return False
        previous = instruction
    return True


def parse_yield(value: object, *, least: int = 1) -> tuple[float, dict[str, Any]]:
    """Split what was yielded into items and metrics.

    `least` is 0 where a step may handle no items. Raises ValueError with what is wrong,
    in words.
    """
    metrics: object = {}
    items = value
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(f"a tuple of {len(value)}; a pair is `yield n, {{…}}`")
        items, metrics = value
    if isinstance(items, bool) or not hasattr(items, "__float__"):
        raise ValueError(f"{format_value(items)}, which is not a number of items")
    if hasattr(items, "detach"):
        raise ValueError("a tensor; reading it would wait for the device")
    count = float(items)
    if not (math.isfinite(count) and (count > 0 or count == least)):
        raise ValueError(
            f"{format_value(items)}; a step handles a positive number of items"
        )
    if not isinstance(metrics, dict) or not all(k.__class__ is str for k in metrics):
        raise ValueError(
            f"{format_value(metrics)} as metrics, which is no dict of names"
        )
    for name, metric in metrics.items():
        if metric.__class__ is float or metric.__class__ is int:
            continue
        # A tensor is not read here: that would wait for the device.
        is_tensor = hasattr(metric, "numel")
        if not (metric.numel() == 1 if is_tensor else _is_number(metric)):
            raise ValueError(f"a metric {name!r} that is not a single number")
    return count, metrics


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (str, bytes))


def describe(name: str, knobs: Mapping[str, object]) -> str:
    """Return a call as a reader would write it, at most 100 characters.

    >>> describe("train", {"batch_size": 64})
    'train(batch_size=64)'
    """
    inside = ", ".join(f"{k}={format_value(v, 30)}" for k, v in knobs.items())
    text = f"{name}({inside})"
    return text if len(text) <= 100 else text[:98] + "…)"
