"""Recordings: whole, equal, atomic, and refused where they were tampered with."""

import copy
import dataclasses
import hashlib
import json
import math
import os
import pickle
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from test_ratio import make_machine, make_trial, rate_trial, run_trial

import kit
from kit import recording
from kit.comparison import Comparison
from kit.recording import Recording, RecordingError
from kit.teaching import claim
from kit.trial import JOURNAL, Trial

FOLDER = Path(__file__).parent / "recordings"
OLD, OLDER, GOLDEN = (FOLDER / f"format_{number}.json" for number in (1, 2, 3))
ALL = pytest.mark.parametrize(
    "golden", [OLD, OLDER, GOLDEN], ids=["format 1", "format 2", "format 3"]
)
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
    return rate_trial(
        lambda s, r, b: 0.02 + 0.001 * s + 0.0001 * r,
        **{
            "knobs": {"n": 2, "rate": 0.1, "mode": "RGB", "on": True, "none": None},
            "excluded_seconds": 0.75,
            "peak_memory_bytes": 4096,
            "block_device_seconds": [0.019, None, 0.021] * 20,
            "setup_seconds": [3.0, 0.5, 0.25],
            "start_setups": [-1, 0, 1],
            "start_memory_bytes": [4096, None, 8192],
            "metrics": {"loss": [1 / (i + 1) for i in range(300)]},
            "outcome": "not settled",
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
    assert [t.machine.why("cores") for t in again] == ["made up"] * 3


def test_derived_numbers_survive(tmp_path):
    trial = rich_trial()
    again = round_trip(tmp_path, trial)
    assert again.items_per_second == trial.items_per_second
    assert again.interval == trial.interval
    assert again.step_seconds == trial.step_seconds
    assert repr(again) == repr(trial)


def test_numbers_survive_to_the_last_digit(tmp_path):
    seconds = [0.1 + 0.2, 1 / 3, math.pi, 1e-9, 5e-324, 1e300]
    trial = run_trial(seconds, block_items=[2**53 + 1] * 6)
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
    trial = run_trial([1.0], metrics={"loss": [NAN, 0.5]})
    first, second = round_trip(tmp_path, trial).metrics["loss"]
    assert math.isnan(first)
    assert second == 0.5


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_metrics_survive(tmp_path, value):
    """A loss that exploded is a result; unknown is something else."""
    trial = run_trial([1.0], metrics={"loss": [0.5, value]})
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
    trial = rich_trial(knobs={"size": (1, 2)}, metrics={})
    before = copy.deepcopy(trial)
    saved(tmp_path, trial)
    assert trial == before


def test_comparison_and_claim_survive_without_their_verdicts(tmp_path, journal):
    trials = [rate_trial(2.0, knobs={"n": 0}), rate_trial(1.0, knobs={"n": 2})]
    made = Comparison(trials, ["n=0", "n=2"])
    journal += [*trials, made]
    claim("Two are faster.", made, at_least=1.5, otherwise="Or not.")
    recording.write_journal(tmp_path / "journal.json")
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
    trials = [
        run_trial([1.0, 1.0], metrics={"accuracy": [0.0, x, 0.0, x]}) for x in (0.8, 1)
    ]
    journal += [*trials, Comparison(trials, ["a", "b"], "accuracy", 0.01)]
    recording.write_journal(tmp_path / "journal.json")
    (comparison,) = recording.read(tmp_path / "journal.json").comparisons
    assert (comparison.of, comparison.within) == ("accuracy", 0.01)
    assert comparison.ratio.verdict == "more"


# The golden recordings: what each format was when it was first written


@pytest.mark.parametrize(
    ("golden", "known"),
    [
        (OLD, "eaa39f0493f14e634f3a01f7cde2eb00d9a503cafa0e0be8a4c6eeaedbbb795e"),
        (OLDER, "3e535de554b31cda5a92cdf379bcf6ba403e7a8c06af9c407ebfbbabcfbdaaaa"),
    ],
    ids=["format 1", "format 2"],
)
def test_golden_recordings_of_older_formats_are_what_was_written_then(golden, known):
    assert hashlib.sha256(golden.read_bytes()).hexdigest() == known


def mean_rate(row):
    """The geometric mean over lives of items per second, without a first look."""
    lives = sorted({*row["block_setups"]} - {-1})
    logs = []
    for life in lives:
        inside = [n for n, setup in enumerate(row["block_setups"]) if setup == life]
        items = sum(row["block_items"][n] for n in inside)
        logs.append(math.log(items / sum(row["block_seconds"][n] for n in inside)))
    return math.exp(sum(logs) / len(logs))


@ALL
def test_golden_recording_loads_to_the_same_numbers(golden):
    made = recording.read(golden)
    raw = json.loads(golden.read_text("utf-8"))
    assert raw["format"] == {OLD: 1, OLDER: 2, GOLDEN: 3}[golden]
    slow, fast, runs = made.trials[:3]
    for trial, row in zip(made.trials, raw["trials"], strict=True):
        assert trial.block_seconds == row["block_seconds"]
        assert trial.items_per_second == pytest.approx(mean_rate(row))
    assert slow.items_per_second == pytest.approx(781.5836926291277)
    assert fast.items_per_second == pytest.approx(1561.0566096925656)
    assert runs.items_per_second == pytest.approx(73.0296743340221)
    assert slow.machine.name == "imaginary-2-cores"
    assert slow.machine.cores == 2
    assert runs.machine.name == "imaginary-gpu"
    assert fast.knobs == {"size": 64, "crop": (4, 4), "mode": "RGB"}
    assert fast.notes == ["One note, with “quotes” and a × sign."]
    assert slow.start_memory_bytes == [4096, None, 8192]
    assert slow.setup_seconds == [0.5, 0.125, 0.25]
    assert (runs.outcome, runs.whole_runs, runs.excluded_seconds) == (
        "stopped",
        True,
        0.75,
    )
    loss = runs.metrics["loss"]
    assert [x for x in loss if not math.isnan(x)] == [0.5, 0.5, 0.25]
    assert math.isnan(loss[1])


def test_format_1_knew_no_device_time():
    for trial in kit.load(OLD):
        assert trial.block_device_seconds == [None] * len(trial.block_seconds)
        assert math.isnan(trial.device_step_seconds)
        assert "device" not in repr(trial)


def test_format_2_knew_no_ranks():
    assert all(trial.block_rank_seconds == [] for trial in kit.load(OLDER))


def test_format_3_keeps_the_times_of_every_rank():
    *others, on_ranks = kit.load(GOLDEN)
    assert all(trial.block_rank_seconds == [] for trial in others)
    assert on_ranks.knobs["ranks"] == 2
    assert on_ranks.block_rank_seconds == [
        [s, 0.75 * s] for s in on_ranks.block_seconds
    ]


@pytest.mark.parametrize("golden", [OLDER, GOLDEN], ids=["format 2", "format 3"])
def test_device_time_and_single_steps_are_kept_since_format_2(golden):
    slow, _, runs, single = kit.load(golden)[:4]
    assert slow.block_device_seconds == [None] * 20
    assert runs.block_device_seconds == [1.4375, None]
    assert runs.device_step_seconds == pytest.approx(1.4375 / 2)
    assert single.device_step_seconds == pytest.approx(0.03154375)
    assert single.step_quantiles[50] == 0.025375
    assert single.step_quantiles[95] == 0.08775


@ALL
def test_golden_recording_keeps_its_verdict(golden):
    """Statistics may be refined; this recording will not say something else."""
    made = recording.read(golden)
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


@pytest.mark.parametrize("path", [OLD, OLDER], ids=["format 1", "format 2"])
def test_older_formats_are_written_again_and_nothing_else_changes(tmp_path, path):
    recording.write(recording.read(path), tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text("utf-8"))
    for row in again["trials"]:
        assert row.pop("block_rank_seconds") == []
        if path is OLD:
            assert row.pop("block_device_seconds") == [None] * len(row["block_seconds"])
    assert again.pop("format") == 3
    old = json.loads(path.read_text("utf-8"))
    rest = {key: old[key] for key in again if key != "checksum"}
    assert {key: again[key] for key in rest} == rest
    assert kit.load(tmp_path / "again.json")[0] == kit.load(path)[0]


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


@ALL
@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 0.7, 0.9, 0.97, 0.999])
def test_truncated_is_refused(tmp_path, share, golden):
    path = tmp_path / "cut.json"
    content = golden.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


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


