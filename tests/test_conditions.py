"""Load and quota around a comparison: what they change and what they say."""

import itertools

import pytest
from trials import noisy, rate_trial

import kit
from kit import system
from kit.life import COLD
from kit.ratio import compare_trials

pytestmark = pytest.mark.usefixtures("tidy")

CALM = {"others_cores": 0.0, "cores_per_thread": 1.0, "waiting": 0.0, "throttled": 0.0}


@pytest.fixture
def seen(monkeypatch):
    """What the load counters will have told, to be changed by a test."""
    told = dict(CALM)
    monkeypatch.setattr(system, "describe_load", lambda *readings: dict(told))
    return told


def working(clock):
    def train(*, variant=1):
        while True:
            yield 1
            clock.work(0.005)

    return train


@pytest.mark.parametrize(("throttled", "least"), [(0.0, 0.02), (0.3, 0.25)])
def test_blocks_are_long_where_a_quota_stops_the_process(clock, seen, throttled, least):
    seen["throttled"] = throttled
    made = kit.compare(working(clock), variant=[1, 2], seconds=4.0)
    for trial in made.trials:
        lives = [life for life in trial.lives if life.turn != COLD]
        later = [block.seconds for life in lives for block in life.blocks]
        assert least <= min(later) <= max(later) < 2 * least
    # Long blocks tell whom the quota hit: then there is a verdict.
    assert made.ratio.verdict == "same"


def test_a_quota_that_is_used_up_later_cannot_tell(clock, seen):
    def train(*, variant=1):
        seen["throttled"] = 0.3 if clock.now > 101 else 0.0
        while True:
            yield 1
            clock.work(0.005)

    made = kit.compare(train, variant=[1, 2], seconds=4.0)
    assert made.ratio.verdict == "cannot tell"
    assert "quota" in made.ratio.reason


def test_a_small_share_of_stolen_time_does_not_forbid_a_verdict(clock, seen):
    seen.update(stolen=0.05, others_cores=1.0)
    made = kit.compare(working(clock), variant=[1, 2], seconds=4.0)
    assert made.ratio.verdict == "same"


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"others_cores": 0.9}, "other programs used 0.9 cores", "close"),
        ({"stolen": 0.1}, "other guests", "another time"),
        ({"throttled": 0.2}, "quota", "fewer"),
    ],
)
def test_a_wide_interval_names_what_was_seen(changes, cause, remedy):
    trials = [
        rate_trial(noisy(seed, 0.3, 0.5), conditions=CALM | changes) for seed in (1, 2)
    ]
    ratio = compare_trials(*trials)
    assert ratio.verdict == "cannot tell"
    assert cause in ratio.reason and remedy in ratio.reason
    plain = compare_trials(*(rate_trial(noisy(s, 0.3, 0.5)) for s in (1, 2)))
    assert (plain.low, plain.high) == (ratio.low, ratio.high)
    assert cause not in plain.reason


def test_conditions_are_kept_when_it_is_stopped(clock, seen, progresses):
    def train(*, variant=1):
        for step in itertools.count():
            if clock.now > 101 and step > 5:
                progresses[-1].stop()
            yield 1
            clock.work(0.005)

    made = kit.compare(train, variant=[1, 2], seconds=4.0)
    for trial in made.trials:
        assert trial.outcome == "stopped"
        assert trial.conditions == CALM
