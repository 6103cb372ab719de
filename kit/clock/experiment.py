"""What an experiment is: a callable that returns a generator, and its knobs."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import math
import types
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Names that `measure`, `compare` and `explore` take for themselves.
RESERVED = ("seconds", "repeats", "of", "within", "on", "patient", "model")


class ExperimentError(Exception):
    """An experiment, or the way it was asked for, cannot be measured."""


@dataclass(frozen=True)
class Experiment:
    """A callable that returns a generator, with the names that reports use."""

    function: Callable[..., Any]
    name: str
    title: str
    fixed: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    open_ended: bool = False

    def bind(self, caller: str, knobs: Mapping[str, object]) -> dict[str, object]:
        """Check the knobs against the signature; return all of them, set or default.

        Raises ExperimentError for a knob that does not exist, is fixed by a partial,
        or has no value.
        """
        for knob, value in knobs.items():
            if knob in self.fixed:
                raise ExperimentError(
                    f"{caller}: {knob}={value!r} cannot be set, because a partial has "
                    f"fixed {knob}={self.fixed[knob]!r}.\n"
                    f"Leave {knob} out of the partial to make it a knob of {self.name}."
                )
            if knob not in self.defaults and not self.open_ended:
                known = ", ".join(k for k in self.defaults if k not in self.fixed)
                raise ExperimentError(
                    f"{caller}: {self.name} has no knob {knob!r} (asked for "
                    f"{knob}={value!r}).\nIts knobs: {known or 'none'}. Knobs are "
                    f"keyword-only arguments: def {self.name}(*, {knob}=…)."
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

    Raises ExperimentError where it cannot be one, without calling it.
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
            f"{experiment!r:.60}.\nPass the function itself, without calling it."
        )
    function = _inner_function(experiment)
    own_name = getattr(function, "__name__", type(experiment).__name__)
    label = name or ("experiment" if own_name == "<lambda>" else own_name)
    if inspect.isclass(experiment) or _returns_nothing(function):
        raise ExperimentError(
            f"{caller}: {label} has no `yield`, so it is not an experiment.\n"
            f"Add `yield n` after each step of its loop (n: items handled), "
            "where a step is done."
        )
    fixed, defaults, open_ended = _signature(caller, label, experiment)
    doc = inspect.getdoc(function) if function is not None else None
    title = doc.strip().splitlines()[0] if doc and doc.strip() else label
    return Experiment(experiment, label, title, fixed, defaults, open_ended)


def _signature(
    caller: str, label: str, experiment: Callable[..., Any]
) -> tuple[dict[str, object], dict[str, object], bool]:
    """Return fixed knobs, all knobs with their defaults, and whether any name goes."""
    bound = getattr(experiment, "keywords", {}) if _is_partial(experiment) else {}
    defaults: dict[str, object] = {}
    open_ended = False
    for parameter in inspect.signature(experiment).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
            raise ExperimentError(
                f"{caller}: {label} has the positional parameter "
                f"{star}{parameter.name}; knobs are keyword-only.\n"
                f"Write def {label}(*, {parameter.name}=…), or fix it: "
                f"functools.partial({label}, {parameter.name}=…)."
            )
        elif parameter.name in RESERVED and parameter.name not in bound:
            raise ExperimentError(
                f"{caller}: {label} has a knob named {parameter.name!r}, a name that "
                f"{caller} uses itself.\nRename it, or fix it: "
                f"functools.partial({label}, {parameter.name}=…)."
            )
        else:
            defaults[parameter.name] = parameter.default
    return dict(bound), defaults, open_ended


def _is_partial(experiment: object) -> bool:
    return isinstance(experiment, functools.partial)


def _inner_function(experiment: object) -> Callable[..., Any] | None:
    """Return the plain function inside a partial, a method or a callable object."""
    while True:
        if isinstance(experiment, functools.partial):
            experiment = experiment.func
        elif inspect.ismethod(experiment):
            experiment = experiment.__func__
        elif inspect.isfunction(experiment):
            return inspect.unwrap(experiment)
        else:
            call = type(experiment).__call__
            return call if inspect.isfunction(call) else None


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


def parse_yield(value: object) -> tuple[float, dict[str, Any]]:
    """Split what was yielded into items and metrics.

    Raises ValueError with what is wrong, in words.
    """
    metrics: object = {}
    items = value
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(f"a tuple of {len(value)}; a pair is `yield n, {{…}}`")
        items, metrics = value
    if isinstance(items, bool) or not hasattr(items, "__float__"):
        raise ValueError(f"{items!r:.40}, which is not a number of items")
    if hasattr(items, "detach"):
        raise ValueError("a tensor; reading it would wait for the device")
    count = float(items)
    if not (count > 0 and math.isfinite(count)):
        raise ValueError(f"{items!r}; a step handles a positive number of items")
    if not isinstance(metrics, dict) or not all(k.__class__ is str for k in metrics):
        raise ValueError(f"{metrics!r:.40} as metrics, which is no dict of names")
    for name, metric in metrics.items():
        if metric.__class__ is float or metric.__class__ is int:
            continue
        count_of = getattr(metric, "numel", None)
        if not hasattr(metric, "__float__") or (count_of and count_of() != 1):
            raise ValueError(f"a metric {name!r} that is not a single number")
    return count, metrics


def describe(name: str, knobs: Mapping[str, object]) -> str:
    """Return a call as a reader would write it, at most 100 characters.

    >>> describe("train", {"batch_size": 64})
    'train(batch_size=64)'
    """
    inside = ", ".join(f"{k}={v!r:.30}" for k, v in knobs.items())
    text = f"{name}({inside})"
    return text if len(text) <= 100 else text[:98] + "…)"


def referred_objects(
    function: object, knobs: Mapping[str, object] | None = None
) -> list[tuple[str, object]]:
    """Return what a callable reaches: knobs, closure, globals, bound arguments.

    Functions and classes of the same module are followed. Each object comes with its
    name as a reader would write it.
    """
    found: list[tuple[str, object]] = []
    seen: set[int] = set()
    home = getattr(_inner_function(function), "__module__", None)

    def visit(name: str, value: object) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        found.append((name, value))
        if isinstance(value, functools.partial):
            names = list(inspect.signature(value.func).parameters)
            for key, bound in [*zip(names, value.args), *value.keywords.items()]:  # noqa: B905 (*args may take the rest)
                visit(key, bound)
            visit(getattr(value.func, "__name__", "function"), value.func)
        elif inspect.ismethod(value):
            visit("self", value.__self__)
            visit(value.__name__, value.__func__)
        elif inspect.isfunction(value) and value.__module__ == home:
            visit_function(inspect.unwrap(value))
        elif inspect.isclass(value) and value.__module__ == home:
            for key, member in vars(value).items():
                if inspect.isfunction(member):
                    visit(f"{name}.{key}", member)
        elif isinstance(value, (list, tuple)) and len(value) <= 100:
            for index, member in enumerate(value):
                visit(f"{name}[{index}]", member)
        elif isinstance(value, dict) and len(value) <= 100:
            for key, member in value.items():
                visit(f"{name}[{key!r}]", member)
        elif type(value).__module__ == home and hasattr(value, "__dict__"):
            visit(type(value).__name__, type(value))
            for key, member in vars(value).items():
                visit(f"{name}.{key}", member)

    def visit_function(inner: types.FunctionType) -> None:
        for name, cell in zip(
            inner.__code__.co_freevars, inner.__closure__ or (), strict=True
        ):
            try:
                visit(name, cell.cell_contents)
            except ValueError:  # an empty cell: not assigned yet
                continue
        for parameter in inspect.signature(inner).parameters.values():
            visit(parameter.name, parameter.default)
        for name in _global_names(inner.__code__):
            if name in inner.__globals__:
                visit(name, inner.__globals__[name])

    visit(getattr(function, "__name__", "experiment"), function)
    for name, value in (knobs or {}).items():
        visit(name, value)
    return found


def _global_names(code: types.CodeType) -> Iterable[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def source_of(function: object) -> str:
    """Return the source of an experiment and of what it uses from its own module.

    Whole top-level definitions, ordered by name, so that cells may move. Empty where
    there is no source.
    """
    home = getattr(_inner_function(function), "__module__", None)
    parts: dict[str, str] = {}
    for _, value in referred_objects(function):
        members = vars(value).values() if inspect.isclass(value) else [value]
        for inner in filter(None, map(_inner_function, members)):
            if inner.__module__ == home:
                parts.update(_top_level_source(inner.__code__))
    return "\n\n\n".join(parts[name] for name in sorted(parts))


def _top_level_source(code: types.CodeType) -> dict[str, str]:
    """Return {name: source} of the top-level definition that a code object is in.

    `inspect.getsource` does not find classes of a notebook's cells.
    """
    source = "".join(linecache.getlines(code.co_filename))
    try:
        nodes = ast.parse(source).body
    except SyntaxError:
        return {}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or first):
                return {node.name: ast.get_source_segment(source, node) or ""}
    return {}
