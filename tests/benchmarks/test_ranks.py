"""What `start_ranks` promises: how soon it starts, answers, and tells of faults."""

import os
import signal
import statistics
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from rank_faults import (
    CULPRITS,
    DISAGREEMENTS,
    ONE,
    define,
    footprint,
    wait_for_no_more_than,
)

import kit
from kit.figures import text_table
from kit.ranks import RankError

STARTS, CALLS, ROUNDS = 3, 100, 10
#: Promised, in seconds. Ranks wait for each other for TIMEOUT seconds here.
START, CALL, CULPRIT, INTERRUPT = 10.0, 0.05, 10.0, 2.0
TIMEOUT, LATER = 5, 5.0
WIDE = 4


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")


@pytest.fixture(scope="module")
def ranks():
    """Two ranks for all faults."""
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        yield started


def seconds_of(action):
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def show(rows):
    print(text_table(["what", "promised s", "median s", "slowest s"], rows))


def row(name, promised, times):
    return name, promised, round(statistics.median(times), 3), round(max(times), 3)


def test_they_start_within_10_seconds_and_answer_within_50_milliseconds():
    starts, calls, ends = [], [], []
    for _ in range(STARTS):
        started = []
        starts.append(seconds_of(lambda: started.append(kit.start_ranks(2))))  # noqa: B023
        (ranks,) = started
        ranks.run(dist.get_rank)
        calls += [seconds_of(lambda: ranks.run(dist.get_rank)) for _ in range(CALLS)]  # noqa: B023
        ends.append(seconds_of(ranks.close))
    show(
        [
            row("start of 2", START, starts),
            row("call", CALL, calls),
            row("close", None, ends),
        ]
    )
    assert max(starts) <= START
    assert statistics.median(calls) <= CALL


def test_four_ranks_on_two_cores_work():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        with kit.start_ranks(WIDE) as ranks:
            print(f"{WIDE} ranks: started in {time.perf_counter() - started:.1f} s")

            def add_up():
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
                return tensor.item()

            assert ranks.run(add_up) == [float(WIDE)] * WIDE


def fail(ranks, body):
    """Return how long the error took, and how long until the next call was done."""
    work = define(body)

    def run():
        with pytest.raises(RankError):
            ranks.run(work)

    return seconds_of(run)


@pytest.mark.parametrize(
    ("bodies", "promised"),
    [
        ({name: ONE.format(body) for name, (body, *_) in CULPRITS.items()}, CULPRIT),
        ({name: body for name, (body, _) in DISAGREEMENTS.items()}, TIMEOUT + LATER),
    ],
    ids=["culprits", "disagreements"],
)
def test_faults_are_told_in_time_and_leave_nothing(ranks, bodies, promised):
    rows, before = [], footprint()
    for name, body in bodies.items():
        times = []
        for _ in range(ROUNDS):
            times.append(fail(ranks, body))
            assert ranks.run(dist.get_rank) == [0, 1]
        rows.append(row(name, promised, times))
        wait_for_no_more_than(before)
    show(rows)
    assert max(slowest for *_, slowest in rows) <= promised


def test_an_interrupt_ends_a_run_in_time_and_leaves_nothing(ranks):
    rows, before = [], footprint()
    for body in ("time.sleep(600)", "while True: dist.barrier()"):
        times = []
        for _ in range(ROUNDS):
            work, told = define(body), []

            def interrupt():
                told.append(time.perf_counter())  # noqa: B023
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(0.5, interrupt)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                ranks.run(work)
            times.append(time.perf_counter() - told[0])
            assert ranks.run(dist.get_rank) == [0, 1]
        rows.append(row(f"interrupt of {body}", INTERRUPT, times))
        wait_for_no_more_than(before)
    show(rows)
    assert max(slowest for *_, slowest in rows) <= INTERRUPT
