"""Judges what was measured: rows in, bars and tables out."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kit import stats

from .schedule import CONDITIONS, KIT, ONE_THREAD, PEERS

Row = Mapping[str, Any]


def wilson_interval(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, "Probable inference").

    >>> [round(x, 3) for x in wilson_interval(5, 10)]
    [0.237, 0.763]
    """
    if not count:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf(0.975)
    share, weight = successes / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + weight * weight / 4) / (1 + weight)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if successes == 0 else low), (1.0 if successes == count else high)


@dataclass(frozen=True)
class Judged:
    """How often something happened, and whether the bar may still hold.

    It holds unless the 95 % Wilson interval excludes it.
    """

    count: int
    successes: int
    share: float | None
    low: float
    high: float
    holds: bool

    @classmethod
    def of(cls, happened: Sequence[bool], bar: float, *, at_most: bool) -> Judged:
        """Judge cases against a bar."""
        count, successes = len(happened), sum(happened)
        low, high = wilson_interval(successes, count)
        holds = low <= bar if at_most else high >= bar
        share = round(successes / count, 4) if count else None
        return cls(count, successes, share, round(low, 4), round(high, 4), holds)


def is_call(row: Row) -> bool:
    """Return whether a difference was called."""
    return row.get("verdict") in ("faster", "slower")


def is_right(row: Row) -> bool:
    """Return whether the true difference was called."""
    return row.get("verdict") == ("faster" if row["truth"] > 1 else "slower")


def is_wrong(row: Row) -> bool:
    """Return whether the verdict contradicts the truth."""
    near = 1 / stats.SAME <= row["truth"] <= stats.SAME
    if row.get("verdict") == "same":
        return not near
    return is_call(row) and (near or not is_right(row))


def is_covered(row: Row) -> bool:
    """Return whether the interval holds the truth."""
    low, high = row.get("low"), row.get("high")
    return low is not None and high is not None and low <= row["truth"] <= high


def is_within(limit: float) -> Callable[[Row], bool]:
    """Return a test of whether a value is so near to 1."""
    return lambda row: abs((row.get("value") or math.inf) - 1) <= limit


@dataclass(frozen=True)
class Bar:
    """A promise: among these rows, this happens in at least, or at most, a share."""

    name: str
    share: float
    happens: Callable[[Row], bool]
    selects: Mapping[str, Any]
    at_most: bool = False

    def chooses(self, row: Row) -> bool:
        """Return whether a row belongs here; a tuple means: one of these."""
        wanted = {"method": KIT, "threads": 1, "uses_delay": True, **self.selects}
        return all(
            row.get(key) in (value if isinstance(value, tuple) else (value,))
            for key, value in wanted.items()
        )


_CALM = ("quiet", "busy")
_THREADS = {"threads": 2, "kind": ("same", "truth")}
BARS = (
    Bar("false alarms, A/A, 2 s", 0.05, is_call, {"kind": "same"}, at_most=True),
    Bar("the interval holds the truth, 2 s", 0.93, is_covered, {"kind": "truth"}),
    *(
        Bar(
            f"a true {words} is called, {seconds} s, {where}",
            share,
            is_right,
            {"kind": "power", "seconds": seconds, "condition": conditions},
        )
        for words, seconds, share in (("5 %", 5, 0.90), ("20 %", 2, 0.95))
        for where, conditions in (
            ("quiet or one neighbour", _CALM),
            ("bursty neighbour", ("bursty",)),
        )
    ),
    Bar(
        "wall time only: false alarms, A/A, 5 s",
        0.05,
        is_call,
        {"kind": "same", "uses_delay": False},
        at_most=True,
    ),
    Bar(
        "wall time only: a true 5 % is called, 30 s",
        0.90,
        is_right,
        {"kind": "power", "uses_delay": False},
    ),
    Bar(
        "two threads beside a neighbour: cannot tell",
        0.95,
        lambda row: row.get("verdict") == "cannot tell",
        _THREADS,
    ),
    Bar(
        "two threads beside a neighbour: wrong verdicts",
        0.0,
        is_wrong,
        _THREADS,
        at_most=True,
    ),
    Bar(
        "throughput within 2 % of torch.utils.benchmark, by work",
        1.0,
        is_within(0.02),
        {"kind": "agreement"},
    ),
    Bar(
        "peak memory within 5 % of what was allocated",
        1.0,
        is_within(0.05),
        {"kind": "allocation"},
    ),
)


