"""Write down what a process measured and claimed: a recording's first, last cell."""

from __future__ import annotations

import os
from typing import Any

from recording import Recording, write

from kit.measuring.records import Trial, listeners
from kit.measuring.report import Comparison

#: From its import on.
JOURNAL: list[object] = []
listeners.append(JOURNAL)


def write_journal(path: str | os.PathLike[str]) -> None:
    """Write all that was measured and claimed in this process to a JSON file.

    What was stopped is left out: readers would take it for the whole measurement.
    """
    entries: list[Any] = [entry for entry in JOURNAL if _is_whole(entry)]
    trials = [entry for entry in entries if isinstance(entry, Trial)]
    comparisons = [entry for entry in entries if isinstance(entry, Comparison)]
    claims = [
        {**claim.to_dict(), "comparison": number, "label": label}
        for claim in entries
        for number, comparison in enumerate(comparisons)
        for label, ratio in comparison.ratios.items()
        if hasattr(claim, "to_dict") and claim.ratio is ratio
    ]
    write(Recording(trials, comparisons, claims), path)


def _is_whole(entry: object) -> bool:
    trials = getattr(entry, "trials", [entry])
    return all(getattr(trial, "outcome", "") != "stopped" for trial in trials)
