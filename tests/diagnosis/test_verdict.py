"""A diagnosis concludes no more than was measured, and tries what the profile shows."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from experiments import profile

from kit.diagnosis.modules import Training
from kit.diagnosis.named import Named
from kit.diagnosis.repairs import Facts, find_due, make_switches
from kit.diagnosis.saving import Saving, from_groups, from_share, unknown
from kit.diagnosis.verdict import decide

pytestmark = pytest.mark.usefixtures("quick")

NO = {}
HALF = Saving(0.5, 0.48, 0.52)
THIRD = Saving(0.35, 0.3, 0.4)
WIDE = Saving(0.37, -0.2, 0.69)
COSTS = Saving(-1.0, -1.2, -0.8)
UNKNOWN = unknown("its blocks were disturbed")
FLOAT64 = {"float64": Named("Its parameters are float64.", "model.float()", "", True)}
LAYOUT = {"channels_last": Named("Not in channels_last.", "model.to()", "", False)}


class Case(NamedTuple):
    """What a run has shown, the verdict, and a word of the reason."""

    verdict: str | None
    reason: str = ""
    savings: dict = NO
    work: dict = NO
    tried: dict = NO
    named: dict = NO
    left: tuple = ()


CASES = {
    "nothing was found": Case("healthy", "nothing worth repairing"),
    "a step is slower without it": Case("healthy", savings={"input": COSTS}),
    "it may save much, or nothing": Case(None, "wait for data", {"input": WIDE}),
    "it could not be measured": Case(
        "compute", "90%", {"input": UNKNOWN}, work={"compute": 0.9}
    ),
    "one surely saves most": Case("input", savings={"input": HALF, "optimizer": THIRD}),
    "two save the same": Case(
        None, "about the same", {"input": HALF, "optimizer": HALF}
    ),
    "two intervals overlap": Case(
        None,
        "about the same",
        {"input": Saving(0.5, 0.46, 0.54), "optimizer": Saving(0.47, 0.43, 0.51)},
    ),
    "a measured saving counts more than a share": Case(
        "input", savings={"input": HALF, "python": from_share(0.55)}
    ),
    "an update is needed, and the work takes more": Case(
        "compute", "60%", {"optimizer": THIRD}, work={"compute": 0.6}
    ),
    "a repair gains nearly as much": Case(
        "threads", savings={"input": HALF}, tried={"threads": THIRD}
    ),
    "a repair loses": Case("compute", work={"compute": 0.9}, tried={"threads": COSTS}),
    "a repair may gain, or not": Case(
        None, "attention", work={"compute": 0.6}, tried={"attention": WIDE}
    ),
    "what a repair gains is not known": Case(
        None, "oneDNN", work={"compute": 0.6}, tried={"onednn": UNKNOWN}
    ),
    "there was no time to try a setting": Case(
        None, "lack of time", work={"compute": 0.9}, left=("anomaly",)
    ),
    "a setting is only named": Case(
        "settings", "float64", work={"compute": 0.9}, named=FLOAT64
    ),
    "what is named is no setting": Case("compute", work={"compute": 0.9}, named=LAYOUT),
    "the work is of two kinds": Case(
        "healthy", "two kinds", work={"compute": 0.5, "memory": 0.45}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_more_is_concluded_than_was_measured(case):
    measured = case.savings, case.tried, case.named
    found = decide(*measured, profile(case.work), case.left)
    assert found.cause == case.verdict, found.reason
    assert case.reason in found.reason


@pytest.mark.parametrize(
    ("facts", "due"),
    [
        ({"shares": {"optimizer": 0.3}}, ["fused"]),
        ({"across": {"compute": 0.8}}, ["bfloat16"]),
        ({"threads": 99}, ["threads"]),
        ({}, []),
    ],
)
def test_seconds_are_spent_only_on_repairs_that_the_profile_speaks_for(facts, due):
    training = Training()
    found = find_due(Facts(profile(**facts), training, make_switches(training)))
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
