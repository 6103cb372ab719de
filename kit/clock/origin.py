"""What an experiment is made of: the objects that it reaches, and their source."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def inner_function(experiment: object) -> Callable[..., Any] | None:
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


def referred_objects(
    function: object, knobs: Mapping[str, object] | None = None
) -> list[tuple[str, object]]:
    """Return what a callable reaches: knobs, closure, globals, bound arguments.

    Functions and classes of the same module are followed. Each object comes with its
    name as a reader would write it.
    """
    found: list[tuple[str, object]] = []
    seen: set[int] = set()
    home = getattr(inner_function(function), "__module__", None)

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
    source = "".join(linecache.getlines(code.co_filename))
    for name, first, last in _find_definitions(source):
        if first <= code.co_firstlineno <= last:
            return {name: "\n".join(source.splitlines()[first - 1 : last])}
    return {}


@functools.lru_cache(maxsize=32)
def _find_definitions(source: str) -> list[tuple[str, int, int]]:
    """Return the top-level definitions: name, first and last line."""
    try:
        nodes = ast.parse(source).body
    except SyntaxError:
        return []
    found = []
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.append((node.name, first, node.end_lineno or first))
    return found
