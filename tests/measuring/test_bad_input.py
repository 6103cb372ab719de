"""Bad input is refused at once, in words that help, and leaves nothing half-done."""

import functools
import importlib
import itertools
import math
import sys
import time
import traceback

import numpy
import pytest
import torch
from helpers import ONE_WORKER, children, refused
from hypothesis import assume, example, given, strategies as st
from torch.utils.data import DataLoader

import kit
from kit.errors import ExperimentError
from kit.measuring.failures import walk_causes

pytestmark = pytest.mark.usefixtures("quick")


def train(*, batch_size=8, lr=0.1):
    """Train a little."""
    while True:
        yield batch_size


DOORS = [kit.measure, kit.explore, kit.diagnose, kit.timeline]
DOORS = {f"{door.__name__}()": door for door in DOORS}
DOORS["compare()"] = lambda *who, **k: kit.compare(*who, **{"lr": [0.1, 0.2], **k})


def name_rows(rows):
    """Return what a row of a table is called where it fails: the words it wants."""
    return [" ".join(words) for *_, words in rows]


def no_yield(*, lr=0.1):
    raise AssertionError("it was called to find out what it is")


async def coroutine(*, lr=0.1):
    no_yield()


async def asynchronous(*, lr=0.1):
    yield no_yield()


class NoYield:
    def __call__(self, *, lr=0.1):
        no_yield()


def slow(*, lr=0.1):
    time.sleep(30)
    yield 1


def written(signature):
    """Return an experiment of this signature, which yields its first knob."""
    room, knob = {}, signature.strip("*, ").partition("=")[0].partition(",")[0]
    exec(f"def train({signature}, lr=0.1):\n while True:\n  yield {knob}", room)
    return room["train"]


POSITIONAL = written("size, *")
FIXED = functools.partial(train, lr=0.5)
RESERVED = ["seconds", "repeats", "of", "within", "on", "patient", "title"]
RESERVED += ["predict", "unit"]
#: An experiment, its knobs, and what must be named.
REFUSED = [(no_yield, {}, ["no_yield", "yield n"])]
REFUSED += [(functools.partial(no_yield, lr=0.2), {}, ["no_yield", "yield n"])]
REFUSED += [(NoYield(), {}, ["NoYield", "yield n"])]
REFUSED += [(NoYield().__call__, {}, ["__call__", "yield n"])]
REFUSED += [(coroutine, {}, ["coroutine", "yield n"])]
REFUSED += [(asynchronous, {}, ["asynchronous", "yield n"])]
REFUSED += [(train(), {}, ["train", "function itself", "restarted"])]
REFUSED += [(max, {}, ["max"]), (torch.nn.Linear(1, 1).to, {}, ["to"])]
REFUSED += [(slow, {"momentum": 64}, ["slow", "momentum=64", "lr"])]
REFUSED += [(written("*, size"), {}, ["train", "size"])]
REFUSED += [(FIXED, {"lr": 0.7}, ["train", "lr=0.7", "0.5", "partial"])]
REFUSED += [(POSITIONAL, {}, ["train", "size", "needs a value"])]
REFUSED += [(train, {"lrr": 1}, ["train", "lrr=1", "Did you mean lr=?"])]
REFUSED += [(train, {"second": 1}, ["train", "second=1", "Did you mean seconds=?"])]
REFUSED += [(functools.partial(POSITIONAL, 1, 2), {}, ["train", "partial"])]
REFUSED += [(written("*sizes"), {}, ["train", "*sizes"])]
REFUSED += [*((written(f"*, {x}=2"), {}, [repr(x), f"(train, {x}="]) for x in RESERVED)]


@pytest.mark.filterwarnings("error")  # a coroutine that is called is never awaited
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("thing", "knobs", "words"), REFUSED, ids=name_rows(REFUSED))
def test_a_function_that_is_no_training_loop_is_refused_without_being_called(
    door, thing, knobs, words
):
    refused(lambda: DOORS[door](thing, **knobs), door, *words)


