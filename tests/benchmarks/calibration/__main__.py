"""The command line: `run` measures, `report` judges."""

from __future__ import annotations

import argparse
import fnmatch
from pathlib import Path

from . import results, running
from .rendering import render


def main() -> None:
    """Read the arguments and do what they ask for."""
    parser = argparse.ArgumentParser(prog="calibration", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the comparisons")
    run.add_argument("--out", type=Path, default=Path("build/calibration.jsonl"))
    run.add_argument("--minutes", type=float, default=75.0)
    run.add_argument("--resume", action="store_true", help="go on with --out")
    run.add_argument(
        "--only",
        default="*",
        metavar="PATTERN",
        help="of names such as busy/matmul/kit/same-1-2s/0",
    )
    judge = commands.add_parser("report", help="judge what was measured")
    judge.add_argument("raw", type=Path, help="what `run` wrote, or a stored result")
    judge.add_argument("--store", action="store_true", help="keep it as a result")
    judge.add_argument("--write", type=Path, metavar="PAGE", help="put it into a page")
    arguments = parser.parse_args()
    if arguments.command == "run":
        running.run(
            arguments.out,
            arguments.minutes,
            resume=arguments.resume,
            keep=lambda job: fnmatch.fnmatch(job.name, arguments.only),
        )
        return
    result = results.gather(arguments.raw)
    print(render(result))
    if arguments.store:
        print(f"\nstored as {results.store(result)}")
    if arguments.write:
        results.write_page(arguments.write, render(result))


if __name__ == "__main__":
    main()
