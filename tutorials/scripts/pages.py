"""What scripts write for readers: tables in Markdown pages, and stored notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nbformat
import slices


class PageError(Exception):
    """A page cannot be read, or has no place for its table; names the page."""


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def format_block(start: str, table: str, end: str) -> str:
    """Return a table as it stands in its page, between two comments."""
    return f"{start}\n\n{table}\n\n{end}"


def write_table(page: Path, start: str, table: str, end: str) -> None:
    """Put a table in place of what stands between two comments of a page.

    Raises PageError where the page cannot be read, or lacks them.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise PageError(
            f"{page}: cannot be read ({error.strerror}).\n"
            "Its table stands between two comments, in a page that is there."
        ) from error
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise PageError(
            f"{page}: has no place for the table.\n"
            f"Write two lines where it shall stand: {start} and {end}"
        )
    block = format_block(start, table, end)
    page.write_text(before + block + after, encoding="utf-8")


def write_notebook(notebook: Any, path: Path) -> None:
    """Store the notebook with static outputs only, and what code has made them."""
    notebook.metadata.pop("widgets", None)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs = [output for output in cell.outputs if is_static(output)]
    made_by = {cell.id: slices.fingerprint(cell.source) for cell in code}
    notebook.metadata.setdefault("kit", {})["made_by"] = made_by
    part = path.with_suffix(".part")
    part.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
    part.replace(path)


def is_static(output: Any) -> bool:
    """Return whether an output means something in a stored notebook.

    Progress does not, and neither does a widget, nor a page that a script fetches from
    a server.
    """
    data = output.get("data", {})
    is_widget = "application/vnd.jupyter.widget-view+json" in data
    is_page = "<script" in "".join(data.get("text/html", ""))
    is_progress = output.get("metadata", {}).get("kit") == "progress"
    return not (is_widget or is_page or is_progress)
