"""Judges what was measured: rows in, bars and tables out."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from scipy.stats import binomtest

from kit.measuring.verdict import SAME

from .schedule import ALONE, CONDITIONS, KIT, PEERS

Row = Mapping[str, Any]


def wilson_interval(successes, count):
    """Return the 95 % interval of a share (Wilson 1927, "Probable inference")."""
    if not count:
        return 0.0, 1.0
    found = binomtest(successes, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def is_call(row):
    return row.get("verdict") in ("faster", "slower")


def is_right(row):
    return row.get("verdict") == ("faster" if row["truth"] > 1 else "slower")


def is_covered(row):
    low, high = row.get("low"), row.get("high")
    return low is not None and high is not None and low <= row["truth"] <= high


def is_within(limit):
    return lambda row: abs((row.get("value") or 1e9) - 1) <= limit


class Bar(NamedTuple):
    """A promise: among these rows, this happens in at least, or at most, a share."""

    name: str
    share: float
    happens: Callable[[Row], bool]
    selects: Mapping[str, Any]
    at_most: bool = False

    def chooses(self, row):
        wanted = {"method": KIT, **self.selects}
        return all(
            row.get(key) in (value if isinstance(value, tuple) else (value,))
            for key, value in wanted.items()
        )

    def judge(self, rows):
        """Return what became of the promise: pooled, and by cell."""
        chosen = [row for row in rows if self.chooses(row)]
        if self.selects["kind"] == "agreement":
            chosen = _medians(chosen)
        cells = {}
        for row in chosen:
            cell = f"{row['condition']}, {row['work']}"
            cells.setdefault(cell, []).append(self.happens(row))
        happened = [found for some in cells.values() for found in some]
        told = {"name": self.name, "bar": self.share, "at_most": self.at_most}
        judged = {cell: self.count(found) for cell, found in sorted(cells.items())}
        return {**told, **self.count(happened), "cells": judged}

    def count(self, happened):
        """Return how often something happened, and what that says of the bar.

        It is shown where the whole 95 % Wilson interval is beyond it, refuted where all
        of it is short of it, else not refuted. It holds unless it is refuted.
        """
        count, successes = len(happened), sum(happened)
        low, high = wilson_interval(successes, count)
        worst, best = (high, low) if self.at_most else (low, high)
        sign = -1 if self.at_most else 1
        is_shown = sign * worst >= sign * self.share
        is_refuted = sign * best < sign * self.share
        mark = "shown" if is_shown else "refuted" if is_refuted else "not refuted"
        return {
            "count": count,
            "successes": successes,
            "share": round(successes / count, 4) if count else None,
            "low": round(low, 4),
            "high": round(high, 4),
            "mark": mark,
            "holds": not is_refuted,
        }


def _medians(rows):
    joined = []
    for work in sorted({row["work"] for row in rows}):
        some = [row for row in rows if row["work"] == work]
        ours, theirs = ([r[t] for r in some if r.get(t)] for t in ("ours", "theirs"))
        value = median(ours) / median(theirs) if ours and theirs else None
        joined.append({**some[0], "value": value})
    return joined


BARS = (
    *(
        Bar(
            f"false alarms, A/A, 2 s, {where}",
            0.02,
            is_call,
            {"kind": "same", "condition": where},
            at_most=True,
        )
        for where in CONDITIONS
    ),
    Bar(
        "the interval holds the truth",
        0.95,
        is_covered,
        {"kind": ("same", "truth", "power")},
    ),
    Bar("a true 20 % is called, 2 s", 0.95, is_right, {"kind": "power", "seconds": 2}),
    Bar("a true 5 % is called, 5 s", 0.90, is_right, {"kind": "power", "seconds": 5}),
    Bar(
        "throughput within 2 % of `torch.utils.benchmark`, by work",
        1.0,
        is_within(0.02),
        {"kind": "agreement"},
    ),
)


def summarise(rows):
    """Return every bar with its cases, pooled and by cell, and the table of tools."""
    rows = list(rows)
    errors = sum(bool(row.get("error")) for row in rows)
    bars = [bar.judge(rows) for bar in BARS]
    return {"bars": bars, "errors": errors, "tools": compare_tools(rows)}


def beyond_same(row):
    """Return a row judged by its interval and our zone of 2 % around "the same"."""
    low, high = row.get("low"), row.get("high")
    verdict = None
    if low is not None and low > SAME:
        verdict = "faster"
    if high is not None and high < 1 / SAME:
        verdict = "slower"
    return {**row, "verdict": verdict}


#: Readings of the tools: by their own verdict, and by their interval beyond 2 %.
TOOLS = {
    KIT: (KIT, dict),
    ALONE: (ALONE, dict),
    **{peer: (peer, dict) for peer in PEERS},
    **{f"{peer}, beyond 2 %": (peer, beyond_same) for peer in PEERS},
}
_COLUMNS = {
    "false alarms, quiet": (("same",), "quiet", is_call),
    "false alarms, busy": (("same",), "busy", is_call),
    "interval holds the truth": (("same", "power"), "", is_covered),
    "5 % called": (("power",), "", is_right),
}


def compare_tools(rows):
    """Return one entry per tool, on the same work and budgets, 2 s and 5 s.

    Each column has [how often it happened, number of cases].
    """
    asked = (("same", 2), ("power", 5))
    chosen = [row for row in rows if (row["kind"], row["seconds"]) in asked]
    entries = []
    for tool, (method, read) in TOOLS.items():
        found = [read(row) for row in chosen if row["method"] == method]
        entry = {"tool": tool}
        for column, (kinds, condition, happens) in _COLUMNS.items():
            cases = [
                happens(row)
                for row in found
                if row["kind"] in kinds and condition in ("", row["condition"])
            ]
            entry[column] = [sum(cases), len(cases)]
        over = [row["wall_seconds"] / row["seconds"] for row in found]
        entry["time ÷ budget"] = round(median(over), 2) if over else None
        entries.append(entry)
    return entries