def summarise(rows: Iterable[Row]) -> dict[str, Any]:
    """Return every bar with its cases, pooled and by cell, and the table of tools."""
    rows = list(rows)
    bars = []
    for bar in BARS:
        chosen = [row for row in rows if bar.chooses(row)]
        if bar.selects["kind"] == "agreement":
            chosen = _medians(chosen)
        cells: dict[str, list[bool]] = {}
        for row in chosen:
            cell = f"{row['condition']}, {row['work']}"
            cells.setdefault(cell, []).append(bar.happens(row))
        happened = list(itertools.chain.from_iterable(cells.values()))
        judged = Judged.of(happened, bar.share, at_most=bar.at_most)
        bars.append(
            {
                "name": bar.name,
                "bar": bar.share,
                "at_most": bar.at_most,
                **asdict(judged),
                "cells": {
                    cell: asdict(Judged.of(found, bar.share, at_most=bar.at_most))
                    for cell, found in sorted(cells.items())
                },
            }
        )
    return {
        "bars": bars,
        "errors": sum(bool(row.get("error")) for row in rows),
        "tools": compare_tools(rows),
    }


def _medians(rows: list[Row]) -> list[Row]:
    """Return one row per work: the ratio of the median rates of both tools."""
    joined: list[Row] = []
    for work in sorted({row["work"] for row in rows}):
        found = [row for row in rows if row["work"] == work]
        rates = [
            [row[tool] for row in found if row.get(tool)] for tool in ("ours", "theirs")
        ]
        value = (
            statistics.median(rates[0]) / statistics.median(rates[1])
            if (all(rates))
            else None
        )
        joined.append({**found[0], "value": value})
    return joined


def beyond_same(row: Row) -> Row:
    """Return a row judged by its interval and our zone of 2 % around "the same"."""
    low, high = row.get("low"), row.get("high")
    if low is None or high is None:
        return {**row, "verdict": None}
    return {**row, "verdict": stats.judge_ratio(low, high)}


_COLUMNS = {
    "false alarms": ("same", is_call),
    "coverage": ("same power", is_covered),
    "power, 5 %": ("power", is_right),
}


def compare_tools(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one entry per tool and condition, on the same works and budgets.

    Peers appear twice: by their own verdict, and by their interval outside the ±2 %
    that we call the same. Coverage is over all comparisons of both other columns.
    """
    chosen = [
        row
        for row in rows
        if row["threads"] == 1
        and row["uses_delay"]
        and (row["kind"], row["truth"] == 1, row["seconds"])
        in (("same", True, 2), ("power", False, 5))
        and (row["kind"] == "same" or row["work"] in ONE_THREAD)
    ]
    readings: list[tuple[str, str, Callable[[Row], Row]]] = [(KIT, KIT, lambda r: r)]
    for peer in PEERS:
        readings += [
            (peer, peer, lambda row: row),
            (f"{peer}, beyond 2 %", peer, beyond_same),
        ]
    entries = []
    for where in ("all", *CONDITIONS):
        for tool, method, reading in readings:
            found = [
                reading(row)
                for row in chosen
                if row["method"] == method and where in ("all", row["condition"])
            ]
            entry: dict[str, Any] = {"tool": tool, "condition": where}
            for column, (kinds, happens) in _COLUMNS.items():
                cases = [happens(row) for row in found if row["kind"] in kinds.split()]
                entry[column] = {"count": len(cases), "successes": sum(cases)}
            over = [row["wall_seconds"] / row["seconds"] for row in found]
            entry["time over budget"] = (
                round(statistics.median(over), 3) if over else None
            )
            entries.append(entry)
    return entries


def find_columns_behind(tools: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return, for each peer, the columns in which ours is worse over all conditions."""
    whole = {entry["tool"]: entry for entry in tools if entry["condition"] == "all"}
    behind: dict[str, list[str]] = {}
    for peer, theirs in whole.items():
        if peer == KIT:
            continue
        behind[peer] = []
        for column in _COLUMNS:
            pair = whole[KIT][column], theirs[column]
            if not all(cases["count"] for cases in pair):
                continue
            a, b = (cases["successes"] / cases["count"] for cases in pair)
            if (a > b) if column == "false alarms" else (a < b):
                behind[peer].append(column)
    return behind
