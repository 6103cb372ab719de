"""What an experiment is: a callable that returns a generator, and its knobs.

Also what it reaches, and its source.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import inspect
import linecache
import math
import os
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.figures import format_value

#: Names that `measure`, `compare` and `explore` take for themselves.
RESERVED = ("seconds", "repeats", "of", "within", "on", "patient", "title")
RESERVED += ("predict", "unit")
#: Longer containers are data, not what an experiment is made of.
_LONGEST = 100


class ExperimentError(Exception):
    """An experiment, or the way it was asked for, cannot be measured."""


@contextlib.contextmanager
def named(caller: str) -> Generator[None, None, None]:
    """Let the error of a wrong request say which call it was.

    >>> with named("measure()"):
    ...     raise ExperimentError("seconds=-1 is not a time to measure for.")
    Traceback (most recent call last):
    kit.experiment.ExperimentError: measure(): seconds=-1 is not a time to measure for.
    """
    try:
        yield
    except ExperimentError as error:
        error.args = (f"{caller}: {error}",)
        raise


def is_quick() -> bool:
    """Return whether KIT_QUICK=1 asks for quick mode, in which notebooks are tested."""
    return os.environ.get("KIT_QUICK") == "1"


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
            if knob in self.fixed or not (knob in self.defaults or self.open_ended):
                known = [k for k in self.defaults if k not in self.fixed]
                fixed = [f"{k}={format_value(v)}" for k, v in self.fixed.items()]
                why = f"a partial has fixed {', '.join(fixed)}" if fixed else ""
                meant = difflib.get_close_matches(knob, [*known, *RESERVED], 1)
                wrong = f"{self.name} has no knob for {knob}={format_value(value)}."
                wrong += f" Did you mean {meant[0]}=?" if meant else ""
                raise ExperimentError(
                    f"{wrong}\n"
                    f"Its knobs: {', '.join(known) or 'none'}; "
                    f"{why or f'one more is (*, {knob}=…)'}."
                )
        bound = {**self.defaults, **self.fixed, **knobs}
        for knob, value in bound.items():
            if value is inspect.Parameter.empty:
                raise ExperimentError(
                    f"{self.name} needs a value for its knob {knob!r}.\n"
                    f"Pass {knob}=…, or give it a default in its definition."
                )
        return bound

    def start(self, knobs: Mapping[str, object]) -> Generator[Any, None, None]:
        """Call the function and return its generator, not yet started."""
        generator = self.function(**{k: knobs[k] for k in knobs if k not in self.fixed})
        is_one = isinstance(generator, Generator)
        if not is_one or inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
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
    called = _name_of(experiment.func if is_partial else experiment)
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction
    is_odd = function is None or any(is_kind(function) for is_kind in kinds)
    if is_odd or _returns_nothing(function):
        is_named = called != type(experiment).__name__
        said = called if is_named else format_value(experiment)
        said += f" ({name!r})" if name else ""
        raise ExperimentError(
            f"{said} {'is no ordinary function' if is_odd else 'has no `yield`'}, so "
            "it is no experiment.\nSay `yield n` in its loop where n items are done. "
            "Pass the function itself: a generator cannot be restarted."
        )
    fixed = _bound(experiment) if is_partial else {}
    defaults, open_ended = _knobs(called, experiment, fixed)
    label = name or ("experiment" if called == "<lambda>" else called)
    title = ((inspect.getdoc(function) or "").strip() or label).splitlines()[0]
    return Experiment(experiment, label, title, fixed, defaults, open_ended)


def _name_of(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__)


def _knobs(
    called: str, experiment: Callable[..., Any], fixed: Mapping[str, object]
) -> tuple[dict[str, object], bool]:
    """Return all knobs with their defaults, and whether any other name goes, too."""
    try:
        parameters = inspect.signature(experiment).parameters.values()
    except ValueError:
        fault = "has other parameters than what a partial has fixed"
        raise ExperimentError(f"{called} {fault}.\nMend the partial.") from None
    defaults: dict[str, object] = {}
    open_ended = False
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        wrong, cure = "", f"Write def {called}(*, {name}=…)"
        if kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            star = "*" if kind is parameter.VAR_POSITIONAL else ""
            wrong = f"parameter {star}{name}, which has no name to set it by"
        elif name in RESERVED and name not in fixed:
            wrong, cure = f"knob {name!r}, a name that says how to measure", "Rename it"
        else:
            defaults[name] = parameter.default
        if wrong:
            raise ExperimentError(
                f"{called} has the {wrong}.\n{cure}, or fix it: "
                f"functools.partial({called}, {name}=…)."
            )
    return defaults, open_ended


def _bound(partial: functools.partial[Any]) -> dict[str, object]:
    """Return the arguments that a partial has fixed, by name."""
    names: Iterable[str] = [f"args[{n}]" for n in range(len(partial.args))]
    with contextlib.suppress(ValueError):  # most built-in functions do not tell
        names = inspect.signature(partial.func).parameters
    return {**dict(zip(names, partial.args, strict=False)), **partial.keywords}


def _returns_nothing(function: Callable[..., Any] | None) -> bool:
    """Return whether a plain function can only return None, by its source.

    A loop without its `yield` is the commonest mistake. Calling it to find out would
    run the reader's whole training.
    """
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return False
    found = [n for n in _nodes_of(function.__code__) if isinstance(n, ast.FunctionDef)]
    inside = [part for node in found for part in _inside(node)]
    returned = any(isinstance(part, ast.Return) and part.value for part in inside)
    return bool(found) and not returned


@functools.lru_cache(maxsize=1024)  # to walk through a file takes long
def _nodes_of(code: types.CodeType) -> list[ast.AST]:
    """Return where a function's source is: several lambdas may stand in one line."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return [
        node
        for node in ast.walk(_parse(code))
        if isinstance(node, kinds) and _first_line(node) == code.co_firstlineno
        if getattr(node, "name", "<lambda>") == code.co_name
    ]


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions within it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _inside(node)


