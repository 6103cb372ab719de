"""A diagnosis finds what takes the time, and leaves everything as it was."""

import contextlib
import copy
import functools
import itertools
import math
import queue
import re
import threading
import time

import pytest
import torch
from experiments import (
    BUSY,
    CORES,
    COST_SECONDS,
    STEP_SECONDS,
    mlp,
    planted,
    report,
    simulating,
    untouched,
)
from helpers import FakeClock, refused
from torch.utils.data import DataLoader, TensorDataset

import kit
from kit.diagnosis import tracing
from kit.diagnosis.tracing import Event, Trace

pytestmark = pytest.mark.usefixtures("quick")


# Everything is put back


def make_loop(act=lambda is_left_out: None):
    """Return a loop in which much is tried, and what looks at all that it trains."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def slow(*_):
        time.sleep(0.002)  # so that input and update are suspected on any machine

    def collate(rows):
        slow()
        return rows[0]

    optimizer.register_step_pre_hook(slow)
    loader = DataLoader(TensorDataset(torch.randn(640, 16)), collate_fn=collate)
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()

    def loop():
        torch.set_num_threads(CORES + 2)  # so that other threads are tried
        torch.rand(1)
        for (batch,) in loader:
            before = model[0].bias.detach().clone()
            model(batch).sum().backward()
            optimizer.step()
            act(torch.equal(model[0].bias, before))  # as where no update was made
            yield 1

    def look():
        return copy.deepcopy([model.state_dict(), optimizer.state_dict()])

    return loop, look


@contextlib.contextmanager
def unchanged(look):
    """Neither PyTorch nor what `look` sees is changed in here."""
    before = look()
    with untouched():
        yield
    torch.testing.assert_close(look(), before, rtol=0, atol=0)


def test_a_diagnosis_leaves_everything_as_it_was():
    loop, look = make_loop()
    with unchanged(look):
        found = kit.diagnose(loop)
    assert {"input", "optimizer"} <= found.savings.keys()
    assert "threads" in found.tried


def test_an_error_while_the_update_is_left_out_costs_no_diagnosis():
    """The kit may be the reason."""

    def fail(is_left_out):
        if is_left_out:
            raise ZeroDivisionError("out of chalk")

    loop, look = make_loop(fail)
    with unchanged(look):
        found = kit.diagnose(loop)
    assert found.shares
    assert "out of chalk" in repr(found)


def test_an_interrupt_keeps_what_is_known_and_leaves_everything_as_it_was():
    def fail(is_left_out):
        if is_left_out:
            raise KeyboardInterrupt

    loop, look = make_loop(fail)
    with unchanged(look), pytest.raises(KeyboardInterrupt) as caught:
        kit.diagnose(loop)
    kept = caught.value.diagnosis
    assert {"input", "optimizer"} <= kept.savings.keys()
    assert "Not measured" in repr(kept)


# Planted costs

#: The repair that shows a cause, of those that only a repair can show.
SHOWN_BY = {"threads": "threads", "settings": "anomaly"}


@pytest.mark.parametrize("cause", ["input", "optimizer", "threads", "settings"])
def test_what_is_said_to_be_saved_is_what_the_planted_cost_takes(cause):
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(planted, seconds=30.0, clock=clock, cause=cause)
    assert found.verdict == cause, found
    repair = SHOWN_BY.get(cause)
    saved = found.tried[repair] if repair else found.savings[cause]
    truth = COST_SECONDS / (COST_SECONDS + STEP_SECONDS)
    assert saved.measured
    assert [saved.low, saved.value, saved.high] == pytest.approx(3 * [truth], abs=0.002)
    assert "95 % [95, 95]" in found.sentence()
    assert math.fsum(found.shares.values()) == pytest.approx(1)
    assert found.advice.code in repr(found)


def speeding_up(*, clock):
    """Take longer in the first steps, as long as it is profiled."""
    for number in itertools.count():
        clock.work(0.01 if number < 60 else STEP_SECONDS)
        yield 1


def test_how_long_a_step_takes_is_not_judged_by_the_first_second():
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(speeding_up, seconds=8.0, clock=clock)
    assert found.step_seconds == pytest.approx(STEP_SECONDS, rel=0.02)


def make_trace(name, count):
    """Return a trace of five steps of 2 ms, 95 % of each in so many operations."""
    marks = [*range(0, 12_000_000, 2_000_000)]
    long = 1_900_000
    events, devices = [], []
    for begin in marks[:-1]:
        for number in range(count):
            start = begin + number * long // count
            events.append(Event(start, start + long // count, name, "main"))
        events.append(Event(begin + long, begin + 2_000_000, "aten::sort", "main"))
        if name.startswith("cuda"):
            devices.append(BUSY._replace(start=begin, stop=begin + 2_000_000))
    return Trace(marks, events, [], devices)


@pytest.mark.parametrize(
    ("operation", "count", "cause"),
    [
        ("", 0, "python"),
        ("aten::ones", 95, "overhead"),
        ("aten::mm", 1, "compute"),
        ("aten::add", 1, "memory"),
        ("aten::sort", 1, "healthy"),
        ("cudaMemcpyAsync HtoD", 1, "transfer"),
        ("cudaStreamSynchronize", 1, "sync"),
    ],
)
def test_of_what_was_not_left_out_no_more_than_its_share_is_promised(
    operation, count, cause
):
    clock = FakeClock()
    with simulating(clock) as patch:
        patch.setattr(tracing, "read_trace", lambda _: make_trace(operation, count))
        found = kit.diagnose(planted, seconds=4.0, clock=clock, cause="nothing")
    assert found.verdict == cause, found
    assert "% [" not in found.sentence()
    assert "nan" not in repr(found)
    if cause in ("compute", "memory", "healthy"):
        assert cause not in found.savings
        return
    saved = found.savings[cause]
    assert 0.9 < saved.value < 1.0
    assert not saved.measured
    assert math.isnan(saved.low)


# One start


def test_an_experiment_is_started_once_and_may_end():
    starts = []

    def short(*, steps):
        starts.append(steps)
        for _ in range(steps):
            yield 1

    assert "ended after" in repr(kit.diagnose(short, steps=16))
    refused(lambda: kit.diagnose(short, steps=2), "short(steps=2)", "while True")
    assert starts == [16, 2]


def waits_for_a_queue():
    batches = queue.Queue()
    over = threading.Event()

    def fill():
        while not over.wait(0.02):
            batches.put(1)

    threading.Thread(target=fill, daemon=True).start()
    try:
        while True:
            batches.get()
            yield 1
    finally:
        over.set()


def test_waiting_for_a_queue_of_its_own_is_waiting_for_data():
    """In real time: a busy machine makes the wait only longer."""
    found = kit.diagnose(waits_for_a_queue)
    assert max(found.shares, key=found.shares.get) == "input"


# The report


def test_a_report_has_each_share_and_no_foreign_markup():
    found = report()
    said, page = repr(found), found.to_html()
    assert said.startswith(found.sentence())
    shares = [f"{share:.1%}" for share in found.shares.values()]
    assert not [share for share in shares if share not in said]
    assert "experiments.py:" in said, "the reader's own line"
    assert "<b>bold" not in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)


def test_a_repair_is_compared_with_what_was_predicted():
    found = report()
    with simulating(found.knobs["clock"]):
        half = COST_SECONDS / 2 - STEP_SECONDS / 2
        repaired = functools.partial(planted, cost=half, pause=0.0)
        done = found.verify(repaired, seconds=1.0)
    assert done.ratio.value == pytest.approx(2, rel=0.01)
    assert "50 % [50, 50]; predicted: 95 % [95, 95]" in repr(done)
    causes = {trial.knobs["cause"] for trial in done.trials}
    assert causes == {"input"}, "both with the knobs of the diagnosed loop"


# What cannot be diagnosed


def profiles_each_step():
    while True:
        with torch.profiler.profile():
            torch.ones(3).add(1)
        yield 1


def test_a_loop_that_profiles_itself_is_refused_and_nothing_is_left():
    with untouched():
        refused(lambda: kit.diagnose(profiles_each_step), "diagnose()", "profiler")
