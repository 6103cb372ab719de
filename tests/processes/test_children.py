"""The kit ends no process that it did not start, and names what goes on running."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers import ONE_WORKER, forked
from torch.utils.data import DataLoader

import kit

pytestmark = pytest.mark.usefixtures("clock")

FORK = multiprocessing.get_context("fork")


def measure(train, **how):
    return kit.measure(train, seconds=0.2, repeats=2, **how)


def test_a_pool_that_starts_its_workers_in_the_first_step_works_afterwards(clock):
    """As it does in the reader's next cell."""
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:

        def train(*, n=1):
            while True:
                assert [*pool.map(abs, range(4))] == [0, 1, 2, 3]
                clock.work(0.01)
                yield 4

        trial = measure(train)
        assert trial.items_per_second == pytest.approx(400) and trial.notes
        pids = set(pool._processes)
        made = kit.compare(train, n=[1, 2], seconds=0.2)
        assert made.ratio.verdict == "same"
        assert [*pool.map(abs, [-5])] == [5] and set(pool._processes) == pids


@pytest.fixture
def left():
    """Processes that an experiment starts and leaves: they end with the test."""
    started = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_process_that_an_experiment_leaves_goes_on_and_is_named(clock, left):
    def train(*, n=1):
        left.append(subprocess.Popen(["sleep", "60"]))
        while True:
            clock.work(0.01)
            yield 1

    (note,) = measure(train).notes
    assert "sleep" in note
    assert len(left) == 2 and all(process.poll() is None for process in left)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["set-up", "step", "closing"])
def test_a_run_that_fails_ends_nobody(clock, left, error, where):
    def train():
        left.append(subprocess.Popen(["sleep", "60"]))
        try:
            for step in range(10**9):
                if where == {0: "set-up", 3: "step"}.get(step):
                    raise error
                clock.work(0.01)
                yield 1
        finally:
            if where == "closing":
                raise error

    with pytest.raises(error):
        measure(train)
    assert [process.poll() for process in left] == [None]


def test_who_ends_its_own_processes_is_told_nothing(clock):
    """As a loader does, when its loop is closed; one that was there before stays."""
    before = forked(time.sleep, 60)

    def loads():
        for batch in DataLoader(range(10**6), batch_size=8, **ONE_WORKER):
            clock.work(0.01)
            yield len(batch)

    def saves():
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
        try:
            while True:
                clock.work(0.01)
                yield 1
        finally:
            process.stdin.close()  # it ends by itself, a moment later

    try:
        assert measure(loads).notes == [] and measure(saves).notes == []
        assert before.is_alive()
    finally:
        before.kill()
        before.join()


def test_a_process_from_a_fork_server_is_named_and_the_server_is_not(clock):
    context = multiprocessing.get_context("forkserver")
    started = []

    def train(*, leaves):
        process = context.Process(target=time.sleep, args=[60], daemon=True)
        process.start()
        started.append(process)
        try:
            while True:
                clock.work(0.01)
                yield 1
        finally:
            if not leaves:
                process.kill()
                process.join()

    try:
        assert measure(train, leaves=False).notes == []
        assert measure(train, leaves=True).notes
        assert started[-1].is_alive()
    finally:
        for process in started:
            process.kill()
            process.join()


def test_a_loader_of_the_readers_can_be_used_again(clock):
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)

    def train():
        while True:
            for _ in loader:
                clock.work(0.01)
                yield 1

    for _ in range(2):
        measure(train)
    assert [*map(int, loader)] == [0, 1, 2, 3]
    loader._iterator = None  # it ends its workers


@pytest.mark.parametrize("signal_", [None, signal.SIGKILL], ids=["raises", "is killed"])
def test_a_worker_that_dies_fails_as_it_does_without_the_kit(clock, signal_):
    loaders = []

    def collate(samples):
        if 44 in samples:
            os.kill(os.getpid(), signal_) if signal_ else int("broken")
        return samples

    def load(*, n=8):
        loader = DataLoader(range(640), n, collate_fn=collate, **ONE_WORKER)
        loaders.append(iter(loader))
        for batch in loaders[-1]:
            clock.work(0.01)
            yield len(batch)

    with pytest.raises(RuntimeError if signal_ else ValueError) as caught:
        measure(load)
    # One that is killed is noticed at once, while batches before its last are used.
    step = "step" if signal_ else "step 6"
    assert any("load(n=8)" in note and step in note for note in caught.value.__notes__)
    loaders[-1]._shutdown_workers()  # what collects garbage would wait for 5 s
