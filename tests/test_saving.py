"""A comparison comes back as it was saved, or is refused by name."""

import json
import math
import os
import pickle
from pathlib import Path

import numpy
import pytest
from trials import rate_trial

import kit
from kit.errors import RecordingError
from kit.measuring.report import Comparison

GOLDEN = Path(__file__).parent / "recordings" / "format_5.json"


def compared(**more):
    trials = [rate_trial(2.0), rate_trial(1.0, first=[1.0] * 3, **more)]
    return Comparison(trials, ["n=0", "n=2"], unit="ms per step", took_seconds=4.5)


def test_a_saved_comparison_comes_back_whole(tmp_path):
    knobs = {"crop": (4, (4, "a")), "rate": math.inf, "none": None}
    made = compared(knobs=knobs, title='"}, {"', notes=["}]}"])
    kit.save(made, path := tmp_path / "deep" / "er" / "some.json")
    assert os.stat(path).st_mode & 0o444 == 0o444, "others can read it"
    again = kit.load(path)
    assert again == made and again.trials[1].knobs == knobs


def test_values_that_json_lacks_are_kept_as_numbers_or_as_words(tmp_path):
    made = compared(knobs={"rate": numpy.float32(0.5), "function": len})
    made.trials[1].runs[0].metrics["loss"] = [None, math.nan]
    kit.save(made, tmp_path / "some.json")
    trial = kit.load(tmp_path / "some.json").trials[1]
    assert trial.knobs == {"rate": 0.5, "function": "len"}
    first, last = trial.runs[0].metrics["loss"]
    assert first is None and math.isnan(last), "not given is not nan"


def test_a_verdict_is_computed_anew_from_the_runs(tmp_path):
    kit.save(compared(), path := tmp_path / "some.json")
    content = json.loads(path.read_text())
    for run in content["trials"][1]["runs"]:
        for stretch in run["stretches"]:
            stretch[0] *= 4  # seconds
    path.write_text(json.dumps(content))
    assert compared().ratio.verdict == "faster"
    assert kit.load(path).ratio.verdict == "slower"


def test_a_recording_of_an_old_format_has_the_same_ratio():
    made = kit.load(GOLDEN)
    assert made.baseline.items_per_second == pytest.approx(781.583693)
    assert made.baseline.machine.name == "imaginary-2-cores"
    assert made.trials[1].knobs == {"size": 64, "crop": (4, 4), "mode": "RGB"}
    ratio = made.ratio
    assert ratio.value == pytest.approx(1.9968, rel=1e-3)
    assert 1.98 < ratio.low < ratio.high < 2.02 and ratio.verdict == "faster"


FOREIGN = [b"", b"null", b"{}", b"\xff\0", pickle.dumps({}), b'{"format": 99}']


@pytest.mark.parametrize("content", FOREIGN)
def test_what_is_no_comparison_is_refused_by_name(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"other\.json"):
        kit.load(path)
    with pytest.raises(RecordingError, match=r"absent\.json"):
        kit.load(tmp_path / "absent.json")


def test_a_failed_save_leaves_the_old_file_alone(tmp_path, monkeypatch):
    kit.save(compared(), path := tmp_path / "some.json")
    before = path.read_bytes()

    def fail(*_):
        raise OSError("No space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RecordingError, match=r"some\.json.*No space left"):
        kit.save(compared(title="another"), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
