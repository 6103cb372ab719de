"""Trials by hand, of runs and stretches: what would have been measured."""

import math

import numpy as np

from kit.machine import Machine
from kit.measuring.records import COLD, Run, Stretch, Trial


def make_machine(name="imaginary-2-cores"):
    return Machine(
        name=name,
        processor="Imaginary 4000",
        cores=2,
        memory_bytes=8 * 2**30,
        shared_memory_bytes=2**26,
        instruction_sets=("avx2",),
        accelerators=(),
        operating_system="Imaginary OS 7",
        python="3.11.1",
        torch="2.14.0",
        threads=2,
        start_method="fork",
    )


def make_run(round=0, seconds=(1.0,), *, items=10, steps=5, **changes):
    """A run whose stretches took these seconds."""
    fields = {"setup_seconds": 0.5, "took_turns": round != COLD} | changes
    stretches = [Stretch(float(each), items, steps) for each in seconds]
    return Run(round, stretches=stretches, **fields)


def make_trial(runs=None, **changes):
    """A trial of these runs, or of one with one stretch, with any field changed."""
    fields = {
        "experiment": "count",
        "title": "Count to a number.",
        "knobs": {"n": 1},
        "runs": [make_run()] if runs is None else list(runs),
        "machine": make_machine(),
        "started": "2026-01-02T03:04:05+00:00",
        "outcome": "finished",
    }
    return Trial(**fields | changes)


def rate_trial(seconds=1.0, *, pairs=5, turns=3, items=10, first=(), **more):
    """A trial of pairs of rounds, with two stretches in each A B B A or B A A B.

    `seconds` is a stretch's, or says it of (round, turn, 0 or 1), or is an array of
    them with a row for each round; `first` are those of a cold start.
    """
    if np.ndim(seconds):
        rows = [np.ravel(row).tolist() for row in seconds]
    else:
        say = seconds if callable(seconds) else lambda *place: seconds
        rows = [
            [say(round, turn, n) for turn in range(turns) for n in (0, 1)]
            for round in range(2 * pairs)
        ]
    runs = [make_run(COLD, first, items=items)] if len(first) else []
    runs += [make_run(round, row, items=items) for round, row in enumerate(rows)]
    return make_trial(runs, **more)


def run_trial(seconds, metrics=None, *, items=100, **changes):
    """A trial of complete runs of two steps; a metric has a value for each step."""
    own = {"items": items, "steps": 2, "took_turns": False}
    runs = [make_run(round, [each], **own) for round, each in enumerate(seconds)]
    for name, column in (metrics or {}).items():
        for run in runs:
            run.metrics[name] = column[2 * run.round : 2 * run.round + 2]
    return make_trial(runs, complete_runs=True, **changes)


def metric_trial(values, name="accuracy", **changes):
    """Complete runs of two steps each; the last value of each run is given."""
    column = [x for value in values for x in (0.0, value)]
    return run_trial([1.0] * len(values), {name: column}, **changes)


def noisy(seed, scale, middle=1.0):
    """Return seconds of stretches that scatter by `scale`."""
    random = np.random.default_rng(seed)
    return lambda *place: middle * math.exp(random.normal(0, scale))
