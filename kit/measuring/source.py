"""What a callable is made of: the function inside, what it reaches, its source.

`inspect.getclosurevars` misses names that only nested functions use, and
`inspect.getsource` does not find classes of a notebook's cells, so both are done here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Longer containers are data, not what an experiment is made of.
_LONGEST = 100

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Named = tuple[str, object]


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


def name_of(value: object) -> str:
    """Return the name of a function or a class, else that of the value's class."""
    return getattr(value, "__name__", type(value).__name__)


def bound_arguments(partial: functools.partial[Any]) -> dict[str, object]:
    """Return the arguments that a partial has fixed, by name."""
    names: Iterable[str] = [f"args[{n}]" for n in range(len(partial.args))]
    with contextlib.suppress(ValueError):  # most built-in functions do not tell
        names = inspect.signature(partial.func).parameters
    return {**dict(zip(names, partial.args, strict=False)), **partial.keywords}


def returns_nothing(function: Callable[..., Any] | None) -> bool:
    """Return whether a plain function can only return None, by its source.

    A loop without its `yield` is the commonest mistake. Calling it to find out would
    run the reader's whole training.
    """
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
        return False
    nodes = _find_functions(function.__code__)
    definitions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    for definition in definitions:
        for node in _walk_inside(definition):
            if isinstance(node, ast.Return) and node.value:
                return False
    return bool(definitions)


# What it reaches


def referred_objects(
    function: object, knobs: Mapping[str, object] | None = None
) -> list[_Named]:
    """Return what a callable reaches: knobs, closure, globals, bound arguments.

    Functions and classes of the same module are followed. Each object comes once, with
    its name as a reader would write it.
    """
    module = getattr(inner_function(function), "__module__", None)
    reached: dict[int, _Named] = {}
    # A stack: the last one comes next, so parts are put there from last to first.
    ahead: list[_Named] = [*reversed((knobs or {}).items())]
    ahead.append((name_of(function), function))
    while ahead:
        name, value = ahead.pop()
        if id(value) not in reached:
            reached[id(value)] = name, value
            ahead += reversed([*_list_parts(name, value, module)])
    return [*reached.values()]


def _list_parts(name: str, value: Any, module: object) -> Iterable[_Named]:
    """Return what one object is made of, as far as it is the reader's own."""
    if isinstance(value, functools.partial):
        return [*bound_arguments(value).items(), (name_of(value.func), value.func)]
    if inspect.ismethod(value):
        return [("self", value.__self__), (value.__name__, value.__func__)]
    if inspect.isfunction(value):
        return _list_names(inspect.unwrap(value)) if value.__module__ == module else []
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
        return [(f"{name}[{i}]", member) for i, member in enumerate(value)]
    if isinstance(value, dict) and len(value) <= _LONGEST:
        return [(f"{name}[{key!r}]", member) for key, member in value.items()]
    if inspect.isclass(value):
        if value.__module__ != module:
            return []
        methods = filter(inspect.isfunction, vars(value).values())
        return [(f"{name}.{method.__name__}", method) for method in methods]
    if type(value).__module__ != module:
        return []
    attributes = getattr(value, "__dict__", {}).items()
    members = [(f"{name}.{key}", member) for key, member in attributes]
    return [(type(value).__name__, type(value)), *members]


def _list_names(function: types.FunctionType) -> Iterator[_Named]:
    """Yield what a function's closure, defaults and global names stand for."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # an empty cell: not assigned yet
            yield name, cell.cell_contents
    for parameter in inspect.signature(function).parameters.values():
        yield parameter.name, parameter.default
    known = {*function.__globals__}
    for name in sorted(_find_global_names(function.__code__, known)):
        yield name, function.__globals__[name]


def _find_global_names(
    code: types.CodeType, known: set[str], around: set[str] | None = None
) -> set[str]:
    """Return which of the known names a code object uses, or one nested in it.

    `around` are the names in the function around it: a comprehension has no node of
    its own.
    """
    nodes = [part for node in _find_functions(code) for part in _walk_inside(node)]
    names = known if around is None else around
    if nodes:  # an attribute is no name: `optimizer.step` is not the global `step`
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names -= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    used = names & known & {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            used |= _find_global_names(constant, known, names)
    return used


# Its source


def source_of(function: object) -> str:
    """Return the source of an experiment and of what it uses from its own module.

    Whole top-level definitions, ordered by name, so that cells may move. Empty where
    there is no source.
    """
    module = getattr(inner_function(function), "__module__", None)
    definitions: dict[str, str] = {}
    for _, value in referred_objects(function):
        members = vars(value).values() if inspect.isclass(value) else [value]
        for inner in filter(None, map(inner_function, members)):
            if inner.__module__ == module:
                definitions.update(_find_definition(inner.__code__))
    return "\n\n\n".join(definitions[name] for name in sorted(definitions))


def _find_definition(code: types.CodeType) -> dict[str, str]:
    """Return {name: source} of the top-level definition that a code object is in."""
    for node in _parse_file(code).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first, last = _first_line(node), node.end_lineno or node.lineno
            if first <= code.co_firstlineno <= last:
                lines = linecache.getlines(code.co_filename)[first - 1 : last]
                return {node.name: "".join(lines).rstrip("\n")}
    return {}


@functools.lru_cache(maxsize=1024)  # to walk through a file takes long
def _find_functions(code: types.CodeType) -> list[_FunctionNode]:
    """Return where a function's source is: several lambdas may stand in one line."""
    return [
        node
        for node in ast.walk(_parse_file(code))
        if isinstance(node, _FunctionNode)
        and _first_line(node) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
    ]


def _walk_inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions within it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, _FunctionNode):
            yield from _walk_inside(node)


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _parse_file(code: types.CodeType) -> ast.Module:
    """Return the tree of the file or cell that a code object is from, as it is now."""
    linecache.checkcache(code.co_filename)
    return _parse("".join(linecache.getlines(code.co_filename)))


@functools.lru_cache(maxsize=32)
def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])
