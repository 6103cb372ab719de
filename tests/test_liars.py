"""Experiments built to deceive: `compare` gives the truth, or says what is wrong.

Simulated: time passes on a fake clock only. `make bench` has them in real time.
"""

import doctest

import liars
import pytest
import torch
from helpers import children, wait_until
from liars import LIARS, Liar, SimulatedStage, find

import kit
from kit import life, system

SECONDS = 4.0


@pytest.fixture
def stage(clock, device, monkeypatch):
    # How busy the machine is that runs this is no part of what is simulated.
    nothing = system.Load(0.0, 0.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(system, "read_load", lambda *_: nothing)
    monkeypatch.setattr(life, "_GRACE_SECONDS", 0.1)
    with SimulatedStage(SECONDS, clock, device) as made:
        yield made


def ask(experiments):
    """Return verdict, reason and the comparison; a refusal is a verdict, too."""
    try:
        comparison = kit.compare(experiments, seconds=SECONDS)
    except kit.experiment.ExperimentError as error:
        return "refused", str(error), None
    return comparison.ratio.verdict, comparison.ratio.reason, comparison


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.name)
def test_the_truth_or_what_is_wrong(liar, stage):
    verdict, reason, comparison = ask(liar.simulated(stage))
    expected = "not catchable" if liar.not_catchable else ("right", "says why")
    ratio = comparison and str(comparison.ratio)
    said = f"{verdict} {ratio} ({reason or 'no reason'}); the truth: {liar.truth}"
    assert liar.judge(verdict, reason) in expected, f"{liar.deception}\n{said}"
    if liar.ratio is not None and verdict == liar.truth:
        found = comparison.ratio
        assert found.low <= liar.ratio * 1.001 and found.high >= liar.ratio * 0.999


def test_there_are_22_and_each_says_how_it_deceives():
    assert len(LIARS) == 22
    assert len({liar.name for liar in LIARS}) == 22
    assert all(liar.deception.endswith(".") for liar in LIARS)
    assert {liar.truth for liar in LIARS} == {"faster", "slower", "same"}
    assert all(liar.deceived != liar.truth for liar in LIARS)


def test_each_can_be_used_by_plain_import():
    assert doctest.testmod(liars).failed == 0


@pytest.mark.parametrize(
    ("verdict", "reason", "real", "judged"),
    [
        ("same", "", False, "right"),
        ("faster", "it never settled", False, "wrong"),
        ("cannot tell", "it never settled", False, "says why"),
        ("refused", "it never settled", True, "says why"),
        ("cannot tell", "the interval is wide", False, "wrong"),
        ("cannot tell", "the interval is wide", True, "undecided"),
        ("refused", "no yield", True, "wrong"),
    ],
)
def test_an_answer_is_judged(verdict, reason, real, judged):
    liar = Liar("one", "same", None, None, excuses=("settle",))
    assert liar.judge(verdict, reason, real=real) == judged


def test_a_difference_may_be_left_undecided_only_where_others_disturb():
    liar = Liar("one", "slower", None, None)
    wide, busy = "the interval is wide", "other programs used 1.2 cores"
    assert liar.judge("cannot tell", wide, real=True) == "wrong"
    assert liar.judge("cannot tell", busy, real=True) == "undecided"


# What the verdict alone does not show


def noting(experiments, look):
    """Let each experiment note what it sees in its steps, by its name."""
    seen = {name: set() for name in experiments}

    def wrap(name, experiment):
        def wrapped():
            for items in experiment():
                seen[name].add(look())
                yield items

        return wrapped

    return {name: wrap(name, e) for name, e in experiments.items()}, seen


def test_autocast_stays_with_the_variant_that_entered_it(stage):
    made, seen = noting(
        find("leaked autocast").simulated(stage),
        lambda: torch.is_autocast_enabled("cpu"),
    )
    ask(made)
    assert seen == {"leaks": {True}, "plain": {False}}
    assert not torch.is_autocast_enabled("cpu")


def test_the_thread_count_stays_with_the_variant_that_set_it(stage):
    usual = torch.get_num_threads()
    made, seen = noting(
        find("leaked thread count").simulated(stage), torch.get_num_threads
    )
    ask(made)
    assert seen == {"leaks": {usual + 1}, "plain": {usual}}
    assert torch.get_num_threads() == usual


def test_a_model_that_both_train_is_named_and_found_untrained_at_each_start(stage):
    model, found = torch.nn.Linear(1, 1), []
    untrained = model.weight.item()
    made = liars.model_trained_by_both(stage, model)

    def note(experiment):
        def noted():
            found.append(model.weight.item())
            yield from experiment()

        return noted

    _, _, comparison = ask({name: note(made[name]) for name in made})
    assert len(found) > 10 and set(found) == {untrained}
    assert model.weight.item() == untrained
    for trial in comparison.trials:
        assert any("model" in note and "put back" in note for note in trial.notes)


def test_a_worker_left_over_is_ended_and_named(stage):
    _, _, comparison = ask(find("worker left over").simulated(stage))
    leaves, plain = comparison.trials
    assert any("still alive" in note and "python" in note for note in leaves.notes)
    assert not plain.notes
    wait_until(lambda: not children())


def test_a_clock_that_goes_back_does_not_ask_for_millions_of_steps(stage):
    made = liars.jumping_clock(stage, seconds=-1.0)
    before, steps = stage.clock.now, 0

    def count(experiment):
        def counted():
            nonlocal steps
            for items in experiment():
                steps += 1
                assert steps < 20_000, "a block without an end"
                yield items

        return counted

    verdict, *_ = ask({name: count(made[name]) for name in made})
    assert verdict in ("same", "cannot tell")
    assert stage.clock.now - before < 3 * SECONDS
