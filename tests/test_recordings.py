"""A recording comes back as it was saved or is refused, and the newest is found."""

import copy
import dataclasses
import json
import os
import pickle
import tempfile
from functools import partial, reduce
from pathlib import Path

import nbformat
import pytest
from hypothesis import assume, given, strategies as st
from trials import make_machine, make_trial, rate_trial

import kit
from kit import recording
from kit.errors import RecordingError
from kit.measuring.comparison import Comparison
from kit.records import FIRST, Block, Run

GOLDEN = (Path(__file__).parent / "recordings" / "format_5.json").read_bytes()
CONTENT = json.loads(GOLDEN)


def refused(content, *words):
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "changed.json")).write_bytes(content)
        with pytest.raises(RecordingError) as caught:
            kit.load(path)
    text = str(caught.value)
    assert all(word in text for word in ("changed.json", *words)), text
    assert "Name a file that kit.save() or" in text or "Update the kit" in text
    assert len(text.splitlines()) <= 6


SECONDS, FLAG, WORDS = st.floats(0, 1e300), st.booleans(), st.text(max_size=5)
ITEMS, STEPS = st.integers(1, 2**60) | st.floats(0.5, 1e9), st.integers(1, 99)
RANKS, MEMORY = st.lists(SECONDS, max_size=2), st.none() | st.integers(0, 2**50)
BLOCKS = st.builds(Block, SECONDS, SECONDS, ITEMS, STEPS, SECONDS, RANKS)
LOSSES = st.dictionaries(WORDS, st.lists(st.floats(), max_size=2), max_size=1)
SOME_BLOCKS, ROUNDS = st.lists(BLOCKS, max_size=2), st.integers(FIRST, 9)
RUNS = st.builds(Run, ROUNDS, st.floats(), MEMORY, FLAG, FLAG, SOME_BLOCKS, LOSSES)
PLAIN = st.none() | FLAG | st.integers() | st.floats(allow_nan=False) | WORDS
KNOBS = PLAIN | st.lists(PLAIN | st.tuples(PLAIN), max_size=2).map(tuple)
TRIALS = st.builds(
    make_trial,
    st.lists(RUNS, max_size=2),
    title=WORDS,
    knobs=st.dictionaries(WORDS, KNOBS, max_size=2),
    machine=st.sampled_from([make_machine("one"), make_machine("another")]),
    outcome=st.sampled_from(["finished", "stopped", "disturbed"]),
    complete_runs=FLAG,
    notes=st.lists(WORDS, max_size=1),
    conditions=st.dictionaries(WORDS, st.floats(0, 1), max_size=1),
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


def test_the_golden_recording_keeps_its_numbers_and_its_verdict(tmp_path):
    (path := tmp_path / "golden.json").write_bytes(GOLDEN)
    made = recording.read(path)
    slow, fast, runs, single, on_ranks = made.trials
    rates = [trial.items_per_second for trial in (slow, fast, runs)]
    assert rates == pytest.approx([781.583693, 1561.05661, 73.0296743])
    assert (slow.machine.name, slow.machine.cores) == ("imaginary-2-cores", 2)
    assert fast.knobs == {"size": 64, "crop": (4, 4), "mode": "RGB"}
    assert [run.memory_bytes for run in slow.runs[:3]] == [4096, None, 8192]
    assert [run.round for run in slow.runs] == [FIRST, *range(10)]
    assert [run.interleaved for run in slow.runs] == [False] + [True] * 10
    assert runs.complete_runs and not slow.complete_runs
    assert (runs.outcome, runs.excluded_seconds) == ("stopped", 0.75)
    assert [single.step_quantiles[q] for q in (50, 95)] == [0.025375, 0.08775]
    assert all(b.rank_seconds == [b.seconds, 0.75 * b.seconds] for b in on_ranks.blocks)
    ratio = made.comparisons[0].ratios[made.claims[0]["label"]]
    assert ratio.value == pytest.approx(1.996, rel=2e-3)
    assert 1.98 < ratio.low < ratio.high < 2.02 and ratio.verdict == "faster"
    path.write_text(json.dumps(CONTENT, indent=3))
    assert plain(kit.load(path)) == plain(made.trials), "layout is no content"
    recording.write(made, path)
    assert json.loads(path.read_bytes()) == CONTENT, "written as it was"


@pytest.mark.parametrize("unit", [None, "ms per step"])
@pytest.mark.parametrize("title", [None, "Do workers help?"])
def test_a_saved_comparison_keeps_how_it_was_shown(tmp_path, unit, title):
    trials = [rate_trial(2.0), rate_trial(1.0, first=[1.0] * 3)]
    made = Comparison(trials, ["n=0", "n=2"], title=title, unit=unit)
    kit.save(made, tmp_path / "some.json")
    again = kit.load(tmp_path / "some.json")
    assert again == made and (again.title, again.unit) == (title, unit)
    assert repr(again) == repr(made) and ("ms per step" in repr(again)) == bool(unit)


def test_a_loaded_comparison_shows_the_title_and_ratio_it_was_saved_with(tmp_path):
    path, title = tmp_path / "a.json", "Two are faster."
    slow, fast = rate_trial(1.0), rate_trial(0.5)
    kit.save(Comparison([slow, fast], ["one", "two"], title=title), path)
    found = kit.load(path)
    assert found.headline() == title and found.ratio.value == pytest.approx(2)
    kit.save(slow, path)
    (single,) = kit.load(path)
    assert single.items_per_second == pytest.approx(10)


@pytest.mark.parametrize("ends", ["}, {", ": [{", '"}, {"', "}]}"])
def test_no_text_of_the_readers_makes_a_recording_unreadable(tmp_path, ends):
    trial = make_trial(knobs={"text": ends}, title=ends, notes=[ends], source=ends)
    recording.save([trial], tmp_path / "a.json")
    assert kit.load(tmp_path / "a.json")[0].knobs == {"text": ends}


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
    for number in (1, 4, 99, "5", None, [1]):
        content = json.dumps(CONTENT | {"format": number}).encode()
        refused(content, f"format is {number!r}", "reads 5", "Update the kit")
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


SOURCE = "class Same: ...\n\n\ndef count(*, n=1):\n    while True:\n        yield n"
CHANGED = SOURCE.replace("yield n", "yield 2 * n")
LAMBDA = 'kit.compare({"a": count, "b": lambda: count(n=2)})'


@pytest.fixture
def tutorials(tmp_path, monkeypatch):
    """Recordings of a chapter by two machines, by one of them twice, and of others."""
    names = {1: "00_start__imaginary-2-cores__2026-01-02"}
    names |= {2: "00_start__imaginary-2-cores__2026-03-04"}
    names |= {3: "00_start__imaginary-gpu__2025-12-31"}
    names |= {9: "00_start_here__imaginary-gpu__2026-05-06"}
    for n, name in names.items():
        where = {"machine": make_machine(name.split("__")[1]), "knobs": {"n": n}}
        trials = [make_trial(source=SOURCE, **where)]
        trials += [make_trial(experiment="b", source=f"{LAMBDA}\n\n{SOURCE}", **where)]
        kit.save(trials, tmp_path / "tutorials" / "recordings" / f"{name}.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tutorials"


@pytest.mark.parametrize("place", [".", "tutorials", "tutorials/deep/er", "elsewhere"])
def test_the_newest_of_each_machine_is_found_anywhere(tutorials, monkeypatch, place):
    mine = tutorials.parent / place / "mine" / "recordings"
    mine.parent.mkdir(parents=True)
    monkeypatch.chdir(mine.parent)

    def numbers(*asked, **options):
        return sorted(trial.knobs["n"] for trial in kit.recorded(*asked, **options))

    assert numbers("00_start/count") == [2, 3]
    assert numbers("00_start/count", machine="imaginary-gpu") == [3]
    assert numbers("00_start/absent") == numbers("99_absent/count") == []
    assert numbers("00_start/count", folder=mine) == []
    kit.save([make_trial(knobs={"n": 7})], mine / "00_start__x__2026-01-01.json")
    assert numbers("00_start/count") == [7], "the nearest"
    assert numbers("00_start/count", folder=str(tutorials / "recordings")) == [2, 3]
    (mine / "00_start__x__2026-09-09.json").write_text("{")
    with pytest.raises(RecordingError, match=r"2026-09-09\.json"):
        kit.recorded("00_start/count")
    for name in ("count", "", "00_start/"):
        with pytest.raises(RecordingError, match=f"{name!r}.*\n.*00_start_here/train"):
            kit.recorded(name)


#: A chapter changes one thing at a time: each version in it is current.
VERSIONS = [("count", ["%matplotlib inline\nimport re", f"# a\n{SOURCE}", "x"], False)]
VERSIONS += [("count", [f"%%writefile count.py\n{SOURCE}"], False)]
VERSIONS += [("count", [SOURCE, CHANGED], False), ("count", [CHANGED], True)]
VERSIONS += [("count", ["print('hello')"], True), ("b", [SOURCE, LAMBDA], False)]
VERSIONS += [("b", [CHANGED, LAMBDA], True)]


@pytest.mark.parametrize(("experiment", "cells", "is_earlier"), VERSIONS)
def test_a_recording_of_earlier_code_says_so(tutorials, experiment, cells, is_earlier):
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(book, tutorials / "00_start.ipynb")
    found = kit.recorded(f"00_start/{experiment}")
    assert [("earlier version" in repr(trial)) for trial in found] == [is_earlier] * 2
