"""Trials on disk: JSON with a format number and a checksum, never pickle.

A file is written whole or not at all, and never half-loaded.
`tutorials/scripts/record.py` records chapters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kit.errors import RecordingError
from kit.figures import format_value
from kit.machine import Machine
from kit.measuring.records import Run, Stretch, Trial
from kit.measuring.report import Comparison

#: What is written. Format 5 is read, too: there a stretch is called a block, and what
#: is not known of it any more is left out.
FORMAT = 6
_OLD_FORMAT = 5
#: What is kept of a trial, beside its machine and its runs; of a run, beside its
#: stretches; and of a stretch, which is a row of these.
_TRIAL = {f.name for f in dataclasses.fields(Trial)} - {"machine", "runs"}
_RUN = ("round", "setup_seconds", "memory_bytes", "settled", "took_turns")
_STRETCH = ("seconds", "items", "steps", "excluded_seconds")
_OLD_BLOCK = ("seconds", "", "items", "steps", "excluded_seconds", "")
_COMPARISON = ("of", "within", "labels", "unit", "took_seconds")
_AGAIN = "Name a file that kit.save() or tutorials/scripts/record.py wrote, as it was."


class Recording(NamedTuple):
    """All that one file holds; claims are their fields as plain values."""

    trials: list[Trial]
    comparisons: list[Comparison]
    claims: list[dict[str, Any]]


# Writing


def save(
    measured: Trial | Comparison | Iterable[Trial], path: str | os.PathLike[str]
) -> None:
    """Write trials, or a comparison, to a JSON file, whole or not at all.

    `load` gives back what was saved. Raises RecordingError where the file cannot be
    written.
    """
    if isinstance(measured, Comparison):
        recording = Recording(measured.trials, [measured], [])
    else:
        trials = [measured] if isinstance(measured, Trial) else list(measured)
        recording = Recording(trials, [], [])
    write(recording, path)


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording to a JSON file, whole or not at all."""
    machines: list[dict[str, Any]] = []
    rows = []
    for trial in recording.trials:
        if (machine := trial.machine.to_dict()) not in machines:
            machines.append(machine)
        row = {name: getattr(trial, name) for name in sorted(_TRIAL)}
        runs = [_write_run(run) for run in trial.runs]
        rows.append({**row, "runs": runs, "machine": machines.index(machine)})
    numbers = {id(trial): number for number, trial in enumerate(recording.trials)}
    comparisons = []
    for made in recording.comparisons:
        row = {name: getattr(made, name) for name in _COMPARISON}
        row["trials"] = [numbers[id(trial)] for trial in made.trials]
        comparisons.append(row)
    content = {"format": FORMAT, "machines": machines, "trials": rows}
    content = as_plain(
        content | {"comparisons": comparisons, "claims": recording.claims}
    )
    content["checksum"] = compute_checksum(content)
    text = _write_lines(content)
    try:
        (home := Path(path).parent).mkdir(parents=True, exist_ok=True)
        # In one stroke: nobody ever sees half of it.
        with tempfile.TemporaryDirectory(dir=home, prefix=".") as folder:
            with open(Path(folder, "whole"), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
    except OSError as error:
        raise RecordingError(
            f"{path}: cannot be written ({error}); nothing was changed.\n"
            "Choose a folder that you may write to, with room left."
        ) from error


def _write_lines(content: dict[str, Any]) -> str:
    """Return JSON with one row, and of a trial one run, on a line: for diffs."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list):
            value = "[\n" + ",\n".join(map(_write_row, value)) + "]"
        else:
            value = json.dumps(value, allow_nan=False)
        parts.append(f"{json.dumps(name)}: {value}")
    return "{" + ", ".join(parts) + "}\n"


def _write_row(row: dict[str, Any]) -> str:
    fields = []
    for name, value in row.items():
        if name == "runs":
            runs = [json.dumps(run, allow_nan=False) for run in value]
            text = "[\n" + ",\n".join(runs) + "]"
        else:
            text = json.dumps(value, allow_nan=False)
        fields.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(fields) + "}"


def _write_run(run: Run) -> dict[str, Any]:
    row = {name: getattr(run, name) for name in _RUN}
    row["metrics"] = {k: list(map(_tag_nan, v)) for k, v in run.metrics.items()}
    row["stretches"] = [
        [getattr(stretch, name) for name in _STRETCH] for stretch in run.stretches
    ]
    return row


def _tag_nan(value: float | None) -> Any:
    """Return a metric's value as JSON tells it from one that was not given."""
    return {"float": "nan"} if value is not None and math.isnan(value) else value


def as_plain(value: Any) -> Any:
    """Return a value as JSON has it.

    A tuple is a list, nan is null, infinity is tagged, the rest is its repr.
    """
    if isinstance(value, dict):
        return {str(key): as_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(inner) for inner in value]
    if getattr(value, "ndim", 1) == 0:  # a number of NumPy's or PyTorch's
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else {"float": repr(value)}
    simple = isinstance(value, (str, int, float, type(None)))
    return value if simple else format_value(value, 1000)


def compute_checksum(content: Mapping[str, Any]) -> str:
    """Return what tells whether a recording was changed by hand."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# Reading


def load(path: str | os.PathLike[str]) -> list[Trial] | Comparison:
    """Read what `save` has written: a list of trials, or a comparison.

    Of a file that `tutorials/scripts/record.py` wrote, all trials. Raises
    RecordingError naming the file where its format is another, or its checksum says
    that anything in it is not as it was written.
    """
    recording = read(path)
    if [each.trials for each in recording.comparisons] == [recording.trials]:
        return recording.comparisons[0]
    return recording.trials


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a whole recording; see `load` for errors."""
    content = _read_content(Path(path))
    machines = [Machine.from_dict(row) for row in content["machines"]]
    trials = [_read_trial(row, machines) for row in content["trials"]]
    comparisons = []
    for row in content["comparisons"]:
        known = {name: row[name] for name in _COMPARISON if name in row}
        compared = [trials[number] for number in row["trials"]]
        comparisons.append(Comparison(compared, **known))
    return Recording(trials, comparisons, content["claims"])


def _read_content(path: Path) -> dict[str, Any]:
    """Return what a file holds, which is as it was written."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path}: cannot be read ({error}).\n{_AGAIN}") from error
    if not isinstance(content, dict) or "format" not in content:
        said = f"has no format, so this is not a recording.\n{_AGAIN}"
    elif content["format"] not in (FORMAT, _OLD_FORMAT):
        said = f"its format is {content['format']!r}, and this kit reads {FORMAT}.\n"
        said += "Update the kit, which may be older than the file, or record it again."
    elif content.get("checksum") != compute_checksum(content):
        said = f"its checksum does not match, so it was changed since.\n{_AGAIN}"
    else:
        return content
    raise RecordingError(f"{path}: {said}")


def _read_trial(row: Mapping[str, Any], machines: list[Machine]) -> Trial:
    known = {name: row[name] for name in _TRIAL if name in row}
    known |= {"machine": machines[row["machine"]], "knobs": _value(row["knobs"])}
    return Trial(**known, runs=[*map(_read_run, row["runs"])])


def _read_run(row: Mapping[str, Any]) -> Run:
    known = {name: row[name] for name in _RUN if name in row}
    known["setup_seconds"] = _number(row["setup_seconds"])
    metrics = {name: [*map(_value, each)] for name, each in row["metrics"].items()}
    names = _STRETCH if "stretches" in row else _OLD_BLOCK
    stretches = []
    for values in row["stretches"] if "stretches" in row else row["blocks"]:
        fields = dict(zip(names, values, strict=True))
        stretches.append(Stretch(**{n: v for n, v in fields.items() if n}))
    if "interleaved" in row:
        known["took_turns"] = row["interleaved"]
    return Run(**known, stretches=stretches, metrics=metrics)


def _number(plain: Any) -> float:
    return math.nan if plain is None else _value(plain)


def _value(plain: Any) -> Any:
    """Return what `as_plain` was given, lists as tuples."""
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if isinstance(plain, dict):
        if plain.keys() == {"float"}:
            return float(plain["float"])
        return {key: _value(inner) for key, inner in plain.items()}
    return plain
