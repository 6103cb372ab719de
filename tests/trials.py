"""Trials by hand, of runs and blocks: what would have been measured."""

import math

import numpy as np

from kit.machine import Machine
from kit.records import FIRST, Block, Run, Trial


def make_machine(name="imaginary-2-cores"):
    values = {"name": name, "processor": "Imaginary 4000", "cores": 2, "threads": 2}
    values |= {"memory_bytes": 8 * 2**30, "shared_memory_bytes": 2**26}
    values |= {"instruction_sets": ["avx2"], "accelerators": []}
    values |= {"operating_system": "Imaginary OS 7", "start_method": "fork"}
    values |= {"python": "3.11.1", "torch": "2.14.0"}
    facts = {key: {"value": v, "reason": "made up"} for key, v in values.items()}
    return Machine.from_dict(facts)


def make_run(round=0, seconds=(1.0,), *, items=10, steps=5, **changes):
    """A run whose blocks took these seconds."""
    fields = {"setup_seconds": 0.5, "interleaved": round != FIRST} | changes
    blocks = [Block(float(s), float(s), items, steps) for s in seconds]
    return Run(round, blocks=blocks, **fields)


def make_trial(runs=None, **changes):
    """A trial of these runs, or of one with one block, with any field changed."""
    fields = {
        "experiment": "count",
        "title": "Count to a number.",
        "knobs": {"n": 1},
        "runs": [make_run()] if runs is None else list(runs),
        "machine": make_machine(),
        "source": "def count(*, n=1):\n    while True:\n        yield n",
        "started": "2026-01-02T03:04:05+00:00",
        "outcome": "finished",
    }
    return Trial(**fields | changes)


def rate_trial(
    seconds=1.0,
    *,
    pairs=5,
    turns=3,
    first_round=0,
    items=10,
    first=(),
    again=(),
    interleaved=True,
    **more,
):
    """A trial of pairs of rounds, with two blocks in each A B B A or B A A B.

    `seconds` is a block's, or says it of (round, turn, 0 or 1), or is an array of them;
    `first` are those of a first run, and `again` those of a second one.
    """
    if np.ndim(seconds):
        rounds = range(first_round, first_round + len(seconds))
        blocks = [np.ravel(row).tolist() for row in seconds]
    else:
        rounds = range(first_round, first_round + 2 * pairs)
        say = seconds if callable(seconds) else lambda *place: seconds
        blocks = [[say(r, t, b) for t in range(turns) for b in (0, 1)] for r in rounds]
    runs = [make_run(FIRST, row, items=items) for row in (first, again) if len(row)]
    for round, row in zip(rounds, blocks, strict=True):
        runs.append(make_run(round, row, items=items, interleaved=interleaved))
    return make_trial(runs, **more)


def run_trial(seconds, metrics=None, *, items=100, **changes):
    """A trial of complete runs of two steps; a metric has a value for each step."""
    own = {"items": items, "steps": 2, "interleaved": False}
    runs = [make_run(round, [each], **own) for round, each in enumerate(seconds)]
    for name, column in (metrics or {}).items():
        for run in runs:
            run.metrics[name] = column[2 * run.round : 2 * run.round + 2]
    return make_trial(runs, complete_runs=True, **changes)


def start_trial(memory, **changes):
    """A trial of starts that add memory, the cold one first."""
    runs = [Run(round, 0.5, each) for round, each in enumerate(memory, FIRST)]
    return make_trial(runs, **changes)


def metric_trial(values, name="accuracy", **changes):
    """Complete runs of two steps each; the last value of each run is given."""
    column = [x for value in values for x in (0.0, value)]
    return run_trial([1.0] * len(values), {name: column}, **changes)


def noisy(seed, scale, middle=1.0):
    """Return block times that scatter by `scale`."""
    random = np.random.default_rng(seed)
    return lambda *place: middle * math.exp(random.normal(0, scale))
