"""What can be measured: a generator function, its knobs, and choices among them."""

from __future__ import annotations

import difflib
import dis
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.errors import ExperimentError
from kit.figures import format_value

#: Names that `measure`, `compare` and `explore` take for themselves.
RESERVED = ("seconds", "repeats", "of", "within", "on", "predict", "title", "unit")
#: The knob that says on how many ranks an experiment ran.
RANKS = "ranks"


@dataclass(frozen=True)
class Experiment:
    """A callable that returns a generator, with the names that reports use.

    `written` is what the reader wrote, where `function` does something around it.
    """

    function: Callable[..., Any]
    name: str
    title: str
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

        Raises ExperimentError for a knob that does not exist or has no value.
        """
        parameters = self._list_parameters()
        is_open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = [n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
        for knob, value in knobs.items():
            if knob not in known and not is_open:
                meant = difflib.get_close_matches(knob, [*known, *RESERVED], 1)
                hint = f" Did you mean {meant[0]}=?" if meant else ""
                raise ExperimentError(
                    f"{self.name} has no knob for {knob}={format_value(value)}.{hint}\n"
                    f"Its knobs: {', '.join(known) or 'none'}; to add it, "
                    f"write (*, {knob}=…)."
                )
        bound = {name: parameters[name].default for name in known} | {**knobs}
        for knob, value in bound.items():
            if value is inspect.Parameter.empty:
                raise ExperimentError(
                    f"{self.name} needs a value for its knob {knob!r}.\n"
                    f"Pass {knob}=…, or give it a default in its definition."
                )
        return bound

    def _list_parameters(self) -> dict[str, inspect.Parameter]:
        """Return the parameters that are knobs, those of partials included."""
        parameters = dict(inspect.signature(self.own).parameters)
        for name, parameter in parameters.items():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise ExperimentError(
                    f"{self.name} has the parameter {parameter}, which cannot be set "
                    f"by name.\nWrite def {self.name}(*, {name}=…)."
                )
            if name in RESERVED:
                raise ExperimentError(
                    f"{self.name} has the knob {name!r}, a name that is reserved for "
                    "how to measure.\nRename it."
                )
        return parameters

    def start(self, knobs: Mapping[str, object]) -> Generator[Any, None, None]:
        """Call the function and return its generator, not yet started."""
        generator = self.function(**knobs)
        is_new = (
            isinstance(generator, Generator)
            and inspect.getgeneratorstate(generator) == inspect.GEN_CREATED
        )
        if not is_new:
            raise ExperimentError(
                f"{self.name} returned {type(generator).__name__}, not a new "
                "generator.\nWrite `yield n` after each step of its loop "
                "(n: items handled)."
            )
        return generator


def resolve(experiment: object, name: str | None = None) -> Experiment:
    """Make an Experiment of a generator function, a partial, a method or an object.

    `name` is what reports call it, by default the function's own name. Raises
    ExperimentError where it cannot be one, without calling it.
    """
    inner = experiment
    while isinstance(inner, functools.partial):
        inner = inner.func
    label = name or getattr(inner, "__name__", type(inner).__name__)
    if not callable(inner):
        raise ExperimentError(
            f"{label} is not a function, so it is not an experiment.\n"
            "Pass the function itself, with a `yield n` after each step: a "
            "generator cannot be restarted."
        )
    if inspect.isfunction(inner) and not _returns_something(inner):
        raise ExperimentError(
            f"{label} has no `yield`, so it is not an experiment.\n"
            "Write `yield n` in its loop where n items are done."
        )
    docstring = (inspect.getdoc(inner) or "").strip()
    title = docstring.splitlines()[0] if docstring else label
    return Experiment(experiment, label, title)  # type: ignore[arg-type]


def _returns_something(function: Any) -> bool:
    """Return whether a plain function yields, or returns more than None.

    A loop without its `yield` is the commonest mistake, and to call it to find out
    would run the whole training. What returns something may return a generator.
    """
    if inspect.isgeneratorfunction(function):
        return True
    for before, after in itertools.pairwise(dis.get_instructions(function)):
        is_none = before.opname == "LOAD_CONST" and before.argval is None
        if after.opname == "RETURN_VALUE" and not is_none:
            return True
    return False


def describe(name: str, knobs: Mapping[str, object]) -> str:
    """Return a call as a reader would write it, at most 100 characters.

    >>> describe("train", {"batch_size": 64})
    'train(batch_size=64)'
    >>> describe("train.py --epochs 3", {})
    'train.py --epochs 3'
    """
    inside = ", ".join(f"{k}={format_value(v, 30)}" for k, v in knobs.items())
    text = f"{name}({inside})" if knobs or name.isidentifier() else name
    return text if len(text) <= 100 else f"{text[:99]}…"


# Choices


@dataclass(frozen=True)
class Choice:
    """One combination of what can be chosen; `label` names it in reports.

    `place` is where it runs, None for this process.
    """

    experiment: Experiment
    knobs: dict[str, object]
    place: Any
    label: str


def list_choices(
    experiment: object, on: object, knobs: Mapping[str, object]
) -> list[Choice]:
    """Return every combination of the choices, the baseline first.

    Lists and ranges are choices, everything else is one value; several experiments come
    as a dict. Raises ExperimentError for what cannot be chosen.
    """
    if isinstance(experiment, Mapping):
        experiments = [resolve(each, str(name)) for name, each in experiment.items()]
    else:
        experiments = [resolve(experiment)]
    places = on if isinstance(on, list) else [on]
    lists = {k: [*v] for k, v in knobs.items() if isinstance(v, (list, range))}
    given = {"experiment": experiments, "on": places, **lists}
    for name, values in given.items():
        if not values:
            raise ExperimentError(
                f"{name}=[] is an empty list of choices.\n"
                "Give two or more values, the baseline first."
            )
    for place in places:
        check_place(place)
    choices = []
    for one, place in itertools.product(experiments, places):
        for values in itertools.product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            words = [one.name] if len(experiments) > 1 else []
            words += [f"{RANKS}={len(place or [0])}"] if len(places) > 1 else []
            words += [f"{knob}={format_value(value)}" for knob, value in chosen.items()]
            bound = one.bind({**knobs, **chosen})
            label = ", ".join(words) or describe(one.name, bound)
            choices.append(Choice(one, bound, place, label))
    return _number_equal_labels(choices)


def check_place(place: object) -> None:
    """Raise ExperimentError for what is no place to measure on."""
    if place is not None and not hasattr(place, "prepare"):
        raise ExperimentError(
            f"on={format_value(place)} is not something to measure on.\n"
            "Pass what kit.start_ranks(2) returned. Lists of choices are for compare()."
        )


def _number_equal_labels(choices: Sequence[Choice]) -> list[Choice]:
    """Return choices with labels of which no two are alike: the second is (2)."""
    seen: dict[str, int] = {}
    numbered = []
    for choice in choices:
        count = seen.get(choice.label, 0) + 1
        seen[choice.label] = count
        label = f"{choice.label} ({count})" if count > 1 else choice.label
        fields = choice.experiment, choice.knobs, choice.place, label
        numbered.append(Choice(*fields))
    return numbered


# What is yielded


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
    if not isinstance(metrics, dict) or not all(type(name) is str for name in metrics):
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