def seal(content):
    """Make the checksum right, as only a careful forger would."""
    content["checksum"] = recording.compute_checksum(content)


def edited(tmp_path, edit, *, sealed=False, of=None):
    """A recording on disk, with its content changed by hand."""
    path = tmp_path / "edited.json"
    content = json.loads((of or saved(tmp_path)).read_text("utf-8"))
    edit(content)
    if sealed:
        seal(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def put(field, value, position=None):
    """Return an edit of one field of the first trial, or of one of its values."""

    def edit(content):
        row = content["trials"][0]
        if position is None:
            row[field] = value
        else:
            row[field][position] = value

    return edit


@pytest.mark.parametrize("format", [0, 4, 99, "1", "3", "one", None, [1]])
def test_unknown_format_is_refused_with_advice(tmp_path, format):
    text = refused(
        edited(tmp_path, lambda content: content.update(format=format)), "format"
    )
    assert repr(format) in text
    assert "update" in text.lower()


@pytest.mark.parametrize(
    "key", ["format", "machines", "trials", "comparisons", "claims", "checksum"]
)
def test_missing_part_is_refused(tmp_path, key):
    refused(edited(tmp_path, lambda content: content.pop(key)), key)


@pytest.mark.parametrize("key", ["machines", "trials", "comparisons", "claims"])
@pytest.mark.parametrize("value", [{}, "text", None, 3])
@pytest.mark.parametrize("sealed", [False, True])
def test_part_of_the_wrong_type_is_refused(tmp_path, key, value, sealed):
    path = edited(tmp_path, lambda c: c.update({key: value}), sealed=sealed)
    refused(path) if not sealed else refused(path, key)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda content: content["trials"][0].pop("block_seconds"), "block_seconds"),
        (lambda content: content["trials"][0].pop("source"), "source"),
        (lambda content: content["trials"].append(3), "trials[3]"),
        (lambda content: content["trials"][1]["block_seconds"].pop(), "trials[1]"),
        (lambda content: content["trials"][1].update(colour="red"), "colour"),
        (lambda content: content.pop("claims"), "claims"),
    ],
)
def test_format_1_is_looked_through_as_thoroughly(tmp_path, edit, word, sealed):
    refused(edited(tmp_path, edit, sealed=sealed, of=OLD), word)


