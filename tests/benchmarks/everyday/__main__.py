"""Ask everyday questions of the kit and of plain loops, and print both answers.

From the repository's root; all of the questions take some 17 minutes:

    python -m tests.benchmarks.everyday --pairs attention,compile --json build/it.jsonl
"""

import argparse
from pathlib import Path

import kit

from . import judging, running
from .pairs import PAIRS


def read_names(text):
    """Return the pairs with these names, which commas separate."""
    names = text.split(",")
    for name in names:
        if name not in PAIRS:
            known = ", ".join(PAIRS)
            raise argparse.ArgumentTypeError(f"there is no {name!r}, but {known}")
    return [PAIRS[name] for name in names]


def main():
    parser = argparse.ArgumentParser(
        prog="everyday",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--pairs",
        type=read_names,
        default=[*PAIRS.values()],
        metavar="NAME,NAME",
        help=f"only these of {', '.join(PAIRS)}",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=running.SECONDS,
        help="for how long the kit, and each plain loop, measures a pair",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="append each answer to it as it comes, a line for each",
    )
    asked = parser.parse_args()
    print(kit.this_machine(), flush=True)
    rows = running.run(asked.pairs, asked.seconds, asked.json)
    print(f"\n{judging.render(rows)}")


if __name__ == "__main__":
    main()
