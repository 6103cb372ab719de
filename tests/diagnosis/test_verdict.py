"""A diagnosis concludes no more than was measured, and tries what the profile shows."""

import math
from types import SimpleNamespace

import pytest
from experiments import profile

from kit.diagnosis import repairs
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.diagnosing import estimate_rest, find_suspects, tell_competition
from kit.diagnosis.modules import Training
from kit.diagnosis.saving import Saving, from_groups, from_shares, unknown
from kit.diagnosis.verdict import decide
from kit.diagnosis.wrapping import Work

pytestmark = pytest.mark.usefixtures("quick")

SURE, WIDE = Saving(0.5, 0.48, 0.52), Saving(0.37, -0.2, 0.69)
LOST = {"input": unknown("its blocks were disturbed")}
SMALL, LARGE = Saving(0.09, -0.4, 0.44), Saving(0.66, 0.6, 0.7)


def at_most(share):
    return Saving(share, measured=False)


JUDGED = [
    # What is not sure is not said, and what is slower without is no cause.
    ({}, {}, "healthy"),
    ({}, {"input": Saving(-1.0, -1.2, -0.8)}, "healthy"),
    ({}, {"input": WIDE}, None),
    ({}, LOST, None),
    ({}, LOST | {"optimizer": Saving(0.33, 0.3, 0.36)}, None),  # two thirds are left
    ({}, LOST | {"optimizer": LARGE}, "optimizer"),
    # The largest wins, if no larger one may be hidden, and it is a clear winner.
    (
        {},
        {"input": Saving(0.66, 0.6, 0.7), "optimizer": Saving(0.3, 0.2, 0.4)},
        "input",
    ),
    ({}, {"input": WIDE, "python": at_most(0.5)}, "python"),
    ({}, {"input": Saving(0.66, -0.2, 0.9), "python": at_most(0.5)}, None),
    ({}, {"input": SURE, "python": at_most(0.55)}, "input"),  # it was measured
    ({}, {"input": SURE, "python": at_most(0.7)}, "python"),
    ({}, {"overhead": at_most(0.5), "python": at_most(0.45)}, None),
    ({}, {"input": SURE, "optimizer": Saving(0.42, 0.4, 0.44)}, "input"),
    ({}, {"input": SURE, "optimizer": Saving(0.47, 0.45, 0.49)}, None),
    ({"compute": 0.35}, {"overhead": at_most(0.34)}, None),
    ({}, {"input": Saving(0.5, 0.1, 0.7), "optimizer": Saving(0.35, 0.3, 0.4)}, None),
    ({"compute": 0.4}, {"optimizer": Saving(0.25, 0.2, 0.3)}, None),  # none stands out
    ({"waiting": 0.8}, {}, None),
    ({"waiting": 0.9}, {"python": at_most(0.04)}, None),
    ({"compute": 0.2}, {"overhead": at_most(0.34)}, "overhead"),
    ({"compute": 0.45}, {"python": at_most(0.11)}, "healthy"),
    # Useful work is good news, unless much can be saved beside it.
    ({"compute": 0.8}, {}, "compute"),
    ({"other": 0.8}, {}, "healthy"),
    ({"compute": 0.3, "memory": 0.28}, {}, "healthy"),  # neither is most of it
    ({"compute": 0.3, "memory": 0.22}, {}, "compute"),
    ({"compute": 0.8}, {"optimizer": Saving(0.16, -0.1, 0.37)}, "compute"),
    ({"compute": 0.3}, {"optimizer": SMALL}, None),  # 44 % > 30 %
    ({"compute": 0.55}, {"optimizer": Saving(0.33, 0.3, 0.35)}, "compute"),
    ({"compute": 0.55}, {"input": Saving(0.33, 0.3, 0.35)}, "input"),
    ({"compute": 0.8}, {"input": Saving(0.06, 0.05, 0.07)}, "compute"),
    # A share from steps is as sure as they are alike.
    ({}, {"python": from_shares([1.0] * 4)}, "python"),
    ({}, {"python": from_shares([0.0, 0.9, 0.0, 0.9])}, None),
    ({}, {"overhead": from_shares([0.02, 0.02, 0.021])}, "healthy"),
]


