"""What a fresh process does: a few comparisons of one cell, one JSON line for each.

Started by `running` as `python -m calibration.measuring`, told what to do by one line
of JSON. The neighbor is outside, where other people's processes are.
"""

import functools
import json
import os
import random
import statistics
import sys
import time

import torch
from torch.utils.benchmark import Timer

import kit
from kit.measuring.compare import Request, compare_variants, make_variants

from .peers import PEERS
from .schedule import ALONE, KIT, Job
from .works import WORKS

#: How often the kit and PyTorch's timer take turns on one piece of work.
_TURNS = 6


def do(job):
    if job.kind == "agreement":
        return _agree(job)
    work = WORKS[job.work]
    if job.method in PEERS:
        starts = [functools.partial(work, units=units) for units in job.units]
        outcome = PEERS[job.method](*starts, job.seconds)
        return dict(zip(("value", "low", "high", "verdict"), outcome, strict=True))
    compare = {KIT: kit.compare, ALONE: _compare_alone}[job.method]
    comparison = compare(work, units=list(job.units), seconds=job.seconds)
    ratio = comparison.ratio
    found = {name: getattr(ratio, name) for name in ("value", "low", "high", "verdict")}
    starts = len(comparison.baseline.runs)
    return {**found, "reason": ratio.reason, "starts": starts}


def _compare_alone(work, *, seconds, units):
    """Compare as the kit does where variants cannot take turns."""
    variants = make_variants(work, None, {"units": units})
    for variant in variants:
        variant.runs_alone = True
    return compare_variants(variants, Request(seconds=seconds))


def _agree(job):
    """Measure items per second with the kit and with PyTorch's timer, by turns.

    Both drive one and the same generator: two of the same code differ by some per cent,
    since their memory lies elsewhere. The timer's mean is taken, not its median: a rate
    counts slow steps in full.
    """
    generator = WORKS[job.work](units=job.units[0])
    timer = Timer("next(generator)", globals={"generator": generator})
    seconds = job.seconds / (2 * _TURNS)

    def again():
        while True:
            yield next(generator)

    def ours():
        return kit.measure(again, seconds=seconds).items_per_second

    def theirs():
        return 1 / timer.blocked_autorange(min_run_time=seconds).mean

    rates = {"ours": [], "theirs": []}
    for _ in range(_TURNS):
        for tool in random.sample([ours, theirs], 2):
            rates[tool.__name__].append(tool())
    middle = {name: statistics.median(values) for name, values in rates.items()}
    return {"value": middle["ours"] / middle["theirs"], **middle}


def record(job):
    """Make one comparison; return its line, with the error if there was one."""
    begun = time.perf_counter()
    try:
        found = do(job)
    except Exception as error:  # one failure must not end a calibration of an hour
        found = {"error": f"{type(error).__name__}: {error}"}
    spent = {"wall_seconds": time.perf_counter() - begun, "at": time.time()}
    return {**job.to_row(), **spent, **found}


def main():
    torch.set_num_threads(1)
    order = json.loads(sys.stdin.readline())
    parent = os.getppid()
    for fields in order["jobs"]:
        job = Job(**{**fields, "units": tuple(fields["units"])})
        is_late = time.time() + job.expected_seconds > order["until"]
        if is_late or os.getppid() != parent:
            return
        line = json.dumps(record(job))
        with open(order["out"], "a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
