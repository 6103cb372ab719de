"""Bad input is refused at once, in words that help, and leaves nothing half-done."""

import contextlib
import functools
import gc
import math
import time
import warnings

import numpy
import pytest
import torch
from helpers import refused

import kit
from kit.experiment import RESERVED, ExperimentError

pytestmark = pytest.mark.usefixtures("smoke")


def train(*, batch_size=8, lr=0.1):
    """Train a little."""
    while True:
        yield batch_size


def yields(*values, closed=None):
    """Return an experiment that yields these, the last one for ever."""

    def train(*, lr=0.1):
        try:
            yield from values[:-1]
            while True:
                yield values[-1]
        finally:
            if closed is not None:
                closed.append(True)

    return train


def both(experiment, **knobs):
    """Return the two ways to ask for an experiment, as calls."""
    name = getattr(experiment, "__name__", "other")
    return (
        lambda: kit.measure(experiment, **knobs),
        lambda: kit.compare({"good": train, name: experiment}, **knobs),
    )


WAYS = pytest.mark.parametrize("way", [0, 1], ids=["measure", "compare"])


# Not an experiment


def called(*arguments, **knobs):
    raise AssertionError("it was called to find out what it is")


def no_yield(*, lr=0.1):
    called()


def early_return(*, lr=0.1):
    if lr:
        called()
        return
    for _ in range(3):
        called()


class NoYield:
    def __call__(self, *, lr=0.1):
        called()

    def method(self, *, lr=0.1):
        called()


PLAIN = {
    "function": no_yield,
    "function that returns early": early_return,
    "partial": functools.partial(no_yield, lr=0.2),
    "method": NoYield().method,
    "callable object": NoYield(),
}


@pytest.mark.parametrize("name", PLAIN)
@WAYS
def test_plain_function_is_refused_without_being_called(name, way):
    refused(both(PLAIN[name])[way], "yield n")


def test_plain_function_is_refused_by_its_name():
    refused(lambda: kit.measure(no_yield), "no_yield")
    refused(lambda: kit.measure(functools.partial(no_yield, lr=1)), "no_yield")
    refused(lambda: kit.measure(NoYield().method), "method")
    refused(lambda: kit.measure(NoYield()), "NoYield")


@pytest.mark.parametrize(
    "thing",
    [None, 42, "train", [train], train(), max, print, dict, torch.nn.Linear(1, 1).to],
    ids=lambda thing: type(thing).__name__,
)
@WAYS
def test_what_is_no_experiment_at_all(thing, way):
    refused(both(thing)[way])


async def coroutine(*, lr=0.1):
    called()


async def asynchronous(*, lr=0.1):
    called()
    yield 1


@pytest.mark.parametrize("experiment", [coroutine, asynchronous])
@WAYS
def test_asynchronous_functions(experiment, way):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refused(both(experiment)[way], experiment.__name__)
        gc.collect()
    assert not told, "it was called, and what it returned was left lying about"


RETURNS = {
    "a list": lambda: [1, 2, 3],
    "an iterator": lambda: iter([1, 2, 3]),
    "a map": lambda: map(float, [1, 2, 3]),
    "a context manager": contextlib.contextmanager(train),
}


@pytest.mark.parametrize("name", RETURNS)
@WAYS
def test_callable_that_returns_no_generator(name, way):
    refused(both(RETURNS[name])[way], "yield")


@WAYS
def test_generator_instead_of_its_function(way):
    refused(both(train(lr=0.2))[way], "train", "restarted", "function itself")


def test_generator_that_was_started_before():
    generator = train()
    next(generator)
    refused(lambda: kit.measure(lambda: generator), "already", "restarted")


def test_one_generator_for_every_start():
    generator = (items for items in [1, 1, 1])
    runs = {"seconds": None, "repeats": 2}
    refused(lambda: kit.measure(lambda: generator, **runs), "already", "restarted")


# What it yields


@WAYS
def test_yields_nothing(way):
    def train(*, lr=0.1):
        yield from ()

    refused(both(train)[way], "train(lr=0.1)", "yield n")


