"""The recipe of chapter 00: a trainer's callback becomes a generator."""

import itertools
import pathlib
import queue
import threading
import time

import nbformat
import pytest
import torch

import kit

CHAPTER = pathlib.Path(__file__).parents[2] / "tutorials" / "00_start_here.ipynb"


@pytest.fixture
def steps_of():
    (cell,) = [
        cell
        for cell in nbformat.read(CHAPTER, as_version=4).cells
        if "recipe" in cell.metadata.get("tags", ())
    ]
    names = {"queue": queue, "threading": threading, "torch": torch}
    exec(compile(cell.source, "recipe", "exec"), names)
    before = set(threading.enumerate())
    yield names["steps_of"]
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, "the trainer's thread has not ended"
        time.sleep(0.01)


def test_it_yields_what_the_callback_gets(steps_of):
    def fit(on_step):
        for items in (3, 4, 5):
            on_step(items)

    assert list(steps_of(fit)) == [3, 4, 5]


@pytest.mark.parametrize(
    "result", [7, None, object()], ids=["a number", "nothing", "an object"]
)
def test_what_the_trainer_returns_is_no_step(steps_of, result):
    def fit(on_step):
        on_step(3)
        return result

    assert list(steps_of(fit)) == [3]


def test_only_one_of_the_two_runs(steps_of):
    events = []

    def fit(on_step):
        for number in itertools.count():
            events.append(f"step {number}")
            on_step(1)

    steps = steps_of(fit)
    for number in range(3):
        next(steps)
        time.sleep(0.02)
        events.append(f"seen {number}")
    steps.close()
    expected = [f"{what} {n}" for n in range(3) for what in ("step", "seen")]
    assert events[:6] == expected
    assert len(events) <= 7


def test_closing_unwinds_the_trainer(steps_of):
    unwound = threading.Event()

    def fit(on_step):
        try:
            while True:
                on_step(1)
        finally:
            unwound.set()

    steps = steps_of(fit)
    next(steps)
    steps.close()
    assert unwound.wait(5)


def test_an_error_of_the_trainer_reaches_the_caller(steps_of):
    def fit(on_step):
        on_step(1)
        raise RuntimeError("no more data")

    steps = steps_of(fit)
    assert next(steps) == 1
    with pytest.raises(RuntimeError, match="no more data"):
        next(steps)


def test_the_trainer_has_the_callers_number_of_threads(steps_of):
    seen = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert list(steps_of(lambda _: seen.append(torch.get_num_threads()))) == []
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


def test_it_can_be_measured(steps_of):
    def fit(on_step):
        while True:
            time.sleep(0.001)
            on_step(8)

    trial = kit.measure(lambda: steps_of(fit), seconds=0.2)
    assert trial.outcome == "complete"
    assert trial.items_per_second > 0
