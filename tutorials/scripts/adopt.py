"""Adopt recordings: say that they belong to the code of a chapter as it is now.

    git worktree add ../before HEAD
    python tutorials/scripts/adopt.py ../before tutorials/02_profiling.ipynb …

For a change of code that measures what was measured before, such as another name in the
kit: where a recording belonged to the chapter as it was before, it stamps the chapter's
current fingerprints on it and on the stored outputs, and prints each. What was stale
stays stale. Whoever runs it answers for that; anything else needs a new recording.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from fingerprints import fingerprint_claims, fingerprint_outputs, read_cells
from pages import save_notebook


def main(arguments: Sequence[str]) -> int:
    """Adopt the recordings and outputs of these notebooks; return the exit status."""
    before, *notebooks = map(Path, arguments)
    for path in notebooks:
        for line in [*adopt_recordings(path, before / path), *adopt_outputs(path)]:
            print(line)
    return 0


def adopt_recordings(notebook: Path, before: Path) -> Iterator[str]:
    """Stamp the claims of all recordings of a chapter; yield what was changed.

    `before` is the notebook in the tree to which the recordings belong.
    """
    current = fingerprint_claims(notebook, read_cells(notebook))
    known = fingerprint_claims(before, read_cells(before))
    folder = notebook.parent / "recordings"
    for path in sorted(folder.glob(f"{notebook.stem}__*.json")):
        text = path.read_text(encoding="utf-8")
        for row in json.loads(text)["claims"]:
            sentence = row["sentence"]
            old, new = known.get(sentence), current.get(sentence)
            if old is None or new is None or old == new:
                continue
            if row.get("fingerprint") != old:
                continue
            stamp, other = (f'"fingerprint": "{each}"' for each in (old, new))
            text = text.replace(stamp, other)
            yield f"{path.name}: {sentence!r}: {old} → {new}"
        path.write_text(text, encoding="utf-8")


def adopt_outputs(notebook: Path) -> Iterator[str]:
    """Stamp the stored outputs of a notebook; yield the cells that had other code."""
    book = nbformat.read(notebook, as_version=4)
    current = fingerprint_outputs(notebook, read_cells(notebook))
    known = book.metadata.setdefault("kit", {})
    before = known.get("made_by", {})
    changed = [name for name, stamp in current.items() if before.get(name) != stamp]
    if changed or before.keys() != current.keys():
        known["made_by"] = current
        save_notebook(book, notebook)
        yield f"{notebook.name}: outputs of {', '.join(changed) or 'fewer cells'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
