"""What a recording must be like: the first thing that is not so is named."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kit.trial import Trial

_OUTCOMES = ("complete", "stopped", "not settled", "disturbed")
_PARTS = ("machines", "trials", "comparisons", "claims")


class RecordingError(Exception):
    """A recording cannot be read or written; names the file and the field."""


Fail = Callable[..., RecordingError]
_REMEDY = "Record it again, or take the file as it was."


def make_error(
    path: Path, field: str, what: str, remedy: str = _REMEDY
) -> RecordingError:
    """Make the error that names file and field and says what to do."""
    return RecordingError(f"{path}: {field} {what}.\n{remedy}")


def check_parts(content: Any, formats: Sequence[int], fail: Fail) -> None:
    """Raise for content that is no recording of these formats, or lacks a part."""
    if not isinstance(content, dict) or "format" not in content:
        raise fail(
            "format",
            "is missing: this is not a recording",
            "Name a file that kit.save() or `python -m kit record` has written.",
        )
    if content["format"] not in formats:
        known = ", ".join(map(str, formats))
        raise fail(
            "format",
            f"is {content['format']!r}, and this version of the kit reads {known}",
            "Update the kit, which may be older than the file, or record it again.",
        )
    for key in (*_PARTS, "checksum"):
        if key not in content:
            raise fail(key, "is missing")
    for key in _PARTS:
        if not isinstance(content[key], list):
            raise fail(key, f"is {type(content[key]).__name__}, not a list")


def _finite(value: Any, kind: type | tuple[type, ...], least: float) -> bool:
    right = isinstance(value, kind) and not isinstance(value, bool)
    return right and math.isfinite(value) and value >= least


_REAL = (int, float)
#: What each value of a list must be, and which list is as long.
_LISTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "block_seconds": (lambda v: _finite(v, _REAL, 0) and v > 0, "block_seconds"),
    "block_wall_seconds": (lambda v: _finite(v, _REAL, 0), "block_seconds"),
    "block_device_seconds": (
        lambda v: v is None or _finite(v, _REAL, 0),
        "block_seconds",
    ),
    "block_items": (lambda v: _finite(v, _REAL, 0) and v > 0, "block_seconds"),
    "block_steps": (lambda v: _finite(v, int, 1), "block_seconds"),
    "block_setups": (lambda v: _finite(v, int, -1), "block_seconds"),
    "block_rounds": (lambda v: _finite(v, int, 0), "block_seconds"),
    "setup_seconds": (lambda v: _finite(v, _REAL, 0), "setup_seconds"),
    "start_setups": (lambda v: _finite(v, int, -1), "setup_seconds"),
    "start_memory_bytes": (lambda v: v is None or _finite(v, int, 0), "setup_seconds"),
}
_VALUES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("experiment", "title", "source", "started"), lambda v: isinstance(v, str)
    ),
    **dict.fromkeys(("knobs", "metrics", "conditions"), lambda v: isinstance(v, dict)),
    "excluded_seconds": lambda v: _finite(v, _REAL, 0),
    "peak_memory_bytes": lambda v: v is None or _finite(v, int, 0),
    "machine": lambda v: _finite(v, int, 0),
    "whole_runs": lambda v: isinstance(v, bool),
    "notes": lambda v: isinstance(v, list) and all(isinstance(n, str) for n in v),
    "outcome": lambda v: v in _OUTCOMES,
}


def check_trial(row: Any, machines: int, index: int, fail: Fail) -> None:
    """Raise for the first field of a trial that is not as `write` writes it."""
    where = f"trials[{index}]"
    if not isinstance(row, dict):
        raise fail(where, "is not an object")
    names = [field.name for field in dataclasses.fields(Trial)]
    for name in (*names, *row):
        if name not in row or name not in names:
            raise fail(f"{where}.{name}", "is missing" if name in names else "unknown")
    for name, is_good in _VALUES.items():
        if not is_good(row[name]):
            raise fail(f"{where}.{name}", f"is {row[name]!r:.40}")
    for name, (is_good, like) in _LISTS.items():
        _check_list(row[name], f"{where}.{name}", is_good, row[like], fail)
    if row["block_rank_seconds"] != []:  # as it is where there are no ranks
        name, blocks = f"{where}.block_rank_seconds", row["block_seconds"]
        _check_list(row["block_rank_seconds"], name, _is_seconds, blocks, fail)
    if row["machine"] >= machines:
        raise fail(f"{where}.machine", f"is {row['machine']}, of {machines} machines")
    steps = [None] * sum(row["block_steps"])
    for name, column in row["metrics"].items():
        _check_list(column, f"{where}.metrics.{name}", _is_metric, steps, fail)


def _check_list(
    values: Any,
    where: str,
    is_good: Callable[[Any], bool],
    like: Sequence[Any],
    fail: Fail,
) -> None:
    if not isinstance(values, list):
        raise fail(where, "is not a list")
    for position, value in enumerate(values):
        if not is_good(value):
            raise fail(f"{where}[{position}]", f"is {value!r:.40}")
    if len(values) != len(like):
        raise fail(where, f"has {len(values)} values, not {len(like)}")


def _is_seconds(values: Any) -> bool:
    return isinstance(values, list) and all(_finite(v, _REAL, 0) for v in values)


def _is_metric(value: Any) -> bool:
    tagged = isinstance(value, dict) and value.get("float") in ("inf", "-inf")
    return value is None or tagged or _finite(value, _REAL, -math.inf)
