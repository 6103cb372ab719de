"""The command line: `run` measures, `report` judges."""

import argparse
from pathlib import Path

from . import results, running


def main():
    parser = argparse.ArgumentParser(prog="calibration", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the comparisons")
    run.add_argument("--out", type=Path, default=Path("build/calibration.jsonl"))
    run.add_argument("--minutes", type=float, default=80.0, help="at most")
    run.add_argument("--resume", action="store_true", help="go on with --out")
    judge = commands.add_parser("report", help="judge what was measured")
    judge.add_argument("raw", type=Path, help="what `run` wrote, or a stored result")
    judge.add_argument("--store", action="store_true", help="keep it as a result")
    judge.add_argument("--write", type=Path, metavar="PAGE", help="put it into a page")
    asked = parser.parse_args()
    if asked.command == "run":
        running.run(asked.out, asked.minutes, resume=asked.resume)
        return
    result = results.gather(asked.raw)
    print(results.render(result))
    if asked.store:
        print(f"\nstored as {results.store(result)}")
    if asked.write:
        results.write_page(asked.write, results.render(result))


if __name__ == "__main__":
    main()
