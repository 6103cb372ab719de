"""A comparison comes back as it was saved, or is refused by name."""

import json
import math
import os
import pickle
from pathlib import Path

import numpy
import pytest
import recording
from trials import make_run, make_trial, metric_trial, rate_trial

import kit
from kit.errors import RecordingError
from kit.measuring.records import COLD
from kit.measuring.report import Comparison

GOLDEN = Path(__file__).parent / "recordings" / "format_5.json"
ANY = {"crop": (4, (4, "a")), "rate": math.inf, "none": None, "}, {": ": [{"}


def compared(**more):
    trials = [rate_trial(2.0), rate_trial(1.0, first=[1.0] * 3, **more)]
    return Comparison(trials, ["n=0", "n=2"], unit="ms per step", took_seconds=4.5)


@pytest.mark.parametrize(
    "more", [{}, {"knobs": ANY}, {"title": '"}, {"', "notes": ["}]}"]}]
)
def test_a_saved_comparison_comes_back_whole(tmp_path, more):
    made = compared(**more)
    kit.save(made, path := tmp_path / "deep" / "er" / "some.json")
    assert os.stat(path).st_mode & 0o444 == 0o444, "others can read it"
    again = kit.load(path)
    assert again == made and repr(again) == repr(made) and "ms per step" in repr(again)
    assert again.trials[1].knobs == made.trials[1].knobs


def test_values_that_json_lacks_are_kept_as_numbers_or_as_words(tmp_path):
    knobs = {"rate": numpy.float32(0.5), "function": len, "nan": math.nan}
    kit.save(compared(knobs=knobs), tmp_path / "some.json")
    found = kit.load(tmp_path / "some.json").trials[1].knobs
    assert (found["rate"], found["function"]) == (0.5, "len")
    assert math.isnan(found["nan"])


def test_what_was_not_given_of_a_metric_is_told_from_nan(tmp_path):
    trials = [metric_trial([0.1, 0.2, 0.1]), metric_trial([0.5, 0.6, 0.5])]
    trials[1].runs[0].metrics["loss"] = [None, math.nan]
    made = Comparison(trials, ["a", "b"], "accuracy", 0.1)
    kit.save(made, tmp_path / "some.json")
    again = kit.load(tmp_path / "some.json")
    first, last = again.trials[1].runs[0].metrics["loss"]
    assert first is None and math.isnan(last) and again.ratio.verdict == "more"


def test_a_recording_of_an_old_format_has_the_same_rates_and_ratio(tmp_path):
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
    assert runs.outcome == "stopped"
    assert runs.runs[0].stretches[0].excluded_seconds == 0.75
    assert runs.runs[0].metrics == {"loss": [0.5, None]}
    assert single.step_seconds == pytest.approx(0.0316, rel=2e-3)
    ratio = made.comparisons[0].ratios[made.claims[0]["label"]]
    assert ratio.value == pytest.approx(1.9968, rel=1e-3)
    assert 1.98 < ratio.low < ratio.high < 2.02 and ratio.verdict == "faster"
    recording.write(made, again := tmp_path / "again.json")
    assert list(map(repr, recording.read(again).trials)) == list(map(repr, made.trials))
    assert recording.read(again).claims == made.claims
    assert "\n" in again.read_text().strip(), "a run on a line, for diffs"


def test_what_is_no_comparison_is_refused_and_says_what_to_do(tmp_path):
    path = tmp_path / "other.json"
    several = Comparison([make_trial([make_run()])] * 2, ["a", "b"])
    recording.write(recording.Recording(several.trials, [several] * 2, []), path)
    with pytest.raises(RecordingError, match=r"other.json: has 2 comparisons"):
        kit.load(path)
    formats = [json.dumps({"format": x}).encode() for x in (1, 4, 99, "6", None, [1])]
    for content in (b"", b"null", b"3", b"{}", b"\xff\0", pickle.dumps({}), *formats):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match=r"other.json.*\n.*kit.save\(\)"):
            kit.load(path)
    for missing in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(RecordingError, match=missing.name):
            kit.load(missing)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file_alone(tmp_path, monkeypatch, error):
    kit.save(compared(), path := tmp_path / "some.json")
    before = path.read_bytes()

    def fail(*_):
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((RecordingError, KeyboardInterrupt)) as caught:
        kit.save(compared(title="another"), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
    if isinstance(error, OSError):
        assert all(word in str(caught.value) for word in (path.name, "No space left"))
