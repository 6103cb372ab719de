"""Trials by hand, of lives and blocks: what would have been measured."""

import math

import numpy as np

from kit.life import COLD, Block, Life
from kit.machine import Machine
from kit.trial import Trial


def make_machine(name="imaginary-2-cores"):
    values = {"name": name, "processor": "Imaginary 4000", "cores": 2, "threads": 2}
    values |= {"memory_bytes": 8 * 2**30, "shared_memory_bytes": 2**26}
    values |= {"instruction_sets": ["avx2"], "accelerators": []}
    values |= {"operating_system": "Imaginary OS 7", "start_method": "fork"}
    values |= {"python": "3.11.1", "torch": "2.14.0"}
    facts = {key: {"value": v, "reason": "made up"} for key, v in values.items()}
    return Machine.from_dict(facts)


def make_life(turn=0, seconds=(1.0,), *, items=10, steps=5, **changes):
    """A life whose blocks took these seconds."""
    fields = {"setup_seconds": 0.5, "beside": turn != COLD} | changes
    blocks = [Block(float(s), float(s), items, steps) for s in seconds]
    return Life(turn, blocks=blocks, **fields)


def make_trial(lives=None, **changes):
    """A trial of these lives, or of one with one block, with any field changed."""
    fields = {
        "experiment": "count",
        "title": "Count to a number.",
        "knobs": {"n": 1},
        "lives": [make_life()] if lives is None else list(lives),
        "machine": make_machine(),
        "source": "def count(*, n=1):\n    while True:\n        yield n",
        "started": "2026-01-02T03:04:05+00:00",
        "outcome": "complete",
    }
    return Trial(**fields | changes)


def rate_trial(
    seconds=1.0, *, pairs=5, rounds=3, first=0, items=10, cold=(), beside=True, **more
):
    """A trial by turns, in pairs of both orders, with two blocks per round.

    `seconds` is a block's, or says it of (turn, round, 0 or 1), or is an array of them;
    `cold` are those of a first life.
    """
    turns = range(first, first + 2 * pairs)
    if np.ndim(seconds):
        turns = range(first, first + len(seconds))
        lives = [np.ravel(row).tolist() for row in seconds]
    else:
        say = seconds if callable(seconds) else lambda *place: seconds
        lives = [[say(t, r, b) for r in range(rounds) for b in (0, 1)] for t in turns]
    own = {"items": items, "beside": beside}
    made = [make_life(*each, **own) for each in zip(turns, lives, strict=True)]
    first_life = [make_life(COLD, cold, items=items)] if len(cold) else []
    return make_trial(first_life + made, **more)


def run_trial(seconds, metrics=None, *, items=100, **changes):
    """A trial of whole runs of two steps; a metric has a value for each step."""
    own = {"items": items, "steps": 2, "beside": False}
    lives = [make_life(turn, [each], **own) for turn, each in enumerate(seconds)]
    for name, column in (metrics or {}).items():
        for life in lives:
            life.metrics[name] = column[2 * life.turn : 2 * life.turn + 2]
    return make_trial(lives, whole_runs=True, **changes)


def start_trial(setup_seconds=None, memory=None, **changes):
    """A trial of starts, the cold one first."""
    count = len(setup_seconds or memory)
    rows = zip(setup_seconds or [0.5] * count, memory or [None] * count, strict=True)
    lives = [Life(turn, *row) for turn, row in enumerate(rows, COLD)]
    return make_trial(lives, **changes)


def metric_trial(values, name="accuracy"):
    """Whole runs of two steps each; the last value of each run is given."""
    column = [x for value in values for x in (0.0, value)]
    return run_trial([1.0] * len(values), {name: column})


def noisy(seed, scale, middle=1.0):
    """Return block times that scatter by `scale`."""
    random = np.random.default_rng(seed)
    return lambda *place: middle * math.exp(random.normal(0, scale))
