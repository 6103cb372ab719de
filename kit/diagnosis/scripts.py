"""An experiment that lives in a script: found, imported and, if need be, explained."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from kit import system
from kit.diagnosis.imports import ImportWatch, end_children, watch_import
from kit.experiment import RESERVED, ExperimentError, named, resolve
from kit.figures import format_value

_SUFFIXES = (".py", ".pyw")
_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NOT_PYTHON = {"true", "false", "none"}


class _Script(NamedTuple):
    """A target, taken apart: where it is, and what it is called."""

    target: str
    where: str
    function: str
    module: str
    path: Path | None  # None where it is found by its module's name
    folder: Path


def parse_knobs(arguments: Sequence[str]) -> dict[str, object]:
    """Return the knobs of a command line: Python literals, the rest are strings.

    Raises ExperimentError for what is not written name=value, or is given twice.

    >>> parse_knobs(["batch_size=64", "betas=(0.9, 0.99)", "name=resnet"])
    {'batch_size': 64, 'betas': (0.9, 0.99), 'name': 'resnet'}
    """
    knobs: dict[str, object] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not (equals and name.isidentifier()):
            raise ExperimentError(
                f"{argument!r} is not a knob.\n"
                "Knobs are written name=value, without spaces: batch_size=64"
            )
        if name in RESERVED:
            option = f": --{name} {text}" if name == "seconds" else " of the script."
            raise ExperimentError(
                f"{name!r} cannot be a knob: the kit uses this name itself.\n"
                + ("Write the option" if name == "seconds" else "Rename that argument")
                + option
            )
        if name in knobs:
            raise ExperimentError(
                f"the knob {name!r} is given twice: {format_value(knobs[name])} and "
                f"{text}.\nLeave one of them out."
            )
        if text.lower() in _NOT_PYTHON and text != text.capitalize():
            raise ExperimentError(
                f"{argument!r} would be the text {text!r}, which counts as true.\n"
                f"Write {name}={text.capitalize()}, as Python does."
            )
        knobs[name] = _parse_value(text)
    return knobs


def _parse_value(text: str) -> object:
    try:
        with warnings.catch_warnings(action="ignore"):  # of strange backslashes, say
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def load_experiment(target: str, *, seconds: float = 20.0) -> Callable[..., Any]:
    """Import a script, or a module, and return the experiment that it defines.

    `target` is "path/to/train.py:train" or "package.module:train". As with `python
    train.py`, the script's own folder comes first on `sys.path`; its module is in
    `sys.modules`, so that worker processes find it. `restore_imports` undoes both.
    Importing may take so many seconds, the time that libraries take not counted.
    Raises ExperimentError where there is no such experiment, or it cannot be imported:
    caused by the script's own error, if it raised one.
    """
    script = _find(target)
    module = _import(script, seconds)
    found = getattr(module, script.function, None)
    generators = _name_generators(Path(getattr(module, "__file__", None) or ""))
    others = f"Its generator functions: {', '.join(generators) or 'none yet'}."
    if not hasattr(module, script.function):
        names = [name for name, value in vars(module).items() if callable(value)]
        near = _find_near(script.function, [*generators, *names])
        guess = f" Did you mean {script.where}:{near[0]}?" if near else ""
        raise ExperimentError(
            f"{target}: {script.where} has no function {script.function!r}.{guess}\n"
            f"{others}"
        )
    if not callable(found) and not inspect.isgenerator(found):
        raise ExperimentError(
            f"{target}: {script.function} is {format_value(found, 50)}, not a function."
            f"\n{others}"
        )
    with named("diagnose()"):
        resolve(found)
    return found


def _find(target: str) -> _Script:
    where, _, function = target.rpartition(":")
    path = Path(where)
    if not where or not function.isidentifier():
        whole = Path(target.rstrip(":"))
        names = _name_generators(whole) or ["train"]
        example = f"{whole}:{names[0]}" if whole.is_file() else "path/to/train.py:train"
        raise ExperimentError(
            f"{target}: which function?\nName it after the file and a colon: {example}"
        )
    is_package = not path.is_dir() or (path / "__init__.py").is_file()
    by_name = _MODULE_NAME.fullmatch(where) and not where.endswith(_SUFFIXES)
    if by_name and is_package and not path.is_file():
        return _Script(target, where, function, where, None, Path.cwd())
    if path.is_dir():
        raise ExperimentError(
            f"{where} is a folder, not a script.\n{_list_scripts(path, path.name)}"
        )
    if not path.exists():
        raise _not_found(path)
    if path.suffix not in _SUFFIXES:
        cure = "Write its cells to a file (%%writefile train.py), or call kit.diagnose"
        other = f"Name a Python file: path/to/train.py:{function}"
        raise ExperimentError(
            f"{where} is not a Python file (*.py).\n"
            + (f"{cure} in it." if path.suffix == ".ipynb" else other)
        )
    path = path.resolve()  # as for `python train.py`, links are followed
    return _Script(target, where, function, path.stem, path, path.parent)


def _not_found(path: Path) -> ExperimentError:
    where = path.parent.absolute()
    if not where.is_dir():
        return ExperimentError(
            f"{path}: there is no folder {where}.\nThe current folder is {Path.cwd()}."
        )
    return ExperimentError(
        f"{path}: there is no such file in {where}.\n{_list_scripts(where, path.name)}"
    )


def _list_scripts(folder: Path, wanted: str) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.suffix in _SUFFIXES)
    if near := _find_near(wanted, names):
        return f"Did you mean {' or '.join(near)}?"
    more = ", …" if len(names) > 5 else ""
    return f"Python files there: {', '.join(names[:5]) or 'none'}{more}."


def _find_near(wanted: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(wanted, dict.fromkeys(names), 2)


def _name_generators(path: Path) -> list[str]:
    """Return the generator functions that a file defines at its top level."""
    try:
        with warnings.catch_warnings(action="ignore"):
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return []
    functions = [c for c in code.co_consts if isinstance(c, CodeType)]
    generators = [c for c in functions if c.co_flags & inspect.CO_GENERATOR]
    return [c.co_name for c in generators if c.co_name.isidentifier()]


def _import(script: _Script, seconds: float) -> ModuleType:
    """Run a script as a module of its own name, watched."""
    import torch  # noqa: F401 (its own import takes seconds, and is not the script's)

    known = sys.modules.get(script.module)
    origin = getattr(known, "__file__", None)
    if script.path and known and (not origin or Path(origin).resolve() != script.path):
        raise ExperimentError(
            f"{script.where} has the name of a module that is already in use, "
            f"{script.module!r}.\nRename the file: my_{script.module}.py"
        )
    sys.path.insert(0, str(script.folder))
    sys.argv[:] = [str(script.path or script.where)]
    importlib.invalidate_caches()
    children, watch = system.find_children(), ImportWatch(script.folder)
    try:
        with watch_import(watch, seconds):
            module = _run(script)
    except BaseException as error:
        end_children(error, children)
        if isinstance(error, KeyboardInterrupt) and not watch.seen:
            raise
        explained = _explain(script, watch, error)
        raise explained from explained.__cause__
    if watch.seen:  # and swallowed
        raise _explain_training(script, watch.seen, "")
    return module


def _run(script: _Script) -> ModuleType:
    if script.path is None:
        return importlib.import_module(script.module)
    code = compile(script.path.read_bytes(), script.path, "exec", dont_inherit=True)
    spec = importlib.util.spec_from_file_location(script.module, script.path)
    assert spec is not None  # it has the suffix of a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.module] = module
    exec(code, module.__dict__)  # not its loader: that would leave a cache behind
    return module


def _explain(
    script: _Script, watch: ImportWatch, error: BaseException
) -> ExperimentError:
    line = watch.find_line(error)
    if watch.seen:
        return _explain_training(script, watch.seen, line)
    at = f" ({line})" if line else ""
    if isinstance(error, ModuleNotFoundError) and not line:
        wanted = script.module.rpartition(".")[2] + ".py"
        return ExperimentError(
            f"{script.where}: no module of this name can be imported from "
            f"{script.folder}.\n{_list_scripts(script.folder, wanted)}"
        )
    if isinstance(error, SyntaxError) and not line:
        where = script.where if script.path else error.filename
        shown = f"    {error.text.strip()}\n" if error.text else ""
        return ExperimentError(
            f"{where}, line {error.lineno}: {error.msg}\n{shown}Mend this first: it "
            "must be Python before it can be diagnosed."
        )
    if isinstance(error, OSError) and not line:
        return ExperimentError(
            f"{script.where} cannot be read ({error.strerror}).\nCheck its permissions."
        )
    if isinstance(error, SystemExit):
        return ExperimentError(
            f"{script.where} ended itself while it was imported{at}: "
            f"sys.exit({error.code!r}).\nPut what runs or reads its arguments under "
            'if __name__ == "__main__":, or into the function.'
        )
    cure = "Mend this first: importing the script must work."
    if "relative import" in str(error):
        cure = f"Name it as a module of its package: package.{script.module}:…"
    said = " ".join(str(error).split())[:200]
    explained = ExperimentError(
        f"{script.where} raised {type(error).__name__} while it was imported{at}: "
        f"{said}\n{cure}"
    )
    explained.__cause__ = error  # the traceback of the script tells more
    return explained


def _explain_training(script: _Script, seen: str, line: str) -> ExperimentError:
    at = f" ({line})" if line else ""
    return ExperimentError(
        f"{script.where} {seen}{at}.\n"
        "Put the loop into a function with one yield, and guard its call:\n"
        f"    def {script.function}(*, batch_size=64):\n"
        "        for batch in loader: ...; yield len(batch)  # one step is done\n"
        '    if __name__ == "__main__":\n'
        f"        for _ in {script.function}(): pass"
    )
