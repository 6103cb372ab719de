"""A diagnosis finds what takes the time, tells it whole, and leaves all as it was."""

import contextlib
import copy
import dataclasses
import functools
import html
import itertools
import math
import queue
import re
import threading
import time

import pytest
import torch
from experiments import (
    BOLD,
    BUSY,
    CORES,
    COST_SECONDS,
    STEP_SECONDS,
    diagnosed,
    mlp,
    planted,
    report,
    simulating,
    train,
    untouched,
)
from helpers import FakeClock, refused
from torch import nn
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, TensorDataset

import kit
import kit.clock
from kit.diagnosis import switches, tracing
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.saving import unknown
from kit.diagnosis.tracing import Event, Trace, read_trace
from kit.diagnosis.trials import find_long_seconds
from kit.figures import PHASES

pytestmark = pytest.mark.usefixtures("quick")


def test_waits_that_come_in_gushes_are_no_rare_long_steps():
    gush = 10 * [0.2, *[0.015] * 7]
    assert find_long_seconds(gush) == math.inf
    assert find_long_seconds(80 * [0.015]) < 0.2


LATE, STOP = "step of a trial", KeyboardInterrupt
RAISED = [("nowhere", None), *((x, ZeroDivisionError) for x in ("step 3", LATE))]


@pytest.mark.parametrize(("where", "error"), [*RAISED, (LATE, STOP)])
def test_the_reader_finds_everything_as_it_was_however_it_ends(where, error):
    late, model = where == LATE, mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    # So input and update are suspected on any machine, however busy it is.
    slow = functools.partial(time.sleep, 0.002)
    optimizer.register_step_pre_hook(lambda *_: slow())
    data = TensorDataset(torch.randn(640, 16))
    loader = DataLoader(data, collate_fn=lambda rows: slow() or rows[0])
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()

    def train():
        torch.set_num_threads(CORES + 2)  # so other threads are tried
        torch.rand(1)
        for step, (batch,) in enumerate(loader):
            # Where an update is left out, it changes nothing.
            before = model[0].bias.detach().clone()
            model(batch).sum().backward()
            optimizer.step()
            is_left_out = bool((model[0].bias == before).all())
            if error and (is_left_out if late else step == 2):
                raise error("out of chalk")
            yield 1

    def look():
        return copy.deepcopy([model.state_dict(), optimizer.state_dict()])

    before = look()
    with untouched():
        if error is ZeroDivisionError and late:  # the kit may be the reason
            said = repr(kit.diagnose(train))
            assert "could not go on" in said and "out of chalk" in said
        elif error is ZeroDivisionError:
            with pytest.raises(error, match="out of chalk") as caught:
                kit.diagnose(train)
            assert f"train(), {where}" in caught.value.__notes__[0]
        elif error:
            with pytest.raises(error) as caught:
                kit.diagnose(train)
            kept = caught.value.diagnosis
            assert {"input", "optimizer"} <= kept.savings.keys(), "what is known"
            assert "interrupted" in repr(kept) and "Not measured" in repr(kept)
            assert str(caught.value).count("\n") < 6
        else:
            found = kit.diagnose(train)
            assert {"input", "optimizer"} <= found.savings.keys()
            assert "threads" in found.tried
    torch.testing.assert_close(look(), before, rtol=0, atol=0)
    assert len(list(loader)) == 640, "the reader's loader can be used again"


#: What takes the planted cost in PyTorch itself: its owner, its name, how a trace calls
#: it, and the first argument where that matters.
SLOW = {
    "transfer": (torch.Tensor, "to", "cudaMemcpyAsync", ("meta",)),
    "sync": (torch.Tensor, "item", "cudaStreamSynchronize", ()),
}


def read_as_of_a_gpu(found):
    """Read a trace as if a device had been busy, and labels were the driver's calls."""
    trace = read_trace(found)
    own = [e._replace(is_label=e.is_label and "cuda" not in e.name) for e in trace.main]
    busy = [BUSY._replace(start=a, stop=b) for a, b in itertools.pairwise(trace.marks)]
    return trace._replace(main=own, devices=busy)


#: What switches measure.
MEASURED = {"input", "optimizer", "threads", "settings"}
#: Of what only a share is known: the operation that takes 95 % of a step, how often.
SHARED = {
    "python": ("", 0),
    "overhead": ("aten::ones", 95),
    "compute": ("aten::mm", 1),
    "memory": ("aten::add", 1),
    "healthy": ("aten::sort", 1),
}


