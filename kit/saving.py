"""Comparisons on disk: JSON with a format number, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.errors import RecordingError
from kit.figures import format_value
from kit.machine import Machine
from kit.measuring.records import Run, Stretch, Trial
from kit.measuring.report import Comparison

#: What is written; what was written before is read, too. Format 6 wrote numbers that
#: JSON lacks in other words, and in format 5 a stretch was called a block.
FORMAT = 7
_KNOWN_FORMATS = (5, 6, FORMAT)
#: What is kept of a trial, beside its machine and its runs; of a run, beside its
#: stretches; and of a stretch, which is a row of these.
_TRIAL = {field.name for field in dataclasses.fields(Trial)} - {"machine", "runs"}
_RUN = ("round", "setup_seconds", "memory_bytes", "settled", "took_turns", "metrics")
_STRETCH = ("seconds", "items", "steps", "excluded_seconds")
_OLD_BLOCK = ("seconds", "", "items", "steps", "excluded_seconds", "")
_COMPARISON = ("of", "within", "labels", "unit", "took_seconds")


def save(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write a comparison to a JSON file, whole or not at all.

    `load` gives it back. Raises RecordingError where the file cannot be written.
    """
    content = pack(comparison.trials, [comparison])
    write_whole(json.dumps(content, default=_write_other), path)


def load(path: str | os.PathLike[str]) -> Comparison:
    """Read a comparison that `save` has written.

    Raises RecordingError where the file cannot be read, or is something else.
    """
    _, comparisons = unpack(read_content(path))
    if len(comparisons) != 1:
        raise RecordingError(
            f"{path}: has {len(comparisons)} comparisons, not one.\n"
            "Name a file that kit.save() wrote."
        )
    return comparisons[0]


# What is written


def pack(trials: Sequence[Trial], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return trials, and comparisons of them, as dicts and lists."""
    machines: list[Machine] = []
    rows = []
    for trial in trials:
        if trial.machine not in machines:
            machines.append(trial.machine)
        row = {name: getattr(trial, name) for name in sorted(_TRIAL)}
        row["runs"] = [_pack_run(run) for run in trial.runs]
        row["machine"] = machines.index(trial.machine)
        rows.append(row)
    numbers = {id(trial): number for number, trial in enumerate(trials)}
    compared = []
    for made in comparisons:
        row = {name: getattr(made, name) for name in _COMPARISON}
        row["trials"] = [numbers[id(trial)] for trial in made.trials]
        compared.append(row)
    return {
        "format": FORMAT,
        "machines": [dataclasses.asdict(machine) for machine in machines],
        "trials": rows,
        "comparisons": compared,
    }


def _pack_run(run: Run) -> dict[str, Any]:
    row = {name: getattr(run, name) for name in _RUN}
    row["stretches"] = [
        [getattr(stretch, name) for name in _STRETCH] for stretch in run.stretches
    ]
    return row


def _write_other(value: Any) -> Any:
    """Return what JSON has no word for: a number of NumPy's, or any knob's value."""
    if getattr(value, "ndim", 1) == 0:
        return value.item()
    return format_value(value, 1000)


def write_whole(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file in one stroke: nobody ever sees half of it."""
    home = Path(path).parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".") as folder:
            part = Path(folder, "whole")
            part.write_text(text + "\n", encoding="utf-8")
            os.replace(part, path)
    except OSError as error:
        raise RecordingError(
            f"{path}: cannot be written ({error}); nothing was changed.\n"
            "Choose a folder that you may write to, with room left."
        ) from error


# What is read


def read_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a file holds; raise RecordingError where that is no recording."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordingError(
            f"{path}: cannot be read ({error}).\nName a file that kit.save() wrote."
        ) from error
    found = content.get("format") if isinstance(content, dict) else None
    if found not in _KNOWN_FORMATS:
        raise RecordingError(
            f"{path}: its format is {found!r}, and this kit reads {FORMAT}.\n"
            "Name a file that kit.save() wrote, or update the kit."
        )
    return content


def unpack(content: Mapping[str, Any]) -> tuple[list[Trial], list[Comparison]]:
    """Return the trials and the comparisons of what `pack` returned and JSON kept."""
    machines = [Machine.from_dict(row) for row in content["machines"]]
    trials = []
    for row in content["trials"]:
        known = {name: _value(row[name]) for name in _TRIAL if name in row}
        known["machine"] = machines[row["machine"]]
        known["notes"] = [*known.get("notes", ())]
        known["runs"] = [_unpack_run(run) for run in row["runs"]]
        trials.append(Trial(**known))
    comparisons = []
    for row in content["comparisons"]:
        known = {name: row[name] for name in _COMPARISON if name in row}
        known["trials"] = [trials[number] for number in row["trials"]]
        comparisons.append(Comparison(**known))
    return trials, comparisons


def _unpack_run(row: Mapping[str, Any]) -> Run:
    known = {name: row[name] for name in _RUN if name in row}
    known["metrics"] = {
        name: [_value(value) for value in column]
        for name, column in row["metrics"].items()
    }
    if row["setup_seconds"] is None:
        known["setup_seconds"] = float("nan")
    if "interleaved" in row:
        known["took_turns"] = row["interleaved"]
    names = _STRETCH if "stretches" in row else _OLD_BLOCK
    known["stretches"] = []
    for values in row["stretches"] if "stretches" in row else row["blocks"]:
        fields = dict(zip(names, values, strict=True))
        fields.pop("", None)
        known["stretches"].append(Stretch(**fields))
    return Run(**known)


def _value(plain: Any) -> Any:
    """Return a value as it was, lists as tuples."""
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if isinstance(plain, dict):
        if plain.keys() == {"float"}:  # nan or infinity, until format 6
            return float(plain["float"])
        return {key: _value(inner) for key, inner in plain.items()}
    return plain
