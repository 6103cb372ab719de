"""One recording as a file: written whole or not at all, never half-loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit.comparison import Comparison
from kit.figures import format_value
from kit.machine import Machine
from kit.trial import Trial

FORMAT = 1
_OUTCOMES = ("complete", "stopped", "not settled", "disturbed")
_TOP = ("format", "machines", "trials", "comparisons", "claims", "checksum")


class RecordingError(Exception):
    """A recording cannot be read or written; names the file and the field."""


class Recording(NamedTuple):
    """All that one file holds; claims are their fields as plain values."""

    trials: list[Trial]
    comparisons: list[Comparison]
    claims: list[dict[str, Any]]


def save(trials: Iterable[Trial], path: str | os.PathLike[str]) -> None:
    """Write trials to a JSON file, whole or not at all.

    Raises RecordingError where the file cannot be written.
    """
    write(Recording(list(trials), [], []), path)


def load(path: str | os.PathLike[str]) -> list[Trial]:
    """Read the trials of a JSON file that `save` or `python -m kit record` wrote.

    Raises RecordingError naming file and field where anything is not as written.
    """
    return read(path).trials


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording to a JSON file, whole or not at all."""
    machines: list[dict[str, object]] = []
    rows = []
    positions = {id(trial): index for index, trial in enumerate(recording.trials)}
    for trial in recording.trials:
        machine = trial.machine.to_dict()
        if machine not in machines:
            machines.append(machine)
        row = {
            field.name: _plain(getattr(trial, field.name))
            for field in dataclasses.fields(Trial)
            if field.name != "machine"
        }
        rows.append({**row, "machine": machines.index(machine)})
    comparisons = [
        {
            "of": comparison.of,
            "within": comparison.within,
            "labels": comparison.labels,
            "trials": [positions[id(trial)] for trial in comparison.trials],
        }
        for comparison in recording.comparisons
    ]
    content: dict[str, Any] = {
        "format": FORMAT,
        "machines": machines,
        "trials": rows,
        "comparisons": comparisons,
        "claims": recording.claims,
    }
    content["checksum"] = compute_checksum(content)
    _write_text(Path(path), _layout(content))


def _layout(content: Mapping[str, Any]) -> str:
    """Return JSON with one trial a line, so that a change can be seen in a diff."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value:
            inner = ",\n  ".join(json.dumps(v, allow_nan=False) for v in value)
            lines.append(f' "{key}": [\n  {inner}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value, allow_nan=False)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".recording-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise RecordingError(
            f"{path}: cannot be written ({error.strerror or error}).\n"
            "Choose a folder that you may write to, with room left; nothing was "
            "changed."
        ) from error


def compute_checksum(content: Mapping[str, Any]) -> str:
    """Return what tells whether a recording was changed by hand."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value as JSON has it.

    A tuple is a list, nan is null, infinity is tagged, the rest is its repr.
    """
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else {"float": repr(value)}
    simple = isinstance(value, (str, int, float, type(None)))
    return value if simple else format_value(value, 1000)


def _value(plain: Any) -> Any:
    """Return what `_plain` was given, lists as tuples."""
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if isinstance(plain, dict):
        if plain.keys() == {"float"}:
            return float(plain["float"])
        return {key: _value(inner) for key, inner in plain.items()}
    return plain


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a whole recording; see `load` for errors."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(
            f"{path}: cannot be read ({error.strerror or error})."
        ) from error
    except ValueError as error:
        raise RecordingError(
            f"{path}: is not whole JSON ({error}).\n"
            "It may have been cut off; record it again."
        ) from error
    fail = functools.partial(_fail, path)
    if not isinstance(content, dict) or "format" not in content:
        raise fail("format", "is missing; this is not a recording")
    if content["format"] != FORMAT:
        raise fail(
            "format",
            f"is {content['format']!r}; this version of the kit reads {FORMAT}. "
            "Update the kit, or record again",
        )
    for key in _TOP:
        if key not in content:
            raise fail(key, "is missing")
    for index, row in enumerate(_list(content, "trials", fail)):
        _check_trial(row, len(_list(content, "machines", fail)), index, fail)
    if content["checksum"] != compute_checksum(content):
        raise fail("checksum", "does not match: the file was changed after recording")
    machines = []
    for index, row in enumerate(content["machines"]):
        try:
            machines.append(Machine.from_dict(row))
        except (TypeError, ValueError) as error:
            raise fail(f"machines[{index}]", str(error)) from error
    trials = [_trial(row, machines) for row in content["trials"]]
    comparisons = []
    for index, row in enumerate(_list(content, "comparisons", fail)):
        try:
            members = [trials[i] for i in row["trials"]]
            comparisons.append(
                Comparison(members, row["labels"], row["of"], row["within"])
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise fail(f"comparisons[{index}]", f"is not whole: {error!r}") from error
    return Recording(trials, comparisons, _list(content, "claims", fail))


Fail = Callable[[str, str], RecordingError]


def _fail(path: Path, field: str, what: str) -> RecordingError:
    return RecordingError(
        f"{path}: {field} {what}.\nRecord it again, or take the file as it was."
    )


def _list(content: Mapping[str, Any], key: str, fail: Fail) -> list[Any]:
    if not isinstance(content[key], list):
        raise fail(key, f"is {type(content[key]).__name__}, not a list")
    return content[key]


def _trial(row: Mapping[str, Any], machines: Sequence[Machine]) -> Trial:
    values = {**row, "machine": machines[row["machine"]]}
    values["metrics"] = {
        name: [math.nan if v is None else v for v in _value(column)]
        for name, column in row["metrics"].items()
    }
    values["knobs"] = _value(row["knobs"])
    return Trial(**values)


def _finite(value: Any, kind: type | tuple[type, ...], least: float) -> bool:
    right = isinstance(value, kind) and not isinstance(value, bool)
    return right and math.isfinite(value) and value >= least


_REAL = (int, float)
#: What each value of a list must be, and which list is as long.
_LISTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "block_seconds": (lambda v: _finite(v, _REAL, 0) and v > 0, "block_seconds"),
    "block_wall_seconds": (lambda v: _finite(v, _REAL, 0), "block_seconds"),
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


def _check_trial(row: Any, machines: int, index: int, fail: Fail) -> None:
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


def _is_metric(value: Any) -> bool:
    tagged = isinstance(value, dict) and value.get("float") in ("inf", "-inf")
    return value is None or tagged or _finite(value, _REAL, -math.inf)
