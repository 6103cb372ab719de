"""Advice was tried in the same run, is not given where it loses, and says where."""

import dataclasses
import html
import re
from types import SimpleNamespace

import pytest
import torch
from experiments import CORES, profile, report, simulating
from helpers import FakeClock
from torch import nn

import kit
from kit.diagnosis.batches import Loading
from kit.diagnosis.saving import Saving

pytestmark = pytest.mark.usefixtures("quick")


def spending(*, clock, cost):
    """Take longer while anomaly detection is on."""
    torch.set_num_threads(CORES + 6)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    model = nn.Linear(16, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    while True:
        clock.work(0.02 + cost * torch.is_anomaly_enabled())
        optimizer.zero_grad()
        model(torch.ones(3, 16, dtype=torch.float64)).sum().backward()
        optimizer.step()
        yield 1


def test_a_repair_that_gains_is_the_line_to_change_and_where():
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(spending, seconds=60.0, clock=clock, cost=0.18)
    assert found.verdict == "settings"
    change, float64, verify = found.next_steps()
    assert change.startswith("change  torch.autograd.set_detect_anomaly(False)  (tried")
    assert "saves 90 % [" in change and "model.float()" in float64
    assert verify.startswith("verify  kit.compare({")
    assert "With anomaly detection off, a step takes 90 % " in found.sentence()
    assert change in repr(found) and change in html.unescape(found._repr_html_())


def test_what_there_is_no_time_for_is_named_with_the_seconds_that_it_takes():
    def waste(*, clock):
        torch.set_num_threads(CORES + 6)
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        while True:
            clock.work(0.27)
            yield 1

    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(waste, seconds=25.0, clock=clock)
    assert {*found.tried} == {"anomaly"}
    assert re.search(r"Not measured: a step with \d+ threads? \(about", repr(found))
    assert clock.now < 100.0 + 25.0


def test_a_repair_that_loses_is_stopped_early_and_not_advised():
    clock, seen = FakeClock(), []

    def slow_with_all_cores(*, clock):
        torch.set_num_threads(CORES + 6)
        while True:
            is_on = torch.get_num_threads() == CORES
            seen.append(is_on)
            clock.work(0.4 if is_on else 0.02)
            yield 1

    with simulating(clock):
        found = kit.diagnose(slow_with_all_cores, seconds=40.0, clock=clock)
    assert sum(seen) <= 16, "as few as four blocks of one step, and those dropped"
    assert found.tried["threads"].value == pytest.approx(-19, rel=0.01)
    told = f"with {CORES} threads, a step takes 20 × as long"
    assert told in repr(found) and "don't use it" in repr(found)
    assert found.verdict != "threads"


def test_one_slow_step_after_a_change_is_no_loss():
    clock = FakeClock()

    def train(*, clock):
        torch.set_num_threads(CORES + 6)
        before, since = torch.get_num_threads(), 9
        while True:
            now = torch.get_num_threads()
            since = 0 if now != before else since + 1
            clock.work((0.05 if now == CORES else 0.1) + 1.0 * (since == 1))
            before = now
            yield 1

    with simulating(clock):
        found = kit.diagnose(train, seconds=40.0, clock=clock)
    assert found.tried["threads"].value == pytest.approx(0.5, rel=0.01)
    assert "few steps" not in repr(found)


def test_a_repair_of_useful_work_is_what_the_report_begins_with():
    gains = {"compile": Saving(0.4, 0.35, 0.45)}
    found = dataclasses.replace(
        report(), verdict="healthy", reason="useful", savings={}, tried=gains
    )
    gain = "With a compiled model, a step takes 40 % [35, 45] less time."
    assert found.sentence() == gain
    assert found.next_steps()[0].startswith("change  model = torch.compile(model)")
    assert "Nothing to repair" not in repr(found) and "rounding only" in repr(found)


def test_advice_that_cannot_gain_here_is_not_given():
    found = dataclasses.replace(
        report(), verdict="compute", reason="", savings={}, tried={}
    )
    assert any("not tried here" in line for line in found.next_steps())
    found = dataclasses.replace(found, untried={"bfloat16": "no instructions"})
    assert found.next_steps() == []


def test_workers_are_not_advised_where_a_batch_takes_less_time_than_to_send_it():
    found = report()
    assert "decoding" in found.advice.sentence
    quick = found.profile._replace(step_seconds=0.002)
    assert "by one index" in dataclasses.replace(found, profile=quick).advice.sentence


WAITS = {"input": 0.9, "forward": 0.1}
#: How batches are loaded, how many cores there are, how many threads train, and what
#: the line of advice must say.
LOADINGS = [
    (Loading("workers", 1), 64, 32, ["num_workers=2", "tune_loader"]),
    (Loading("workers", 8), 64, 32, ["num_workers=16", "tune_loader"]),
    (Loading("workers", 2), 2, 1, ["samples = "]),
    (Loading("workers", 1, is_renewed=True), 64, 32, ["persistent_workers=True"]),
    (Loading("loader"), 64, 32, ["num_workers=2", "tune_loader"]),
    (Loading("loader"), 2, 2, ["samples = "]),
    (Loading(), 64, 32, ["queue"]),
]


@pytest.mark.parametrize("loading, cores, threads, said", LOADINGS)
def test_a_loop_that_waits_for_its_data_gets_the_advice_that_fits(
    monkeypatch, loading, cores, threads, said
):
    machine = SimpleNamespace(cores=cores)
    monkeypatch.setattr("kit.diagnosis.profiling.this_machine", lambda: machine)
    profiled = profile(shares=WAITS, threads=threads, step_seconds=0.1)
    found = dataclasses.replace(
        report(), verdict="input", savings={}, tried={}, loading=loading
    )
    found = dataclasses.replace(found, profile=profiled)
    assert all(words in found.advice.code for words in said), found.advice
    if "samples" in found.advice.code:
        assert "random" in found.advice.advise(), "it would freeze what is random"