def parse_yield(value: object, *, least: int = 1) -> tuple[float, dict[str, Any]]:
    """Split what was yielded into items and metrics.

    `least` is 0 where a step may handle no items. Raises ValueError with what is wrong,
    in words.
    """
    is_pair = isinstance(value, tuple) and len(value) == 2
    items, metrics = value if is_pair else (value, {})
    # A tensor, whose `size` is a method, is not read: that would wait for the device.
    is_number = hasattr(items, "__float__") and getattr(items, "size", 1) == 1
    count = float(items) if is_number and not isinstance(items, bool) else math.nan
    if not (math.isfinite(count) and (count > 0 or count == least)):
        said = "only bare `yield`s" if value is None else format_value(items)
        raise ValueError(f"{said}; a step handles a number of items")
    if not isinstance(metrics, dict) or not all(k.__class__ is str for k in metrics):
        raise ValueError(f"{format_value(metrics)}; metrics are a dict of names")
    for name, metric in metrics.items():
        size = getattr(metric, "numel", lambda m=metric: getattr(m, "size", 1))()
        if size != 1 or not hasattr(metric, "__float__"):
            raise ValueError(f"a metric {name!r} that is not a single number")
    return count, metrics


def describe(name: str, knobs: Mapping[str, object]) -> str:
    """Return a call as a reader would write it, at most 100 characters.

    >>> describe("train", {"batch_size": 64})
    'train(batch_size=64)'
    >>> describe("train.py --epochs 3", {})
    'train.py --epochs 3'
    """
    inside = ", ".join(f"{k}={format_value(v, 30)}" for k, v in knobs.items())
    text = f"{name}({inside})" if knobs or name.isidentifier() else name
    return text if len(text) <= 100 else text[:98] + "…" + ")" * bool(knobs)


# What an experiment reaches, and its source


def inner_function(experiment: object) -> Callable[..., Any] | None:
    """Return the plain function inside a partial, a method or a callable object."""
    while isinstance(experiment, functools.partial):
        experiment = experiment.func
    if inspect.ismethod(experiment):
        experiment = experiment.__func__
    if inspect.isfunction(experiment):
        return inspect.unwrap(experiment)
    call = type(experiment).__call__
    return call if inspect.isfunction(call) else None


