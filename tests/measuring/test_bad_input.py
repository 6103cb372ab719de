"""What cannot be measured is refused at once, in words that say what to do next."""

import pytest
import torch
from helpers import refused

import kit

STARTED = []


def train(*, size=1):
    STARTED.append(size)
    while True:
        yield size


def measured(experiment=train, **asked):
    return lambda: kit.measure(experiment, **asked)


def compared(experiment=train, **asked):
    return lambda: kit.compare(experiment, **asked)


def forgotten():
    STARTED.append("a whole training")
    for _ in range(10**9):
        pass


def knob_named_seconds(*, seconds=1):
    yield seconds


def positional(size, /):
    yield size


def needs(*, size):
    yield size


METRIC = {"of": "loss", "seconds": None, "size": [1, 2]}
REFUSED = {
    "no function": (measured(3), "generator"),
    "a generator": (measured(train()), "restarted"),
    "no yield": (measured(forgotten), "`yield n`"),
    "seconds": (measured(seconds=-1), "seconds=-1"),
    "no number of seconds": (measured(seconds="4"), "seconds='4'"),
    "repeats": (measured(repeats=0), "repeats=0"),
    "a knob that is not there": (measured(sizes=3), "sizes=3", "Did you mean size=?"),
    "a word of the call": (measured(second=3), "Did you mean seconds=?"),
    "no value": (measured(needs), "size"),
    "a reserved knob": (measured(knob_named_seconds), "Rename"),
    "positional only": (measured(positional), "size=…"),
    "on": (measured(on=2), "start_ranks"),
    "one variant": (compared(size=3), "size"),
    "a tuple": (compared(size=(1, 2)), "write a list"),
    "an empty list": (compared(size=[]), "baseline first"),
    "no experiments": (compared({}), "empty"),
    "no within": (compared(**METRIC), "within=0.01"),
    "within a ratio": (compared(size=[1, 2], within=0.1), "Leave it out"),
    "complete": (compared(size=[1, 2], of="run_seconds"), "seconds=None"),
    "memory": (compared(size=[1, 2], of="peak_memory_bytes", seconds=None), "out"),
    "unit": (compared(size=[1, 2], unit="ms per batch"), "ms per step"),
    "unit of memory": (compared(size=[1, 2], of="peak_memory_bytes", unit="B/s"), "of"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_request_is_refused_before_anything_runs(tidy, what):
    call, *words = REFUSED[what]
    refused(call, *words)
    assert not STARTED


def test_several_quantities_at_once_are_refused(tidy):
    refused(compared(size=[1, 2], of=["loss"], seconds=None, within=1), "of=")


def yielding(*values):
    def train():
        while True:
            yield from values

    return train


@pytest.mark.parametrize(
    "values",
    [(-1,), (0,), (True,), ("many",), (torch.ones(2),), (1, 2, None, "x")],
)
def test_what_is_no_number_of_items_is_refused(tidy, values):
    refused(measured(yielding(*values), seconds=0.05), "Yield items")


@pytest.mark.parametrize("metrics", [3, {1: 2.0}, {"loss": "low"}])
def test_what_is_no_metric_is_refused(tidy, metrics):
    refused(measured(yielding((1, metrics)), seconds=0.05), "Yield items")


def test_a_loop_of_bare_yields_and_one_without_steps_are_refused(tidy):
    refused(measured(yielding(None)), "bare")
    refused(lambda: kit.measure(lambda: iter(())), "yield")
    refused(lambda: kit.measure(lambda: (n for n in [1])), "while True")


def test_a_generator_that_has_begun_is_refused_and_stays_where_it_was(tidy):
    half = (number for number in range(1, 99))
    next(half)
    refused(lambda: kit.measure(lambda: half), "no new generator")
    assert next(half) == 2


def test_a_metric_that_no_run_gives_is_refused(tidy):
    def fit(*, size=1):
        yield size, {"accuracy": 1.0}

    call = compared(fit, of="loss", within=0.1, seconds=None, size=[1, 2])
    refused(call, "accuracy")


@pytest.mark.parametrize("at, step", [("set-up", 0), ("step 3", 3)])
def test_an_error_is_the_readers_own_with_a_note_where_it_was(tidy, at, step):
    def broken(*, size=1):
        for number in range(1, 99):
            if number > step - 1:
                raise KeyError("mine")
            yield size

    with pytest.raises(KeyError, match="mine") as caught:
        kit.measure(broken, size=2)
    assert caught.value.__notes__ == [f"in broken(size=2), {at}, measured by the kit"]
