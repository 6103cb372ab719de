"""Trials on disk: JSON with a format number and a checksum, never pickle.

A file is written whole or not at all, and never half-loaded. `recorded` finds what was
recorded of a chapter; `tutorials/scripts/record.py` records it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit.errors import RecordingError
from kit.figures import format_value
from kit.machine import Machine
from kit.measuring.comparison import Comparison
from kit.measuring.variant import Variant
from kit.records import Block, Run, Trial

#: What is written, and the only one that is read.
FORMAT = 5
#: What is kept of a trial, beside its machine and its runs; of a run, beside its
#: blocks; and of a block, which is a row of these.
_TRIAL = {f.name for f in dataclasses.fields(Trial)} - {"machine", "runs"}
_RUN = ("round", "setup_seconds", "memory_bytes", "settled", "interleaved")
_BLOCK = ("seconds", "wall_seconds", "items", "steps")
_BLOCK += ("excluded_seconds", "rank_seconds")
_AGAIN = "Name a file that kit.save() or tutorials/scripts/record.py wrote, as it was."
_EARLIER = "Recorded with an earlier version of the experiment."


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
        row = {name: getattr(made, name) for name in ("of", "within", "labels")}
        looks = {"title": made.title, "unit": made.unit}
        row |= {name: value for name, value in looks.items() if value is not None}
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
    row["blocks"] = [[getattr(block, name) for name in _BLOCK] for block in run.blocks]
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
    return _read_recording(Path(path))


def _read_recording(
    path: Path, is_wanted: Callable[[Mapping[str, Any]], bool] | None = None
) -> Recording:
    """Read a recording, or of it only the trials whose rows are wanted.

    A panel wants few, at once; the checksum, which takes longest, is for whole ones.
    """
    content = _read_content(path, is_whole=is_wanted is None)
    machines = [Machine.from_dict(row) for row in content["machines"]]
    trials: dict[int, Trial] = {}
    for number, row in enumerate(content["trials"]):
        if is_wanted is None or is_wanted(row):
            trials[number] = _read_trial(row, machines)
    comparisons = []
    for row in content["comparisons"]:
        if all(number in trials for number in row["trials"]):
            compared = [trials[number] for number in row["trials"]]
            comparisons.append(Comparison(**{**row, "trials": compared}))
    return Recording([*trials.values()], comparisons, content["claims"])


def _read_content(path: Path, *, is_whole: bool = True) -> dict[str, Any]:
    """Return what a file holds, which is as it was written."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path}: cannot be read ({error}).\n{_AGAIN}") from error
    if not isinstance(content, dict) or "format" not in content:
        said = f"has no format, so this is not a recording.\n{_AGAIN}"
    elif content["format"] != FORMAT:
        said = f"its format is {content['format']!r}, and this kit reads {FORMAT}.\n"
        said += "Update the kit, which may be older than the file, or record it again."
    elif is_whole and content.get("checksum") != compute_checksum(content):
        said = f"its checksum does not match, so it was changed since.\n{_AGAIN}"
    else:
        return content
    raise RecordingError(f"{path}: {said}")


def _read_trial(row: Mapping[str, Any], machines: list[Machine]) -> Trial:
    own = {"machine": machines[row["machine"]], "knobs": _value(row["knobs"])}
    return Trial(**{**row, **own, "runs": [*map(_read_run, row["runs"])]})


def _read_run(row: Mapping[str, Any]) -> Run:
    blocks = [Block(**dict(zip(_BLOCK, b, strict=True))) for b in row["blocks"]]
    metrics = {name: [*map(_value, each)] for name, each in row["metrics"].items()}
    setup = _number(row["setup_seconds"])
    return Run(**{**row, "blocks": blocks, "metrics": metrics, "setup_seconds": setup})


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


# Finding