BAD_VALUES = {
    "text": "loss",
    "zero": 0,
    "zero as a float": 0.0,
    "negative": -3,
    "nan": math.nan,
    "infinite": math.inf,
    "a list": [1, 2],
    "a batch": torch.ones(4, 4),
    "a tensor": torch.tensor(8),
    "a dict": {"loss": 1.0},
    "a triple": (8, {}, 1),
    "a pair without a dict": (8, 0.5),
    "a pair the wrong way round": ({"loss": 0.5}, 8),
    "a metric in words": (8, {"loss": "high"}),
    "a metric of many": (8, {"loss": torch.ones(3)}),
    "a metric that is an array": (8, {"loss": numpy.ones(3)}),
    "a metric that is missing": (8, {"loss": None}),
    "a metric without a name": (8, {3: 0.5}),
    "zero with metrics": (0, {"loss": 0.5}),
}


@pytest.mark.parametrize("step", ["step 1", "step 3"])
@pytest.mark.parametrize("name", BAD_VALUES)
def test_yields_what_is_no_step(name, step):
    closed = []
    before = [1, 1] if step == "step 3" else []
    experiment = yields(*before, BAD_VALUES[name], closed=closed)
    refused(lambda: kit.measure(experiment), "train(lr=0.1)", "yield", step)
    assert closed == [True]


def test_the_message_counts_yields_and_shows_the_value():
    refused(lambda: kit.measure(yields(1, 1, 0)), "step 3", " 0;")
    refused(lambda: kit.measure(yields(-7)), "step 1", "-7")
    refused(lambda: kit.measure(yields(1, "forty")), "step 2", "'forty'")
    bad_metric = yields((1, {"accuracy": "high"}))
    refused(lambda: kit.measure(bad_metric), "accuracy")


def test_bad_yield_closes_the_suspended_variant_too():
    closed = []
    good, bad = yields(1, closed=closed), yields(1, "x", closed=closed)
    refused(lambda: kit.compare({"good": good, "bad": bad}), "bad(lr=0.1)")
    refused(lambda: kit.compare({"bad": bad, "good": good}), "bad(lr=0.1)")
    assert len(closed) == 3


@pytest.mark.parametrize("value", [2.5, numpy.int64(3), numpy.float32(2), (4, {})])
def test_numbers_of_any_kind_are_items(value):
    trial = kit.measure(yields(value))
    items = float(value[0] if isinstance(value, tuple) else value)
    assert trial.block_items == [items] * 2


# Knobs


@WAYS
def test_knob_that_it_does_not_have(way):
    ways = (
        lambda: kit.measure(train, batchsize=64),
        lambda: kit.compare(train, batchsize=[64, 128]),
    )
    refused(ways[way], "train", "batchsize", "64", "batch_size", "lr")


@WAYS
def test_knob_without_a_value(way):
    def needs(*, size, lr=0.1):
        while True:
            yield size

    refused(both(needs)[way], "needs", "size")
    assert kit.measure(needs, size=4).knobs == {"size": 4, "lr": 0.1}


def positional(size, *, lr=0.1):
    while True:
        yield size


def many(*sizes, lr=0.1):
    while True:
        yield sum(sizes)


def test_a_name_for_an_experiment_does_not_hide_the_function():
    reserved = with_knob("seconds")
    call = {"good": train, "new": reserved}
    refused(lambda: kit.compare(call), "partial(train, seconds=")


@WAYS
def test_positional_parameter(way):
    refused(both(positional)[way], "positional", "size", "partial(positional, size=")
    refused(both(many)[way], "many", "*sizes")


@pytest.mark.parametrize(
    "experiment",
    [functools.partial(positional, size=3), functools.partial(positional, 3)],
    ids=["by name", "by position"],
)
def test_positional_parameter_that_a_partial_fixes(experiment):
    trial = kit.measure(experiment)
    assert trial.experiment == "positional"
    assert trial.knobs == {"size": 3, "lr": 0.1}
    assert trial.block_items == [3, 3]


