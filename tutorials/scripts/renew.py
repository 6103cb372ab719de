"""Renew the fingerprints of a chapter in which nothing but names has changed.

    python tutorials/scripts/renew.py HEAD tutorials/02_profiling.ipynb save_trace=save

The chapter as it was at a commit, with these names replaced, must be the chapter as it
is now, cell by cell. Then what was recorded belongs to the new code as it did to the
old, and nothing is measured. Anything else needs a recording. Run it before you commit
the change, or name the commit before it. What was stale stays so.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from fingerprints import (
    Cell,
    find_modules,
    fingerprint,
    fingerprint_claims,
    parse,
    read_cells,
    write,
)

from kit.recording import read
from kit.recording import write as write_recording


class Renamed(ast.NodeTransformer):
    """Replaces names: of variables, attributes, arguments, functions and imports."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Replace every name that a node carries."""
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, self.names.get(value, value))
        return super().generic_visit(node)


def find_changes(
    before: Sequence[Cell], after: Sequence[Cell], names: Mapping[str, str]
) -> list[str]:
    """Return the cells in which more has changed than these names.

    >>> find_changes([Cell("a", "x.f()")], [Cell("a", "x.g()")], {"f": "g"})
    []
    >>> find_changes([Cell("a", "x.f()")], [Cell("a", "x.g(1)")], {"f": "g"})
    ['a']
    """
    if [cell.name for cell in before] != [cell.name for cell in after]:
        return ["the list of cells"]
    changed = []
    for old, new in zip(before, after, strict=True):
        renamed = Renamed(names).visit(parse(old.source, keep_magics=True))
        if write(renamed) != write(parse(new.source, keep_magics=True)):
            changed.append(old.name)
    return changed


def show(commit: str, path: Path) -> str:
    """Return a file as it was at a commit."""
    command = ["git", "show", f"{commit}:./{path.name}"]
    done = subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, check=True
    )
    return done.stdout


def renew(notebook: Path, commit: str, names: Mapping[str, str]) -> list[str]:
    """Renew the fingerprints of a notebook and its recordings; return what was done.

    Raises SystemExit where more than names has changed.
    """
    after = read_cells(notebook)
    for module in find_modules(notebook, after):
        if show(commit, module) != module.read_text(encoding="utf-8"):
            raise SystemExit(f"{module} has changed: record {notebook} again.")
    old = notebook.with_name(f".{notebook.name}")  # beside the modules it imports
    try:
        old.write_text(show(commit, notebook), encoding="utf-8")
        before = read_cells(old)
        claims_before = fingerprint_claims(old, before)
    finally:
        old.unlink()
    if changed := find_changes(before, after, names):
        raise SystemExit(
            f"{notebook}: more than names has changed in {', '.join(changed)}.\n"
            "Record it again, unless the pairs are not old=new, or not all of them."
        )
    claims_after = fingerprint_claims(notebook, after)
    done = renew_outputs(notebook, before, after)
    for path in sorted((notebook.parent / "recordings").glob(f"{notebook.stem}__*")):
        done += renew_claims(path, claims_before, claims_after)
    return done


def renew_outputs(
    notebook: Path, before: Sequence[Cell], after: Sequence[Cell]
) -> list[str]:
    """Renew what a notebook says of the code that made its outputs."""
    stored = nbformat.read(notebook, as_version=4)
    made_by = stored.metadata.kit.made_by
    done = []
    for old, new in zip(before, after, strict=True):
        then, now = fingerprint(old.source), fingerprint(new.source)
        if made_by.get(old.name) == then != now:
            made_by[new.name] = now
            done.append(f"{notebook.name}: {new.name}")
    nbformat.write(stored, notebook)
    return done


def renew_claims(
    path: Path, before: Mapping[str, str], after: Mapping[str, str]
) -> list[str]:
    """Renew the claims of a recording that belonged to the code as it was."""
    recording = read(path)
    renewed = 0
    for row in recording.claims:
        sentence = row["sentence"]
        then, now = before.get(sentence), after.get(sentence)
        if row.get("fingerprint") == then != now:
            row["fingerprint"] = now
            renewed += 1
    if not renewed:
        return []
    write_recording(recording, path)
    return [f"{path.name}: {renewed} claims"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew a chapter's fingerprints, and say which."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", help="where the chapter has the old names: HEAD")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("names", nargs="+", metavar="old=new")
    options = parser.parse_args(arguments)
    replaced = dict(pair.split("=") for pair in options.names)
    done = renew(options.notebook, options.commit, replaced)
    if not done:
        done = [f"Nothing to renew: is the change committed after {options.commit}?"]
    print(*done, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
