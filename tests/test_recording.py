"""Recordings: whole, equal, atomic, and refused where they were tampered with."""

import copy
import functools
import json
import math
import os
import pickle
import random
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from journal import write_journal
from trials import make_life, make_machine, make_trial, rate_trial, run_trial

import kit
from kit import recording
from kit.comparison import Comparison
from kit.life import COLD
from kit.recording import RecordingError
from kit.teaching import claim
from kit.trial import JOURNAL

FOLDER = Path(__file__).parent / "recordings"
GOLDEN = FOLDER / "format_4.json"
NAN = math.nan


@pytest.fixture
def journal(monkeypatch):
    """An empty journal; the other tests' entries come back."""
    monkeypatch.delenv("KIT_SMOKE", raising=False)
    before = JOURNAL[:]
    JOURNAL.clear()
    yield JOURNAL
    JOURNAL[:] = before


def rich_trial(**changes):
    """A trial in which every field says something."""
    lives = [make_life(COLD, [0.02] * 6, setup_seconds=3.0, memory_bytes=4096)]
    for turn in range(10):
        seconds = [0.02 + 0.001 * turn + 0.0001 * r for r in (0, 0, 1, 1, 2, 2)]
        lives.append(make_life(turn, seconds, setup_seconds=0.5 / (turn + 1)))
    lives[2].memory_bytes, lives[3].settled = 8192, False
    lives[4].setup_seconds, lives[5].beside = 0.25, False
    lives[6].blocks[0].wall_seconds, lives[6].blocks[1].excluded_seconds = 0.5, 0.75
    lives[7].blocks[0].rank_seconds = [0.019, 0.021]
    for number, life in enumerate(lives):
        life.metrics["loss"] = [1 / (30 * number + i + 1) for i in range(30)]
    return make_trial(
        **{
            "lives": lives,
            "knobs": {"n": 2, "rate": 0.1, "mode": "RGB", "on": True, "none": None},
            "outcome": "not settled",
            "whole_runs": False,
            "notes": ["One note, with “quotes”, a × and\na line break."],
            "conditions": {"others_cores": 0.25},
        }
        | changes,
    )


def saved(tmp_path, *trials):
    path = tmp_path / "some.json"
    kit.save(trials or [rich_trial()], path)
    return path


def round_trip(tmp_path, trial):
    (again,) = kit.load(saved(tmp_path, trial))
    return again


# There and back


def test_round_trip_is_equal(tmp_path):
    trials = [
        rich_trial(),
        run_trial([1.5, 1.25], outcome="stopped"),
        make_trial(machine=make_machine("another-machine"), title="É × 🙂"),
    ]
    again = kit.load(saved(tmp_path, *trials))
    assert again == trials
    assert [t.machine for t in again] == [t.machine for t in trials]
    assert [t.machine.reasons["cores"] for t in again] == ["made up"] * 3


def test_derived_numbers_survive(tmp_path):
    trial = rich_trial()
    again = round_trip(tmp_path, trial)
    assert again.items_per_second == trial.items_per_second
    assert again.interval == trial.interval
    assert again.step_seconds == trial.step_seconds
    assert repr(again) == repr(trial)


def test_numbers_survive_to_the_last_digit(tmp_path):
    seconds = [0.1 + 0.2, 1 / 3, math.pi, 1e-9, 5e-324, 1e300]
    trial = run_trial(seconds, items=2**53 + 1)
    again = round_trip(tmp_path, trial)
    assert again.block_seconds == seconds
    assert again.block_items == [2**53 + 1] * 6


def test_no_trials_at_all(tmp_path):
    path = tmp_path / "none.json"
    kit.save([], path)
    assert kit.load(path) == []


def test_path_may_be_text_and_trials_any_iterable(tmp_path):
    path = os.fspath(tmp_path / "deep" / "er" / "some.json")
    kit.save((trial for trial in [make_trial()]), path)
    assert kit.load(path) == [make_trial()]