def test_a_partial_that_does_not_fit():
    refused(lambda: kit.measure(functools.partial(positional, 1, 2)), "positional")


def with_knob(name):
    """Return an experiment with a knob of this name."""
    room = {}
    code = f"def train(*, {name}='x', lr=0.1):\n    while True:\n        yield 1"
    exec(code, room)
    return room["train"]


def test_the_reserved_names_are_those_of_the_contract():
    names = "seconds repeats of within on patient model title"
    assert sorted(RESERVED) == sorted(names.split())


@pytest.mark.parametrize("name", RESERVED)
@WAYS
def test_reserved_name_proposes_a_partial_and_the_partial_works(name, way):
    experiment = with_knob(name)
    refused(both(experiment)[way], "train", repr(name), f"partial(train, {name}=")
    fixed = functools.partial(experiment, **{name: "resnet"})
    trial = kit.measure(fixed)
    assert trial.knobs == {name: "resnet", "lr": 0.1}
    assert f"{name}='resnet'" in repr(trial)
    comparison = kit.compare(fixed, lr=[0.1, 0.2])
    assert comparison.trials[1].knobs == {name: "resnet", "lr": 0.2}


def test_knob_that_a_partial_has_fixed_cannot_be_set():
    fixed = functools.partial(train, lr=0.5)
    refused(lambda: kit.measure(fixed, lr=0.1), "train", "lr=0.1", "0.5")
    refused(lambda: kit.compare(fixed, lr=[0.1, 0.5]), "train", "lr", "0.5", "partial")


LONG = numpy.arange(400.0).reshape(100, 4)


LONG_VALUES = {
    "unknown knob": lambda: kit.measure(train, weights=LONG),
    "fixed knob": lambda: kit.measure(functools.partial(train, lr=1), lr=LONG),
    "fixed value": lambda: kit.measure(functools.partial(train, lr=LONG), lr=1),
    "knob of a bad yield": lambda: kit.measure(yields("text"), lr=LONG),
    "metric": lambda: kit.measure(yields(1, (2, "\n" * 99))),
    "seconds": lambda: kit.measure(train, seconds=LONG),
    "repeats": lambda: kit.measure(train, repeats=LONG),
    "on": lambda: kit.measure(train, on=LONG),
    "experiment": lambda: kit.measure(LONG),
    "choices": lambda: kit.compare(train, weights=["a\nb" * 40, "c" * 999]),
    "choice of arrays": lambda: kit.compare(train, weights=[LONG, LONG]),
    "quantity": lambda: kit.compare(train, of="a\n" * 9, lr=[0.1, 0.2]),
    "within": lambda: kit.compare(train, of="loss", within=LONG, lr=[0.1, 0.2]),
}


@pytest.mark.parametrize("name", LONG_VALUES)
def test_long_values_do_not_make_long_messages(name):
    assert len(refused(LONG_VALUES[name])) < 800


def test_long_values_do_not_make_long_headings():
    trial = kit.measure(train, lr=LONG)
    assert "items per second" in repr(trial).splitlines()[1]


def raises_at_length(error):
    def train(*, lr=0.1):
        yield 1
        raise error("line\n" * 60 + "x" * 5000)

    return train


@pytest.mark.parametrize("error", [ValueError, RuntimeError, AssertionError])
def test_long_errors_of_the_reader_do_not_make_long_messages(error):
    message = refused(lambda: kit.measure(raises_at_length(error)), error.__name__)
    assert len(message) < 800


# Choices


@pytest.mark.parametrize("choices", [[16, 32], range(9, 12)])
def test_a_default_outside_the_choices_is_no_error(choices):
    comparison = kit.compare(train, batch_size=choices)
    assert [t.knobs["batch_size"] for t in comparison.trials] == list(choices)
    assert comparison.baseline.knobs["batch_size"] == choices[0]


