"""Results that are kept: gathered from raw lines, stored, written into a page."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import running
from .report import summarise
from .schedule import SCHEDULE, all_jobs

FOLDER = Path(__file__).parent / "results"
BEGIN, END = "<!-- calibration -->", "<!-- end of calibration -->"
#: What is kept of a row; a row lacks those that its kind does not have.
COLUMNS = [
    "name",
    "kind",
    "method",
    "condition",
    "work",
    "threads",
    "uses_delay",
    "units",
    "truth",
    "seconds",
    "wall_seconds",
    "at",
    "value",
    "low",
    "high",
    "verdict",
    "reason",
    "setups",
    "ours",
    "theirs",
    "error",
]


def gather(raw: Path) -> dict[str, Any]:
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
        "format": 1,
        "machine": first["machine"]["name"]["value"],
        "date": datetime.date.fromtimestamp(first["at"]).isoformat(),
        "minutes": round(_minutes(sessions, rows), 1),
        "sessions": sessions,
        "schedule": [asdict(row) for row in SCHEDULE],
        "scheduled": len(all_jobs()),
        "columns": COLUMNS,
        "rows": table,
    }
    return {**result, "summary": summarise(rows_of(result))}


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a result's rows as dicts."""
    return [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]


def _compact(value: Any) -> Any:
    """Return a value as short as JSON can hold it: five digits, None for nan."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < 1e6 else round(value)
    return value


def _minutes(
    sessions: Sequence[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]
) -> float:
    """Return how long the sessions took, each to the last row before the next."""
    ends = [session["at"] for session in sessions]
    for row in rows:
        number = sum(session["at"] <= row["at"] for session in sessions) - 1
        ends[number] = max(ends[number], row["at"])
    seconds = (e - s["at"] for e, s in zip(ends, sessions, strict=True))
    return sum(seconds) / 60


def store(result: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write a result into the folder of results; return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['machine']}__{result['date']}.json"
    keys = [f" {json.dumps(key)}: {_dump(key, value)}" for key, value in result.items()]
    path.write_text("{\n" + ",\n".join(keys) + "\n}\n")
    return path


def _dump(key: str, value: Any) -> str:
    if key != "rows":
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in value) + "\n]"


def newest(folder: Path = FOLDER) -> Path | None:
    """Return the newest stored result, or None."""
    found = sorted(folder.glob("*__*.json"), key=lambda path: path.stem.split("__")[-1])
    return found[-1] if found else None


def write_page(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put a text between the two markers of a page; raise ValueError without them."""
    before, _, rest = page.read_text().partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"{page} needs the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
