"""Check what nbval cannot see in notebooks: what is stored in them.

    python tutorials/scripts/check_notebooks.py tutorials/00_start_here.ipynb

`make test` asks the same of every notebook.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
from fingerprints import ClaimError, find_claims, fingerprint_outputs, read_cells
from pages import find_broken_links

#: Cells with this tag show the same on every machine, at any length.
SAME, LEAST = "nbval-check-output", 5
#: Tags of cells that are meant to write to stderr, or to raise.
STDERR, RAISES = "stderr-is-meant", "raises-exception"
HIDDEN = ("hide", "remove")
BEHIND_THE_BACK = {
    r"[!%] *(?:pip|conda|mamba|uv)\b": "installs something",
    r"\bsys\.path\b|\bPYTHONPATH\b": "changes the path",
    r"(?:filterwarnings|simplefilter)\(\s*['\"]ignore['\"]\s*\)": "hides warnings",
}


def find_faults(path: Path) -> Iterator[str]:
    """Yield what is wrong with a notebook as it is stored."""
    book = nbformat.read(path, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    if book.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "without the kernelspec python3, Jupyter asks for one and nothing runs"
    if "widgets" in book.metadata:
        yield "it stores the state of widgets, which shows as an error"
    if path.stat().st_size >= 1_000_000:
        yield "it has 1 MB or more"
    for link in find_broken_links(path):
        yield f"the link {link} leads nowhere"
    yield from find_old_outputs(path, book)
    yield from find_unchecked(path, code)
    if any("kit.quick" in cell.source for cell in code[1:]):
        yield "kit.quick stands outside of the first code cell"
    for cell in book.cells:
        for fault in find_faults_of_cell(cell):
            yield f"cell {cell.id} {fault}"


def find_old_outputs(path: Path, book: Any) -> Iterator[str]:
    """Yield what says that the stored outputs are not those of the code."""
    cells = read_cells(path)
    try:
        for cell in cells:
            list(find_claims(cell))
    except ClaimError as error:
        yield str(error)
    now = fingerprint_outputs(path, cells)
    made_by = book.metadata.get("kit", {}).get("made_by", {})
    parts = now.keys() | made_by.keys()
    changed = sorted(part for part in parts if now.get(part) != made_by.get(part))
    if changed:
        yield f"changed since the outputs were made: {', '.join(changed)}"
    counts = [c.execution_count for c in book.cells if c.cell_type == "code"]
    if counts != [*range(1, len(counts) + 1)]:
        yield "its cells were not run once each and in order"


def find_unchecked(path: Path, code: Sequence[Any]) -> Iterator[str]:
    """Yield what is wrong with the outputs that nbval compares."""
    tagged = [cell for cell in code if SAME in cell.metadata.get("tags", [])]
    if path.parent.name != "more" and len(tagged) < LEAST:
        yield f"only {len(tagged)} cells have the tag {SAME}"
    for cell in tagged:
        shown = "".join(map(read_text, cell.outputs)).strip()
        if not shown or shown.startswith("Panel of"):
            yield f"cell {cell.id} has the tag {SAME}, and shows nothing to compare"


def read_text(output: Any) -> str:
    """Return what an output says as text."""
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def find_faults_of_cell(cell: Any) -> Iterator[str]:
    """Yield what is hidden in a cell, wrong with its outputs, or without words."""
    tags = cell.metadata.get("tags", [])
    is_hidden = any(tag.startswith(HIDDEN) for tag in tags)
    is_folded = cell.metadata.get("collapsed") or cell.metadata.get("jupyter")
    if is_hidden or is_folded:
        yield "is hidden"
    images: list[str | None] = []
    if cell.cell_type == "code":
        for pattern, what in BEHIND_THE_BACK.items():
            if re.search(pattern, cell.source):
                yield what
        for output in cell.outputs:
            yield from find_faults_of_output(output, tags)
            images += find_images(output)
    else:
        images += re.findall(r"!\[(.*?)\]", cell.source)
        images += Images(cell.source).alts
    if not all(words and len(words) > 3 for words in images):
        yield "has a picture without alt text"


def find_faults_of_output(output: Any, tags: Sequence[str]) -> Iterator[str]:
    """Yield what a stored output should not be."""
    data = output.get("data", {})
    if output.output_type == "error" and RAISES not in tags:
        yield "stores an error"
    if output.get("name") == "stderr" and STDERR not in tags:
        yield "stores words on stderr"
    if any("widget" in kind for kind in data):
        yield "stores a widget"
    if "<script" in "".join(data.get("text/html", "")):
        yield "stores a script"
    if output.get("metadata", {}).get("kit") == "progress":
        yield "stores a progress line"


def find_images(output: Any) -> Iterator[str | None]:
    """Yield the alt text of each picture in an output; None where it has none."""
    data = output.get("data", {})
    page = "".join(data.get("text/html", ""))
    yield from Images(page).alts
    for kind in data:
        if kind.startswith("image/") and not page:
            yield output.metadata.get(kind, {}).get("alt")


class Images(HTMLParser):
    """The alt texts of a page's images; None for an image without one."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.alts: list[str | None] = []
        self.feed(page)

    def handle_starttag(
        self, tag: str, attrs: Sequence[tuple[str, str | None]]
    ) -> None:
        """Note an image's alt text."""
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


def main(words: Sequence[str] | None = None) -> int:
    """Print what is wrong with notebooks; return 1 where it is something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    faults = [
        f"{path.name}: {fault}"
        for path in parser.parse_args(words).notebooks
        for fault in find_faults(path)
    ]
    print("\n".join(faults) or "nothing is wrong")
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