@pytest.mark.parametrize("choices", [[], range(0)])
def test_empty_list_of_choices(choices):
    refused(lambda: kit.compare(train, batch_size=choices), "batch_size", "empty")


@pytest.mark.parametrize(
    "call",
    [
        lambda: kit.compare(train),
        lambda: kit.compare(train, batch_size=64),
        lambda: kit.compare(train, batch_size=[8]),
        lambda: kit.compare({"train": train}),
        lambda: kit.compare({"train": train}, lr=(0.1, 0.2)),
    ],
)
def test_one_variant_only(call):
    refused(call, "one variant", "train", "batch_size=[")


def test_no_experiment_at_all():
    refused(lambda: kit.compare({}))
    refused(lambda: kit.compare({}, lr=[1, 2]))


def test_choices_may_be_arrays():
    one, other = numpy.zeros(3), numpy.ones(3)
    comparison = kit.compare(train, batch_size=[8, 9], lr=one)
    assert comparison.trials[1].knobs["lr"] is one
    comparison = kit.compare(train, lr=[one, other])
    assert comparison.trials[1].knobs["lr"] is other


# Time


SECONDS = [0, 0.0, -1, math.nan, math.inf, "2", True, [1, 2]]


@pytest.mark.parametrize("seconds", SECONDS, ids=repr)
@WAYS
def test_seconds_that_are_no_time(seconds, way):
    ways = (
        lambda: kit.measure(train, seconds=seconds),
        lambda: kit.compare(train, lr=[0.1, 0.2], seconds=seconds),
    )
    refused(ways[way], "seconds=", repr(seconds), "seconds=None")


@pytest.mark.parametrize("repeats", [0, -1, 1.5, "3", None, True], ids=repr)
@WAYS
def test_repeats_that_are_no_number(repeats, way):
    ways = (
        lambda: kit.measure(train, repeats=repeats),
        lambda: kit.compare(train, lr=[0.1, 0.2], repeats=repeats),
    )
    refused(ways[way], "repeats=", repr(repeats))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"of": "items_per_secnod"}, ["items_per_secnod", "items_per_second"]),
        ({"of": "run_seconds"}, ["run_seconds", "seconds=None"]),
        ({"of": "loss", "within": 0.1}, ["loss", "seconds=None"]),
        ({"of": "loss", "seconds": None}, ["loss", "within="]),
        ({"of": "loss", "seconds": None, "within": 0}, ["within=0"]),
        ({"of": "loss", "seconds": None, "within": -1}, ["within=-1"]),
        ({"of": "loss", "seconds": None, "within": "1"}, ["within='1'"]),
        ({"of": "setup_seconds", "seconds": None}, ["setup_seconds", "seconds"]),
        ({"of": None}, ["of=None"]),
        ({"of": ["loss"]}, ["of=['loss']"]),
    ],
    ids=str,
)
def test_quantities_that_do_not_go_together(options, words):
    refused(lambda: kit.compare(train, lr=[0.1, 0.2], **options), *words)


def test_metric_that_it_does_not_yield():
    def once(*, lr=0.1):
        yield 1
        yield 1, {"loss": 0.5}

    options = {"of": "accuracy", "within": 0.1, "seconds": None}
    refused(
        lambda: kit.compare(once, lr=[0.1, 0.2], **options), "once", "accuracy", "loss"
    )


# It raises


class Broken(Exception):
    pass


def broken(where, opened, closed):
    def train(*, lr=0.1):
        opened.append(True)
        if where == "set-up":
            raise Broken("out of chalk")
        try:
            yield 1
            yield 1
            if where == "step 3":
                raise Broken("out of chalk")
            while True:
                yield 1
        finally:
            closed.append(True)
            if where == "closing":
                raise Broken("out of chalk")

    return train


