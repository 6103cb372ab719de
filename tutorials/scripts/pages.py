"""Write what scripts make for readers: tables in pages, notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nbformat


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def write_table(page: Path, start: str, table: str, end: str) -> None:
    """Put a table in place of what stands between two comments of a page.

    Raises ValueError where the page lacks them.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page}: write two lines for the table: {start} and {end}")
    block = f"{start}\n\n{table}\n\n{end}"
    page.write_text(before + block + after, encoding="utf-8")


def save_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
    part.replace(path)
