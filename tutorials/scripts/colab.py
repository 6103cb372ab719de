"""Write a badge and a cell for Colab into every notebook, or check them.

    python tutorials/scripts/colab.py --write
    python tutorials/scripts/colab.py --check

The repository's address is that of pyproject.toml.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from pages import save_notebook

ROOT = Path(__file__).resolve().parents[2]
BRANCH = "main"
TAG = "colab"
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check all notebooks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="change the notebooks")
    how.add_argument("--check", action="store_true", help="exit 1 where one differs")
    options = parser.parse_args(arguments)
    status = 0
    for path in [*ROOT.glob("tutorials/*.ipynb"), *ROOT.glob("tutorials/more/*.ipynb")]:
        notebook = nbformat.read(path, as_version=4)
        if not prepare(notebook, path.relative_to(ROOT)):
            continue
        if options.write:
            save_notebook(notebook, path)
            print(f"written: {path.relative_to(ROOT)}")
        else:
            print(
                f"{path.relative_to(ROOT)}: run colab.py --write: its badge or its "
                "cell for Colab is missing or differs",
                file=sys.stderr,
            )
            status = 1
    return status


def prepare(notebook: Any, path: Path) -> bool:
    """Put badge and cell into a notebook; return whether that changed it."""
    before = nbformat.writes(notebook)
    title = notebook.cells[0]
    lines = [line for line in title.source.splitlines() if BADGE not in line]
    if lines[1:2] == [""] and lines[2:3] == [""]:
        del lines[1]  # what an earlier badge has left
    lines[1:1] = ["", write_badge(path)]
    title.source = "\n".join(lines)
    cells = [
        cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])
    ]
    cell = nbformat.v4.new_code_cell(write_cell(path), metadata={"tags": [TAG]})
    cell.id = TAG
    notebook.cells = [cells[0], cell, *cells[1:]]
    number_cells(notebook)
    return nbformat.writes(notebook) != before


def number_cells(notebook: Any) -> None:
    """Number the code cells and their outputs from one."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number


def find_address() -> str:
    """Return where the repository is."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    return tomllib.loads(text)["project"]["urls"]["Repository"]


def write_badge(path: Path) -> str:
    """Return the link that opens a notebook on Colab."""
    repository = find_address().removeprefix("https://github.com/")
    place = "https://colab.research.google.com/github"
    return f"{BADGE}({place}/{repository}/blob/{BRANCH}/{path.as_posix()})"


def write_cell(path: Path) -> str:
    """Return the cell that fetches the project on Colab."""
    address = find_address()
    folder = Path(address.rpartition("/")[2], path.parent).as_posix()
    up = "../" * (len(path.parts) - 2)
    return f"""# On Colab, fetch the project and what is lacking; elsewhere, do nothing.
import os
import sys

if "google.colab" in sys.modules and not os.path.exists("{up}scripts/on_colab.py"):
    !git clone --quiet --depth 1 {address}
    %cd -q {folder}
    %run {up}scripts/on_colab.py"""


if __name__ == "__main__":
    sys.exit(main())