def ask(**options):
    return kit.compare(train, **{"lr": [1, 2], **options})


def once(*, lr=0.1):
    yield 1
    yield 1, {"loss": 0.5}


TWO, COMPLETE = {"a": train, "b": train}, {"seconds": None, "lr": [1, 2], "within": 1}
HALF_USED = train()
next(HALF_USED)
MEMORY = "peak_memory_bytes"
ASKED = [(lambda: ask(of="items_per_secnod"), ["items_per_secnod", "items_per_second"])]
ASKED += [(lambda: ask(of="run_seconds"), ["run_seconds", "seconds=None"])]
ASKED += [(lambda: ask(of="loss", within=0.1), ["loss", "seconds=None"])]
ASKED += [(lambda: ask(of="loss", seconds=None), ["loss", "within="])]
ASKED += [(lambda: ask(of=MEMORY, seconds=None), [MEMORY, "seconds=None"])]
ASKED += [(lambda: ask(of="setup_seconds"), ["setup_seconds", MEMORY])]
ASKED += [(lambda: ask(unit="furlongs"), ["'furlongs'", "ms per step"])]
ASKED += [(lambda: ask(of=MEMORY, unit="GB/s"), ["'GB/s'", MEMORY])]
ASKED += [(lambda: ask(of=["loss"]), ["of=['loss']"])]
ASKED += [(lambda: ask(batch_size=[]), ["batch_size", "empty"])]
ASKED += [(lambda: kit.explore(train, of="loss", lr=[1, 2]), ["explore()", "loss"])]
ASKED += [
    (lambda: kit.explore(train, lr=[1, 2], predict=3), ["explore()", "predict", "3"])
]
ASKED += [(lambda: kit.diagnose(train, seconds=None), ["diagnose()", "seconds=None"])]
ASKED += [(lambda: kit.compare(train, lr=(1, 2)), ["one variant", "train(", "=["])]
ASKED += [(lambda: kit.compare({}, lr=[1, 2]), ["empty"])]
ASKED += [(lambda: kit.compare({"x": slow, "bad": no_yield}), ["no_yield", "'bad'"])]
ASKED += [(lambda: kit.compare(TWO, experiment=[1, 2]), ["experiment=", "rename"])]
ASKED += [(lambda: kit.compare(once, of="f", **COMPLETE), ["once(", "'f'", "loss"])]
ASKED += [(lambda: kit.measure(lambda: [1, 2]), ["list", "yield n"])]
ASKED += [(lambda: kit.measure(lambda: HALF_USED), ["already", "restarted"])]
ASKED += [(lambda: kit.measure(lambda: (x for x in ())), ["yield n"])]
ASKED += [(lambda: kit.measure(yields(None)), ["bare", "yield n"])]


ASKED += [(lambda: ask(repeats=9), ["repeats=9", "seconds=4.0"])]
ASKED += [(lambda: kit.measure(train, repeats=2), ["repeats=2", "seconds=None"])]
ASKED += [(lambda: ask(within=0.5), ["within=0.5", "metric"])]
ASKED += [(lambda: ask(of=MEMORY, patient=True), ["patient=True"])]
ASKED += [(lambda: ask(lr=numpy.arange(2)), ["A ndarray is one value", "lr=[…]"])]


@pytest.mark.parametrize(("call", "words"), ASKED, ids=name_rows(ASKED))
def test_what_does_not_go_together_is_named_with_what_to_do(call, words):
    refused(call, *words)


def test_numpys_numbers_are_numbers():
    def run():
        yield 1
        yield 1

    assert kit.measure(train, seconds=numpy.float32(0.1)).items_per_second > 0
    assert len(kit.measure(run, seconds=None, repeats=numpy.int64(3)).runs) == 3


