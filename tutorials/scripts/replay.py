"""Draw a chapter's reports and pictures again from its recording, without measuring.

`record.py --replay` runs the chapter twice. Whatever it measures comes from the
recording, in order. A cell that shows something of that gets its outputs anew where
both runs agree; all others, which show what no recording keeps, stay as stored.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fingerprints import Cell, fingerprint, parse

from kit import panel, results, tuning
from kit.errors import RecordingError
from kit.journal import write_down
from kit.measuring import measurement
from kit.measuring.comparison import Comparison
from kit.recording import Recording, as_plain, read
from kit.records import Trial

#: Calls that return what was measured.
_MEASURING = {"measure", "compare", "explore", "recorded", "claim"}


# In the kernel


def return_recorded(path: str) -> None:
    """Let everything that measures return what a recording holds, in its order."""
    ahead = deque(list_measured(read(path)))
    measure_now = measurement.measure_watched

    def measure(variant: Any, progress: Any, *more: Any, is_kept: bool = True) -> Trial:
        if not is_kept:  # no recording has it
            return measure_now(variant, progress, *more, is_kept=False)
        trial = _take(ahead, variant.call, Trial)
        wanted = as_plain(dict(variant.knobs))  # as a recording has them
        found = as_plain(dict(trial.knobs))
        if (trial.experiment, found) != (variant.experiment.name, wanted):
            raise RecordingError(f"{variant.call}: recorded was {trial.heading()}.")
        write_down(trial)
        return trial

    compare_now = measurement.compare_watched

    def compare(variants: Any, progress: Any, request: Any) -> Comparison:
        if not request.is_kept:  # no recording has it
            return compare_now(variants, progress, request)
        labels = [variant.label for variant in variants]
        found = _take(ahead, " · ".join(labels), Comparison)
        if (found.labels, found.of) != (labels, request.of):
            raise RecordingError(f"{labels} of {request.of}: recorded was {found!r}.")
        looks = {"title": request.title, "unit": request.unit}
        made = Comparison(found.trials, labels, found.of, found.within, **looks)
        write_down(*made.trials, made)
        return made

    for module in (measurement, panel, tuning):
        vars(module).update(compare_watched=compare, measure_watched=measure)
    machine = ahead[0].machine if isinstance(ahead[0], Trial) else _machine_of(ahead[0])
    vars(results)["this_machine"] = lambda: machine


def _take(ahead: deque[Trial | Comparison], what: str, kind: type) -> Any:
    """Take the next of what was recorded, which must be of this kind."""
    if not ahead or not isinstance(ahead[0], kind):
        raise RecordingError(f"{what}: the recording has nothing of it at this place.")
    return ahead.popleft()


def _machine_of(comparison: Comparison) -> Any:
    return comparison.trials[0].machine


def list_measured(made: Recording) -> list[Trial | Comparison]:
    """Return comparisons and single trials in the order in which they were measured."""
    numbers = {id(trial): number for number, trial in enumerate(made.trials)}
    places: dict[int, Trial | Comparison] = dict(enumerate(made.trials))
    for comparison in made.comparisons:
        own = [numbers[id(trial)] for trial in comparison.trials]
        for number in own:
            places.pop(number, None)
        places[min(own)] = comparison
    return [places[number] for number in sorted(places)]


# Outside of it


def find_drawn(cells: Sequence[Cell]) -> set[str]:
    """Return the cells that show, or compute with, something that was measured.

    >>> cells = [Cell("a", "x = kit.compare(f)"), Cell("b", "x"), Cell("c", "y")]
    >>> sorted(find_drawn(cells))
    ['a', 'b']
    """
    measured: set[str] = set()
    drawn: set[str] = set()
    for cell in cells:
        names = [n for n in ast.walk(parse(cell.source)) if isinstance(n, ast.Name)]
        attributes = [
            n.attr for n in ast.walk(parse(cell.source)) if isinstance(n, ast.Attribute)
        ]
        read_names = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        if read_names & (measured | _MEASURING) or _MEASURING & {*attributes}:
            drawn.add(cell.name)
            measured |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return drawn


def merge(stored: Any, runs: Sequence[Any]) -> list[str]:
    """Put into a stored notebook the outputs that both runs of it agree on.

    Returns what stays as it was although it shows something measured, or has changed.
    """
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    one, other = (
        {cell.id: cell.outputs for cell in run.cells if cell.cell_type == "code"}
        for run in runs
    )
    drawn = find_drawn([Cell(cell.id, cell.source) for cell in cells])
    made_by = stored.metadata.kit.made_by
    remarks = []
    for number, cell in enumerate(cells, start=1):
        now = fingerprint(cell.source)
        if cell.id in drawn and one[cell.id] == other[cell.id]:
            cell.outputs, cell.execution_count = one[cell.id], number
            made_by[cell.id] = now
        elif cell.id in drawn:
            remarks.append(f"{cell.id} shows more than was recorded, and stays")
        elif made_by.get(cell.id) != now:
            remarks.append(f"{cell.id} has changed, and only a recording renews it")
    return remarks


def find_recording(notebook: Path) -> Path:
    """Return the newest recording of a chapter, by the dates in their names."""
    folder = notebook.parent / "recordings"
    paths = folder.glob(f"{notebook.stem}__*.json")
    newest = max(paths, key=lambda path: path.stem.rpartition("__")[2], default=None)
    if newest is None:
        raise RecordingError(f"{notebook}: there is no recording of it. Record it.")
    return newest
