"""Write the cheat sheet's table: what a reader sees, how to be sure, what to try.

    python tutorials/scripts/cheatsheet.py --write tutorials/CHEATSHEET.md

It says what a diagnosis advises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pages import PageError, format_table, write_table

from kit.diagnosis.advice import ADVICE, NO_CAUSE

START = (
    "<!-- table: `python tutorials/scripts/cheatsheet.py"
    " --write tutorials/CHEATSHEET.md` -->"
)
END = "<!-- end of the table -->"
HEADERS = ("you see", "to be sure", "it is called", "then try", "chapter")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table into its page; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE", required=True)
    page = parser.parse_args(arguments).write
    try:
        write_table(page, START, format_table(HEADERS, list_rows(page.parent)), END)
    except PageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def list_rows(tutorials: Path) -> list[tuple[str, ...]]:
    """Return a row for each verdict of a diagnosis, in Markdown.

    A chapter is a link where its notebook is in the folder `tutorials`.
    """
    return [
        (
            advice.symptom,
            format_line(advice.measure),
            f"`{verdict}`",
            format_line(advice.code),
            format_link(advice.chapter, tutorials),
        )
        for verdict, advice in {**ADVICE, "None": NO_CAUSE}.items()
    ]


def format_line(line: str) -> str:
    """Return a line of code, and what its comment says below it."""
    code, _, remark = line.partition("  # ")
    return f"`{code}`<br>{remark}" if remark else f"`{code}`"


def format_link(chapter: str, tutorials: Path) -> str:
    """Return a link to a chapter, or its name where there is no notebook yet."""
    notebook = next(tutorials.glob(f"{chapter[:2]}_*.ipynb"), None)
    return f"[{chapter}]({notebook.name})" if notebook else chapter


if __name__ == "__main__":
    sys.exit(main())
