"""One recording as a file: written whole or not at all, never half-loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit.comparison import Comparison
from kit.figures import format_value
from kit.machine import Machine
from kit.trial import Trial

#: What is written, and the only one that is read.
FORMAT = 3


class RecordingError(Exception):
    """A recording cannot be read or written; names the file."""


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

    Raises RecordingError naming the file where its format is another, or its checksum
    says that anything in it is not as it was written.
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


def replace_text(path: Path, text: str) -> None:
    """Write a file in one stroke: nobody ever sees half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
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


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
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


def as_recorded(value: object) -> Any:
    """Return a knob's value as a recording would give it back.

    >>> as_recorded([1, 2]), as_recorded(len)
    ((1, 2), 'len')
    """
    return _value(_plain(value))


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
            f"{path}: cannot be read ({error.strerror or error}).\n"
            "Name a file that kit.save() or `python -m kit record` has written."
        ) from error
    except ValueError as error:
        raise RecordingError(
            f"{path}: is not whole JSON ({error}).\n"
            "It may have been cut off; record it again."
        ) from error
    if not isinstance(content, dict) or "format" not in content:
        raise RecordingError(
            f"{path}: has no format, so this is not a recording.\n"
            "Name a file that kit.save() or `python -m kit record` has written."
        )
    if content["format"] != FORMAT:
        raise RecordingError(
            f"{path}: its format is {content['format']!r}, and this version of the kit "
            f"reads {FORMAT}.\n"
            "Update the kit, which may be older than the file, or record it again."
        )
    if content.get("checksum") != compute_checksum(content):
        raise RecordingError(
            f"{path}: its checksum does not match, so it was changed after recording.\n"
            "Record it again, or take the file as it was."
        )
    machines = [Machine.from_dict(row) for row in content["machines"]]
    trials = [_trial(row, machines) for row in content["trials"]]
    comparisons = [
        Comparison(
            [trials[i] for i in row["trials"]], row["labels"], row["of"], row["within"]
        )
        for row in content["comparisons"]
    ]
    return Recording(trials, comparisons, content["claims"])


def _trial(row: Mapping[str, Any], machines: Sequence[Machine]) -> Trial:
    values = {**row, "machine": machines[row["machine"]]}
    values["metrics"] = {
        name: [math.nan if v is None else v for v in _value(column)]
        for name, column in row["metrics"].items()
    }
    values["knobs"] = _value(row["knobs"])
    return Trial(**values)
