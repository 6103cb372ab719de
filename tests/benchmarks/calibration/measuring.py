"""What a fresh process does: the comparisons of one cell, one JSON line for each.

Started by `running` as `python -m calibration.measuring`, told what to do by one line
of JSON. The neighbour is outside, where other people's processes are.
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
from kit import clock

from .peers import PEERS
from .schedule import KIT, SEQUENTIAL, Job
from .works import ALLOCATIONS, BYTES, WORKS

#: How often the kit and PyTorch's timer take turns on one piece of work.
_TURNS = 6


def do(job):
    torch.set_num_threads(job.threads)
    if job.kind == "agreement":
        return _agree(job)
    if job.kind == "allocation":
        trial = kit.measure(ALLOCATIONS[job.work], seconds=job.seconds)
        added = trial.peak_memory_bytes or 0
        return {"value": added / BYTES, "ours": added, "theirs": BYTES}
    work = WORKS[job.work]
    if job.method not in (KIT, SEQUENTIAL):
        starts = [functools.partial(work, units=units) for units in job.units]
        outcome = PEERS[job.method](*starts, job.seconds)
        return dict(zip(("value", "low", "high", "verdict"), outcome, strict=True))
    comparison = kit.compare(work, units=list(job.units), seconds=job.seconds)
    ratio = comparison.ratio
    told = {name: getattr(ratio, name) for name in ("value", "low", "high", "verdict")}
    setups = len(comparison.baseline.setup_seconds)
    return {**told, "reason": ratio.reason, "setups": setups}


def _agree(job):
    """Measure items per second with the kit and with PyTorch's timer, by turns.

    Both drive one and the same generator: two of the same code differ by some per cent,
    since their memory lies elsewhere. The timer's mean is taken, not its median: a rate
    counts slow steps in full.
    """
    generator = WORKS[job.work](units=job.units[0])
    timer = Timer(
        "next(generator)", globals={"generator": generator}, num_threads=job.threads
    )
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
    usual, begun = clock.CLOCK, time.perf_counter()
    usual_pause = clock.compute_in_pause
    if not job.uses_delay:
        clock.CLOCK = clock.Clock(uses_delay=False)
    if job.method == SEQUENTIAL:  # as if something went on between the steps
        clock.compute_in_pause = lambda seconds: seconds
    try:
        found = do(job)
    except Exception as error:  # one failure must not end a calibration of an hour
        found = {"error": f"{type(error).__name__}: {error}"}
    finally:
        clock.CLOCK = usual
        clock.compute_in_pause = usual_pause
    spent = {"wall_seconds": time.perf_counter() - begun, "at": time.time()}
    return {**job.to_row(), **spent, **found}


def main():
    order = json.loads(sys.stdin.readline())
    parent = os.getppid()
    for fields in order["jobs"]:
        job = Job(**{**fields, "units": tuple(fields["units"])})
        late = time.time() + job.expected_seconds > order["until"]
        if late or os.getppid() != parent:
            return
        line = json.dumps(record(job))
        with open(order["out"], "a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
