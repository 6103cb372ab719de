"""Say what this machine is, or where a training loop's time goes: from a shell.

examples:
  python -m kit machine
  python -m kit diagnose train.py:train batch_size=64
  python -m kit diagnose package.module:train amp=True --seconds 30 --html report.html

In train.py, the training loop is a function that says `yield` after each step:

  def train(*, batch_size=64):
      model, loader = ...
      for batch in loader:
          ...
          yield len(batch)

Exit status: 0 diagnosed, 1 it could not be measured, 2 it was asked for wrongly. An
error of the script itself is shown as Python shows it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.experiment import ExperimentError
from kit.machine import this_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m kit", description=summary)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("machine", help="say what this machine is, and why")
    diagnosing = commands.add_parser(
        "diagnose",
        help="say where the time of a script's training loop goes",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = diagnosing.add_argument
    add("target", type=parse_target, help="train.py:train, or package.module:train")
    add("knobs", nargs="*", type=parse_knob, metavar="name=value", help="its arguments")
    add("--seconds", type=float, default=20.0, help="how long to measure, in all")
    add("--html", type=Path, metavar="FILE", help="write the report as a page")
    options = parser.parse_args(arguments)
    if options.command == "machine":
        print(this_machine(), flush=True)
        return 0
    from kit import diagnosis

    try:
        experiment = load_experiment(*options.target)
        found = diagnosis.diagnose(
            experiment, **{"seconds": options.seconds, **dict(options.knobs)}
        )
    except ExperimentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(found)
    if options.html:
        options.html.write_text(found.to_html(), encoding="utf-8")
        print(options.html.resolve())
    return 0


def parse_target(target: str) -> tuple[str, str]:
    """Split "path/to/train.py:train" into where the function is, and its name."""
    where, _, function = target.rpartition(":")
    if not where:
        raise argparse.ArgumentTypeError(f"which function of it? {target}:train")
    if where.endswith(".py") and not Path(where).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {where} here")
    return where, function


def parse_knob(word: str) -> tuple[str, Any]:
    """Return name and value of a knob: a Python literal, or else a string.

    >>> parse_knob("batch_size=64"), parse_knob("name=resnet")
    (('batch_size', 64), ('name', 'resnet'))
    """
    name, equals, text = word.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{word!r} is not written name=value")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


def load_experiment(where: str, function: str, seconds: float = 10.0) -> Any:
    """Import a script, or a module, and return one of its functions.

    The script's folder comes first on `sys.path`, as with `python train.py`. A script
    that is still being imported after so many seconds is named.
    """
    path = Path(where)
    is_file = path.suffix == ".py"
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    said = (
        f"{where} is still being imported after {seconds:g} s: it seems to train while "
        "it is imported.\nPut the loop into a function with a `yield`, and what calls "
        'that under `if __name__ == "__main__":`.'
    )
    timer = threading.Timer(seconds, print, [said], {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        module = importlib.import_module(path.stem if is_file else where)
    finally:
        timer.cancel()
    if not hasattr(module, function):
        raise ExperimentError(f"{where} has no {function}.\nName one of its functions.")
    return getattr(module, function)


if __name__ == "__main__":
    sys.exit(main())