def test_nan_metrics_survive(tmp_path):
    trial = run_trial([1.0], {"loss": [NAN, 0.5]})
    first, second = round_trip(tmp_path, trial).metrics["loss"]
    assert math.isnan(first)
    assert second == 0.5


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_metrics_survive(tmp_path, value):
    """A loss that exploded is a result; unknown is something else."""
    trial = run_trial([1.0], {"loss": [0.5, value]})
    assert round_trip(tmp_path, trial).metrics["loss"] == [0.5, value]


@pytest.mark.parametrize(
    "knob",
    [
        0,
        2.0,
        True,
        None,
        "text",
        (),
        (1, 2),
        (1, "a", None),
        ((1, 2), (3, (4,))),
        math.inf,
        np.int64(4),
        np.float32(0.5),
    ],
    ids=repr,
)
def test_knobs_survive(tmp_path, knob):
    """Tuples, strings and numbers are values."""
    again = round_trip(tmp_path, make_trial(knobs={"knob": knob})).knobs["knob"]
    assert again == knob
    if not isinstance(knob, np.generic):
        assert type(again) is type(knob)


def test_a_knob_that_is_an_object_is_kept_as_its_text(tmp_path):
    trial = make_trial(knobs={"make": partial(max, 1)})
    again = round_trip(tmp_path, trial).knobs["make"]
    assert again == repr(trial.knobs["make"])


def test_saving_changes_nothing(tmp_path):
    trial = rich_trial(knobs={"size": (1, 2)})
    before = copy.deepcopy(trial)
    saved(tmp_path, trial)
    assert trial == before


def test_comparison_and_claim_survive_without_their_verdicts(tmp_path, journal):
    trials = [rate_trial(2.0, knobs={"n": 0}), rate_trial(1.0, knobs={"n": 2})]
    made = Comparison(trials, ["n=0", "n=2"])
    journal += [*trials, made]
    claim("Two are faster.", made, at_least=1.5, otherwise="Or not.")
    write_journal(tmp_path / "journal.json")
    text = (tmp_path / "journal.json").read_text("utf-8")
    assert "verdict" not in text
    assert "✓" not in text
    again = recording.read(tmp_path / "journal.json")
    assert again.trials == trials
    (comparison,) = again.comparisons
    assert comparison.ratios == made.ratios
    assert comparison.labels == made.labels
    (row,) = again.claims
    assert row["sentence"] == "Two are faster."
    assert row["at_least"] == 1.5
    assert row["otherwise"] == "Or not."
    assert (row["comparison"], row["label"]) == (0, "n=2")


def test_journal_keeps_of_and_within(tmp_path, journal):
    trials = [run_trial([1.0, 1.0], {"accuracy": [0.0, x, 0.0, x]}) for x in (0.8, 1)]
    journal += [*trials, Comparison(trials, ["a", "b"], "accuracy", 0.01)]
    write_journal(tmp_path / "journal.json")
    (comparison,) = recording.read(tmp_path / "journal.json").comparisons
    assert (comparison.of, comparison.within) == ("accuracy", 0.01)
    assert comparison.ratio.verdict == "more"


# The golden recording: what the format was when it was first written


def mean_rate(row):
    """The geometric mean over lives of items per second, without a first look."""
    logs = []
    for life in row["lives"]:
        if life["turn"] != -1:
            seconds, _, items, *_ = zip(*life["blocks"], strict=True)
            logs.append(math.log(sum(items) / sum(seconds)))
    return math.exp(sum(logs) / len(logs))


