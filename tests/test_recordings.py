"""A recording comes back as it was saved, or is refused by name."""

import copy
import dataclasses
import json
import math
import os
import pickle
import tempfile
from functools import partial, reduce
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st
from trials import make_machine, make_run, make_trial, metric_trial, rate_trial

import kit
from kit import recording
from kit.errors import RecordingError
from kit.measuring.records import COLD, Run, Stretch
from kit.measuring.report import Comparison

GOLDEN = Path(__file__).parent / "recordings" / "format_5.json"
CONTENT = json.loads(GOLDEN.read_bytes())


def refused(content, *words):
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "changed.json")).write_bytes(content)
        with pytest.raises(RecordingError) as caught:
            kit.load(path)
    text = str(caught.value)
    assert all(word in text for word in ("changed.json", *words)), text
    assert len(text.splitlines()) == 2, "what is wrong, and what to do next"


SECONDS, FLAG, WORDS = st.floats(0, 1e300), st.booleans(), st.text(max_size=5)
ITEMS, STEPS = st.integers(1, 2**60) | st.floats(0.5, 1e9), st.integers(1, 99)
MEMORY, ROUNDS = st.none() | st.integers(0, 2**50), st.integers(COLD, 9)
STRETCHES = st.lists(st.builds(Stretch, SECONDS, ITEMS, STEPS, SECONDS), max_size=2)
LOSSES = st.lists(st.none() | st.floats(), max_size=2)
METRICS = st.dictionaries(WORDS, LOSSES, max_size=1)
RUNS = st.builds(Run, ROUNDS, st.floats(), MEMORY, FLAG, FLAG, STRETCHES, METRICS)
PLAIN = st.none() | FLAG | st.integers() | st.floats(allow_nan=False) | WORDS
KNOBS = PLAIN | st.lists(PLAIN | st.tuples(PLAIN), max_size=2).map(tuple)
TRIALS = st.builds(
    make_trial,
    st.lists(RUNS, max_size=2),
    title=WORDS,
    knobs=st.dictionaries(WORDS, KNOBS, max_size=2),
    machine=st.sampled_from([make_machine("one"), make_machine("another")]),
    outcome=st.sampled_from(["finished", "stopped", "not settled", "quick"]),
    complete_runs=FLAG,
    notes=st.lists(WORDS, max_size=1),
)


def plain(trials):
    """All that trials hold, as text: there nan is equal to itself."""
    return [repr(dataclasses.asdict(trial)) for trial in trials]


@given(st.lists(TRIALS, max_size=2))
def test_any_trial_comes_back_as_it_was_saved(trials):
    before = plain(trials)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "deep", "er", "some.json")
        kit.save(iter(trials), path)
        assert os.stat(path).st_mode & 0o444 == 0o444, "others can read it"
        assert plain(kit.load(path)) == before == plain(trials)


def test_what_was_not_given_of_a_metric_is_told_from_nan(tmp_path):
    trial = metric_trial([0.5])
    trial.runs[0].metrics["accuracy"] = [None, math.nan]
    kit.save(trial, tmp_path / "some.json")
    (again,) = kit.load(tmp_path / "some.json")
    first, last = again.runs[0].metrics["accuracy"]
    assert first is None and math.isnan(last)


def test_a_recording_of_the_format_before_has_the_same_rates_and_ratio(tmp_path):
    made = recording.read(GOLDEN)
    slow, fast, runs, single, on_ranks = made.trials
    rates = [trial.items_per_second for trial in (slow, fast, runs, on_ranks)]
    assert rates == pytest.approx([781.583693, 1561.05661, 73.0296743, 73.0296743])
    assert (slow.machine.name, slow.machine.cores) == ("imaginary-2-cores", 2)
    assert fast.knobs == {"size": 64, "crop": (4, 4), "mode": "RGB"}
    assert [run.memory_bytes for run in slow.runs[:3]] == [4096, None, 8192]
    assert [run.round for run in slow.runs] == [COLD, *range(10)]
    assert [run.took_turns for run in slow.runs] == [False] + [True] * 10
    assert runs.complete_runs and not slow.complete_runs
    assert (runs.outcome, runs.runs[0].stretches[0].excluded_seconds) == (
        "stopped",
        0.75,
    )
    assert runs.runs[0].metrics == {"loss": [0.5, None]}
    assert single.step_seconds == pytest.approx(0.0316, rel=2e-3)
    ratio = made.comparisons[0].ratios[made.claims[0]["label"]]
    assert ratio.value == pytest.approx(1.9968, rel=1e-3)
    assert 1.98 < ratio.low < ratio.high < 2.02 and ratio.verdict == "faster"
    recording.write(made, again := tmp_path / "again.json")
    assert plain(kit.load(again)) == plain(made.trials)
    assert recording.read(again).claims == CONTENT["claims"]


