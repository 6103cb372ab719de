"""Describe this machine, or show where a training loop's time goes.

examples:
  python -m kit machine
  python -m kit diagnose train.py:train batch_size=64
  python -m kit diagnose package.module:train amp=True --seconds 60 --html report.html
  python -m kit diagnose --script train.py --html report.html -- --its-own arguments
  python -m kit diagnose --script train.py --try-compile

In train.py, the training loop is a function with a `yield` after each step:

  def train(*, batch_size=64):
      model, loader = ...
      for batch in loader:
          ...
          yield len(batch)

With --script, the script runs once, unmodified, in this folder, and prints and writes
what it always does. A step ends with `optimizer.step()`.

Exit status: 0 diagnosed, 1 could not be measured, 2 wrong usage, 130 interrupted. An
error in the script itself is shown as Python shows it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.errors import ExperimentError
from kit.machine import this_machine

_RUNS = "{} runs in this folder, once, and writes there what it always writes."
#: What an interrupted diagnosis says at most.
_MOST_LINES = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = [*(sys.argv[1:] if arguments is None else arguments), "--"]
    own, its = words[: words.index("--")], words[words.index("--") + 1 : -1]
    parser = make_parser()
    options, unknown = parser.parse_known_args(own)
    if options.command == "machine":
        if unknown:
            parser.error(f"unknown: {' '.join(unknown)}")
        print(this_machine(), flush=True)
        return 0
    _check(parser, options, unknown)
    from kit import diagnosis
    from kit.diagnosis.script import Script, beside_scripts, load_function

    try:
        knobs = {"seconds": options.seconds, "try_compile": options.try_compile}
        knobs |= dict(map(parse_knob, options.knobs))
        target = parse_target(options.target) if options.target else None
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    try:
        if target:
            experiment = load_function(*target)
        else:
            print(_RUNS.format(options.script.name), file=sys.stderr)
            experiment = Script(options.script, its, options.optimizer_steps_per_step)
        found = beside_scripts(diagnosis.diagnose, experiment, **knobs)
    except ExperimentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"interrupted: {interrupt}".splitlines()[0], file=sys.stderr)
        if kept := getattr(interrupt, "diagnosis", None):
            print("\n".join(repr(kept).splitlines()[:_MOST_LINES]))
        return 130
    print(found)
    if options.html:
        options.html.write_text(found.to_html(), encoding="utf-8")
        print(options.html.resolve())
    return 0


def _check(
    parser: argparse.ArgumentParser, options: argparse.Namespace, unknown: list[str]
) -> None:
    """End with a message where the words say neither a function nor a script."""
    if options.script is not None and (unknown or options.target):
        parser.error(
            "put `--` before the script's own arguments: "
            f"--script {options.script} -- --its-own arguments"
        )
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}")
    if (options.script is None) == (options.target is None):
        parser.error(
            "name a function, train.py:train, or --script train.py -- its arguments"
        )


def make_parser() -> argparse.ArgumentParser:
    """Make what reads the words of a command, but what follows `--`."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m kit", description=summary)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("machine", help="show what the kit knows about this machine")
    look = {"epilog": examples, "formatter_class": argparse.RawDescriptionHelpFormatter}
    said = "show where the time of a training loop goes"
    diagnosing = commands.add_parser("diagnose", help=said, **look)
    add = diagnosing.add_argument
    add("target", nargs="?", help="train.py:train, or package:train")
    add("knobs", nargs="*", metavar="name=value", help="the function's arguments")
    add("--script", type=parse_file, metavar="FILE", help="a script to run as it is")
    each = "--optimizer-steps-per-step"
    add(each, type=parse_count, default=1, metavar="N", help="in a script; default 1")
    add("--seconds", type=float, default=60.0, help="time limit; default 60")
    add("--try-compile", action="store_true", help="also try torch.compile (minutes)")
    add("--html", type=Path, metavar="FILE", help="also write the report as a web page")
    return parser


def parse_file(name: str) -> Path:
    """Return the path of a file that is there."""
    if not Path(name).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {name} here")
    return Path(name)


def parse_count(word: str) -> int:
    """Return a number that counts something, 1 or more."""
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of 1 or more")
    return int(word)


def parse_target(target: str) -> tuple[str, str]:
    """Split "path/to/train.py:train" into where the function is, and its name."""
    where, _, function = target.rpartition(":")
    if not where:
        raise argparse.ArgumentTypeError(
            f"name a function in it, {target}:train, or use --script {target}"
        )
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
        raise argparse.ArgumentTypeError(f"{word!r} is not of the form name=value")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


if __name__ == "__main__":
    sys.exit(main())