def test_golden_recording_loads_to_the_same_numbers():
    made = recording.read(GOLDEN)
    raw = json.loads(GOLDEN.read_text("utf-8"))
    assert raw["format"] == 4
    slow, fast, runs = made.trials[:3]
    for trial, row in zip(made.trials, raw["trials"], strict=True):
        blocks = [block for life in row["lives"] for block in life["blocks"]]
        assert trial.block_seconds == [block[0] for block in blocks]
        assert trial.items_per_second == pytest.approx(mean_rate(row))
    assert slow.items_per_second == pytest.approx(781.5836926291277)
    assert fast.items_per_second == pytest.approx(1561.0566096925656)
    assert runs.items_per_second == pytest.approx(73.0296743340221)
    assert slow.machine.name == "imaginary-2-cores"
    assert slow.machine.cores == 2
    assert runs.machine.name == "imaginary-gpu"
    assert fast.knobs == {"size": 64, "crop": (4, 4), "mode": "RGB"}
    assert fast.notes == ["One note, with “quotes” and a × sign."]
    assert [life.memory_bytes for life in slow.lives[:3]] == [4096, None, 8192]
    assert slow.peak_memory_bytes == 4096
    assert slow.setup_seconds[:3] == [0.5, 0.125, 0.25]
    assert all(map(math.isnan, slow.setup_seconds[3:]))
    assert [life.turn for life in slow.lives] == [-1, *range(10)]
    assert (runs.outcome, runs.whole_runs, runs.excluded_seconds) == (
        "stopped",
        True,
        0.75,
    )
    loss = runs.metrics["loss"]
    assert [x for x in loss if not math.isnan(x)] == [0.5, 0.5, 0.25]
    assert math.isnan(loss[1])


def test_the_times_of_every_rank_are_kept():
    *others, on_ranks = kit.load(GOLDEN)
    assert not any(block.rank_seconds for trial in others for block in trial.blocks)
    assert on_ranks.knobs["ranks"] == 2
    for block in on_ranks.blocks:
        assert block.rank_seconds == [block.seconds, 0.75 * block.seconds]


def test_single_steps_are_kept():
    single = kit.load(GOLDEN)[3]
    assert single.step_quantiles[50] == 0.025375
    assert single.step_quantiles[95] == 0.08775


def test_golden_recording_keeps_its_verdict():
    """Statistics may be refined; this recording will not say something else."""
    made = recording.read(GOLDEN)
    (comparison,) = made.comparisons
    ratio = comparison.ratios["size=64"]
    assert ratio.value == pytest.approx(1.996, rel=2e-3)
    assert 1.98 < ratio.low < ratio.value < ratio.high < 2.02
    assert ratio.verdict == "faster"
    (row,) = made.claims
    assert row["sentence"] == "Twice the size is twice as fast."
    assert (row["comparison"], row["label"]) == (0, "size=64")


def test_golden_recording_is_what_would_be_written_today(tmp_path):
    recording.write(recording.read(GOLDEN), tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text("utf-8"))
    assert again == json.loads(GOLDEN.read_text("utf-8"))


COMMITTED = sorted((FOLDER.parents[1] / "tutorials" / "recordings").glob("*.json"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_what_is_committed_is_readable_and_its_ratios_follow_from_its_blocks(path):
    made = recording.read(path)
    assert made.trials and made.comparisons
    assert '"verdict":' not in path.read_text("utf-8")
    for comparison in made.comparisons:
        runs = comparison.of == "run_seconds"
        for label, trial in zip(comparison.labels, comparison.trials, strict=True):
            if trial is not comparison.baseline and runs:
                base = {x.turn: x.blocks for x in comparison.baseline.lives}
                logs = [
                    math.log(life.blocks[0].seconds / base[life.turn][0].seconds)
                    for life in trial.lives
                    if life.turn != COLD
                ]
                value = math.exp(sum(logs) / len(logs))
                assert comparison.ratios[label].value == pytest.approx(value)


# Broken files


def refused(path, *words):
    """Assert that an error refuses a file and names it and more; return its text."""
    with pytest.raises(RecordingError) as caught:
        kit.load(path)
    text = str(caught.value)
    missing = [word for word in (path.name, *words) if word not in text]
    assert not missing, f"{missing} not in {text!r}"
    assert len(text.splitlines()) <= 6
    return text


def test_truncated_at_any_byte_is_refused(tmp_path):
    """Only white space may be missing."""
    path = tmp_path / "cut.json"
    content, whole = GOLDEN.read_bytes(), recording.read(GOLDEN)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        if content[length:].strip():
            refused(path)
        else:
            assert len(kit.load(path)) == len(whole.trials)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b"{}",
        b'{"format": 1}',
        b'{"format": 2}',
        b'{"format": 3}',
        b"\xff\xfe\x00",
        pickle.dumps({"format": 1}),
    ],
    ids=repr,
)
def test_what_is_no_recording_is_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    refused(path)


