"""Run a chapter's cells without Jupyter, on a machine that has PyTorch and not more.

They run one after the other in a process of their own (this file, as a command), whose
`__main__` they are, and what they display is written as text. What needs a notebook is
left out, and one line says so: magics, shell commands, controls.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from kit.recording.cells import make_python
from kit.recording.chapters import write_journal
from kit.recording.files import RecordingError

_SECONDS_TO_END = 5.0


def run_plainly(path: Path, journal: Path, environment: Mapping[str, str]) -> None:
    """Run a chapter's cells in a process of their own; write its journal.

    Raises RecordingError with cell and traceback where one fails.
    """
    if not path.is_file():
        raise RecordingError("there is no such file")
    failure = journal.with_suffix(".failure")
    command = [sys.executable, "-m", __name__, *map(str, (path.resolve(), journal))]
    # The kit that runs this need not be installed.
    folders = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    more = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "KIT_STATIC": "text"}
    with subprocess.Popen(
        [*command, str(failure)],
        cwd=path.parent,
        env={**environment, **more},
        stdin=subprocess.DEVNULL,
    ) as child:
        try:
            status = child.wait()
        except BaseException:  # an interrupt reaches the child, too, which tidies up
            try:
                child.wait(_SECONDS_TO_END)
            finally:
                child.kill()
            raise
    if failure.exists():
        raise RecordingError(failure.read_text(encoding="utf-8"))
    if not journal.exists():
        raise RecordingError(
            f"the process that ran its cells ended with status {status}; below 0 it is "
            "the signal that ended it.\nLook which cell was the last one named above, "
            "and whether it needs more memory than there is."
        )


class CellError(Exception):
    """A cell failed: which one, and the traceback from the cell on."""


def run_cells(path: Path) -> None:
    """Run a notebook's code cells in order, in a new `__main__` of this process.

    Each is told on stderr before it runs. Raises CellError where one fails.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    # As in Jupyter it has no file: a process that is spawned does not run it again.
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["get_ipython"] = _Shell
    builtins.display = display  # type: ignore[attr-defined]
    for number, cell in enumerate(cells, 1):
        cell_id = cell.get("id", number)
        sys.stderr.write(f"{path.name}: cell {number} of {len(cells)}, {cell_id}\n")
        # Tracebacks and diagnoses show the last part of this name.
        name = f"{path}[{cell_id}]"
        try:
            run_cell("".join(cell["source"]), name, vars(main))
        except (Exception, SystemExit) as error:
            error = error.with_traceback(_cut(error.__traceback__, name))
            told = "".join(traceback.format_exception(error))
            raise CellError(f"cell {cell_id} failed.\n{told}") from None
        finally:
            sys.stdout.flush()


def run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    """Run the source of one cell, as a file of this name; display its last expression.

    `names` are its globals.

    >>> run_cell("x = 20\\nx + 1", "a cell", {})
    21
    """
    source = make_python(source)
    # Where tracebacks look for lines, and the kit for an experiment's source.
    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache[name] = len(source), None, lines, name
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        exec(compile(tree, name, "exec", dont_inherit=True), names)
        return
    tree.body.pop()
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    expression = ast.Expression(last.value)
    display(eval(compile(expression, name, "eval", dont_inherit=True), names))


def display(*values: object, display_id: object = None, **_: object) -> Any:
    """Write values as text, as a notebook would show them; None is nothing.

    A figure is its description, a panel what it measured. With a `display_id` return a
    handle, whose `update` writes again.

    >>> display(1, "two")
    1
    'two'
    """
    for value in values:
        if hasattr(value, "_ipython_display_"):
            value._ipython_display_()
        elif value is not None:
            sys.stdout.write(f"{_describe(value)}\n")
    return _Handle() if display_id else None


class _Handle:
    def update(self, value: object, **_: object) -> None:
        display(value)


def _describe(value: object) -> str:
    """Return a figure's alt text; of anything else its repr."""
    for drawn in (value, getattr(value, "figure", None)):
        alt = getattr(drawn, "alt", None)
        if isinstance(alt, str) and alt:
            return alt
    return repr(value)


class _Shell:
    """What the calls go to that stand in place of magics: IPython's part, left out."""

    @staticmethod
    def run_line_magic(name: str, line: str) -> None:
        if name == "env" and "=" in line:
            key, _, value = line.partition("=")
            os.environ[key.strip()] = value.strip()
        else:
            _leave_out(f"%{name} {line}")

    @staticmethod
    def run_cell_magic(name: str, line: str, body: str) -> None:
        if name == "writefile":
            *options, file = shlex.split(line)
            with open(file, "a" if "-a" in options else "w", encoding="utf-8") as made:
                made.write(body)
        else:
            _leave_out(f"%%{name} {line}")

    @staticmethod
    def system(command: str) -> None:
        _leave_out(f"!{command}")

    @staticmethod
    def getoutput(command: str) -> list[str]:
        _leave_out(f"!{command}")
        return []


def _leave_out(what: str) -> None:
    sys.stdout.write(f"Left out, because it needs a notebook: {what.strip()}\n")


def _cut(trace: TracebackType | None, name: str) -> TracebackType | None:
    """Return the part of a traceback that begins in the file of this name."""
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    return trace


def main() -> int:
    """Run one chapter; write its journal, or what failed; return the exit status."""
    path, journal, failure = map(Path, sys.argv[1:])
    try:
        run_cells(path)
        write_journal(journal)
    except CellError as error:
        failure.write_text(str(error), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
