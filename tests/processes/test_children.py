"""The kit ends no process that it did not start, and names what goes on running."""

import multiprocessing
import subprocess
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers import ONE_WORKER
from torch.utils.data import DataLoader

import kit


def measure(train, **knobs):
    return kit.measure(train, seconds=0.2, repeats=2, **knobs)


def test_a_pool_that_starts_in_the_first_step_works_in_the_readers_next_cell(clock):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=fork) as pool:

        def train(*, n=1):
            while True:
                assert list(pool.map(abs, range(4))) == [0, 1, 2, 3]
                clock.work(0.01)
                yield 4

        assert measure(train).notes
        before = set(pool._processes)
        assert kit.compare(train, n=[1, 2], seconds=0.2).ratio.verdict == "same"
        assert list(pool.map(abs, [-5])) == [5]
        assert set(pool._processes) == before


@pytest.fixture
def started():
    """Processes that an experiment starts and leaves: they end with the test."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_process_that_an_experiment_leaves_goes_on_and_is_named(clock, started):
    def train():
        started.append(subprocess.Popen(["sleep", "60"]))
        while True:
            clock.work(0.01)
            yield 1

    (note,) = measure(train).notes
    assert "sleep" in note
    assert [process.poll() for process in started] == [None, None]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_run_that_fails_ends_no_process_of_the_reader(clock, started, error):
    def train():
        started.append(subprocess.Popen(["sleep", "60"]))
        clock.work(0.01)
        yield 1
        raise error

    with pytest.raises(error):
        measure(train)
    assert [process.poll() for process in started] == [None]


def test_an_experiment_that_ends_its_own_workers_gets_no_note(clock):
    def train():
        for batch in DataLoader(range(10**6), batch_size=8, **ONE_WORKER):
            clock.work(0.01)
            yield len(batch)

    assert measure(train).notes == []
