"""What `start_ranks` promises: how soon it starts, answers, and tells of faults."""

import statistics
import time

import pytest
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
from kit.ranks import RankError

STARTS, CALLS, ROUNDS = 3, 100, 3
#: Promised, in seconds. Ranks wait for each other for TIMEOUT seconds here.
START, CALL, CULPRIT = 10.0, 0.05, 10.0
TIMEOUT, LATER = 5, 5.0


@pytest.fixture(scope="module")
def ranks():
    print(f"\n{kit.this_machine()}\n")
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        yield started


def time_it(action, *given):
    begun = time.perf_counter()
    action(*given)
    return time.perf_counter() - begun


def show(what, promised, times):
    """Print how long something took; return the longest."""
    middle, longest = statistics.median(times), max(times)
    print(f"{what}: {middle:.3f} s, {longest:.3f} at most; promised: {promised}")
    return longest


def test_they_start_within_10_seconds_and_answer_within_50_milliseconds():
    starts, calls = [], []
    for _ in range(STARTS):
        begun = time.perf_counter()
        with kit.start_ranks(2) as ranks:
            starts.append(time.perf_counter() - begun)
            ranks.run(dist.get_rank)
            calls += [time_it(ranks.run, dist.get_rank) for _ in range(CALLS)]
    show("call", CALL, calls)
    assert show("start of 2", START, starts) <= START
    assert statistics.median(calls) <= CALL


def fail(ranks, body):
    with pytest.raises(RankError):
        ranks.run(define(body))


FAULTS = {name: (ONE.format(body), CULPRIT) for name, (body, *_) in CULPRITS.items()}
FAULTS |= {name: (body, TIMEOUT + LATER) for name, (body, _) in DISAGREEMENTS.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_in_time_and_leaves_nothing(ranks, name):
    (body, promised), times, before = FAULTS[name], [], footprint()
    for _ in range(ROUNDS):
        times.append(time_it(fail, ranks, body))
        assert ranks.run(dist.get_rank) == [0, 1]
    wait_for_no_more_than(before)
    assert show(name, promised, times) <= promised
