"""Recordings of chapters: what they measured, claimed of it, and drew."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from kit.measuring.records import Trial, listeners
from kit.measuring.report import Comparison, Plot
from kit.saving import pack, read_content, unpack, write_whole
from kit.teaching import Claim


class Recording(NamedTuple):
    """All that one file holds; claims and plots are their fields as plain values."""

    trials: list[Trial]
    comparisons: list[Comparison]
    claims: list[dict[str, Any]]
    plots: list[dict[str, Any]]

    def read_plots(self) -> list[Plot]:
        """Return the plots of comparisons, as they can be drawn again."""
        found = []
        for row in self.plots:
            comparison = self.comparisons[row["comparison"]]
            found.append(Plot(**{**row, "comparison": comparison}))
        return found


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording; raises RecordingError where that is none."""
    content = read_content(path)
    return Recording(*unpack(content), content["claims"], content.get("plots", []))


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording, one row on a line: for diffs."""
    content = pack(recording.trials, recording.comparisons)
    content |= {"claims": recording.claims, "plots": recording.plots}
    parts = []
    for name, value in content.items():
        if isinstance(value, list):
            rows = [json.dumps(row, default=repr) for row in value]
            text = "[\n" + ",\n".join(rows) + "]"
        else:
            text = json.dumps(value)
        parts.append(f"{json.dumps(name)}: {text}")
    write_whole("{" + ", ".join(parts) + "}", path)


# In the kernel of a notebook that is recorded


def start_journal() -> list[object]:
    """Return a list to which the kit adds what is measured and claimed from now on."""
    journal: list[object] = []
    listeners.append(journal)
    return journal


def write_journal(journal: Sequence[Any], path: str | os.PathLike[str]) -> None:
    """Write what a process measured and claimed; what was stopped is left out."""
    trials = [each for each in journal if isinstance(each, Trial) and _is_whole([each])]
    comparisons = []
    claims = []
    plots = []
    for entry in journal:
        if isinstance(entry, Comparison) and _is_whole(entry.trials):
            comparisons.append(entry)
        if isinstance(entry, Claim) and (place := _find_ratio(entry, comparisons)):
            number, label = place
            claims.append({**entry.to_dict(), "comparison": number, "label": label})
        if isinstance(entry, Plot) and entry.comparison in comparisons:
            fields = {name: getattr(entry, name) for name in entry.__annotations__}
            plots.append({**fields, "comparison": comparisons.index(entry.comparison)})
    write(Recording(trials, comparisons, claims, plots), path)


def _is_whole(trials: Sequence[Trial]) -> bool:
    return all(trial.outcome != "stopped" for trial in trials)


def _find_ratio(
    claim: Claim, comparisons: Sequence[Comparison]
) -> tuple[int, str] | None:
    """Return the comparison and the label of the ratio that a claim is bound to."""
    for number, comparison in enumerate(comparisons):
        for label, ratio in comparison.ratios.items():
            if ratio is claim.ratio:
                return number, label
    return None
