"""The panel on the fake clock: what it accepts and shows, what its buttons do."""

import dataclasses
import random
import re
import threading
from functools import partial

import ipywidgets
import pytest
import torch
from front_end import HTML, VIEW, Shown, alt_of, is_running, rows_of, text_of
from helpers import change_everything, reader_state, refused, wait_until
from trials import make_machine

import kit.clock
import kit.measuring.comparison
import kit.recording
from kit.errors import ExperimentError
from kit.measuring.plot import Point, plot_points

TWO = {"pause": [1, 2]}


@pytest.fixture(autouse=True)
def alone(clock, quick, monkeypatch):
    """Short runs, and no way of showing asked for."""
    for name in ("KIT_STATIC", "KIT_BLOCKING"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def show(monkeypatch):
    """Show panels; whatever still runs is stopped at the end."""
    panels = []

    def show_panel(*asked, seconds=0.05, **choices):
        panels.append(kit.explore(*asked, seconds=seconds, **choices))
        return Shown(panels[-1], monkeypatch)

    yield show_panel
    for panel in panels:
        panel.stop()
    wait_until(lambda: not is_running(), 20)


def nap(*, pause=1):
    while True:
        kit.clock.CLOCK.work(0.001 * pause)
        yield 1


def short(*, pause=1):
    for _ in range(4):
        kit.clock.CLOCK.work(0.001 * pause)
        yield 1, {"loss": random.random() + pause}


class Gate:
    """An experiment that waits, or fails, once: in set-up or at a later step."""

    def __init__(self, at=0, error=None):
        self.at, self.error, self.steps, self.starts = at, error, 0, 0
        self.reached, self.open = threading.Event(), threading.Event()

    def train(self, *, pause=1):
        """Wait at a <b>gate</b>."""
        self.starts += 1
        for items in nap(pause=pause):
            self.steps += 1
            if self.steps == self.at + 1:
                if self.error:
                    raise self.error("<b>no</b> & never")
                self.reached.set()
                assert self.open.wait(20)
            yield items


def test_what_cannot_be_explored_or_chosen_is_refused_by_its_name():
    panel = kit.explore({"a": nap, "b": nap}, **TWO)
    trial = panel.run(experiment="b", pause=2)
    assert (trial.experiment, trial.knobs) == ("b", {"pause": 2})
    refused(lambda: panel.run(pause=3), "pause=3", "1, 2", "explore(pause=")
    refused(lambda: panel.run(experiment="c"), "experiment='c'", "'a', 'b'")
    refused(kit.explore(nap).run_all, "one variant only", "a list")
    refused(lambda: kit.explore(nap, on="cuda"), "explore()", "on='cuda'")
    for model in (lambda pause: 1 / (2 - pause), lambda pause: {}[pause]):
        refused(
            partial(kit.explore, nap, predict=model, **TWO), "explore()", "predict("
        )
    assert panel.trials == [trial]


CONTROLS = [([1, 2, 4], "ToggleButtons"), (range(1, 33), "SelectionSlider")]
CONTROLS += [([torch.tensor([1, 2]), torch.tensor([3])], "Dropdown")]
CONTROLS += [([*range(9), lambda: 1, lambda: 2], "Dropdown")]


@pytest.mark.parametrize(("values", "kind"), CONTROLS)
def test_each_choice_has_its_place_on_the_control_that_suits_it(show, values, kind):
    def train(*, knob=values[1]):
        yield from nap()

    shown = show(train, knob=values)
    control = shown.find("knob-knob")
    assert type(control).__name__ == kind and control.value == 1, "the default"
    assert len({name for name, _ in control.options}) == len(values)
    control.value = 0
    shown.run()
    assert shown.panel.trials[0].knobs["knob"] is values[0]


def test_only_a_press_starts_a_run_and_only_one_with_the_knobs_as_they_stood(show):
    gate = Gate()
    shown = show(gate.train, **TWO)
    shown.find("knob-pause").value = 1
    assert not is_running() and gate.starts == 0
    for name in ("run", "run", "run-all"):
        shown.find(name).click()
    shown.find("knob-pause").value = 0
    gate.open.set()
    shown.end()
    assert [trial.knobs for trial in shown.panel.trials] == [{"pause": 2}]


LOSS = {"seconds": None, "of": "loss", "within": 0.5}
ASKED = [(nap, {"seconds": 0.5}, "slower"), (short, LOSS, "more")]


@pytest.mark.parametrize(("experiment", "asked", "verdict"), ASKED)
def test_it_measures_and_compares_as_cells_do(experiment, asked, verdict, monkeypatch):
    monkeypatch.delenv("KIT_QUICK")
    panel, seconds = kit.explore(experiment, **asked, pause=[1, 4]), asked["seconds"]
    runs = {} if seconds else {"repeats": 6}
    ours, made = panel.run(pause=4), panel.run_all()
    cell = kit.measure(experiment, seconds=seconds, **runs, pause=4)
    for name in ("knobs", "outcome", "blocks", "setup_seconds", "metrics"):
        assert getattr(ours, name) == getattr(cell, name), name
    assert ours.outcome == "finished" and len(ours.runs) >= 5
    compared = kit.compare(experiment, **asked, pause=[1, 4])
    assert made.labels == compared.labels and panel.trials == [ours, *made.trials]
    assert made.ratio.verdict == compared.ratio.verdict == verdict
    assert made.ratio.value == pytest.approx(compared.ratio.value)


@pytest.mark.parametrize("way", ["button", "code"])
def test_a_run_computes_as_the_cells_do_and_leaves_their_settings_alone(show, way):
    def look():
        seen.append((torch.empty(1).device.type, reader_state()))
        yield from nap()

    seen, generators = [], {"python", "numpy", "torch"}
    change_everything()
    with torch.inference_mode(), torch.device("meta"):
        shown, before = show(look), reader_state()
        shown.run() if way == "button" else shown.panel.run()
        assert reader_state() == before
        kit.measure(look, seconds=0.05)
    assert seen[0] == seen[1] and seen[0][0] == "meta"
    assert all(seen[0][1][name] == before[name] for name in before.keys() - generators)


@pytest.mark.parametrize("outcome", ["finished", "stopped"])
def test_a_run_tells_how_far_it_is_and_keeps_what_was_measured(show, outcome):
    gate = Gate(at=3)
    shown = show(gate.train, **TWO)
    assert "Ready" in shown.status and shown.is_idle and shown.alt is None
    shown.find("run").click()
    shown.wait(r"train\(pause=1\).*\d%.*items/s")
    assert 0 < shown.html("progress") < 1 and shown.read("clear", "disabled")
    if outcome == "stopped":
        shown.find("stop").click()
        shown.wait("stopping")
    gate.open.set()
    shown.end()
    (trial,) = shown.panel.trials
    assert trial.outcome == outcome and "pause=1: 1,000 items per second" in shown.alt
    assert len(trial.block_seconds) == 1 + (outcome == "finished")
    assert ("stopped" in shown.history[0][-1]) is (outcome == "stopped")
    assert "Ready" in shown.status and shown.html("progress") == 0


FAILURES = [(0, "set-up", SystemExit), (2, "step 3", ZeroDivisionError)]


@pytest.mark.parametrize(("at", "where", "error"), FAILURES)
def test_a_failing_run_says_where_and_clears_its_result(show, at, where, error):
    gate = Gate(at=-1, error=error)
    shown = show(gate.train, pause=[2, 4])
    shown.panel.run(pause=4), shown.run()
    gate.at = gate.steps + at
    shown.run()
    pages = [w.value for w in shown.widgets if isinstance(w, ipywidgets.HTML)]
    pages.append(shown.stored)
    said, _, traceback = shown.html("status").partition("</div>")
    assert 'role="alert"' in said and "raise self.error(" in text_of(traceback)
    said = text_of(said)
    assert error.__name__ in said and "train(pause=2)" in said and where in said
    assert "<b>no</b> & never" in said and len(said.splitlines()) <= 6
    assert error.__name__ in shown.history[0][-1]
    assert "250" in shown.alt and "500" not in shown.alt
    assert not re.search("<b>(gate|no)", "".join(pages))


@pytest.mark.parametrize("later", ["run", "run-all"])
def test_a_failing_comparison_clears_its_result_until_the_next(show, later):
    gate = Gate(at=-1, error=ZeroDivisionError)
    shown = show(gate.train, pause=[2, 4])
    shown.run()
    gate.at = gate.steps
    with pytest.raises(ExperimentError, match="ZeroDivisionError") as caught:
        shown.panel.run_all()
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and shown.alt is None
    assert "ZeroDivisionError" in shown.status
    shown.run(later)
    assert "Ready" in shown.status and "500" in shown.alt, "with the next result"


PICTURES = [
    ([1, 2], "Bars, items per second. pause=1: 1,000 items per second."),
    ([1, 4, 2], "Bars, items per second."),
    ([1, 2, 4], "items per second over pause. pause=1: 1,000 items per second."),
    ([4, 2, 1], r"measured: 1: 1,000 \([\w% ]*1,000 to 1,000\);"),
]


@pytest.mark.parametrize(("pauses", "told"), PICTURES)
def test_few_choices_are_bars_and_ordered_numbers_a_line(show, pauses, told):
    shown = show(nap, pause=pauses, predict=lambda pause: 900 / pause)
    assert "predicted" in shown.alt.lower() and "450" in shown.alt
    shown.panel.run(pause=1)
    assert re.search(told, shown.alt) and ": 900" in shown.alt


def test_the_newest_result_counts_and_single_runs_have_no_best(show):
    speed = [1]

    def train(*, pause=1):
        yield from nap(pause=pause * speed[0])

    shown = show(train, pause=[1, 8])
    for pause, slow in [(8, 1), (1, 1), (1, 2)]:
        speed[0] = slow
        shown.panel.run(pause=pause)
    rows = [" ".join(row[:3]) for row in shown.history]
    assert rows[0] == "3 1 500 [500, 500]" and rows[2] == "1 8 125 [125, 125]"
    assert rows[1:-1] == ["2 1 1,000 [1,000, 1,000]"]
    assert "pause=1: 500" in shown.alt and "1,000" not in shown.alt
    said = f"{shown.alt} {text_of(shown.html('words'))}".lower()
    assert "measured one after another" in said
    assert not re.search(r"\b(fastest|slowest|best|least|most)\b", said)
    shown.find("clear").click()
    assert shown.panel.trials == [] and shown.alt is None and not shown.history
    assert alt_of(shown.stored) is None and not rows_of(shown.stored)


def test_run_all_shows_what_it_has_so_far_then_the_ratio_and_the_runs_before(show):
    shown, seen = show(nap, pause=[1, 4, 8]), []
    assert "3 choices, about 4 s" in shown.status, "2 s for each but the baseline"
    shown.run()
    picture = shown.find("picture")
    picture.observe(lambda change: seen.append(alt_of(change.new)), "value")
    shown.run("run-all")
    compared = rows_of(shown.html("words").partition("Measured so far")[0])
    assert "So far, of 3 choices" in seen[0] and "So far" not in shown.alt
    by_label = {label: (ratio, verdict) for label, _, ratio, *_, verdict in compared}
    assert [*by_label] == ["pause=1", "pause=8", "pause=4"], "both ends first"
    assert by_label["pause=1"][1] == "baseline" and by_label["pause=8"][0] == "0.125"
    assert [row[0] for row in shown.history] == ["1"]


def test_a_stop_leaves_no_rows_without_numbers_and_claims_no_finding(show):
    def train(*, pause=1):
        if pause == 4:
            shown.panel.stop()
        yield from nap(pause=pause)

    shown = show(train, pause=[1, 4, 8])
    shown.run("run-all")
    said = f"{shown.alt} {text_of(shown.html('words'))}"
    assert "nan" not in said and "Not measured: " in said
    assert "pause=8" not in text_of(shown.html("words"))
    assert "pause=1: 1,000 items per second" in shown.alt


def test_what_others_recorded_of_these_choices_stands_beside_ours(show, tmp_path):
    folder = tmp_path / "recordings"
    ours = [kit.measure(nap, seconds=0.05, pause=pause) for pause in (2, 8, 1)]
    elsewhere = {"machine": make_machine("big-gpu"), "started": "2025-03-04T10:00:00"}
    good, other, _ = (dataclasses.replace(trial, **elsewhere) for trial in ours)
    good = dataclasses.replace(good, knobs={"pause": 2, "later": 1})
    early = dataclasses.replace(other, knobs={"pause": 2}, started="2025-01-02")
    kit.save([good, other, *ours], folder / "04_loading__big-gpu__2025-03-04.json")
    kit.save([early], folder / "07_memory__big-gpu__2025-01-02.json")
    (folder / "04_loading__torn__2025-03-04.json").write_text("{")
    for pauses in ([1, 2], [1, 2, 4]):
        shown = show(nap, pause=pauses)
        theirs = r"big-gpu, 2025-03-04: (pause=2|2): 500 \("
        assert len(re.findall(theirs, shown.alt)) == 1
        assert "125" not in shown.alt
        assert shown.panel.trials == [], "what others measured is not among ours"
        shown.panel.run(pause=2)
        assert shown.alt.count("big-gpu") == 1, "others' values are gone"
    points = [Point("", {}, (1, 1, 1), origin=x) for x in ("", "big-gpu")]
    axes = plot_points(points, "T", "1/s").axes[0]
    assert len(axes.patches) == 1 and axes.lines[-1].get_marker() == "D"

    def train(*, pause=1):
        yield from short(pause=pause)

    train.__name__ = "nap"
    assert show(train, **TWO).alt is None, "it has changed since"


def test_a_notebook_keeps_a_copy_that_shows_where_there_is_no_kernel(show, monkeypatch):
    shown = show(nap, pause=[1, 8])
    again = Shown(shown.panel, monkeypatch)
    (view,) = [data for data in shown.outputs if VIEW in data]
    assert view["text/plain"] == repr(shown.panel) == "Panel of nap: pause"
    assert HTML not in view and "<img" not in shown.stored
    shown.run()
    assert alt_of(shown.stored) == shown.alt == alt_of(again.stored)
    assert rows_of(shown.stored) == shown.history
    # A style that lives in the widgets hides the copy: both are gone together.
    name = re.search(r'class="([\w-]+)"', shown.stored)[1]
    pages = [w.value for w in shown.widgets if isinstance(w, ipywidgets.HTML)]
    hides = rf"\.{name}\s*{{\s*display:\s*none"
    assert re.search(hides, "".join(pages)) and not re.search(hides, shown.stored)
    # Where no widget can be shown, all choices are measured and stored.
    monkeypatch.setenv("KIT_STATIC", "1")
    shown = show(nap, pause=[1, 8])
    (page,) = shown.outputs
    assert VIEW not in page and page["text/plain"] == "Panel of nap: pause"
    assert [row[0] for row in rows_of(shown.stored)] == ["pause=1", "pause=8"]
    assert "0.125" in shown.stored and "pause=8: 125" in alt_of(shown.stored)


def grow(*, size=1, depth=1, way="a"):
    while True:
        kit.clock.CLOCK.work(0.001 * size * depth)
        yield 1


MANY = {"way": ["a", "b"], "depth": [1, 2, 3], "size": [1, 2, 4, 8]}


def test_a_notebook_keeps_six_choices_at_most_and_each_changes_one_knob(
    show, monkeypatch
):
    monkeypatch.setenv("KIT_STATIC", "1")
    shown = show(grow, **MANY)
    rows = [row[0] for row in rows_of(shown.stored)]
    base = "way='a', depth=1, size=1"
    changes = {"size=2", "size=4", "depth=2", "depth=3", "way='b'"}
    assert len(rows) == 6 and {*rows} == {base, *changes}
    told = alt_of(shown.stored)
    places = [told.rindex(f"{label}: ") for label in (base, "size=2", "size=4")]
    places += [told.rindex(f"{label}: ") for label in ("depth=2", "depth=3", "way='b'")]
    assert places == sorted(places), "not in the order of the signature"
    assert "is as fast as 'a': 1 × the speed" in told, "the title is no finding"
    assert len(shown.panel.trials) == 6


def test_before_the_first_press_a_panel_shows_the_picture_that_was_stored(
    show, monkeypatch, tmp_path
):
    monkeypatch.setenv("KIT_STATIC", "1")
    stored = show(grow, **MANY)
    trials = stored.panel.trials
    labels = [row[0] for row in rows_of(stored.stored)]
    by_name = {label_of(trial): trial for trial in trials}
    in_order = [by_name[label] for label in labels if label in by_name]
    assert len(in_order) == 6
    made = kit.measuring.comparison.Comparison(trials, [label_of(t) for t in trials])
    kit.save(made, tmp_path / "recordings" / "04_loading__x__2025-03-04.json")
    monkeypatch.delenv("KIT_STATIC")
    live = show(grow, **MANY)
    before, after = alt_of(stored.stored), live.alt
    for label in labels:
        assert f"{label}: " in after.partition("Recorded on")[2]
    assert "Recorded on" in after and before.split(". ")[1] in after, "another title"
    assert live.panel.trials == []


def label_of(trial):
    changed = [
        f"{knob}={value!r}"
        for knob, value in trial.knobs.items()
        if value != {"size": 1, "depth": 1, "way": "a"}[knob]
    ]
    return changed[0] if changed else "way='a', depth=1, size=1"


def test_a_panel_shows_rates_in_the_readers_unit(show):
    shown = show(nap, pause=[1, 4], unit="ms per step", predict=lambda pause: pause)
    assert "Predicted: from 1.00 with pause=1 to 4.00 ms per step" in shown.alt
    shown.panel.run(pause=4)
    assert "pause=4: 4.00 ms per step" in shown.alt
    shown.run("run-all")
    assert "Bars, ms per step" in shown.alt and "pause=4: 4.00" in shown.alt


def test_the_memory_of_one_run_is_not_that_of_loading_libraries(show, monkeypatch):
    monkeypatch.delenv("KIT_QUICK")
    starts = []

    def train(*, size=1):
        starts.append(size)
        yield from nap()

    panel = kit.explore(train, of="peak_memory_bytes", seconds=0.05, size=[1, 2])
    (first, *later) = panel.run(size=2).runs
    assert first.round == -1 and later and len(starts) == len(later) + 1


def test_a_comparison_of_memory_is_drawn_and_not_only_told(show):
    """Its starts have no blocks."""

    def train(*, size=1):
        kept = torch.ones(size, 1_000_000)
        while True:
            yield len(kept)

    shown = show(train, of="peak_memory_bytes", size=[1, 3])
    shown.run("run-all")
    assert "unknown" not in shown.alt
    amount = r"[\d.]+ [kM]?B"
    assert re.search(f"size=1: {amount}.*; size=3: {amount}", shown.alt), shown.alt


def test_a_panel_does_not_wait_to_read_recordings_of_other_experiments(
    show, tmp_path, monkeypatch
):
    def other(*, pause=1):
        while True:
            kit.clock.CLOCK.work(0.001 * pause)
            yield 1

    trial = kit.measure(other, seconds=0.05)
    kit.save(trial, tmp_path / "recordings" / "04_loading__x__2025-03-04.json")
    monkeypatch.setattr(kit.recording, "_read_recording", None)
    assert show(nap, **TWO).alt is None
