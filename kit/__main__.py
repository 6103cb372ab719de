"""Say what this machine is, or where a training loop's time goes: from a shell.

examples:
  python -m kit machine
  python -m kit diagnose train.py:train batch_size=64
  python -m kit diagnose package.module:train amp=True --seconds 30 --html report.html
  python -m kit diagnose --script train.py --html report.html -- --its-own arguments

In train.py, the training loop is a function that says `yield` after each step:

  def train(*, batch_size=64):
      model, loader = ...
      for batch in loader:
          ...
          yield len(batch)

With --script it runs as it is, again and again, in this folder, and writes what it
writes. A step ends with `optimizer.step()`.

Exit status: 0 diagnosed, 1 it could not be measured, 2 it was asked for wrongly. An
error of the script itself is shown as Python shows it.
"""

from __future__ import annotations

import argparse
import ast
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.errors import ExperimentError
from kit.machine import this_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = [*(sys.argv[1:] if arguments is None else arguments), "--"]
    own, its = words[: words.index("--")], words[words.index("--") + 1 : -1]
    parser = make_parser()
    options = parser.parse_args(own)
    if options.command == "machine":
        print(this_machine(), flush=True)
        return 0
    if (options.script is None) == (options.target is None):
        parser.error("diagnose train.py:train, or --script train.py -- its arguments")
    from kit import diagnosis
    from kit.script import Script, load_function

    knobs = {"seconds": options.seconds, **dict(options.knobs)}
    try:
        if options.target:
            experiment = load_function(*options.target)
        else:
            experiment = Script(options.script, its, options.optimizer_steps_per_step)
        found = diagnosis.diagnose(experiment, **knobs)
    except ExperimentError as error:
        if error.__cause__:
            traceback.print_exception(error.__cause__)
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(found)
    if options.html:
        options.html.write_text(found.to_html(), encoding="utf-8")
        print(options.html.resolve())
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Make what reads the words of a command, but what follows `--`."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m kit", description=summary)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("machine", help="say what this machine is, and why")
    look = {"epilog": examples, "formatter_class": argparse.RawDescriptionHelpFormatter}
    said = "say where the time of a script's training loop goes"
    diagnosing = commands.add_parser("diagnose", help=said, **look)
    add = diagnosing.add_argument
    add("target", type=parse_target, nargs="?", help="train.py:train, or package:train")
    add("knobs", nargs="*", type=parse_knob, metavar="name=value", help="its arguments")
    add("--script", type=parse_file, metavar="FILE", help="train.py, as it is")
    each = "--optimizer-steps-per-step"
    add(each, type=int, default=1, metavar="N", help="of a script, 1 as a rule")
    add("--seconds", type=float, default=20.0, help="how long to measure, in all")
    add("--html", type=Path, metavar="FILE", help="write the report as a page")
    return parser


def parse_file(name: str) -> Path:
    """Return the path of a file that is there."""
    if not Path(name).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {name} here")
    return Path(name)


def parse_target(target: str) -> tuple[str, str]:
    """Split "path/to/train.py:train" into where the function is, and its name."""
    where, _, function = target.rpartition(":")
    if not where:
        raise argparse.ArgumentTypeError(f"which function of it? {target}:train")
    if where.endswith(".py"):
        parse_file(where)
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


if __name__ == "__main__":
    sys.exit(main())
