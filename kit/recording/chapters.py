"""What was recorded of a chapter, and whether the chapter has changed since."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from kit.clock.experiment import Experiment
from kit.clock.origin import source_of
from kit.comparison import Comparison
from kit.recording.cells import cell_source
from kit.recording.files import Recording, RecordingError, as_recorded, load, write
from kit.trial import JOURNAL, Trial

EARLIER_VERSION = "Recorded with an earlier version of the experiment."


def recorded(
    name: str,
    *,
    machine: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[Trial]:
    """Return the trials of "chapter/experiment" that were recorded on other machines.

    The newest recording of each machine counts; `machine` picks one by name. `folder`
    defaults to the nearest `tutorials/recordings` or `recordings` upward. A trial whose
    experiment has changed since says so in its notes. Empty where there is none.
    """
    chapter, _, experiment = name.partition("/")
    if not experiment:
        raise RecordingError(
            f"recorded(): {name!r} does not name an experiment of a chapter.\n"
            'Write it as "00_start_here/train".'
        )
    where = Path(folder) if folder is not None else nearest_folder()
    if where is None:
        return []
    newest: dict[str, Path] = {}
    for path in sorted(where.glob(f"{chapter}__*.json")):
        newest[path.stem.split("__")[1]] = path
    definitions = notebook_definitions(where.parent / f"{chapter}.ipynb")
    found = []
    for path in newest.values():
        for trial in load(path):
            wanted = machine is None or trial.machine.name == machine
            if trial.experiment == experiment and wanted:
                found.append(_mark_earlier(trial, definitions))
    return found


def find_recorded(experiment: Experiment, fixed: Mapping[str, object]) -> list[Trial]:
    """Return what was recorded of just this experiment, in whichever chapter.

    The newest recording of each chapter and machine counts, in the nearest folder of
    recordings; of equal knobs, the latest trial. `fixed` are knobs that must have been
    the same. An experiment that has changed since has none. Files that cannot be read
    are left out.
    """
    where = nearest_folder()
    if where is None:
        return []
    newest = {p.stem.rpartition("__")[0]: p for p in sorted(where.glob("*__*__*.json"))}
    definitions = _definitions(source_of(experiment.function))
    wanted = {knob: as_recorded(value) for knob, value in fixed.items()}
    found: dict[tuple[str, str], Trial] = {}
    for path in newest.values():
        with contextlib.suppress(RecordingError):
            for trial in load(path):
                same = trial.experiment == experiment.name and all(
                    trial.knobs.get(knob) == value for knob, value in wanted.items()
                )
                if same and definitions and is_current(trial.source, definitions):
                    found[trial.machine.name, repr(trial.knobs)] = trial
    return list(found.values())


def nearest_folder() -> Path | None:
    """Return the nearest `tutorials/recordings` or `recordings`, going upward."""
    for parent in (Path.cwd(), *Path.cwd().parents):
        for candidate in (parent / "tutorials" / "recordings", parent / "recordings"):
            if candidate.is_dir():
                return candidate
    return None


def _mark_earlier(trial: Trial, definitions: Mapping[str, set[str]] | None) -> Trial:
    if definitions is None or is_current(trial.source, definitions):
        return trial
    return dataclasses.replace(trial, notes=[*trial.notes, EARLIER_VERSION])


def is_current(source: str, definitions: Mapping[str, set[str]]) -> bool:
    """Return whether every definition in a recorded source is still the same.

    Comments and layout may differ.
    """
    return all(
        code in definitions.get(name, set())
        for name, codes in _definitions(source).items()
        for code in codes
    )


def notebook_definitions(path: Path) -> dict[str, set[str]] | None:
    """Return each top-level function and class of a notebook; None without one.

    A name may be defined more than once: each version is one that can be current.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return None
    found: dict[str, set[str]] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            for name, codes in _definitions(cell_source(cell)).items():
                found.setdefault(name, set()).update(codes)
    return found


def _definitions(source: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    with contextlib.suppress(SyntaxError):
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(node.name, set()).add(ast.dump(node))
    return found


def write_journal(path: str | os.PathLike[str]) -> None:
    """Write all that was measured and claimed in this process to a JSON file.

    What was stopped is left out: readers would take it for the whole measurement.
    """
    measured = [entry for entry in JOURNAL if isinstance(entry, Trial)]
    trials = [trial for trial in measured if trial.outcome != "stopped"]
    comparisons = [
        entry
        for entry in JOURNAL
        if isinstance(entry, Comparison)
        and all(trial.outcome != "stopped" for trial in entry.trials)
    ]
    claims = []
    for claim in JOURNAL:
        if isinstance(claim, (Trial, Comparison)):
            continue
        for index, comparison in enumerate(comparisons):
            for label, ratio in comparison.ratios.items():
                if ratio is claim.ratio:  # type: ignore[attr-defined]
                    fields = claim.to_dict()  # type: ignore[attr-defined]
                    claims.append({**fields, "comparison": index, "label": label})
    write(Recording(trials, comparisons, claims), path)
