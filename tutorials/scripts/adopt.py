"""Adopt recordings: say that they belong to the code of a chapter as it is now.

    python tutorials/scripts/adopt.py tutorials/02_profiling.ipynb …

For a change of code that measures what was measured before, such as another name in the
kit: it stamps the chapter's current fingerprints on its recordings and on its stored
outputs, and prints each stamp that was another one before. Whoever runs it answers for
that. Anything else needs a new recording.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from fingerprints import fingerprint_claims, fingerprint_outputs, read_cells
from pages import save_notebook

from kit.recording import compute_checksum


def main(arguments: Sequence[str]) -> int:
    """Adopt the recordings and outputs of these notebooks; return the exit status."""
    for path in map(Path, arguments):
        for line in [*adopt_recordings(path), *adopt_outputs(path)]:
            print(line)
    return 0


def adopt_recordings(notebook: Path) -> Iterator[str]:
    """Stamp the claims of all recordings of a chapter; yield what was changed."""
    current = fingerprint_claims(notebook, read_cells(notebook))
    folder = notebook.parent / "recordings"
    for path in sorted(folder.glob(f"{notebook.stem}__*.json")):
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        before = content["checksum"]
        for row in content["claims"]:
            old, new = row.get("fingerprint"), current.get(row["sentence"])
            if old is None or new is None or old == new:
                continue
            row["fingerprint"] = new
            stamp, other = (f'"fingerprint": "{each}"' for each in (old, new))
            text = text.replace(stamp, other)
            yield f"{path.name}: {row['sentence']!r}: {old} → {new}"
        # Of several claims in one cell, the stamps are one.
        content = json.loads(text)
        text = text.replace(before, compute_checksum(content))
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
