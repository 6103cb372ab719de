"""Markdown pages and notebooks: what scripts write for readers, links, the glossary."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from fingerprints import Cell, fingerprint_outputs

ROOT = Path(__file__).resolve().parents[2]
#: Code and formulas, which are no prose.
CODE = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)|``.+?``|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$",
    re.M | re.S,
)
FENCED = re.compile(r"^(```|~~~).*?^\1", flags=re.M | re.S)
#: Links of all kinds, and what they may lead to.
LINK = r"\[[^\]]*\]\(\s*<?(?P<goal>[^)>\s]*)>?[^)]*\)"
LINKS = (
    re.compile(LINK),
    re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']*)[\"']", re.I),
    re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.M),
)
ANCHOR = re.compile(r"<[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.I)
#: An entry of the glossary: its anchor, where the heading has another, and its text.
ENTRY = re.compile(
    r"(?:<a id=\"(?P<id>[^\"]+)\"></a>\n\n)?^### (?P<heading>.+)\n"
    r"\n(?P<text>(?:(?!^### |^<a id).*\n?)*)",
    re.M,
)


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
    """Store a notebook that was run: static outputs only, and what code made them."""
    notebook.metadata.pop("widgets", None)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs = [output for output in cell.outputs if is_static(output)]
    cells = [Cell(cell.id, cell.source) for cell in code]
    made_by = fingerprint_outputs(path, cells)
    notebook.metadata.setdefault("kit", {})["made_by"] = made_by
    save_notebook(notebook, path)


def save_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook, whole or not at all."""
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


# Links


def read_markdown(path: Path) -> str:
    """Return the Markdown of a document or a notebook."""
    if path.suffix == ".md":
        return path.read_text("utf-8")
    found = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in found if cell.cell_type == "markdown")


def find_anchors(path: Path) -> set[str]:
    """Return a page's anchors as they are now."""
    return _read_anchors(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _read_anchors(path: Path, _: int) -> set[str]:
    """Return a page's anchors: JupyterLab's for a notebook, GitHub's for a document.

    JupyterLab keeps a heading's letters and joins them with dashes; GitHub also makes
    them small and drops punctuation.
    """
    text = read_markdown(path)
    found = set(ANCHOR.findall(CODE.sub("", text)))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCED.sub("", text), re.M):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        if path.suffix == ".md":
            plain = re.sub(r"[^\w\- ]", "", plain.lower())
        found.add(plain.replace(" ", "-"))
    return found


def find_broken_links(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield the links of a document or a notebook that lead nowhere."""
    text = CODE.sub("", read_markdown(path))
    for link in (link for pattern in LINKS for link in pattern.findall(text)):
        name, _, anchor = map(unquote, link.partition("#"))
        goal = (path.parent / name).resolve() if name else path
        if re.match(r"[a-z][a-z+.-]*:", link, re.I):
            is_broken = link.startswith(("file:", "http://localhost", "http://127."))
        elif (
            not link
            or name.startswith("/")
            or not goal.is_relative_to(root)
            or not goal.exists()
        ):
            is_broken = True
        else:
            is_page = anchor and goal.suffix in (".ipynb", ".md")
            is_broken = bool(is_page) and anchor not in find_anchors(goal)
        if is_broken:
            yield link


# The glossary


def read_entries(page: str) -> dict[str, str]:
    """Return a glossary's entries: anchor → text."""
    found = {}
    for entry in ENTRY.finditer(page):
        found[entry["id"] or entry["heading"].replace(" ", "-")] = entry["text"]
    return found