def yields(*values, closed=None):
    """Return an experiment that yields these, the last one for ever."""

    def train(*, lr=0.1):
        try:
            yield from values[:-1]
            yield from itertools.repeat(values[-1])
        finally:
            if closed is not None:
                closed.append(True)

    return train


#: To read a tensor would wait for its device.
NO_STEPS = [(0, " 0;"), (torch.tensor(8), "tensor")]
NO_STEPS += [(({"loss": 0.5}, 8), "{'loss': 0.5}"), ((8, {"loss": "high"}), "'loss'")]
NO_STEPS += [((8, {"loss": numpy.ones(3)}), "'loss'"), ((8, {3: 0.5}), "{3: 0.5}")]


@pytest.mark.parametrize(("value", "shown"), NO_STEPS)
def test_a_wrong_yield_is_shown_with_its_step_and_open_loops_are_closed(value, shown):
    closed = []
    good, first = yields(1, closed=closed), yields(value, closed=closed)
    third = yields(1, 1, value, closed=closed)
    refused(lambda: kit.measure(first), "train(lr=0.1)", "yield", shown, "step 1")
    refused(lambda: kit.measure(third), "train(lr=0.1)", "yield", shown, "step 3")
    refused(lambda: kit.compare({"good": good, "bad": first}), "bad(lr=0.1)", shown)
    assert len(closed) == 4


def test_a_yield_without_a_number_is_reported_within_fifty_steps():
    steps = []

    def train():
        while True:
            yield
            steps.append(1)

    with pytest.raises(ExperimentError, match="bare"):
        kit.measure(train)
    assert len(steps) < 50


def ends(where, error):
    """Return an experiment that raises in one of its steps, or on closing."""

    def train(*, lr=0.1):
        why = "out of chalk " + "line\n" * 60 + "x" * 5000
        try:
            for step in itertools.count():
                if step == where:
                    raise error(why)
                yield 1
        finally:
            if where == "closing":
                raise error(why)

    return train


RAISES = [(0, ValueError, "set-up"), (2, ValueError, "step 3")]
RAISES += [("closing", ValueError, "closing"), (2, SystemExit, "step 3")]
RAISES += [(2, GeneratorExit, "step 3")]


@pytest.mark.parametrize(("where", "error", "place"), RAISES)
@pytest.mark.parametrize("door", ["measure()", "compare()"])
def test_who_raises_is_named_with_where_and_why(where, error, place, door):
    words = "train(lr=", error.__name__, place, "out of chalk"
    assert len(refused(lambda: DOORS[door](ends(where, error)), *words)) < 800


def test_the_error_of_a_step_is_not_hidden_by_one_of_closing_the_other():
    """After three first runs: the next two are interleaved."""
    starts = itertools.count()

    def late(experiment):
        return lambda: (yields(1) if next(starts) < 3 else experiment)()

    both = {"sour": late(ends("closing", ValueError)), "bad": late(ends(2, KeyError))}
    refused(lambda: kit.compare(both), "bad()", "KeyError", "step 3")


def test_an_error_gives_the_line_that_repeats_it_without_the_kit():
    def train(*, lr=0.1):
        yield 1
        yield 1
        raise ValueError("here")

    with pytest.raises(ExperimentError) as caught:
        kit.measure(train)
    assert "list(zip(range(3), train(lr=0.1)))" in str(caught.value)
    with pytest.raises(ExperimentError) as caught:
        kit.compare({"my plain loop": train, "other": train})
    assert (
        "train(lr=0.1)" in str(caught.value)
        and "my plain loop(" not in str(caught.value).split("Try it")[1]
    )


