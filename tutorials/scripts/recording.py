"""Recordings of chapters: what they measured, and what they claimed of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from kit.measuring.records import Trial
from kit.measuring.report import Comparison
from kit.saving import pack, read_content, unpack, write_whole


class Recording(NamedTuple):
    """All that one file holds; claims are their fields as plain values."""

    trials: list[Trial]
    comparisons: list[Comparison]
    claims: list[dict[str, Any]]


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording; raises RecordingError where that is none."""
    content = read_content(path)
    return Recording(*unpack(content), content["claims"])


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording, one row on a line, and of a trial one run: for diffs."""
    content = pack(recording.trials, recording.comparisons)
    content["claims"] = recording.claims
    parts = []
    for name, value in content.items():
        text = _write_rows(value) if isinstance(value, list) else json.dumps(value)
        parts.append(f"{json.dumps(name)}: {text}")
    write_whole("{" + ", ".join(parts) + "}", path)


def _write_rows(rows: Sequence[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(map(_write_row, rows)) + "]"


def _write_row(row: dict[str, Any]) -> str:
    fields = []
    for name, value in row.items():
        if name == "runs":
            text = "[\n" + ",\n".join(map(json.dumps, value)) + "]"
        else:
            text = json.dumps(value, default=repr)
        fields.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(fields) + "}"
