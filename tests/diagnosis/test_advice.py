"""Advice fits the loop, was tried where that is said, and promises nothing else."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch
from experiments import CORES, TOO_MANY_THREADS, profile, report, simulating
from helpers import FakeClock
from torch import nn

import kit
from kit.diagnosis.batches import Loading
from kit.diagnosis.saving import Saving, unknown

pytestmark = pytest.mark.usefixtures("quick")


def waste(*, clock, step=0.02, cost=0.18):
    """Train with too many threads, in float64, and slowly with anomaly detection."""
    torch.set_num_threads(TOO_MANY_THREADS)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    model = nn.Linear(16, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    while True:
        clock.work(step + cost * torch.is_anomaly_enabled())
        optimizer.zero_grad()
        model(torch.ones(3, 16, dtype=torch.float64)).sum().backward()
        optimizer.step()
        yield 1


def test_a_repair_that_was_tried_and_gains_is_the_line_to_change():
    clock = FakeClock()
    with simulating(clock):
        found = kit.diagnose(waste, seconds=60.0, clock=clock)
    change, float64, verify = found.next_steps()
    assert change.startswith("change  torch.autograd.set_detect_anomaly(False)  (tried")
    assert "saves 90 % [" in change
    assert "model.float()" in float64
    assert "not tried here" in float64
    assert verify.startswith("verify  kit.compare({")
    assert change in repr(found)


def test_what_there_is_no_time_for_is_named_and_the_seconds_are_kept():
    clock = FakeClock()
    begun = clock.now
    with simulating(clock):
        found = kit.diagnose(waste, seconds=25.0, clock=clock, step=0.27, cost=0.0)
    assert re.search(r"Not measured: .+ \(about .+ more\)", repr(found))
    assert clock.now < begun + 25.0


def test_a_repair_that_loses_is_stopped_early_and_not_advised():
    clock = FakeClock()
    tried = []

    def slow_with_all_cores():
        torch.set_num_threads(TOO_MANY_THREADS)
        while True:
            is_tried = torch.get_num_threads() == CORES
            tried.append(is_tried)
            clock.work(0.4 if is_tried else 0.02)
            yield 1

    with simulating(clock):
        found = kit.diagnose(slow_with_all_cores, seconds=40.0)
    assert sum(tried) <= 16, "as few as four blocks of one step, and those dropped"
    assert found.tried["threads"].value == pytest.approx(-19, rel=0.01)
    assert "don't use it" in repr(found)
    assert not any(line.startswith("change") for line in found.next_steps())


def change_report(**facts):
    """Return the report with other facts, and nothing measured but those."""
    return dataclasses.replace(report(), **{"savings": {}, "tried": {}} | facts)


def test_a_repair_of_useful_work_is_what_the_report_begins_with():
    gains = {"compile": Saving(0.4, 0.35, 0.45)}
    found = change_report(verdict="healthy", tried=gains)
    assert "40 % [35, 45]" in found.sentence()
    assert found.next_steps()[0].startswith("change  model = torch.compile(model)")
    assert "rounding only" in repr(found), "what it does to the result"


def test_a_repair_that_cannot_gain_here_is_not_advised():
    found = change_report(verdict="compute")
    assert any("not tried here" in line for line in found.next_steps())
    found = change_report(verdict="compute", untried={"bfloat16": "no instructions"})
    assert found.next_steps() == []


def test_what_is_not_known_is_never_written_as_a_number():
    lost = {"threads": unknown("its blocks were disturbed")}
    said = repr(change_report(tried=lost))
    assert "nan" not in said
    assert "its blocks were disturbed" in said


ONE_WORKER = Loading("workers", 1)
ANEW = Loading("workers", 1, is_renewed=True)
MAIN_PROCESS = Loading("loader")


@pytest.mark.parametrize(
    ("loading", "cores", "threads", "step_seconds", "code"),
    [
        (ONE_WORKER, 64, 32, 0.1, "num_workers=2, "),
        (Loading("workers", 8), 64, 32, 0.1, "num_workers=16, "),
        (Loading("workers", 2), 2, 1, 0.1, "samples = "),
        (ANEW, 64, 32, 0.1, "DataLoader(…, persistent_workers=True)"),
        (MAIN_PROCESS, 64, 32, 0.1, "num_workers=2, "),
        (MAIN_PROCESS, 2, 2, 0.1, "samples = "),
        (MAIN_PROCESS, 64, 32, 0.002, "batch = rows[order"),
        (Loading(), 64, 32, 0.1, "queue"),
    ],
)
def test_a_loop_that_waits_for_its_data_gets_the_advice_that_fits(
    monkeypatch, loading, cores, threads, step_seconds, code
):
    machine = SimpleNamespace(cores=cores)
    monkeypatch.setattr("kit.diagnosis.profiling.this_machine", lambda: machine)
    known = profile(
        shares={"input": 0.9, "forward": 0.1},
        threads=threads,
        step_seconds=step_seconds,
    )
    found = change_report(verdict="input", loading=loading, profile=known)
    assert code in found.advice.code
    freezes = "samples = " in code
    assert ("random" in found.advice.advise()) is freezes


@pytest.mark.parametrize("loading", [ONE_WORKER, ANEW])
def test_workers_that_take_cores_from_the_training_shall_do_less(loading):
    waits = {"forward": 0.97, "input": 0.03}
    found = change_report(
        verdict="input",
        loading=loading,
        savings={"input": Saving(0.26, 0.2, 0.3)},
        profile=profile(shares=waits, children=2),
    )
    assert found.advice.code.startswith("samples = ")


def test_what_helps_against_the_verdict_comes_before_what_helps_against_less():
    tried = {"bfloat16": Saving(0.09, 0.07, 0.11)}
    first, second, *_ = dataclasses.replace(report(), tried=tried).next_steps()
    assert first.startswith("try") and report().advice.code in first
    assert second.startswith("change") and "bfloat16" in second


@pytest.mark.parametrize(
    ("low", "said"), [(0.01, "may be too small"), (-0.01, "there is no clear gain")]
)
def test_a_gain_that_is_measured_and_small_is_not_called_none(low, said):
    found = dataclasses.replace(report(), tried={"bfloat16": Saving(0.03, low, 0.05)})
    assert said in repr(found)