def make_trace(name, count):
    """Return a trace of five steps of 2 ms, 95 % of each in so many operations."""
    marks, main, long = [*range(0, 12_000_000, 2_000_000)], [], 1_900_000
    for begin in marks[:-1]:
        for n in range(count):
            at, each = begin + n * long // count, long // count
            main.append(Event(at, at + each, name, "main"))
        main.append(Event(begin + long, begin + 2_000_000, "aten::sort", "main"))
    return Trace(marks, main, [], [])


@pytest.mark.parametrize("verdict", SHARED)
def test_real_steps_with_a_planted_cost_get_no_wrong_verdict(verdict):
    """Shares of real steps scatter beside other programs: it may stay open."""
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(planted, seconds=4.0, clock=clock, verdict=verdict)
    assert found.verdict in (verdict, None), found
    assert found.verdict or found.reason.lower() in found.sentence().lower()


@pytest.mark.parametrize("verdict", CAUSES)
def test_a_planted_cost_is_found_and_its_saving_is_the_truth(verdict):
    clock = FakeClock()
    with simulating(clock) as patch:
        if verdict in SHARED:
            trace = make_trace(*SHARED[verdict])
            patch.setattr(tracing, "read_trace", lambda _: trace)
        if verdict in SLOW:
            owner, name, label, first = SLOW[verdict]
            real = getattr(owner, name)

            @functools.wraps(real)
            def call(tensor, *more, **options):
                if more[: len(first)] == first:
                    with record_function(label):
                        clock.work(COST_SECONDS)
                        time.sleep(0.01)  # most of a real step, too
                return real(tensor, *more, **options)

            patch.setattr(owner, name, call)
            patch.setattr(torch.accelerator, "is_available", lambda: True)
            patch.setattr(tracing, "read_trace", read_as_of_a_gpu)
        seconds = 30.0 if verdict in MEASURED else 4.0
        found = kit.diagnose(planted, seconds=seconds, clock=clock, verdict=verdict)
    assert found.verdict == verdict, found
    followed = {"threads": "threads", "settings": "anomaly"}.get(verdict)
    saved = found.savings.get(verdict) or found.tried.get(followed)
    if verdict in MEASURED:
        assert saved.measured and 0.94 < saved.low <= saved.value <= saved.high < 0.96
        assert "95 % [95, 95] less time" in found.sentence()
    elif verdict in ("python", "overhead", "transfer", "sync"):
        assert 0.9 < saved.value < 1.0
        assert not saved.measured and math.isnan(saved.low)
        assert "would take at most" in found.sentence()
        assert "% [" not in found.sentence() and "nan" not in repr(found)
    else:
        assert saved is None and found.reason.lower() in found.sentence().lower()
    if verdict == "threads":
        assert found.advice.code == f"torch.set_num_threads({CORES})"
    assert found.advice.code in repr(found) and found.advice.sentence in repr(found)
    assert math.fsum(found.shares.values()) == pytest.approx(1, abs=1e-9)


def test_a_switch_that_fails_midway_is_off_in_the_trials_that_follow(monkeypatch):
    turned, turn = [], switches.NoUpdate.turn

    def note(switch, on):
        turned.append(on)
        turn(switch, on)

    def fail(switch):
        if switch.is_on:
            raise OSError("no room")

    monkeypatch.setattr(switches.NoUpdate, "turn", note)
    monkeypatch.setattr(switches.NoUpdate, "begin_block", fail)
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(planted, seconds=30.0, clock=clock, verdict="optimizer")
    assert turned == [True, False]
    assert not found.savings["optimizer"].measured


def test_what_is_not_known_is_never_written_as_a_number():
    lost = {"threads": unknown("its blocks were disturbed")}
    said = repr(dataclasses.replace(diagnosed(), savings={}, tried=lost))
    assert "nan" not in said and "its blocks were disturbed" in said
    assert not re.search(r"[-−]\d{2,} %", said)


def test_an_experiment_is_started_once_and_may_end():
    starts = []

    def train(*, steps):
        starts.append(steps)
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        for _ in range(steps):
            optimizer.step()
            yield 1

    found = kit.diagnose(train, steps=16)
    assert starts == [16] and "ended after" in repr(found)
    refused(
        lambda: kit.diagnose(train, steps=2), "train(steps=2)", "ended after 1 step,"
    )
    assert starts == [16, 2]