@pytest.mark.parametrize(("across", "savings", "verdict"), JUDGED)
def test_no_more_is_concluded_than_was_measured(across, savings, verdict):
    found, reason = decide(savings, {}, profile(across))
    assert found == verdict, reason
    told = [CAUSES[cause] in reason for cause in savings]
    if found is None:
        assert any(told) or "waits for another thread" in reason
    elif found == "healthy":
        assert all(told)
    elif found in across:
        assert f"{across[found]:.0%}" in reason


def test_another_number_of_threads_is_the_simplest_repair():
    tried = {"threads": Saving(0.35, 0.3, 0.4)}
    assert decide({"input": SURE}, tried, profile()).cause == "threads"
    tried = {"threads": Saving(0.1, 0.08, 0.12)}
    assert decide({"input": SURE}, tried, profile()).cause == "input"


def test_workers_that_take_cores_from_the_training_are_told():
    savings = {"input": Saving(0.26, 0.2, 0.3)}
    waits = {"forward": 0.97, "input": 0.03}
    assert "compete" in tell_competition(savings, profile(shares=waits, children=2))
    assert not tell_competition(savings, profile(shares=waits))
    waits = {"forward": 0.74, "input": 0.26}
    assert not tell_competition(savings, profile(shares=waits, children=2))


def test_an_unsure_saving_does_not_hide_that_most_time_is_useful_work():
    unsure = {"python": unknown("its share varies")}
    assert decide(unsure, {}, profile({"compute": 0.85})).cause == "compute"
    assert decide(unsure, {}, profile({"compute": 0.4})).cause is None


def test_a_number_of_threads_that_is_slower_is_no_doubt():
    slower = from_groups([math.log(8) + x for x in (-0.1, 0.1, -0.05, 0.05)])
    assert slower.high < 0 and "× as long" in str(slower)
    assert decide({}, {"threads": slower}, profile({"compute": 0.9})).cause == "compute"


def test_shares_of_steps_that_recording_stretched_tell_nothing():
    stretched = profile({"python": 0.4, "overhead": 0.1}, inflation=1.5)
    savings = estimate_rest(stretched, {})
    verdict, reason = decide(savings, {}, stretched)
    assert verdict is None and "150% longer" in reason and len(savings) == 2


MANY = {"input": 0.1, "copies": 0.3, "optimizer": 0.4, "sync": 0.2}
SPOKEN_FOR = [
    ({"across": {"optimizer": 0.3}}, [], ["fused"]),
    ({"across": {"compute": 0.8}}, [], ["bfloat16"]),
    ({"shares": {"input": 0.01}, "children": 2}, ["input"], ["threads"]),
    ({"shares": {"input": 0.01}}, [], []),
    ({"shares": {"optimizer": 0.3}, "across": {"loops": 0.2}}, [], []),
    ({"across": {"waiting": 0.5}}, [], ["threads"]),
    ({"shares": MANY, "threads": 99}, ["optimizer", "transfer", "sync"], ["threads"]),
]


@pytest.mark.parametrize(("facts", "suspects", "due"), SPOKEN_FOR)
def test_a_diagnosis_spends_its_seconds_on_costs_that_the_profile_shows(
    facts, suspects, due
):
    known = profile(**facts)
    causes = dict.fromkeys(["input", "optimizer", "transfer", "sync"])
    assert list(find_suspects(known, causes)) == suspects
    training = Training()
    switches = repairs.make_switches(Work(), training)
    found = repairs.find_due(repairs.Facts(known, training, switches))
    if known.threads == 1:  # there is no other number on one core
        due = [name for name in due if name != "threads"]
    assert list(found) == due


@pytest.mark.parametrize("threads, fits", [(32, True), (64, True), (16, False)])
def test_logical_cores_are_no_reason_to_try_another_number_of_threads(
    monkeypatch, threads, fits
):
    """PyTorch takes one thread for each physical core."""
    machine = SimpleNamespace(cores=64)
    monkeypatch.setattr("kit.diagnosis.profiling.this_machine", lambda: machine)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 64 if logical else 32)
    assert profile(threads=threads).fits_cores is fits
