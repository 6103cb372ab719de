"""The report of a trial: its figures as rows, and what to know before using them."""

from __future__ import annotations

import math

from kit import figures, records
from kit.records import Trial

_RARE = "Rare slow steps: the mean is over 2 % above the typical block. They count."
_STOPPED = "Stopped before the end; what was measured until then is kept."
_NOT_SETTLED = (
    "Warm-up did not settle: the speed was still changing. Measure longer, or look for "
    "what changes from step to step."
)
Row = tuple[str, str, str]


def register() -> None:
    """Let trials be shown by these reports."""
    records.register_report(write_text, write_html)


def write_text(trial: Trial) -> str:
    """Return a trial's report as text."""
    table = figures.text_table(("", "", ""), list_rows(trial)).splitlines()[1:]
    return "\n  ".join([trial.heading(), *table, *list_remarks(trial)])


def write_html(trial: Trial) -> str:
    """Return a trial's report as a card."""
    when = trial.started[:16].replace("T", " ")
    return figures.html_card(
        trial.heading(),
        list_rows(trial),
        note=" ".join(list_remarks(trial)),
        footer=f"{trial.title} · measured on {trial.machine.name}, {when}",
    )


def list_rows(trial: Trial) -> list[Row]:
    """Return a trial's figures as (name, value, remark)."""
    rows = [_describe_speed(trial), _describe_step(trial)]
    if quantiles := trial.step_quantiles:
        names = " · ".join(f"p{percent}" for percent in quantiles)
        times = " · ".join(map(figures.format_seconds, quantiles.values()))
        rows.append((names, times, "so many % of the steps take no longer"))
    if trial.complete_runs and trial.blocks:
        mean = math.fsum(trial.block_seconds) / len(trial.blocks)
        rows.append(("time per run", figures.format_seconds(mean), "to its end"))
    if starts := len(trial.runs):
        seconds = figures.format_seconds(trial.setup_seconds[0])
        remark = "the cold start" if starts == 1 else f"cold, first of {starts}"
        rows.append(("set-up", seconds, remark))
    if excluded := trial.excluded_seconds:
        seconds = figures.format_seconds(excluded)
        rows.append(("excluded", seconds, "time before bare yields"))
    if trial.peak_memory_bytes is not None:
        size = figures.format_bytes(trial.peak_memory_bytes)
        rows.append(("peak memory", size, "increase during its first start"))
    for name in trial.metrics:
        if values := trial.last_values(name):
            rows.append((name, f"{values[-1]:.4g}", "last value"))
    return rows


def _describe_speed(trial: Trial) -> Row:
    low, high = trial.spread
    count = len(trial.timed_runs)
    remark = f"[{low:,.4g}, {high:,.4g}], range of {count} runs"
    if count < 2:
        remark = "one run" if count else "nothing was timed"
    return "items per second", f"{trial.items_per_second:,.4g}", remark


def _describe_step(trial: Trial) -> Row:
    steps = sum(run.steps for run in trial.timed_runs)
    blocks = sum(len(run.blocks) for run in trial.timed_runs)
    kind = "runs" if trial.complete_runs else "blocks"
    remark = f"{steps:,} steps in {blocks} {kind}"
    return "time per step", figures.format_seconds(trial.step_seconds), remark


def list_remarks(trial: Trial) -> list[str]:
    """Return sentences about what a reader should know before using the figures."""
    remarks = []
    if trial.has_rare_slow_steps:
        remarks.append(_RARE)
    if trial.outcome == "stopped":
        remarks.append(_STOPPED)
    if trial.outcome == "not settled":
        remarks.append(_NOT_SETTLED)
    return remarks + trial.notes
