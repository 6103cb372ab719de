"""Journals: lists of all that is measured and claimed, for whoever records it.

Without a journal nothing is kept: a model among the knobs is freed with the last trial
that the reader holds.
"""

from __future__ import annotations

_JOURNALS: list[list[object]] = []


def keep_journal() -> list[object]:
    """Return a list that gets all trials, comparisons and claims from now on."""
    journal: list[object] = []
    _JOURNALS.append(journal)
    return journal


def write_down(*entries: object) -> None:
    """Add to the journals that are kept."""
    for journal in _JOURNALS:
        journal.extend(entries)