def test_rare_long_steps_are_told():
    clock = FakeClock()

    def train():
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight])
        for step in itertools.count():
            clock.work(0.003)
            optimizer.step()
            if step % 100 == 99:
                clock.work(0.3)
            yield 1

    with simulating(clock):
        found = kit.diagnose(train, seconds=60.0)
    said = re.search(r"1 step in (\d+) takes about 0.3\d* s: (\d+)% of", repr(found))
    assert int(said[1]) == pytest.approx(100, rel=0.3), repr(found)
    assert int(said[2]) == pytest.approx(50, abs=10)


def test_waiting_for_a_queue_of_ones_own_is_waiting_for_data():
    batches = queue.Queue(maxsize=1)
    over = threading.Event()

    def train():
        def fill():
            while not over.is_set():
                time.sleep(0.02)
                with contextlib.suppress(queue.Full):
                    batches.put(1, timeout=0.1)

        threading.Thread(target=fill, daemon=True).start()
        try:
            while True:
                batches.get()
                yield 1
        finally:
            over.set()

    found = kit.diagnose(train)
    assert found.shares["input"] > 0.8


def test_the_report_tells_it_all_and_its_page_is_whole():
    found, said, page = report(), repr(report()), report().to_html()
    alt = html.unescape(re.search('alt="(.*?)"', page)[1])
    assert said.startswith(found.sentence()) and found.sentence() in alt
    rows = dict(re.findall(r"^(.+?) {2,}([\d.]+%) +[\d.,]+ [mµn]?s$", said, re.M))
    assert rows == {PHASES[phase]: f"{x:.1%}" for phase, x in found.shares.items()}
    assert all(f"{PHASES[phase]}: " in alt for phase in found.shares)
    assert "Chapter 04" in said and "95 % [95, 95]" in said and "95 %" in alt
    assert "experiments.py:" in said and "time.sleep(pause)" in said, "its own line"
    assert "-packages" not in str(found.profile.lines)
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    assert "planted(clock=" in said and "planted(clock=" in page
    unsure = dataclasses.replace(found, verdict=None, reason="it is not sure (x)")
    assert "(x)" in repr(unsure) and "(x)" in unsure._repr_html_()
    assert "try     " in said and "try     " not in repr(unsure)


def test_a_repair_is_held_against_what_was_predicted():
    found = report()
    with simulating(found.knobs["clock"]):
        half = COST_SECONDS / 2 - STEP_SECONDS / 2
        repaired = functools.partial(planted, cost=half, pause=0.0)
        done = found.verify(repaired, seconds=1.0)
    assert done.ratio.value == pytest.approx(2, rel=0.01)
    assert "repair saves 50 % [50, 50]; predicted: 95 % [95, 95]" in repr(done)
    assert {trial.knobs["name"] for trial in done.trials} == {BOLD}
    refused(lambda: found.verify(3), "verify()")


def test_a_repair_that_takes_any_knob_gets_those_of_the_diagnosed_one():
    seen = []

    def train(*, n=1):
        while True:
            yield 1

    def repaired(**knobs):
        seen.append(knobs)
        return train(**knobs)

    kit.diagnose(train, n=5).verify(repaired)
    assert {"n": 5} in seen and {} not in seen


def profiles_itself():
    with torch.profiler.profile():
        yield from itertools.repeat(1)


def profiles_each_step():
    while True:
        with torch.profiler.profile():
            torch.ones(3).add(1)
        yield 1


@pytest.mark.parametrize("call", [kit.diagnose, kit.timeline])
def test_what_cannot_be_asked_for_is_refused_by_name(call):
    for knob in ("on", "batch"):
        words = f"{call.__name__}()", f"{knob}=3"
        refused(lambda knob=knob: call(train, **{knob: 3}), *words)
    with torch.profiler.profile() as theirs:
        torch.ones(3).add(1)
        refused(lambda: call(train), f"{call.__name__}()", "profiler")
        torch.ones(3).mul(2)
    assert {"aten::add", "aten::mul"} <= {event.key for event in theirs.key_averages()}


@pytest.mark.parametrize("experiment", [profiles_itself, profiles_each_step])
def test_what_cannot_be_profiled_is_refused_and_leaves_nothing(experiment):
    with untouched():
        refused(lambda: kit.diagnose(experiment), "diagnose()", "profiler")


def stops_at_once():
    yield 1
    yield 1


def test_a_loop_that_is_too_short_is_told_what_helps():
    for call in (kit.diagnose, kit.timeline):
        with pytest.raises(kit.ExperimentError) as caught:
            call(stops_at_once)
        assert "while True" in str(caught.value)
        assert "seconds=None" not in str(caught.value)
