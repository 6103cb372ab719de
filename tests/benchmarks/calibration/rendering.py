"""Says a result in Markdown: bars, the table of tools, where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import results
from .report import BARS, find_columns_behind, summarise
from .schedule import KIT


def render(result: Mapping[str, Any]) -> str:
    """Return a result as Markdown, for the part of a page between the markers."""
    summary = result["summary"]
    parts = [
        _provenance(result),
        render_bars(summary),
        _remarks(summary),
        _tools(summary),
        _comparison(summary),
    ]
    return "\n\n".join(part for part in parts if part)


def _provenance(result: Mapping[str, Any]) -> str:
    first, *later = result["sessions"]
    machine = {name: fact["value"] for name, fact in first["machine"].items()}
    packages = ", ".join(f"{n} {v}" for n, v in first["packages"].items() if v)
    commit = (first["commit"] or "unknown")[:10]
    if first["changed"]:
        commit += " with changes to the kit"
    several = any(session["kit"] != first["kit"] for session in later)
    return (
        f"Measured on {result['date']} on {machine['name']} "
        f"({machine['operating_system']}, Python {machine['python']}, {packages}): "
        f"{len(result['rows'])} of the {result['scheduled']} comparisons of the "
        f"schedule in {result['minutes']:.0f} minutes. Commit {commit}, sources of the "
        f"kit {first['kit']}{', which changed on the way' if several else ''}."
    )


def render_bars(summary: Mapping[str, Any]) -> str:
    """Return the table of promises as Markdown."""
    lines = [
        "| promise | bar | cases | found | 95 % interval | holds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for bar in summary["bars"]:
        kept = "yes" if bar["holds"] else "**no**"
        sign = "at most" if bar["at_most"] else "at least"
        lines.append(
            f"| {bar['name']} | {sign} {_percent(bar['bar'])} | {bar['count']} | "
            f"{bar['successes']} ({_percent(bar['share'])}) | "
            f"{_percent(bar['low'])} to {_percent(bar['high'])} | "
            f"{kept if bar['count'] else 'not measured'} |"
        )
    return "\n".join(lines)


def _remarks(summary: Mapping[str, Any]) -> str:
    said = []
    for bar in summary["bars"]:
        broken = [cell for cell, judged in bar["cells"].items() if not judged["holds"]]
        for cell in broken:
            judged = bar["cells"][cell]
            said.append(
                f"- Not kept in one cell: {bar['name']}, {cell}: "
                f"{judged['successes']} of {judged['count']}."
            )
    if not said:
        said.append("- Every cell (condition × work) by itself keeps every promise.")
    if summary["errors"]:
        said.append(
            f"- {summary['errors']} comparisons ended with an error; they count as "
            "cases in which nothing was called."
        )
    return "\n".join(said)


def _tools(summary: Mapping[str, Any]) -> str:
    columns = ("false alarms", "coverage", "power, 5 %")
    lines = [
        f"| condition | tool | {' | '.join(columns)} | time ÷ budget |",
        "| --- " * (len(columns) + 3) + "|",
    ]
    for entry in summary["tools"]:
        if entry["tool"] != KIT and entry["condition"] != "all":
            continue  # a cell of theirs has few cases; the raw rows are stored
        cells = []
        for column in columns:
            count, found = entry[column]["count"], entry[column]["successes"]
            share = _percent(found / count) if count else "–"
            cells.append(f"{found} of {count} ({share})")
        over = entry["time over budget"]
        cells.append("–" if over is None else f"{over:.2f}")
        lines.append(
            f"| {entry['condition']} | {entry['tool']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _comparison(summary: Mapping[str, Any]) -> str:
    if not any(
        e["false alarms"]["count"] for e in summary["tools"] if e["tool"] != KIT
    ):
        return ""
    said = []
    for peer, columns in find_columns_behind(summary["tools"]).items():
        if columns:
            said.append(f"- Behind {peer} in: {', '.join(columns)}.")
        else:
            said.append(f"- At least level with {peer} in every column.")
    return "\n".join(said)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.3g} %"


def check_page(page: Path, folder: Path = results.FOLDER) -> list[str]:
    """Return what is wrong with a page that shows the newest result; [] if nothing.

    The stored summary must follow from the stored rows, and the page must say it.
    """
    newest = results.newest(folder)
    if newest is None:
        return [f"no result is stored in {folder.name}/"]
    result = results.gather(newest)
    faults = []
    if summarise(results.rows_of(result)) != result["summary"]:
        faults.append(f"{newest.name}: its summary does not follow from its rows")
    if [bar["name"] for bar in result["summary"]["bars"]] != [b.name for b in BARS]:
        faults.append(f"{newest.name}: its bars are not today's")
    _, begin, rest = page.read_text().partition(results.BEGIN)
    shown, end, _ = rest.partition(results.END)
    if not (begin and end):
        faults.append(f"{page.name} lacks {results.BEGIN} … {results.END}")
    elif shown.strip() != render(result).strip():
        faults.append(f"{page.name} does not show {newest.name}: write it again")
    return faults
