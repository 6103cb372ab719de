"""Results that are kept: gathered from raw lines, stored, shown in a page."""

import datetime
import json
import math
from dataclasses import asdict
from pathlib import Path

from . import running
from .code import hash_measuring
from .report import BARS, summarise
from .schedule import SCHEDULE, all_jobs

FOLDER = Path(__file__).parent / "results"
BEGIN, END = "<!-- calibration -->", "<!-- end of calibration -->"
#: A cell with fewer cases says nothing by itself.
_FEW = 8
#: What is kept of a row; a row lacks those that its kind does not have.
COLUMNS = ["name", "kind", "method", "condition", "work", "units", "truth", "seconds"]
COLUMNS += ["wall_seconds", "at", "value", "low", "high", "verdict", "reason", "starts"]
COLUMNS += ["ours", "theirs", "error"]


def gather(raw):
    """Read what `running.run` wrote, or a stored result; return a result.

    Raises ValueError where the file holds no session.
    """
    if raw.suffix == ".json":
        return dict(json.loads(raw.read_text()))
    sessions, rows = running.read(raw)
    if not sessions:
        raise ValueError(f"{raw} holds no session of a calibration")
    first = sessions[0]
    table = [[_compact(row.get(column)) for column in COLUMNS] for row in rows]
    result = {
        "format": 2,
        "machine": first["machine"]["name"],
        "date": datetime.date.fromtimestamp(first["at"]).isoformat(),
        "minutes": round(_minutes(sessions, rows), 1),
        "sessions": sessions,
        "schedule": [asdict(row) for row in SCHEDULE],
        "scheduled": len(all_jobs()),
        "columns": COLUMNS,
        "rows": table,
    }
    return {**result, "summary": summarise(rows_of(result))}


def rows_of(result):
    return [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]


def _compact(value):
    """Return a value as short as JSON can hold it: six digits, None for nan."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < 1e6 else round(value)
    return value


def _minutes(sessions, rows):
    """Return how long the sessions took, each to the last row before the next."""
    ends = [session["at"] for session in sessions]
    for row in rows:
        number = sum(session["at"] <= row["at"] for session in sessions) - 1
        ends[number] = max(ends[number], row["at"])
    return sum(e - s["at"] for e, s in zip(ends, sessions, strict=True)) / 60


def store(result, folder=FOLDER):
    """Write a result into the folder of results; return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['machine']}__{result['date']}.json"
    keys = []
    for key, value in result.items():
        text = json.dumps(value, ensure_ascii=False)
        if key == "rows":
            lines = (json.dumps(row, ensure_ascii=False) for row in value)
            text = "[\n" + ",\n".join(lines) + "\n]"
        keys.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(keys) + "\n}\n")
    return path


def find_newest(folder=FOLDER):
    found = folder.glob("*__*.json")
    return max(found, key=lambda path: path.stem.split("__")[-1], default=None)


# In a page


def render(result):
    """Return a result as Markdown, for the part of a page between the markers."""
    parts = [_provenance(result), render_bars(result["summary"])]
    parts += [_remarks(result["summary"]), _tools(result["summary"])]
    return "\n\n".join(parts).strip()


def _provenance(result):
    first, *later = result["sessions"]
    machine = first["machine"]
    packages = ", ".join(f"{n} {v}" for n, v in first["packages"].items() if v)
    commit = (first["commit"] or "unknown")[:10]
    if first["changed"]:
        commit += " with changes to the kit"
    several = any(session["kit"] != first["kit"] for session in later)
    return (
        f"Measured on {result['date']} on {machine['name']} "
        f"({machine['operating_system']}, Python {machine['python']}, {packages}): "
        f"{len(result['rows'])} of {result['scheduled']} planned comparisons, in "
        f"random order, fitted into {result['minutes']:.0f} minutes. Commit {commit}, "
        f"sources of the kit {first['kit']}"
        f"{', which changed on the way' if several else ''}."
    )


def render_bars(summary):
    lines = [
        "| promise | bar | cases | found | 95 % interval | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for bar in summary["bars"]:
        mark = bar["mark"] if bar["holds"] else f"**{bar['mark']}**"
        sign = "at most" if bar["at_most"] else "at least"
        lines.append(
            f"| {bar['name']} | {sign} {_percent(bar['bar'])} | {bar['count']} | "
            f"{bar['successes']} ({_percent(bar['share'])}) | "
            f"{_percent(bar['low'])} to {_percent(bar['high'])} | "
            f"{mark if bar['count'] else 'not measured'} |"
        )
    return "\n".join(lines)


def _remarks(summary):
    said = [
        f"- Refuted for one work under one load: {bar['name']}, {cell}: "
        f"{judged['successes']} of {judged['count']}."
        for bar in summary["bars"]
        for cell, judged in bar["cells"].items()
        if judged["count"] >= _FEW and not judged["holds"]
    ]
    said = said or ["- No single work under one load refutes a promise."]
    if summary["errors"]:
        said.append(
            f"- {summary['errors']} comparisons ended with an error; they count as "
            "cases in which nothing was called."
        )
    return "\n".join(said)


def _tools(summary):
    columns = [name for name in summary["tools"][0] if name != "tool"]
    lines = [f"| tool | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for entry in summary["tools"]:
        cells = [entry["tool"]]
        for column in columns:
            found = entry[column]
            if isinstance(found, list):
                share = found[0] / found[1] if found[1] else None
                cells.append(f"{found[0]} of {found[1]} ({_percent(share)})")
            else:
                cells.append("–" if found is None else f"{found:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(share):
    return "–" if share is None else f"{100 * share:.3g} %"


def write_page(page, text, begin=BEGIN, end=END):
    """Put a text between the two markers of a page; raise ValueError without them."""
    before, _, rest = page.read_text().partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"{page} needs the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def check_page(page, folder=FOLDER):
    """Return what is wrong with a page that shows the newest result; [] if nothing.

    The stored summary must follow from the stored rows, and the page must say it.
    """
    newest = find_newest(folder)
    if newest is None:
        return [f"no result is stored in {folder.name}/"]
    result, faults = gather(newest), []
    if summarise(rows_of(result)) != result["summary"]:
        faults.append(f"{newest.name}: its summary does not follow from its rows")
    if [bar["name"] for bar in result["summary"]["bars"]] != [b.name for b in BARS]:
        faults.append(f"{newest.name}: its bars are not today's")
    shown, end, _ = page.read_text().partition(BEGIN)[2].partition(END)
    if not end or shown.strip() != render(result):
        faults.append(f"{page.name} does not show {newest.name}: write it again")
    return faults


def describe_age(kit, folder=FOLDER):
    """Return what to say where other code measures by now; "" where it is the same."""
    newest = find_newest(folder)
    sessions = gather(newest)["sessions"]
    if {session.get("measuring") for session in sessions} == {hash_measuring(kit)}:
        return ""
    return f"{newest.name} belongs to other code than measures now: make calibrate"