@pytest.mark.parametrize(
    "edit",
    [
        put("block_seconds", 0.5, 0),
        lambda content: content.update(format=2),
        put("block_device_seconds", [0.01] * 20),
    ],
    ids=["a value", "the format", "a field that it did not have"],
)
def test_a_change_of_format_1_is_noticed(tmp_path, edit):
    text = refused(edited(tmp_path, edit, of=OLD))
    assert "checksum" in text or "block_device_seconds" in text


FIELDS = [field.name for field in dataclasses.fields(Trial)]
LISTS = [
    "block_seconds",
    "block_wall_seconds",
    "block_device_seconds",
    "block_items",
    "block_steps",
    "block_setups",
    "block_rounds",
    "setup_seconds",
    "start_setups",
    "start_memory_bytes",
]


@pytest.mark.parametrize("field", FIELDS)
def test_missing_field_is_refused(tmp_path, field):
    refused(edited(tmp_path, lambda c: c["trials"][0].pop(field)), field)


def test_unknown_field_is_refused(tmp_path):
    refused(edited(tmp_path, put("colour", "red")), "colour")


RIGHT = {
    "knobs": dict,
    "conditions": dict,
    "excluded_seconds": float,
    "notes": list,
    **dict.fromkeys(["experiment", "title", "source", "started"], str),
}
WRONG = [
    (field, value)
    for field in FIELDS
    for value in ({"a": 1}, "text", 1.5, [[]])
    if not isinstance(value, RIGHT.get(field, ()))
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_field_of_the_wrong_type_is_refused(tmp_path, field, value):
    refused(edited(tmp_path, put(field, value)), field)


@pytest.mark.parametrize("field", LISTS)
@pytest.mark.parametrize("value", ["1", [], {}, -7, NAN, math.inf])
def test_value_in_a_list_is_refused(tmp_path, field, value):
    refused(edited(tmp_path, put(field, value, 1)), field)


MAY_BE_UNKNOWN = ["start_memory_bytes", "block_device_seconds"]


@pytest.mark.parametrize("field", [f for f in LISTS if f not in MAY_BE_UNKNOWN])
def test_null_in_a_list_is_refused(tmp_path, field):
    refused(edited(tmp_path, put(field, None, 1)), field)


@pytest.mark.parametrize("field", ["block_steps", "block_setups", "block_rounds"])
def test_half_a_count_is_refused(tmp_path, field):
    refused(edited(tmp_path, put(field, 1.5, 1)), field)


@pytest.mark.parametrize("field", LISTS)
@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_lists_of_other_lengths_are_refused(tmp_path, field, change):
    def edit(content):
        values = content["trials"][0][field]
        values.pop() if change == "shorter" else values.append(values[-1])

    path = edited(tmp_path, edit)
    text = refused(path)
    # Which of two lists is too long is a matter of taste.
    assert field.split("_")[0] in text or "setup_seconds" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("excluded_seconds", -0.5),
        ("excluded_seconds", NAN),
        ("excluded_seconds", math.inf),
        ("peak_memory_bytes", -1),
        ("outcome", "fine"),
        ("outcome", ""),
        ("machine", 1),
        ("machine", -1),
        ("metrics", {"loss": [1.0]}),
        ("metrics", {"loss": "text"}),
        ("metrics", {"loss": None}),
        ("metrics", {"loss": ["text"] * 300}),
        ("notes", "text"),
        ("whole_runs", 1),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_impossible_value_is_refused_by_name(tmp_path, field, value):
    refused(edited(tmp_path, put(field, value)), field)


@pytest.mark.parametrize(
    "edit",
    [
        put("block_seconds", 0.021, 0),
        put("block_device_seconds", 0.021, 0),
        put("block_device_seconds", None, 0),
        put("block_items", 11, 0),
        put("excluded_seconds", 0.5),
        put("source", "def other(): pass"),
        put("title", "Another title."),
        put("outcome", "complete"),
        put("started", "2020-01-01T00:00:00+00:00"),
        put("notes", []),
        put("notes", [3]),
        put("block_steps", True, 1),
        put("block_seconds", 0, 1),
        put("block_items", 0, 1),
        put("peak_memory_bytes", True),
        put("machine", False),
        put("conditions", {"others_cores": "many"}),
        put("conditions", {"others_cores": NAN}),
        lambda content: content["trials"][0]["knobs"].update(n=3),
        lambda content: content["trials"][0]["metrics"]["loss"].reverse(),
        lambda content: content["machines"][0]["cores"].update(value=64),
        lambda content: content["trials"].append(content["trials"][0]),
        lambda content: content["claims"].append({"sentence": "All is well."}),
        lambda content: content.update(comment="looks better"),
        lambda content: content.update(checksum="0" * 64),
        lambda content: content.update(checksum=None),
    ],
)
def test_a_changed_value_is_noticed(tmp_path, edit):
    text = refused(edited(tmp_path, edit))
    assert "checksum" in text or "trials[0]." in text


def test_layout_may_change(tmp_path):
    """A recording is its content: a formatter of JSON does no harm."""
    path = saved(tmp_path)
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(content, indent=8, sort_keys=True), encoding="utf-8")
    assert kit.load(path) == [rich_trial()]


