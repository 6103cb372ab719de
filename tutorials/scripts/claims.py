"""Judge every chapter's claims by the recordings that are committed.

    python tutorials/scripts/claims.py --check
    python tutorials/scripts/claims.py --write

It prints a table of claim and machine: ✓ it holds, ✗ it does not, ? cannot tell.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fingerprints import ClaimError, find_claims, fingerprint_claims, read_cells
from pages import PageError, format_block, format_table, write_table
from recording import Recording, read

from kit.errors import RecordingError
from kit.teaching import Claim

START = "<!-- claims: written by `python tutorials/scripts/claims.py --write` -->"
END = "<!-- end of claims -->"


class Judged(NamedTuple):
    """One claim of one recording, judged from its raw runs."""

    chapter: str
    machine: str
    claim: Claim


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, write or check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("tutorials"))
    parser.add_argument(
        "--check", action="store_true", help="exit 1 where a claim does not stand"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the table into the chapters' CLAIMS.md",
    )
    options = parser.parse_args(arguments)
    page = options.folder / "CLAIMS.md"
    try:
        judged, problems = judge(options.folder)
        table = tabulate(judged)
        print(table if judged else "no claims recorded yet")
        if options.write:
            write_table(page, START, table, END)
    except (RecordingError, PageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    problems += check_page(page, table)
    for problem in problems:
        print(f"✗ {problem}", file=sys.stderr)
    return 1 if options.check and problems else 0


def check_page(page: Path, table: str) -> list[str]:
    """Return what is wrong with the table in the page of claims, where there is one."""
    block = format_block(START, table, END)
    if not page.is_file() or block in page.read_text(encoding="utf-8"):
        return []
    return [
        f"{page.name}: its table of claims is not the recordings'; "
        "run `python tutorials/scripts/claims.py --write`"
    ]


def tabulate(judged: Sequence[Judged]) -> str:
    """Return the table claim × machine, in Markdown."""
    machines = sorted({entry.machine for entry in judged})
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for entry in judged:
        row = rows.setdefault((entry.chapter, entry.claim.sentence), {})
        row[entry.machine] = f"{entry.claim.verdict} {entry.claim.ratio}"
    return format_table(
        ["chapter", "claim", *machines],
        [[*key, *(row.get(m, "") for m in machines)] for key, row in rows.items()],
    )


def judge(folder: Path) -> tuple[list[Judged], list[str]]:
    """Judge the claims of every recording; return them, and what does not stand.

    What counts is the claim as the chapter makes it now. It does not stand where its
    recording contradicts it, where no machine has a current recording of it, or where
    every machine leaves it open and it does not say so.
    """
    judged: list[Judged] = []
    problems: list[str] = []
    for notebook in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        entries, wrong = judge_chapter(notebook)
        judged += entries
        problems += wrong
    verdicts: dict[tuple[str, str], set[str]] = {}
    for entry in judged:
        key = entry.chapter, entry.claim.sentence
        verdicts.setdefault(key, set()).add(entry.claim.verdict)
    for entry in judged:
        sentence = entry.claim.sentence
        where = f"{entry.chapter} on {entry.machine}: {sentence!r}"
        found = verdicts[entry.chapter, sentence]
        # What another machine supports has an `otherwise` for this one.
        if entry.claim.verdict == "✗" and "✓" not in found:
            problems.append(f"{where}: its own recording contradicts it")
        if found == {"?"} and not entry.claim.open:
            problems.append(
                f"{where}: no machine can tell; record it again, or open=True"
            )
    return judged, problems


def judge_chapter(notebook: Path) -> tuple[list[Judged], list[str]]:
    """Judge one chapter's claims; return them, and what is missing or misplaced.

    A recording of other code is stale: it is left out.
    """
    chapter, cells = notebook.stem, read_cells(notebook)
    try:
        current = fingerprint_claims(notebook, cells)
    except ClaimError as error:
        return [], [f"{chapter}: {error}"]
    calls = dict(found for cell in cells for found in find_claims(cell))
    judged: list[Judged] = []
    problems: list[str] = []
    stale: dict[str, list[str]] = {sentence: [] for sentence in calls}
    for path in sorted((notebook.parent / "recordings").glob(f"{chapter}__*.json")):
        made = read(path)
        if wrong := find_misplaced(path, made):
            problems.append(f"{path.name}: {wrong}")
            continue
        for row in made.claims:
            sentence = row["sentence"]
            if sentence not in calls:
                continue
            machine = made.comparisons[row["comparison"]].trials[0].machine.name
            if row.get("fingerprint") != current[sentence]:
                stale[sentence].append(machine)
                continue
            claim = judge_claim(made, row | read_literals(calls[sentence]))
            judged.append(Judged(chapter, machine, claim))
    recorded = {entry.claim.sentence for entry in judged}
    for sentence in calls.keys() - recorded:
        of_other_code = ", ".join(stale[sentence])
        why = f" (stale: {of_other_code})" if of_other_code else ""
        problems.append(
            f"{chapter}: no machine has a current recording of {sentence!r}{why}; "
            "record it again, or, where the same is measured, run adopt.py"
        )
    return judged, sorted(problems)


def find_misplaced(path: Path, made: Recording) -> str:
    """Return why a recording may not judge this chapter's claims, or nothing."""
    if any(trial.outcome == "quick" for trial in made.trials):
        return "it is of quick mode, which judges nothing; record it without --quick"
    for trial in made.trials:
        if trial.machine.name != path.stem.split("__")[1]:
            return f"it was made on {trial.machine.name}; its name says otherwise"
    return ""


def judge_claim(made: Recording, row: dict[str, Any], *, judged: bool = True) -> Claim:
    """Judge a recorded claim anew, from the raw runs of its comparison."""
    others = "comparison", "label", "fingerprint"
    fields = {k: v for k, v in row.items() if k not in others}
    try:
        ratio = made.comparisons[row["comparison"]].ratios[row["label"]]
        return Claim(ratio=ratio, judged=judged, **fields)
    except (KeyError, IndexError, TypeError) as error:
        raise RecordingError(f"claims: {row!r:.80} is not whole: {error!r}") from error


def read_literals(call: ast.Call) -> dict[str, Any]:
    """Return what a claim says beside its ratio, as it stands in the chapter."""
    written: dict[str, Any] = {"expect": "faster", "at_least": None, "open": False}
    for keyword in call.keywords:
        if keyword.arg and isinstance(keyword.value, ast.Constant):
            written[keyword.arg] = keyword.value.value
    return written


if __name__ == "__main__":
    sys.exit(main())
