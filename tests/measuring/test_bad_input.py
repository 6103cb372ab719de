"""What cannot be measured is refused at once, and named."""

import pytest
import torch
from helpers import refused

import kit

STARTED = []


def train(*, size=1):
    STARTED.append(size)
    while True:
        yield size


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


def compare(**asked):
    return kit.compare(train, **{"size": [1, 2]} | asked)


#: What a refusal has to name, and the call that is refused.
REFUSED = {
    "int": lambda: kit.measure(3),
    "generator": lambda: kit.measure(train()),
    "forgotten": lambda: kit.measure(forgotten),
    "seconds=-1": lambda: kit.measure(train, seconds=-1),
    "seconds='4'": lambda: kit.measure(train, seconds="4"),
    "repeats=0": lambda: kit.measure(train, repeats=0),
    "on=2": lambda: kit.measure(train, on=2),
    " size=?": lambda: kit.measure(train, sizes=3),
    " seconds=?": lambda: kit.measure(train, second=3),
    "'size'": lambda: kit.measure(needs),
    "'seconds'": lambda: kit.measure(knob_named_seconds),
    "size=…": lambda: kit.measure(positional),
    "train(size=3)": lambda: compare(size=3),
    "size=[…]": lambda: compare(size=(1, 2)),
    "size=[]": lambda: compare(size=[]),
    "experiment=[]": lambda: kit.compare({}),
    "of=['loss']": lambda: compare(of=["loss"], seconds=None, within=1),
    "within=None": lambda: compare(of="loss", seconds=None),
    "within=0.1": lambda: compare(within=0.1),
    "seconds=4.0": lambda: compare(of="run_seconds"),
    "seconds=None": lambda: compare(of="peak_memory_bytes", seconds=None),
    "repeats=9": lambda: compare(repeats=9),
    "unit='ms per batch'": lambda: compare(unit="ms per batch"),
    "unit='ktokens/s'": lambda: compare(unit="ktokens/s"),
    "unit='B/s'": lambda: compare(of="peak_memory_bytes", unit="B/s"),
    "predict=3": lambda: kit.explore(train, size=[1, 2], predict=3),
    "run_all()": lambda: kit.explore(train).run_all(),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_request_is_named_before_anything_runs(tidy, words):
    refused(REFUSED[words], words)
    assert not STARTED


def yielding(*values):
    def loop():
        while True:
            yield from values

    return loop


#: What a refusal has to name, and an experiment that yields it.
YIELDED = {
    "-1": yielding(-1),
    " 0;": yielding(0),
    "True": yielding(True),
    "'many'": yielding(1, 2, None, "many"),
    "tensor": yielding(torch.ones(2)),
    "bare": yielding(None),
    " 3;": yielding((1, 3)),
    "'loss'": yielding((1, {"loss": "low"})),
    "without a single": lambda: (n for n in ()),
    "after its first yield": lambda: (n for n in [1]),
    "not a new generator": lambda: iter([1]),
}


@pytest.mark.parametrize("words", YIELDED)
def test_what_is_no_step_is_named(tidy, words):
    refused(lambda: kit.measure(YIELDED[words], seconds=0.05), words)


def test_a_metric_that_no_run_gives_is_refused(tidy):
    def fit(*, size=1):
        yield size, {"accuracy": 1.0}

    def call():
        kit.compare(fit, of="loss", within=0.1, seconds=None, size=[1, 2])

    refused(call, "'loss'", "accuracy")


@pytest.mark.parametrize("at, step", [("set-up", 0), ("step 3", 3)])
def test_an_error_is_the_readers_own_with_a_note_where_it_was(tidy, at, step):
    def broken(*, size=1):
        for number in range(1, 99):
            if number > step - 1:
                raise KeyError("mine")
            yield size

    with pytest.raises(KeyError, match="mine") as caught:
        kit.measure(broken, size=2)
    (note,) = caught.value.__notes__
    assert "broken(size=2)" in note and at in note
    assert caught.traceback[-1].name == "broken", "the reader sees the line"
