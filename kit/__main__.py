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

Exit status: 0 diagnosed, 1 it could not be measured, 2 it was asked for wrongly.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any

from kit.machine import this_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m kit", description=summary)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("machine", help="say what this machine is, and why")
    diagnose = _add_diagnose(commands, examples)
    options, rest = parser.parse_known_args(arguments)
    if options.command == "machine":
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        print(this_machine(), flush=True)
        return 0
    # Knobs may come after options, too.
    options.knobs += [word for word in rest if not word.startswith("-")]
    if unknown := [word for word in rest if word.startswith("-")]:
        hint = "; knobs are written name=value" if "=" in unknown[0] else ""
        diagnose.error(f"no such option: {' '.join(unknown)}{hint}")
    return diagnose_script(options)


def _add_diagnose(commands: Any, examples: str) -> argparse.ArgumentParser:
    """Add the command `diagnose` and return its parser."""
    parser = commands.add_parser(
        "diagnose",
        help="say where the time of a script's training loop goes",
        description="Say where a step's time goes and what removing each cost saves.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="train.py:train, or package.module:train")
    parser.add_argument("knobs", nargs="*", metavar="name=value", help="its arguments")
    parser.add_argument("--seconds", type=_seconds, help="how long to measure, in all")
    parser.add_argument("--json", action="store_true", help="print JSON, nothing else")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a positive number")


def diagnose_script(options: argparse.Namespace) -> int:
    """Diagnose an experiment that lives in a script; print and write what was found."""
    from kit import diagnosis
    from kit.diagnosis import imports, scripts, shell
    from kit.experiment import ExperimentError, resolve

    status = 2
    try:
        diverted = shell.divert_stdout() if options.json else contextlib.nullcontext()
        with imports.restore_imports(), diverted:
            knobs = scripts.parse_knobs(options.knobs)
            path = shell.check_page(options.html) if options.html else None
            experiment = scripts.load_experiment(options.target)
            resolve(experiment).bind(knobs)
            status = 1
            limit = {"seconds": options.seconds} if options.seconds else {}
            found = diagnosis.diagnose(experiment, **limit, **knobs)
            page = found.to_html() if path else ""
            report = shell.format_json(found.to_dict()) if options.json else repr(found)
        print(report)
        if path:
            shell.write_page(page, path)
            print(path, file=sys.stderr if options.json else sys.stdout)
    except ExperimentError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.__cause__:
            print(f"\n{imports.format_traceback(error.__cause__)}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        print("interrupted: there is no diagnosis", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