@pytest.mark.parametrize("where", ["set-up", "step 3", "closing"])
@WAYS
def test_experiment_that_raises(where, way):
    opened, closed = [], []
    call = both(broken(where, opened, closed), lr=0.5)[way]
    refused(call, "train(lr=0.5)", "Broken", where, "out of chalk")
    assert len(closed) == (0 if where == "set-up" else len(opened))
    with pytest.raises(ExperimentError) as caught:
        call()
    assert isinstance(caught.value.__cause__, Broken)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_experiment_that_swallows_its_closing():
    def train(*, lr=0.1):
        while True:
            with contextlib.suppress(BaseException):
                yield 1

    refused(lambda: kit.measure(train), "train(lr=0.1)", "closing")


def test_error_of_a_step_is_not_hidden_by_one_of_closing_the_other():
    starts = []

    def sour():
        starts.append(True)
        try:
            while True:
                yield 1
        finally:
            if len(starts) > 1:
                raise Broken("too late")

    def bad():
        for _ in range(3):
            yield 1
        if len(starts) > 1:
            raise Broken("out of chalk")
        yield from train()

    message = refused(lambda: kit.compare({"sour": sour, "bad": bad}), "bad()")
    assert "step 4: out of chalk" in message


@pytest.mark.parametrize("error", [SystemExit, StopIteration, GeneratorExit])
def test_unusual_errors(error):
    def train(*, lr=0.1):
        yield 1
        yield 1
        raise error("out of chalk")

    refused(lambda: kit.measure(train, seconds=None), "train(lr=0.1)", "step 3")


# These work


class Object:
    """An object with an experiment."""

    def __init__(self, size=2):
        self.size = size

    def __call__(self, *, lr=0.1):
        """Train by calling."""
        while True:
            yield self.size

    def method(self, *, lr=0.1):
        """Train by method."""
        while True:
            yield self.size

    @classmethod
    def of_class(cls, *, lr=0.1):
        while True:
            yield 2

    @staticmethod
    def static(*, lr=0.1):
        while True:
            yield 2


def returns_a_generator(*, lr=0.1):
    return train(batch_size=2, lr=lr)


def any_knob(**knobs):
    while True:
        yield 2


GOOD = {
    "function": (functools.partial(train, batch_size=2), "train"),
    "lambda": (lambda *, lr=0.1: train(batch_size=2, lr=lr), None),
    "method": (Object().method, "method"),
    "class method": (Object.of_class, "of_class"),
    "static method": (Object.static, "static"),
    "callable object": (Object(), "Object"),
    "partial of a method": (functools.partial(Object().method), "method"),
    "partial of a partial": (
        functools.partial(functools.partial(train, batch_size=2), lr=0.1),
        "train",
    ),
    "partial of an object": (functools.partial(Object()), "Object"),
    "function that returns one": (returns_a_generator, "returns_a_generator"),
    "wrapped": (functools.wraps(train)(lambda **k: train(batch_size=2)), "train"),
    "any knob": (any_knob, "any_knob"),
}


@pytest.mark.parametrize("name", GOOD)
def test_every_callable_that_returns_a_generator_serves(name):
    experiment, called = GOOD[name]
    trial = kit.measure(experiment)
    assert trial.block_items == [2, 2]
    if called:
        assert trial.experiment == called
    assert "<lambda>" not in repr(trial)
    if "partial of a partial" not in name:
        assert kit.measure(experiment, lr=0.2).knobs["lr"] == 0.2
        assert len(kit.compare(experiment, lr=[0.1, 0.2]).trials) == 2


def test_titles_come_from_the_first_line_that_explains():
    assert kit.measure(train).title == "Train a little."
    assert kit.measure(Object()).title == "Train by calling."
    assert kit.measure(Object().method).title == "Train by method."
    assert kit.measure(functools.partial(train, lr=1)).title == "Train a little."


def test_a_refusal_is_quick_even_where_the_experiment_is_slow():
    def slow(*, lr=0.1):
        time.sleep(30)
        yield 1

    refused(lambda: kit.compare(slow, momentum=[0.1, 0.2]), "slow", "momentum")
    refused(lambda: kit.compare({"slow": slow, "bad": no_yield}), "bad")
    refused(lambda: kit.measure(slow, seconds=-1), "seconds=-1")