def referred_objects(
    function: object, knobs: Mapping[str, object] | None = None
) -> list[tuple[str, object]]:
    """Return what a callable reaches: knobs, closure, globals, bound arguments.

    Functions and classes of the same module are followed. Each object comes with its
    name as a reader would write it.
    """
    home = getattr(inner_function(function), "__module__", None)
    found: dict[int, tuple[str, object]] = {}
    ahead: list[tuple[str, object]] = [*(knobs or {}).items()][::-1]
    ahead.append((getattr(function, "__name__", "experiment"), function))
    while ahead:
        name, value = ahead.pop()
        if id(value) not in found:
            found[id(value)] = name, value
            ahead += [*_parts(name, value, home)][::-1]
    return [*found.values()]


def _parts(name: str, value: Any, home: object) -> Iterable[tuple[str, object]]:
    """Return what one object is made of, as far as it is the reader's own."""
    if isinstance(value, functools.partial):
        return [*_bound(value).items(), (_name_of(value.func), value.func)]
    if inspect.ismethod(value):
        return [("self", value.__self__), (value.__name__, value.__func__)]
    if inspect.isfunction(value):
        return _names_used(inspect.unwrap(value)) if value.__module__ == home else []
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
        return [(f"{name}[{i}]", member) for i, member in enumerate(value)]
    if isinstance(value, dict) and len(value) <= _LONGEST:
        return [(f"{name}[{key!r}]", member) for key, member in value.items()]
    is_class = inspect.isclass(value)
    if (value if is_class else type(value)).__module__ != home:
        return []
    members = [(f"{name}.{k}", v) for k, v in getattr(value, "__dict__", {}).items()]
    if is_class:
        return [(k, member) for k, member in members if inspect.isfunction(member)]
    return [(type(value).__name__, type(value)), *members]


def _names_used(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function's closure, defaults and global names stand for."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # an empty cell: not assigned yet
            yield name, cell.cell_contents
    for parameter in inspect.signature(function).parameters.values():
        yield parameter.name, parameter.default
    ahead = [(function.__code__, {*function.__globals__})]
    while ahead:
        code, names = ahead.pop()
        inside = [part for node in _nodes_of(code) for part in _inside(node)]
        if inside:  # an attribute is no name: `optimizer.step` is not the global `step`
            names = {part.id for part in inside if isinstance(part, ast.Name)}
            names -= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        ahead += [(c, names) for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in sorted(names & {*code.co_names} & {*function.__globals__}):
            yield name, function.__globals__[name]


def source_of(function: object) -> str:
    """Return the source of an experiment and of what it uses from its own module.

    Whole top-level definitions, ordered by name, so that cells may move. Empty where
    there is no source.
    """
    home = getattr(inner_function(function), "__module__", None)
    parts: dict[str, str] = {}
    for _, value in referred_objects(function):
        members = vars(value).values() if inspect.isclass(value) else [value]
        for inner in filter(None, map(inner_function, members)):
            if inner.__module__ == home:
                parts.update(_top_level_source(inner.__code__))
    return "\n\n\n".join(parts[name] for name in sorted(parts))


def _top_level_source(code: types.CodeType) -> dict[str, str]:
    """Return {name: source} of the top-level definition that a code object is in.

    `inspect.getsource` does not find classes of a notebook's cells.
    """
    for node in _parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first, last = _first_line(node), node.end_lineno or node.lineno
            if first <= code.co_firstlineno <= last:
                lines = linecache.getlines(code.co_filename)[first - 1 : last]
                return {node.name: "".join(lines).rstrip("\n")}
    return {}


def _first_line(node: Any) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def _parse(code: types.CodeType) -> ast.Module:
    """Return the tree of the file or cell that a code object is from, as it is now."""
    linecache.checkcache(code.co_filename)
    return _parse_text("".join(linecache.getlines(code.co_filename)))


@functools.lru_cache(maxsize=32)
def _parse_text(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])
