"""Experiments built to deceive: `compare` gives the truth, or says what is wrong.

Simulated: time passes on a fake clock only. `make bench` has them in real time.
"""

import pytest
from liars import LIARS, SimulatedStage

import kit
from kit import life

SECONDS = 4.0
#: Where the truth cannot be seen in so many seconds: they get no verdict, and a reason.
HIDDEN = {"growing step", "prefetch head start", "cached result"}


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.name)
def test_the_truth_or_what_is_wrong(liar, clock, device, monkeypatch):
    monkeypatch.setattr(life, "_GRACE_SECONDS", 0.1)  # a worker left over has 2 s
    experiments = liar.simulated(SimulatedStage(SECONDS, clock, device))
    made = kit.compare(experiments, seconds=SECONDS)
    verdict, reason = made.ratio.verdict, made.ratio.reason
    expected = "says why" if liar.name in HIDDEN else "right"
    expected = "not catchable" if liar.not_catchable else expected
    said = f"{verdict} {made.ratio} ({reason}); the truth: {liar.truth}"
    assert liar.judge(verdict, reason) == expected, f"{liar.deception}\n{said}"
    if liar.ratio is not None:
        assert made.ratio.low <= liar.ratio * 1.001
        assert made.ratio.high >= liar.ratio * 0.999
