"""Judge every chapter's claims by the recordings that are committed.

    python tutorials/scripts/claims.py --check
    python tutorials/scripts/claims.py --write

It prints a table of claim and machine: ✓ it holds, ✗ it does not, ? cannot tell. What
is stale in a chapter of `unrecorded.txt` is listed, and fails nothing.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cells import ClaimError, find_claims, hash_claims, read_notebook
from pages import format_table, write_table
from recording import Recording, read

from kit.errors import RecordingError
from kit.measuring.report import Comparison
from kit.teaching import Claim

START = "<!-- claims: written by `python tutorials/scripts/claims.py --write` -->"
END = "<!-- end of claims -->"
UNRECORDED = Path(__file__).with_name("unrecorded.txt")


class Judged(NamedTuple):
    """One claim of one recording, judged from its raw runs."""

    chapter: str
    machine: str
    claim: Claim
    comparison: Comparison
    label: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, write or check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("tutorials"))
    parser.add_argument(
        "--check", action="store_true", help="exit 1 where a claim does not stand"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into CLAIMS.md"
    )
    options = parser.parse_args(arguments)
    page = options.folder / "CLAIMS.md"
    try:
        judged, problems, stale = judge(options.folder)
    except (RecordingError, ClaimError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    table = tabulate(judged)
    print(table)
    if options.write:
        write_table(page, START, table, END)
    elif table not in page.read_text(encoding="utf-8"):
        problems.append(
            f"{page} has another table. Was a cell changed that measures what it "
            "measured before? Then run record.py --adopt on it, else claims.py --write"
        )
    for line in stale:
        print(f"waits for its chapter's recording: {line}", file=sys.stderr)
    for problem in problems:
        print(f"✗ {problem}", file=sys.stderr)
    return 1 if options.check and problems else 0


def tabulate(judged: Sequence[Judged]) -> str:
    """Return the table claim × machine, in Markdown."""
    machines = sorted({entry.machine for entry in judged})
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for entry in judged:
        row = rows.setdefault((entry.chapter, entry.claim.sentence), {})
        row[entry.machine] = f"{entry.claim.verdict} {entry.claim.ratio}"
    lines = []
    for (chapter, sentence), row in rows.items():
        cells = [row.get(machine, "") for machine in machines]
        lines.append([chapter, sentence, *cells])
    return format_table(["chapter", "claim", *machines], lines)


def judge(folder: Path) -> tuple[list[Judged], list[str], list[str]]:
    """Judge the claims of every recording.

    Return them, what does not stand, and what is stale where that is allowed.
    """
    waiting = UNRECORDED.read_text(encoding="utf-8").split()
    judged: list[Judged] = []
    problems: list[str] = []
    allowed: list[str] = []
    for notebook in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        found, stale = judge_chapter(notebook)
        judged += found
        problems += find_problems(found)
        if notebook.stem in waiting:
            allowed += stale
        else:
            problems += stale
    return judged, problems, allowed


def judge_chapter(notebook: Path) -> tuple[list[Judged], list[str]]:
    """Judge one chapter's claims by its current recordings.

    Return them, and a line for each claim that no machine has a current recording of.
    What counts is the claim as the chapter makes it now.
    """
    cells = read_notebook(notebook)
    codes = hash_claims(cells)
    calls = {}
    for cell in cells:
        calls |= dict(find_claims(cell))
    judged = []
    for path in sorted(notebook.parent.glob(f"recordings/{notebook.stem}__*.json")):
        made = read(path)
        machine = path.stem.split("__")[1]
        if any(trial.machine.name != machine for trial in made.trials):
            raise RecordingError(f"{path.name}: it was not made on {machine}")
        if any(trial.outcome == "quick" for trial in made.trials):
            raise RecordingError(f"{path.name}: quick mode judges nothing")
        for row in made.claims:
            sentence = row["sentence"]
            if sentence in codes and row.get("code") == codes[sentence]:
                claim = judge_claim(made, row | read_literals(calls[sentence]))
                place = made.comparisons[row["comparison"]], row["label"]
                judged.append(Judged(notebook.stem, machine, claim, *place))
    recorded = {entry.claim.sentence for entry in judged}
    stale = []
    for sentence in calls.keys() - recorded:
        stale.append(f"{notebook.stem}: no current recording of {sentence!r}")
    return judged, sorted(stale)


def find_problems(judged: Sequence[Judged]) -> list[str]:
    """Return what does not stand among the judged claims of a chapter.

    That is a claim that a recording contradicts and no other supports, and one that
    every machine leaves open without saying so.
    """
    problems = []
    for entry in judged:
        sentence = entry.claim.sentence
        verdicts = {
            other.claim.verdict for other in judged if other.claim.sentence == sentence
        }
        where = f"{entry.chapter} on {entry.machine}: {sentence!r}"
        if entry.claim.verdict == "✗" and "✓" not in verdicts:
            problems.append(f"{where}: its own recording contradicts it")
        if verdicts == {"?"} and not entry.claim.open:
            problems.append(f"{where}: cannot tell; record it again, or open=True")
    return problems


def judge_claim(made: Recording, row: dict[str, Any], *, judged: bool = True) -> Claim:
    """Judge a recorded claim anew, from the raw runs of its comparison."""
    names = ("sentence", "expect", "at_least", "otherwise", "open")
    fields = {name: row[name] for name in names}
    ratio = made.comparisons[row["comparison"]].ratios[row["label"]]
    return Claim(ratio=ratio, judged=judged, **fields)


def read_literals(call: ast.Call) -> dict[str, Any]:
    """Return what a claim says beside its ratio, as it stands in the chapter."""
    written: dict[str, Any] = {"expect": "faster", "at_least": None, "open": False}
    for keyword in call.keywords:
        if keyword.arg and isinstance(keyword.value, ast.Constant):
            written[keyword.arg] = keyword.value.value
    return written


if __name__ == "__main__":
    sys.exit(main())