def write_comparison(path, edit):
    trials = [rate_trial(2.0), rate_trial(1.0)]
    recording.write(Recording(trials, [Comparison(trials, ["a", "b"])], []), path)
    content = json.loads(path.read_text("utf-8"))
    edit(content)
    seal(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        None,
        "text",
        [],
        {"trials": [0, 7]},
        {"trials": [0, "1"]},
        {"trials": [0]},
        {"trials": []},
        {"labels": ["a"]},
        {"labels": ["a", "b", "c"]},
        {"labels": None},
        {"labels": []},
        {"of": "no such metric"},
        {"of": None},
    ],
    ids=repr,
)
def test_comparison_that_does_not_fit_is_refused(tmp_path, row):
    """Even with the right checksum."""

    def edit(content):
        whole = content["comparisons"][0]
        content["comparisons"][0] = {**whole, **row} if isinstance(row, dict) else row

    refused(write_comparison(tmp_path / "some.json", edit), "comparisons")


def test_blocks_without_time_are_refused_before_they_are_divided_by(tmp_path):
    def edit(content):
        for row in content["trials"]:
            row["block_seconds"] = [0.0] * len(row["block_seconds"])

    refused(write_comparison(tmp_path / "some.json", edit))


@pytest.mark.parametrize(
    "edit",
    [
        lambda row: row.pop("cores"),
        lambda row: row.update(colour={"value": 1, "reason": "made up"}),
        lambda row: row["cores"].pop("reason"),
        lambda row: row.update(cores=2),
        lambda row: row.update(instruction_sets={"value": 3, "reason": "made up"}),
        lambda row: row.update(accelerators={"value": ["x"], "reason": "made up"}),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_machine_that_is_not_whole_is_refused(tmp_path, edit, sealed):
    path = edited(tmp_path, lambda c: edit(c["machines"][0]), sealed=sealed)
    text = refused(path)
    assert "machine" in text or (not sealed and "checksum" in text)


@pytest.mark.parametrize(
    "edit",
    [
        put("block_seconds", -1.0, 0),
        put("block_seconds", 0.5, 0),
        lambda content: content["trials"][0].pop("source"),
    ],
    ids=["impossible", "changed", "missing"],
)
def test_a_refusal_says_what_to_do_next(tmp_path, edit):
    text = refused(edited(tmp_path, edit)).lower()
    assert any(word in text for word in ("again", "restore", "git", "take")), text


@pytest.mark.parametrize("number", [4, 99, 0, "3", None])
def test_another_format_says_which_are_read_and_what_to_do(tmp_path, number):
    text = refused(edited(tmp_path, lambda c: c.update(format=number)), "format")
    assert f"format is {number!r}" in text and "reads 1, 2, 3" in text
    assert "Update the kit" in text
    assert text.count("ecord it again") == 1


def test_what_is_no_recording_is_told_apart(tmp_path):
    path = tmp_path / "some.ipynb"
    path.write_text(notebook("x = 1"), encoding="utf-8")
    text = refused(path, "format")
    assert "this is not a recording" in text and "kit.save()" in text
    text = refused(tmp_path / "absent.json")
    assert "No such file" in text and "kit.save()" in text


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
    assert json.loads(path.read_text("utf-8"))["format"] == 3
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