def test_an_error_that_is_its_own_cause_ends_like_any_other():
    def train():
        yield 1
        error = ValueError("no more")
        raise error from error

    with pytest.raises(ExperimentError, match="no more"):
        kit.measure(train)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_debugger_finds_what_a_step_had_and_no_worker(error, grace):
    """Its loader is told to end its workers, and they are not waited for."""
    grace(10.0)

    def compute(batch):
        half = batch / 2
        if batch.item() == 2:
            raise error
        return half

    def train(*, lr=0.1):
        batches = iter(DataLoader(range(64), **ONE_WORKER))
        for batch in batches:
            compute(batch)
            yield 1

    expected = ExperimentError if error is ValueError else error
    begun = time.monotonic()
    with pytest.raises(expected) as caught:
        kit.measure(train)
    assert not children() and time.monotonic() - begun < 5
    *_, cause = walk_causes(caught.value)
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    found = {frame.f_code.co_name: frame.f_locals for frame in frames}
    assert (found["train"]["lr"], found["train"]["batch"].item()) == (0.1, 2)
    assert found["compute"]["half"].item() == 1
    assert "batches" in found["train"]


def test_a_file_that_was_mended_and_loaded_again_is_read_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "mended_loop.py"
    path.write_text("def train():\n    print(1)\n")
    module = importlib.import_module("mended_loop")
    with pytest.raises(ExperimentError, match="yield"):
        kit.measure(module.train)
    path.write_text("def train():\n    return loop()\ndef loop():\n    yield 1\n" * 1)
    path.write_text(path.read_text() + "    yield from iter(int, 1)\n")
    module = importlib.reload(module)
    with pytest.raises(ExperimentError, match="yielded 0"):
        kit.measure(module.train)
    monkeypatch.delitem(sys.modules, "mended_loop")


LONG = numpy.arange(400.0).reshape(100, 4)
ODD_THINGS = [LONG, torch.ones(4, 4), torch.nn.Linear(1, 1), object(), ..., 3j]
ODD_THINGS += ["line\n" * 99, "x" * 5000, {"x": LONG}, [LONG] * 9]
JUNK = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(), st.text(), max_size=3),
    st.sampled_from(ODD_THINGS),
)


def is_time(x):
    return x is None or (type(x) in (int, float) and 0 < x < math.inf)


def is_count(x):
    return type(x) is int and x > 0


def is_nothing(x):
    return x is None  # a number of complete runs where none are asked for


def is_unit(x):
    return x is None or (type(x) is str and ("/s" in x or " per " in x))


#: What must be named, where junk gets in, and what is none there.
ARGUMENTS = [
    *((door, call, lambda x: False) for door, call in DOORS.items()),
    ("measure(): seconds=", lambda x: kit.measure(train, seconds=x), is_time),
    ("compare(): seconds=", lambda x: ask(seconds=x), is_time),
    ("explore(): seconds=", lambda x: kit.explore(train, seconds=x), is_time),
    ("diagnose(): seconds=", lambda x: kit.diagnose(train, seconds=x), is_time),
    ("measure(): repeats=", lambda x: kit.measure(train, repeats=x), is_nothing),
    ("compare(): repeats=", lambda x: ask(repeats=x), is_nothing),
    ("timeline(): steps=", lambda x: kit.timeline(train, steps=x), is_count),
    ("unit=", lambda x: ask(unit=x), is_unit),
    ("within=", lambda x: ask(of="loss", seconds=None, within=x), is_time),
    ("on=", lambda x: kit.measure(train, on=x), lambda x: x is None),
    ("momentum=", lambda x: kit.measure(train, momentum=x), lambda x: False),
    ("step 1", lambda x: kit.measure(yields(x)), is_time),
    ("metric", lambda x: kit.measure(yields((1, x))), lambda x: x.__class__ is dict),
]


@pytest.mark.parametrize(("word", "call", "is_sound"), ARGUMENTS)
@example(junk=math.inf)
@example(junk=0)
@given(junk=JUNK)
def test_nonsense_arguments_get_a_short_error_that_names_them(
    word, call, is_sound, junk
):
    assume(not is_sound(junk))
    assert len(refused(lambda: call(junk), word)) < 800