def recorded(
    name: str,
    *,
    machine: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[Trial]:
    """Return the recorded trials of "chapter/experiment", of this and other machines.

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
    where = Path(folder) if folder is not None else _nearest_folder()
    definitions = notebook_definitions(where.parent / f"{chapter}.ipynb")
    found = []
    for trial in itertools.chain.from_iterable(
        read(path).trials for path in _newest(where, chapter)
    ):
        if trial.experiment == experiment and machine in (None, trial.machine.name):
            if definitions is not None and not is_current(trial.source, definitions):
                trial = dataclasses.replace(trial, notes=[*trial.notes, _EARLIER])
            found.append(trial)
    return found


@dataclasses.dataclass(frozen=True)
class RecordedChoices:
    """What one machine recorded of some choices.

    `trials` are by the number of the variant. `comparison` is the one of just these, in
    their order; None where they were not compared with each other.
    """

    machine: str
    date: str
    trials: dict[int, Trial]
    comparison: Comparison | None

    @property
    def origin(self) -> str:
        """The machine, and the day."""
        return f"{self.machine}, {self.date}"


def find_recorded(variants: Sequence[Variant]) -> list[RecordedChoices]:
    """Return what each machine recorded of just these variants.

    The newest recording of each chapter and machine counts, in the nearest folder of
    recordings; of equal knobs, the latest trial. An experiment that has changed since
    has none. Files that cannot be read are left out.
    """
    wanted = [
        (variant.experiment.name, as_plain(dict(variant.knobs))) for variant in variants
    ]

    def is_wanted(row: Mapping[str, Any]) -> bool:
        return any(
            row["experiment"] == name and knobs.items() <= row["knobs"].items()
            for name, knobs in wanted
        )

    heads = {head for variant in variants for head in _list_heads(variant.source)}
    recordings = []
    for path in _newest(_nearest_folder(), "*"):
        with contextlib.suppress(RecordingError, OSError):
            # Most files have none of them, and to read one takes time.
            content = path.read_bytes()
            if all(head in content for head in heads):
                recordings.append(_read_recording(path, is_wanted))
    machines = {t.machine.name: None for made in recordings for t in made.trials}
    chosen = [_choose_recorded(name, recordings, variants) for name in machines]
    return [each for each in chosen if each is not None]


def _list_heads(source: str) -> list[bytes]:
    """Return the first lines of definitions as they stand in a JSON file."""
    lines = [
        line for line in source.splitlines() if line.startswith(("def ", "class "))
    ]
    return [json.dumps(line)[1:-1].encode() for line in lines]


def _choose_recorded(
    machine: str, recordings: Sequence[Recording], variants: Sequence[Variant]
) -> RecordedChoices | None:
    """Return what the recordings have of these variants on one machine."""
    latest: dict[int, Trial] = {}
    numbers: dict[int, int] = {}
    trials = [
        trial
        for recording in recordings
        for trial in recording.trials
        if trial.machine.name == machine
    ]
    for trial in sorted(trials, key=lambda trial: trial.started):
        for number, variant in enumerate(variants):
            if _is_trial_of(trial, variant):
                latest[number] = trial
                numbers[id(trial)] = number
    if not latest:
        return None
    whole = None
    everyone = list(range(len(variants)))
    for recording in recordings:
        for made in recording.comparisons:
            if [numbers.get(id(trial)) for trial in made.trials] == everyone:
                whole = made
    if whole is not None:
        latest = dict(enumerate(whole.trials))
    date = max(trial.started for trial in latest.values())[:10]
    return RecordedChoices(machine, date, latest, whole)


def _is_trial_of(trial: Trial, variant: Variant) -> bool:
    """Return whether a recorded trial is one of just this variant, unchanged."""
    if trial.experiment != variant.experiment.name:
        return False
    knobs = _value(as_plain(dict(variant.knobs)))
    if not knobs.items() <= trial.knobs.items():
        return False
    return is_current(trial.source, _definitions(variant.source))


def _nearest_folder() -> Path:
    """Return the nearest `tutorials/recordings` or `recordings`, going upward."""
    names = "tutorials/recordings", "recordings"
    parents = (Path.cwd(), *Path.cwd().parents)
    places = (parent / name for parent in parents for name in names)
    return next(filter(Path.is_dir, places), Path("recordings"))


def _newest(folder: Path, chapter: str) -> Iterable[Path]:
    """Return the newest recording of each machine, by the dates in their names."""
    paths = sorted(folder.glob(f"{chapter}__*__*.json"))
    return {path.stem.rpartition("__")[0]: path for path in paths}.values()


def is_current(source: str, definitions: Mapping[str, set[str]]) -> bool:
    """Return whether every definition in a recorded source is still the same.

    Comments and layout may differ.
    """
    known = _definitions(source).items()
    return all(codes <= definitions.get(name, set()) for name, codes in known)


def notebook_definitions(path: Path) -> dict[str, set[str]] | None:
    """Return each top-level function and class of a notebook; None without one.

    A name may be defined more than once: each version is one that can be current.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return None
    return _definitions(*(cell_source(c) for c in cells if c["cell_type"] == "code"))


@functools.lru_cache(maxsize=64)
def _definitions(*sources: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for source in sources:
        with contextlib.suppress(SyntaxError):
            for node in ast.parse(source).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    found.setdefault(node.name, set()).add(ast.dump(node))
    return found


def cell_source(cell: Mapping[str, Any]) -> str:
    """Return a cell's source as Python, with a call for each magic and shell line.

    Of a cell that writes a file, it is what the file will hold.
    """
    source = "".join(cell["source"])
    if source.startswith("%%writefile"):
        return source.partition("\n")[2] if ".py" in source.splitlines()[0] else ""
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(source)