def test_a_saved_comparison_keeps_how_it_was_shown(tmp_path):
    trials = [rate_trial(2.0), rate_trial(1.0, first=[1.0] * 3)]
    made = Comparison(trials, ["n=0", "n=2"], unit="ms per step", took_seconds=4.5)
    kit.save(made, tmp_path / "some.json")
    again = kit.load(tmp_path / "some.json")
    assert again == made and repr(again) == repr(made) and "ms per step" in repr(again)
    metrics = [metric_trial([0.1, 0.2, 0.1]), metric_trial([0.5, 0.6, 0.5])]
    kit.save(Comparison(metrics, ["a", "b"], "accuracy", 0.1), tmp_path / "other.json")
    assert kit.load(tmp_path / "other.json").ratio.verdict == "more"


@pytest.mark.parametrize("ends", ["}, {", ": [{", '"}, {"', "}]}"])
def test_no_text_of_the_readers_makes_a_recording_unreadable(tmp_path, ends):
    runs = [make_run(metrics={ends: [1.0]})]
    trial = make_trial(runs, knobs={"text": ends}, title=ends, notes=[ends])
    kit.save([trial], tmp_path / "a.json")
    assert plain(kit.load(tmp_path / "a.json")) == plain([trial])


def find_places(value, place=()):
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*place, key)
        if isinstance(inner, (dict, list)):
            yield from find_places(inner, (*place, key))


ANY = st.sampled_from(sorted(find_places(CONTENT), key=len))
JUNK = [None, True, -7, 0, 0.5, "1", "", [], {}, [[]], {"float": "inf"}, 1]
HOW = st.sampled_from(["drop", "double", "swap", "put", "cut"])


@given(ANY, HOW, st.data())
def test_what_was_changed_dropped_swapped_or_cut_is_refused(place, how, data):
    content, (*way, last) = copy.deepcopy(CONTENT), place
    owner = reduce(lambda inner, key: inner[key], way, content)
    if how == "drop":
        del owner[last]
    elif how == "double" and isinstance(owner, list):
        owner.insert(last, owner[last])
    elif how == "swap":
        keys = [*owner] if isinstance(owner, dict) else range(len(owner))
        other = data.draw(st.sampled_from(keys))
        owner[last], owner[other] = owner[other], owner[last]
    elif how != "cut":
        owner[last] = data.draw(st.sampled_from(JUNK))
    text = json.dumps(content)
    length = len(text) if how != "cut" else data.draw(st.integers(0, len(text) - 1))
    assume(text[:length] != json.dumps(CONTENT))
    refused(text[:length].encode())


def test_what_is_no_recording_or_of_another_format_is_told_so(tmp_path):
    for content in (b"", b"null", b"[]", b"3", b"{}", b"\xff\0", pickle.dumps({})):
        refused(content, "kit.save()")
    for number in (1, 4, 99, "6", None, [1]):
        content = json.dumps(CONTENT | {"format": number}).encode()
        refused(content, f"format is {number!r}", "reads 6", "Update the kit")
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(RecordingError, match=path.name):
            kit.load(path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file_alone(tmp_path, monkeypatch, call, error):
    kit.save([make_trial()], path := tmp_path / "some.json")
    before, calls = path.read_bytes(), []

    def fail(name, *_, **__):
        calls.append(name)
        if name == call:
            raise error

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, partial(fail, name))
    with pytest.raises((RecordingError, KeyboardInterrupt)) as caught:
        kit.save([make_trial(title="another")], path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
    assert calls == ["fsync", "replace"][: len(calls)], "on disk before it has its name"
    if isinstance(error, OSError):
        assert all(word in str(caught.value) for word in (path.name, "No space left"))
