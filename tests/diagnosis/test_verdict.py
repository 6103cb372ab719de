"""A diagnosis concludes no more than was measured, and tries what the profile shows."""

import math
from types import SimpleNamespace

import pytest
from experiments import profile

from kit.diagnosis import repairs
from kit.diagnosis.advice import describe_competition
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.modules import Training
from kit.diagnosis.named import Named
from kit.diagnosis.saving import Saving, from_groups, from_share, unknown
from kit.diagnosis.verdict import decide

pytestmark = pytest.mark.usefixtures("quick")

SURE, WIDE = Saving(0.5, 0.48, 0.52), Saving(0.37, -0.2, 0.69)
OTHER = Saving(0.3, 0.2, 0.4)
THREADS = {"threads": Saving(0.35, 0.3, 0.4)}
FEW = {"threads": Saving(0.1, 0.08, 0.12)}
SLOWER = {"threads": from_groups([2.0, 2.2, 2.1])}
MAYBE = {"attention": Saving(0.3, -0.05, 0.5)}
FLOAT64 = {"float64": Named("Its parameters are float64.", "model.float()", "", True)}
LAYOUT = {"channels_last": Named("Not in channels_last.", "model.to()", "", False)}

JUDGED = [
    # What is not sure is not said, and what is slower without is no cause.
    ({}, {}, {}, {}, "healthy"),
    ({}, {"input": Saving(-1.0, -1.2, -0.8)}, {}, {}, "healthy"),
    ({}, {"input": WIDE}, {}, {}, None),
    ({"compute": 0.8}, {"input": WIDE}, {}, {}, "compute"),
    ({"compute": 0.9}, {}, SLOWER, {}, "compute"),
    # What surely saves most is it, if it is the only one.
    ({}, {"input": Saving(0.66, 0.6, 0.7), "optimizer": OTHER}, {}, {}, "input"),
    ({}, {"input": WIDE, "python": from_share(0.5)}, {}, {}, "python"),
    ({}, {"input": Saving(0.66, 0, 0.9), "python": from_share(0.5)}, {}, {}, None),
    ({}, {"input": SURE, "optimizer": Saving(0.5, 0.47, 0.53)}, {}, {}, None),
    ({}, {"input": SURE, "optimizer": OTHER}, {}, {}, "input"),
    ({}, {"python": from_share(0.5), "overhead": from_share(0.45)}, {}, {}, None),
    (
        {"compute": 0.6},
        {"python": from_share(0.25), "overhead": from_share(0.25)},
        {},
        {},
        "python",  # the other one is no cause beside so much work
    ),
    # What was measured counts more than a share of the same size.
    ({}, {"input": SURE, "python": from_share(0.55)}, {}, {}, "input"),
    ({}, {"input": SURE, "python": from_share(0.7)}, {}, {}, "python"),
    ({"compute": 0.5}, {"python": from_share(0.15)}, {}, {}, "compute"),
    # What training needs is no cause where useful work takes more.
    ({"compute": 0.6}, {"optimizer": OTHER}, {}, {}, "compute"),
    ({"compute": 0.2}, {"optimizer": OTHER}, {}, {}, "optimizer"),
    ({"compute": 0.6}, {"input": OTHER}, {}, {}, "input"),
    ({"compute": 0.3}, {"overhead": from_share(0.25)}, {}, {}, "healthy"),
    # A repair that was tried and gains nearly as much goes first.
    ({}, {"input": SURE}, THREADS, {}, "threads"),
    ({}, {"input": SURE}, FEW, {}, "input"),
    ({"compute": 0.6}, {}, MAYBE, {}, None),
    ({"compute": 0.6}, {}, {"onednn": unknown("it varies")}, {}, None),
    # What is only named is a verdict where nothing else is.
    ({"compute": 0.9}, {}, {}, FLOAT64, "settings"),
    ({"compute": 0.9}, {"input": OTHER}, {}, FLOAT64, "input"),
    ({"compute": 0.9}, {}, {}, LAYOUT, "compute"),
    # Useful work, or what it waits for.
    ({"memory": 0.7}, {}, {}, {}, "memory"),
    ({"other": 0.8}, {}, {}, {}, "healthy"),
    ({"compute": 0.5, "memory": 0.45}, {}, {}, {}, "healthy"),
    ({"compute": 0.35, "memory": 0.25}, {}, {}, {}, "healthy"),
    ({"waiting": 0.8}, {}, {}, {}, None),
]


@pytest.mark.parametrize(("across", "savings", "tried", "named", "verdict"), JUDGED)
def test_no_more_is_concluded_than_was_measured(across, savings, tried, named, verdict):
    found, reason = decide(savings, tried, named, profile(across))
    assert found == verdict, reason
    if found is None and savings:
        known = [CAUSES[cause] in reason for cause in savings]
        assert any(known) or "waits for another thread" in reason


def test_what_is_not_known_is_neither_hidden_nor_a_cause():
    lost = {"input": unknown("its blocks were disturbed")}
    assert decide(lost, {}, {}, profile({"compute": 0.9})).cause == "compute"


def test_workers_that_take_cores_from_the_training_are_told():
    savings = {"input": Saving(0.26, 0.2, 0.3)}
    waits = {"forward": 0.97, "input": 0.03}
    competing = profile(shares=waits, children=2)
    assert "compete" in describe_competition(savings, competing)
    assert not describe_competition(savings, profile(shares=waits))
    waits = {"forward": 0.74, "input": 0.26}
    assert not describe_competition(savings, profile(shares=waits, children=2))


SPOKEN_FOR = [
    ({"shares": {"optimizer": 0.3}}, ["fused"]),
    ({"across": {"compute": 0.8}}, ["bfloat16"]),
    ({"children": 2}, ["threads"]),
    ({"across": {"waiting": 0.5}}, ["threads"]),
    ({"threads": 99}, ["threads"]),
    ({}, []),
]


@pytest.mark.parametrize(("facts", "due"), SPOKEN_FOR)
def test_a_diagnosis_spends_its_seconds_on_costs_that_the_profile_shows(facts, due):
    training = Training()
    known = profile(**facts)
    found = repairs.find_due(
        repairs.Facts(known, training, repairs.make_switches(training))
    )
    if known.threads == 1:  # there is no other number on one core
        due = [name for name in due if name != "threads"]
    assert list(found) == due


@pytest.mark.parametrize(("threads", "fits"), [(32, True), (64, True), (16, False)])
def test_logical_cores_are_no_reason_to_try_another_number_of_threads(
    monkeypatch, threads, fits
):
    """PyTorch takes one thread for each physical core."""
    machine = SimpleNamespace(cores=64)
    monkeypatch.setattr("kit.diagnosis.profiling.this_machine", lambda: machine)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 64 if logical else 32)
    assert profile(threads=threads).fits_cores is fits


def test_an_interval_that_says_nothing_is_no_number():
    wide = from_groups([math.log(2), math.log(0.3), math.log(0.9)])
    assert str(wide) == "not known"