def test_no_file_and_a_folder_are_refused(tmp_path):
    refused(tmp_path / "absent.json")
    (tmp_path / "folder.json").mkdir()
    refused(tmp_path / "folder.json")


def edited(tmp_path, edit):
    """A recording on disk, with its content changed by hand."""
    path = tmp_path / "edited.json"
    content = json.loads(saved(tmp_path).read_text("utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def find_places(value, place=()):
    """Return the way to each value inside, the containers too."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in inside:
        yield (*place, key)
        if isinstance(inner, (dict, list)):
            yield from find_places(inner, (*place, key))


def damage(content, random):
    """Change, add or drop one value anywhere; return what was done."""
    *way, last = random.choice(list(find_places(content)))
    owner = functools.reduce(lambda inner, key: inner[key], way, content)
    old = owner[last]
    kind = random.choice(["drop", "add", "junk", "near"])
    junk = [None, True, -7, 0, 0.5, "1", "", [], {}, [[]], {"float": "inf"}]
    if kind == "drop":
        del owner[last]
    elif kind == "add" and isinstance(owner, list):
        owner.insert(last, copy.deepcopy(old))
    elif kind == "near" and type(old) in (int, float):
        owner[last] = old + 1
    else:
        owner[last] = random.choice([x for x in junk if repr(x) != repr(old)])
    return f"{kind} {[*way, last]}"


@pytest.mark.parametrize("seed", range(100))
def test_any_single_change_is_refused_by_name_with_advice(tmp_path, seed):
    luck, done = random.Random(seed), []
    path = edited(tmp_path, lambda content: done.append(damage(content, luck)))
    text = refused(path).lower()
    assert any(word in text for word in ("again", "update", "name a file")), done


@pytest.mark.parametrize("number", [0, 1, 2, 3, 99, "4", "one", None, [1]])
def test_another_format_says_which_is_read_and_what_to_do(tmp_path, number):
    text = refused(edited(tmp_path, lambda c: c.update(format=number)), "format")
    assert f"format is {number!r}" in text and "reads 4" in text
    assert "Update the kit" in text


def test_what_is_no_recording_is_told_apart(tmp_path):
    path = tmp_path / "some.ipynb"
    path.write_text(notebook("x = 1"), encoding="utf-8")
    text = refused(path, "format")
    assert "this is not a recording" in text and "kit.save()" in text
    text = refused(tmp_path / "absent.json")
    assert "No such file" in text and "kit.save()" in text


def test_layout_may_change(tmp_path):
    """A recording is its content: a formatter of JSON does no harm."""
    path = saved(tmp_path)
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(content, indent=8, sort_keys=True), encoding="utf-8")
    assert kit.load(path) == [rich_trial()]


# Writing is all or nothing


def listing(folder):
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_failing_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(RecordingError) as caught:
        kit.save([make_trial()], path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert listing(tmp_path) == [path.name]
    assert kit.load(path) == [rich_trial()]
    assert path.name in str(caught.value)
    assert "No space left on device" in str(caught.value)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_an_interrupt_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = saved(tmp_path)
    before = path.read_bytes()

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        kit.save([make_trial()], path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert listing(tmp_path) == [path.name]


def test_content_is_on_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def watched(*arguments, name=name, real=real, **options):
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, watched)
    saved(tmp_path)
    assert calls == ["fsync", "replace"]


def test_what_cannot_be_recorded_leaves_no_file(tmp_path):
    class Stubborn:
        def __repr__(self):
            raise RuntimeError("no text for me")

    path = saved(tmp_path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        kit.save([make_trial(knobs={"stubborn": Stubborn()})], path)
    assert path.read_bytes() == before
    assert listing(tmp_path) == [path.name]


def unwritable(path):
    with pytest.raises(RecordingError) as caught:
        kit.save([make_trial()], path)
    text = str(caught.value)
    assert Path(path).name in text
    assert "choose" in text.lower(), "what to do next"
    assert len(text.splitlines()) <= 6
    return text


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("I was here first.")
    unwritable(tmp_path / "file" / "some.json")
    assert (tmp_path / "file").read_text() == "I was here first."
    assert listing(tmp_path) == ["file"]


def test_a_folder_where_the_file_should_be(tmp_path):
    (tmp_path / "some.json").mkdir()
    unwritable(tmp_path / "some.json")
    assert listing(tmp_path) == ["some.json"]


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    """Tests may run as root, who may write anywhere."""

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert "Permission denied" in unwritable(tmp_path / "some.json")
    assert listing(tmp_path) == []


def test_a_written_recording_can_be_read_by_others(tmp_path):
    assert saved(tmp_path).stat().st_mode & 0o444 == 0o444


def test_nothing_is_pickled(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("pickled")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, fail)
    path = saved(tmp_path, make_trial(knobs={"function": lambda: 1}))
    assert json.loads(path.read_text("utf-8"))["format"] == 4
    kit.load(path)


# recorded()


SOURCE = "def count(*, n=1):\n    while True:\n        yield n"


def notebook(*cells):
    """A notebook of code cells, as JSON text."""
    rows = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {},
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(cells)
    ]
    content = {"cells": rows, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content)


@pytest.fixture
def tutorials(tmp_path, monkeypatch):
    """A folder of tutorials with recordings of two machines, one of them twice."""
    folder = tmp_path / "tutorials" / "recordings"
    for machine, date, n in [
        ("imaginary-2-cores", "2026-01-02", 1),
        ("imaginary-2-cores", "2026-03-04", 2),
        ("imaginary-gpu", "2025-12-31", 3),
    ]:
        trials = [
            make_trial(knobs={"n": n}, machine=make_machine(machine), source=SOURCE),
            make_trial(
                experiment="other", machine=make_machine(machine), source="x = 1"
            ),
        ]
        kit.save(trials, folder / f"00_start_here__{machine}__{date}.json")
    kit.save([make_trial(knobs={"n": 9})], folder / "00_start__other__2026-05-06.json")
    write_chapter(tmp_path / "tutorials", SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tutorials"


def write_chapter(folder, *cells, name="00_start_here"):
    (folder / f"{name}.ipynb").write_text(notebook(*cells), encoding="utf-8")


def numbers(trials):
    return sorted(trial.knobs["n"] for trial in trials)


def test_recorded_takes_the_newest_of_each_machine(tutorials):
    found = kit.recorded("00_start_here/count")
    assert numbers(found) == [2, 3]
    assert {t.machine.name for t in found} == {"imaginary-2-cores", "imaginary-gpu"}
    assert {t.experiment for t in found} == {"count"}


@pytest.mark.parametrize("place", [".", "tutorials", "tutorials/deep/er", "elsewhere"])
def test_recorded_finds_the_folder_upward(tutorials, monkeypatch, place):
    folder = tutorials.parent / place
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    assert numbers(kit.recorded("00_start_here/count")) == [2, 3]


def test_recorded_takes_the_nearest_folder(tutorials, monkeypatch):
    nearer = tutorials / "mine" / "recordings"
    kit.save([make_trial(knobs={"n": 7})], nearer / "00_start_here__x__2026-01-01.json")
    monkeypatch.chdir(nearer.parent)
    assert numbers(kit.recorded("00_start_here/count")) == [7]


def test_recorded_of_one_machine(tutorials):
    assert numbers(kit.recorded("00_start_here/count", machine="imaginary-gpu")) == [3]
    assert kit.recorded("00_start_here/count", machine="nobody's") == []


@pytest.mark.parametrize("kind", [str, Path])
def test_recorded_of_a_given_folder(tutorials, tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    kit.save(
        [make_trial(knobs={"n": 5})], elsewhere / "00_start_here__x__2026-01-01.json"
    )
    found = kit.recorded("00_start_here/count", folder=kind(elsewhere))
    assert numbers(found) == [5]
    assert kit.recorded("00_start_here/count", folder=kind(tmp_path / "none")) == []


@pytest.mark.parametrize("name", ["00_start_here/absent", "99_absent/count"])
def test_nothing_recorded_is_an_empty_list(tutorials, name):
    assert kit.recorded(name) == []


def test_no_folder_at_all_is_an_empty_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kit.recorded("00_start_here/count") == []


@pytest.mark.parametrize("name", ["count", "", "00_start_here/"])
def test_a_name_without_its_chapter_is_an_error(tutorials, name):
    with pytest.raises(RecordingError) as caught:
        kit.recorded(name)
    assert repr(name) in str(caught.value)
    assert "/" in str(caught.value)


def test_a_broken_recording_is_named(tutorials):
    path = tutorials / "recordings" / "00_start_here__imaginary-gpu__2026-09-09.json"
    path.write_text("{")
    with pytest.raises(RecordingError, match=r"2026-09-09\.json"):
        kit.recorded("00_start_here/count")


def earlier_notes(trials):
    text = "recorded with an earlier version"
    return [any(text in note.lower() for note in trial.notes) for trial in trials]


def test_unchanged_source_has_no_note(tutorials):
    assert earlier_notes(kit.recorded("00_start_here/count")) == [False, False]


def test_changed_source_is_noted(tutorials):
    write_chapter(tutorials, SOURCE.replace("yield n", "yield 2 * n"))
    found = kit.recorded("00_start_here/count")
    assert earlier_notes(found) == [True, True]
    assert "earlier version" in repr(found[0]).lower()


def test_removed_source_is_noted(tutorials):
    write_chapter(tutorials, "print('hello')")
    assert earlier_notes(kit.recorded("00_start_here/count")) == [True, True]


def test_moving_the_cell_and_rewriting_its_neighbours_is_no_change(tutorials):
    write_chapter(tutorials, "%matplotlib inline\nimport kit", "x = 3", SOURCE, "x")
    assert earlier_notes(kit.recorded("00_start_here/count")) == [False, False]


def test_source_that_a_cell_writes_to_a_file_is_found(tutorials):
    write_chapter(tutorials, f"%%writefile count.py\n{SOURCE}")
    assert earlier_notes(kit.recorded("00_start_here/count")) == [False, False]


def test_a_name_that_is_defined_twice_is_not_an_earlier_version(tutorials):
    """A chapter changes one thing at a time, often under the same name."""
    write_chapter(tutorials, SOURCE, SOURCE.replace("yield n", "yield n + 1"))
    assert earlier_notes(kit.recorded("00_start_here/count")) == [False, False]


def test_a_changed_lambda_is_noted(tutorials):
    """Its source is the statement around it, or only a part of that."""
    folder = tutorials / "recordings"
    source = 'kit.compare({"a": count, "b": lambda: count(n=2)})'
    trial = make_trial(experiment="b", source=f"{source}\n\n\n{SOURCE}")
    kit.save([trial], folder / "00_start_here__third__2026-01-01.json")
    write_chapter(tutorials, SOURCE, source)
    assert earlier_notes(kit.recorded("00_start_here/b")) == [False]
    changed = SOURCE.replace("yield n", "yield 2 * n")
    write_chapter(tutorials, changed, source)
    assert earlier_notes(kit.recorded("00_start_here/b")) == [True]


def test_note_is_not_written_back(tutorials):
    write_chapter(tutorials, SOURCE.replace("yield n", "yield 2 * n"))
    before = {p: p.read_bytes() for p in (tutorials / "recordings").iterdir()}
    kit.recorded("00_start_here/count")
    assert {p: p.read_bytes() for p in (tutorials / "recordings").iterdir()} == before
