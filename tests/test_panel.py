"""The panel: what it accepts, what it shows, what its buttons and its calls do."""

import functools
import inspect
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import ipywidgets as widgets
import numpy
import pytest
import torch
from helpers import (
    THREADS,
    change_everything,
    children,
    reader_state,
    refused,
    wait_until,
)
from panels import HTML, VIEW, WHOLE, Shown, alt_of, rows_of, text_of
from test_ratio import make_machine
from torch.utils.data import DataLoader

import kit
from kit.cells import computing_as_cells
from kit.comparison import Comparison
from kit.experiment import ExperimentError
from kit.figures import format_number
from kit.progress import Progress, take_turn
from kit.trial import Trial
from kit.widgets import View

RANDOM = ("python", "numpy", "torch")


@pytest.fixture(autouse=True)
def alone(tidy, monkeypatch, tmp_path):
    """No recordings nearby, and no way of showing asked for."""
    monkeypatch.chdir(tmp_path)
    for name in ("KIT_STATIC", "KIT_BLOCKING"):
        monkeypatch.delenv(name, raising=False)


def nap(*, pause=1):
    """Sleep for a while."""
    while True:
        time.sleep(0.001 * pause)
        yield 1


def nap_twice(*, pause=1, times=2):
    """Sleep twice for a while."""
    while True:
        time.sleep(0.001 * pause * times)
        yield times


def short(*, pause=1):
    """Sleep three times and end."""
    for _ in range(4):
        time.sleep(0.001 * pause)
        yield 1, {"loss": random.random() + pause}


@pytest.fixture
def show(monkeypatch):
    """Show panels; whatever still runs is stopped at the end."""
    shown = []

    def show_panel(panel):
        shown.append(Shown(panel, monkeypatch))
        return shown[-1]

    yield show_panel
    for one in shown:
        one.panel.stop()
    wait_until(lambda: "kit panel" not in [t.name for t in threading.enumerate()], 20)


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that becomes a picture."""
    made, to_html = [], kit.figures.to_html

    def keep(figure, alt):
        made.append(figure)
        return to_html(figure, alt)

    monkeypatch.setattr(kit.figures, "to_html", keep)
    return made


def explore(experiment=nap, /, *, seconds=0.05, **more):
    return kit.explore(experiment, seconds=seconds, **more)


def say(value):
    return format_number(value)


def run_with_interval(panel, **choices):
    """Run until there are two blocks: on a busy machine there may be only one."""
    for _ in range(50):
        trial = panel.run(**choices)
        if len(trial.block_seconds) > 1:
            return trial
    pytest.fail("fifty runs of one block each")


# What it accepts


def test_the_signature_is_the_fixed_one():
    parameters = inspect.signature(kit.explore).parameters
    names = ["experiment", "of", "seconds", "within", "on", "model", "choices"]
    assert list(parameters) == names
    assert parameters["of"].default == "items_per_second"
    assert parameters["seconds"].default == 2.0
    kinds = {parameters[name].kind for name in names[1:-1]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_a_default_outside_the_choices_is_no_error():
    assert explore(pause=[2, 4]).run().knobs["pause"] == 2


def test_a_knob_that_is_not_there_is_refused():
    refused(lambda: explore(speed=[1, 2]), "explore()", "nap", "speed", "pause")
    refused(lambda: explore(speed=3), "explore()", "nap", "speed", "pause")
    only_one = {"nap": nap, "twice": nap_twice}
    refused(lambda: explore(only_one, times=[1, 2]), "explore()", "nap", "times")


def test_a_knob_without_a_value_is_refused():
    def train(*, batch_size):
        yield batch_size

    refused(lambda: explore(train), "explore()", "train", "batch_size")


@pytest.mark.parametrize("empty", [[], range(0)], ids=["list", "range"])
def test_no_choices_at_all_are_refused(empty):
    refused(lambda: explore(pause=empty), "explore()", "pause", "empty")


def test_on_is_refused_while_there_is_only_here():
    refused(lambda: explore(on="cuda", pause=[1, 2]), "explore()", "on='cuda'")


@pytest.mark.parametrize("name", ["on", "model", "seconds", "within"])
def test_a_knob_with_a_reserved_name_is_refused(name):
    scope = {}
    exec(f"def train(*, {name}=1):\n    while True:\n        yield 1", scope)
    refused(lambda: explore(scope["train"]), "explore()", "train", name)


@pytest.mark.parametrize("seconds", [0, -1, True, "2", float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds):
    said = f"seconds={seconds!r}"
    refused(lambda: explore(seconds=seconds, pause=[1, 2]), "explore()", said)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"of": "run_seconds"}, ["run_seconds", "seconds=None"]),
        ({"of": "loss"}, ["loss", "seconds=None"]),
        ({"of": "loss", "seconds": None}, ["loss", "within"]),
        ({"of": "loss", "seconds": None, "within": -1}, ["loss", "within=-1"]),
        ({"of": "setup_seconds", "seconds": None}, ["setup_seconds", "seconds=None"]),
        ({"of": "peak_memory_bytes", "seconds": None}, ["peak_memory_bytes"]),
    ],
)
def test_what_does_not_go_together_is_refused(asked, words):
    refused(lambda: kit.explore(short, pause=[1, 2], **asked), "explore()", *words)


@pytest.mark.parametrize("nothing", [{}, None, 3, nap(), print], ids=repr)
def test_what_is_no_experiment_is_refused(nothing):
    refused(lambda: explore(nothing), "explore()")


def test_a_function_without_a_yield_is_refused_by_its_name():
    def train(*, lr=0.1):
        raise AssertionError("it was called to find out what it is")

    refused(lambda: explore(train), "explore()", "train", "yield n")
    refused(lambda: explore({"mine": train}), "explore()", "mine", "yield n")


@pytest.mark.parametrize("model", [3, "fast", [1, 2]], ids=repr)
def test_a_model_that_cannot_be_called_is_refused(model):
    refused(lambda: explore(pause=[1, 2], model=model), "explore()", "model=")


def test_an_experiment_may_have_a_knob_called_experiment(show):
    def train(*, experiment=1):
        """Train the n-th experiment."""
        while True:
            time.sleep(0.001)
            yield experiment

    try:
        panel = explore(train, experiment=[1, 2])
    except ExperimentError as error:
        assert "explore()" in str(error) and "experiment" in str(error)
        return
    assert panel.run(experiment=2).knobs == {"experiment": 2}
    shown = show(panel)
    shown.run()
    assert panel.trials[-1].knobs == {"experiment": 1}


def test_partials_fix_knobs():
    panel = explore(functools.partial(nap_twice, times=3), pause=[1, 2])
    assert panel.run(pause=2).knobs == {"pause": 2, "times": 3}
    fixed = functools.partial(nap, pause=2)
    refused(lambda: explore(fixed, pause=[1, 2]), "explore()", "pause", "partial")


def test_a_tuple_a_string_and_a_number_are_values_not_choices(show):
    seen = []

    def train(*, shape=(1, 2), mode="RGB", lr=0.1, pause=1):
        seen.append((shape, mode, lr))
        while True:
            time.sleep(0.001)
            yield 1

    panel = explore(train, shape=(3, 4), mode="L", lr=0.5, pause=[1, 2])
    shown = show(panel)
    knobs = [w for w in shown.widgets if any("kit-knob" in c for c in w._dom_classes)]
    assert len(knobs) == 1
    shown.run()
    assert set(seen) == {((3, 4), "L", 0.5)}
    assert panel.trials[0].knobs["shape"] == (3, 4)


def test_without_lists_there_is_one_thing_to_run(show):
    panel = explore(nap, pause=3)
    shown = show(panel)
    assert shown.find("kit-run-all").disabled
    shown.run()
    assert [trial.knobs for trial in panel.trials] == [{"pause": 3}]
    assert say(panel.trials[0].items_per_second) in shown.alt
    refused(panel.run_all, "one variant only", "a list")


# Controls


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 4], widgets.ToggleButtons),
        (["sgd", "adam"], widgets.ToggleButtons),
        ([False, True], widgets.ToggleButtons),
        ([None, "relu"], widgets.ToggleButtons),
        (list(range(1, 33)), widgets.SelectionSlider),
        ([2**n for n in range(12)], widgets.SelectionSlider),
        ([0.1 * n for n in range(20)], widgets.SelectionSlider),
        ([f"a rather long name of a model, number {n}" for n in range(3)], None),
        ([*"abcdefghijklmnop"], None),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, "auto"], None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_control_suits_the_choices(show, values, kind):
    def train(*, knob=values[0]):
        yield 1

    control = show(explore(train, knob=values)).knob("knob")
    assert isinstance(control, kind or widgets.Dropdown)
    assert [number for _, number in control.options] == [*range(len(values))]
    assert control.value == 0


def test_several_experiments_are_a_choice(show):
    panel = explore({"plain": nap, "twice": nap_twice}, pause=[1, 2])
    shown = show(panel)
    control = shown.knob("experiment")
    assert [name for name, _ in control.options] == ["plain", "twice"]
    control.value = 1
    shown.run()
    assert panel.trials[0].experiment == "twice"
    assert panel.trials[0].knobs == {"pause": 1, "times": 2}
    assert "twice" in shown.alt and "plain" not in shown.alt


def test_controls_start_at_the_default_else_at_the_first(show):
    def train(*, workers=2, lr):
        yield 1

    shown = show(explore(train, workers=[0, 1, 2], lr=[0.3, 0.1]))
    assert shown.knob("workers").value == 2 and shown.knob("workers").label == "2"
    assert shown.knob("lr").label == "0.3"


def test_a_range_is_choices(show):
    control = show(explore(pause=range(1, 4))).knob("pause")
    assert [name for name, _ in control.options] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "values",
    [
        [torch.tensor([1, 2]), torch.tensor([3, 4])],
        [numpy.array([1, 2]), numpy.array([3, 4])],
        [{"a": 1}, {"b": 2}],
        [torch.nn.ReLU, torch.nn.GELU],
        [{1}, {2}],
    ],
    ids=["tensors", "arrays", "dicts", "classes", "sets"],
)
def test_values_of_any_kind_can_be_chosen(show, values):
    def train(*, knob=values[1]):
        while True:
            time.sleep(0.001)
            yield 1

    panel = explore(train, knob=values)
    shown = show(panel)
    control = shown.knob("knob")
    assert control.index == 1
    control.index = 0
    shown.run()
    control.index = 1
    shown.run()
    pairs = zip(panel.trials, values, strict=True)
    assert all(trial.knobs["knob"] is value for trial, value in pairs)
    assert len(shown.history) == 2


def test_a_choice_that_comes_twice_is_refused_or_can_be_run(show, smoke):
    try:
        panel = explore(pause=[1, 2, 1])
    except ExperimentError as error:
        assert "explore()" in str(error) and "pause" in str(error)
        return
    shown = show(panel)
    shown.run()
    shown.run("run-all")
    assert "failed" not in shown.status


def test_turning_a_control_never_starts_a_run(show):
    started = []

    def train(*, pause=1, size=1):
        started.append(pause)
        yield 1

    shown = show(explore(train, pause=[1, 2], size=list(range(1, 50))))
    for name, number in [("pause", 1), ("size", 6), ("size", 48), ("pause", 0)]:
        shown.knob(name).value = number
    time.sleep(0.15)
    assert not started and shown.is_idle and not shown.history


def test_the_run_has_the_knobs_as_they_stood_when_it_was_pressed(show):
    shown = show(explore(pause=[1, 2], seconds=1.0))
    shown.knob("pause").value = 1
    shown.press("run")
    wait_until(lambda: not shown.find("kit-stop").disabled)
    shown.knob("pause").value = 0
    wait_until(lambda: shown.is_idle and shown.history)
    assert shown.panel.trials[0].knobs == {"pause": 2}


# From code


def test_run_returns_a_trial():
    panel = explore(pause=[1, 2, 4])
    trial = panel.run(pause=4)
    assert isinstance(trial, Trial)
    assert trial.knobs == {"pause": 4} and trial.outcome in WHOLE
    assert panel.run().knobs == {"pause": 1}, "what is left out stays at its start"
    assert panel.trials[0] is trial and len(panel.trials) == 2


def test_run_refuses_what_cannot_be_chosen():
    panel = explore(nap_twice, pause=[1, 2], times=3)
    before = repr(panel.trials)
    refused(lambda: panel.run(pause=3), "pause=3", "1, 2", "explore(pause=")
    refused(lambda: panel.run(times=2), "times=2", "explore(times=")
    refused(lambda: panel.run(speed=2), "speed=2", "pause")
    assert repr(panel.trials) == before
    several = explore({"a": nap, "b": nap}, pause=[1, 2])
    refused(lambda: several.run(experiment="c"), "experiment='c'", "'a', 'b'")
    assert several.run(experiment="b", pause=2).experiment == "b"


def same_but_for_timing(one, other):
    """Whether two trials are of the same thing, measured in the same way."""
    names = ("experiment", "title", "knobs", "machine", "source", "whole_runs", "notes")
    ours, theirs = ([getattr(t, name) for name in names] for t in (one, other))
    assert ours == theirs
    assert list(one.metrics) == list(other.metrics)
    assert len(one.setup_seconds) == len(other.setup_seconds)
    return True


def test_run_measures_what_a_cell_measures():
    panel = explore(nap_twice, pause=[1, 2], times=3)
    cell = kit.measure(nap_twice, seconds=0.05, pause=2, times=3)
    assert same_but_for_timing(panel.run(pause=2), cell)


def test_whole_runs_have_the_seeds_that_a_cell_gives_them():
    trial = kit.explore(short, seconds=None, pause=[1, 2]).run(pause=2)
    cell = kit.measure(short, seconds=None, pause=2, repeats=len(trial.block_seconds))
    assert same_but_for_timing(trial, cell)
    assert trial.metrics == cell.metrics


def test_run_all_compares_as_a_cell_compares(smoke):
    experiments = {"plain": nap, "twice": nap_twice}
    panel = explore(experiments, pause=[1, 3])
    made = panel.run_all()
    cell = kit.compare(experiments, pause=[1, 3], seconds=1)
    assert isinstance(made, Comparison)
    assert made.labels == cell.labels
    assert list(made.ratios) == list(cell.ratios)
    pairs = zip(made.trials, cell.trials, strict=True)
    assert all(one.knobs == other.knobs for one, other in pairs)
    assert made.baseline.knobs == {"pause": 1}
    assert panel.trials == made.trials


@pytest.mark.parametrize("of", ["run_seconds", "loss"])
def test_run_all_compares_other_quantities(of, show):
    within = 0.5 if of == "loss" else None
    panel = kit.explore(short, of=of, seconds=None, within=within, pause=[1, 8])
    made = panel.run_all()
    cell = kit.compare(short, of=of, seconds=None, within=within, pause=[1, 8])
    assert (made.of, made.within, made.labels) == (cell.of, cell.within, cell.labels)
    assert [len(t.block_seconds) for t in made.trials] == [
        len(t.block_seconds) for t in cell.trials
    ]
    if of == "loss":
        assert [t.metrics for t in made.trials] == [t.metrics for t in cell.trials]
    assert made.ratio.value > 1.5
    alt = show(panel).alt
    assert ("loss" if of == "loss" else "seconds per run") in alt


def test_setup_and_memory_can_be_looked_at(show):
    def train(*, size=1):
        kept = bytearray(20_000_000 * size)
        time.sleep(0.02 * size)
        while True:
            yield len(kept)

    for of, unit in [("setup_seconds", "set-up"), ("peak_memory_bytes", "memory")]:
        panel = explore(train, of=of, size=[1, 4])
        shown = show(panel)
        shown.run()
        assert unit in shown.alt
        (row,) = shown.history
        assert row[1] == "1" and row[2] not in ("", "–", "unknown")


def test_trials_are_in_order_and_clear_forgets_them(show):
    panel = explore(pause=[1, 2, 4])
    shown = show(panel)
    first, second = panel.run(pause=4), panel.run(pause=1)
    shown.run()
    assert panel.trials[:2] == [first, second] and len(panel.trials) == 3
    assert shown.alt and shown.history
    shown.press("clear")
    assert panel.trials == []
    assert shown.alt is None and not shown.history
    pages = [data.get(HTML, "") for data in shown.outputs]
    assert not any(say(first.items_per_second) in page for page in pages)
    assert panel.run(pause=2) is panel.trials[0]
    assert len(shown.history) == 1


def test_the_repr_is_constant(smoke):
    panel = explore(pause=[1, 2])
    before = repr(panel)
    assert "nap" in before and "pause" in before
    panel.run()
    panel.run_all()
    assert repr(panel) == before == repr(explore(pause=[1, 2]))
    panel.clear()
    assert repr(panel) == before and " at 0x" not in before


def test_stop_and_clear_with_nothing_to_do():
    panel = explore(pause=[1, 2])
    for _ in range(2):
        panel.stop()
        panel.clear()
    assert panel.trials == []


def test_a_stop_before_a_run_does_not_stop_it():
    panel = explore(pause=[1, 2])
    panel.stop()
    assert panel.run().outcome in WHOLE


# Run, Stop, progress


def test_run_shows_progress_and_then_the_result(show):
    shown = show(explore(pause=[1, 2], seconds=1.0))
    assert "Ready" in shown.status and shown.is_idle
    assert shown.alt is None and "press Run" in text_of(shown.html("picture"))
    shown.press("run")
    wait_until(lambda: "nap(pause=1)" in shown.status)
    assert not shown.is_idle and shown.find("kit-clear").disabled
    wait_until(lambda: re.search(r"\d+ ?%.*items/s", shown.status))
    assert 0 < shown.find("kit-progress").value <= 1
    wait_until(lambda: shown.is_idle and shown.history)
    wait_until(lambda: "Ready" in shown.status)
    assert say(shown.panel.trials[0].items_per_second) in shown.alt
    assert shown.find("kit-progress").value == 0


def test_nothing_is_shown_while_a_progress_is_hushed(show):
    shown = show(explore(pause=[1, 2], seconds=20.0))
    shown.press("run")
    wait_until(lambda: "nap(pause=1)" in shown.status)
    shown.panel.progress.hushed = True
    time.sleep(0.5)
    before = shown.status
    time.sleep(1.5)
    assert shown.status == before
    shown.panel.progress.hushed = False
    wait_until(lambda: shown.status != before)
    shown.press("stop")


def test_two_clicks_are_one_run(show):
    shown = show(explore(pause=[1, 2], seconds=1.0))
    shown.press("run")
    shown.press("run")
    shown.press("run-all")
    wait_until(lambda: shown.is_idle and shown.history)
    time.sleep(0.1)
    assert len(shown.panel.trials) == 1


def test_run_all_shows_partial_pictures_and_the_ratio(show):
    shown = show(explore(pause=[1, 4], seconds=0.5))
    seen = set()
    shown.press("run-all")
    wait_until(
        lambda: seen.add(shown.alt) or (shown.is_idle and len(shown.compared) == 2), 20
    )
    wait_until(lambda: "Ready" in shown.status)
    partial = [alt for alt in seen if alt and "So far" in alt]
    assert partial, "a comparison shows what it has so far"
    assert [row[0] for row in shown.compared] == ["pause=1", "pause=4"]
    assert shown.compared[0][-1] == "baseline" and not shown.history
    assert re.search("pause=4 .*×", text_of(shown.html("words")))
    shown.run()
    assert [row[1] for row in shown.history] == ["1", "4", "1"]
    assert "baseline" in shown.history[2][-1] and "×" in shown.history[1][-1]


def test_stop_between_steps_keeps_what_was_measured(show):
    shown = show(explore(pause=[1, 2], seconds=60))
    shown.press("run")
    wait_until(lambda: "%" in shown.status)
    begun = time.monotonic()
    shown.press("stop")
    wait_until(lambda: shown.is_idle and shown.history)
    assert time.monotonic() - begun < 2
    (trial,) = shown.panel.trials
    assert trial.outcome == "stopped" and trial.block_seconds
    assert "stopped" in shown.history[0][-1]
    assert say(trial.items_per_second) in shown.history[0]


def test_stop_says_that_it_waits_for_the_step(show):
    gate = threading.Event()

    def train():
        while True:
            gate.wait(10)
            yield 1

    shown = show(explore(train))
    shown.press("run")
    wait_until(lambda: "setting up" in shown.status)
    shown.press("stop")
    wait_until(lambda: "stopping" in shown.status)
    gate.set()
    wait_until(lambda: shown.is_idle and shown.history)
    assert shown.panel.trials[0].outcome == "stopped"


def test_stop_in_setup_leaves_the_earlier_result_in_the_picture(show):
    gate, slow = threading.Event(), []

    def train():
        if slow:
            gate.wait(10)
        while True:
            time.sleep(0.001)
            yield 1

    shown = show(explore(train))
    shown.run()
    good = shown.panel.trials[0]
    slow.append(True)
    shown.press("run")
    wait_until(lambda: "setting up" in shown.status)
    shown.press("stop")
    gate.set()
    wait_until(lambda: shown.is_idle and len(shown.history) == 2)
    assert not shown.panel.trials[1].block_seconds
    assert "stopped" in shown.history[0][-1]
    assert "unknown" not in text_of(shown.html("words")) + shown.alt
    assert say(good.items_per_second) in shown.alt, "nothing better was measured"


def test_stop_from_code_while_code_runs(show):
    panel = explore(pause=[1, 2], seconds=60)
    shown = show(panel)
    threading.Timer(0.3, panel.stop).start()
    trial = panel.run(pause=2)
    assert trial.outcome == "stopped"
    wait_until(lambda: shown.is_idle)
    threading.Timer(0.3, panel.stop).start()
    made = panel.run_all()
    assert {t.outcome for t in made.trials} == {"stopped"}
    assert made.ratio.verdict == "cannot tell"


class Items:
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("steps", [3, 200], ids=["warming up", "measuring"])
def test_stop_leaves_no_worker(show, steps):
    done = []

    def train(*, num_workers=2):
        while True:
            for batch in DataLoader(Items(), batch_size=8, num_workers=num_workers):
                time.sleep(0.001)
                done.append(True)
                yield len(batch)

    shown = show(explore(train, seconds=60))
    shown.press("run")
    wait_until(lambda: len(done) >= steps and children(), 20)
    shown.press("stop")
    wait_until(lambda: shown.is_idle and shown.history)
    wait_until(lambda: not children(), 5)
    assert "stopped" in shown.history[0][-1]


# One measurement at a time


class Holder(threading.Thread):
    """Measures something in a thread of its own, until it is told to end."""

    def __init__(self, title):
        super().__init__(daemon=True)
        self.title, self.has_turn, self.let_go = title, threading.Event(), None
        self.let_go = threading.Event()
        self.start()
        assert self.has_turn.wait(10)

    def run(self):
        with take_turn(Progress(self.title)):
            self.has_turn.set()
            self.let_go.wait(20)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.let_go.set()
        self.join(10)


def test_a_run_waits_for_another_measurement_and_says_so(show):
    shown = show(explore(pause=[1, 2]))
    with Holder("measuring train(lr=0.1)"):
        shown.press("run")
        wait_until(lambda: "waiting" in shown.status)
        assert "train(lr=0.1)" in shown.status
        time.sleep(0.1)
        assert not shown.panel.trials
    wait_until(lambda: shown.is_idle and shown.history)
    assert shown.panel.trials[0].outcome in WHOLE


def test_a_waiting_run_can_be_stopped(show):
    shown = show(explore(pause=[1, 2]))
    shown.run()
    good = shown.panel.trials[0]
    with Holder("measuring train(lr=0.1)"):
        shown.press("run")
        wait_until(lambda: "waiting" in shown.status)
        shown.press("stop")
        wait_until(lambda: shown.is_idle and len(shown.history) == 2)
    assert "stopped" in shown.history[0][-1]
    assert say(good.items_per_second) in shown.alt
    shown.run()
    assert shown.panel.trials[-1].outcome in WHOLE


class Gate:
    """An experiment that waits until it is let go, once it has begun."""

    def __init__(self):
        self.begun, self.let_go = threading.Event(), threading.Event()

    def hold(self, *, pause=1):
        self.begun.set()
        self.let_go.wait(20)
        yield from nap(pause=pause)


def test_two_panels_take_turns(show):
    gate = Gate()
    first, second = show(explore(gate.hold, pause=[1, 2])), show(explore(nap_twice))
    first.press("run")
    assert gate.begun.wait(10)
    second.press("run")
    wait_until(lambda: "waiting" in second.status and "hold(" in second.status)
    assert not first.history and not second.panel.trials
    gate.let_go.set()
    wait_until(lambda: first.is_idle and first.history)
    wait_until(lambda: second.is_idle and second.history)
    outcomes = {shown.panel.trials[0].outcome for shown in (first, second)}
    assert outcomes <= set(WHOLE), "who waits disturbs nobody"


def test_code_waits_for_the_run_of_a_button(show):
    gate = Gate()
    panel = explore(gate.hold, pause=[1, 2])
    shown = show(panel)
    shown.press("run")
    assert gate.begun.wait(10)
    threading.Timer(0.3, gate.let_go.set).start()
    trial = panel.run(pause=2)
    assert [t.knobs["pause"] for t in panel.trials] == [1, 2]
    assert panel.trials[1] is trial
    assert all(t.outcome in WHOLE for t in panel.trials)


def test_a_cell_waits_for_the_run_of_a_button(show):
    gate = Gate()
    shown = show(explore(gate.hold, pause=[1, 2]))
    shown.press("run")
    assert gate.begun.wait(10)
    threading.Timer(0.3, gate.let_go.set).start()
    trial = kit.measure(nap_twice, seconds=0.05)
    assert len(shown.panel.trials) == 1, "it measured beside the panel"
    assert trial.outcome in WHOLE


def test_a_run_inside_an_experiment_does_not_wait_for_itself():
    inner = explore(pause=[1, 2], seconds=0.02)

    def outer():
        inner.run(pause=2)
        while True:
            time.sleep(0.001)
            yield 1

    done = threading.Thread(target=explore(outer).run, daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
    assert len(inner.trials) == 1


# The caller's state


def look(*, probe=1):
    """Keep what this thread has been set to."""
    look.seen = reader_state()
    look.device = torch.empty(1).device
    look.thread = threading.get_ident()
    while True:
        time.sleep(0.001)
        yield 1


def settings(state):
    """What belongs to a thread: all but the random generators, which start alike."""
    return {name: value for name, value in state.items() if name not in RANDOM}


@pytest.mark.parametrize("way", ["button", "code"])
def test_the_run_sees_the_callers_state_and_leaves_it_as_it_was(show, way):
    change_everything()
    panel = explore(look, probe=[1, 2])
    shown = show(panel)
    before = reader_state()
    shown.run() if way == "button" else panel.run()
    assert settings(look.seen) == settings(before)
    assert reader_state() == before
    assert (look.thread == threading.get_ident()) is (way == "code")


def test_inference_mode_and_the_default_device_are_taken_over(show):
    with torch.inference_mode(), torch.device("meta"):
        panel = explore(look)
        shown = show(panel)
        shown.run()
        assert look.seen["inference"] and look.device.type == "meta"
    assert not torch.is_inference_mode_enabled()


def test_the_random_numbers_of_a_run_are_those_of_a_cell(show):
    drawn = []

    def train():
        drawn.append((random.random(), numpy.random.rand(), float(torch.rand(1))))
        while True:
            time.sleep(0.001)
            yield 1

    kit.measure(train, seconds=0.05)
    shown = show(explore(train))
    before = reader_state()
    shown.run()
    shown.panel.run()
    assert reader_state() == before
    assert len(drawn) == 3 and len(set(drawn)) == 1


def cores_used():
    """How many cores a multiplication keeps busy, by processor time."""
    matrix = torch.rand(384, 384)
    matrix @ matrix
    own, all_threads = time.thread_time(), time.process_time()
    for _ in range(15):
        matrix @ matrix
    return (time.process_time() - all_threads) / (time.thread_time() - own)


@pytest.mark.parametrize("threads", [1, 2])
def test_multiplications_use_as_many_threads_as_in_the_cell(show, threads):
    used = []

    def multiply():
        while True:
            used.append(cores_used())
            yield 1

    torch.set_num_threads(threads)
    shown = show(explore(multiply))
    shown.run()
    used.sort()
    # Other threads of this process work beside it now and then: that adds, only.
    low, middle = used[len(used) // 10], used[len(used) // 2]
    assert low < 1.2 if threads == 1 else middle > 1.3
    assert torch.get_num_threads() == threads
    torch.set_num_threads(THREADS)


# Failing


def failing(where):
    """An experiment that works while `works` is true, and fails in one place else."""

    def train(*, lr=1):
        """Train until it fails."""
        if where == "set-up" and not train.works:
            raise ZeroDivisionError("<b>no</b> & never")
        try:
            for step in range(10**9):
                if where == "step" and step > 5 and not train.works:
                    raise ZeroDivisionError("<b>no</b> & never")
                time.sleep(0.001 * lr**2)
                yield 1
        finally:
            if where == "closing" and not train.works:
                raise ZeroDivisionError("<b>no</b> & never")

    train.works = True
    return train


WHERE = pytest.mark.parametrize("where", ["set-up", "step", "closing"])


@WHERE
def test_a_failing_run_shows_its_error_and_clears_the_old_result(show, where):
    train = failing(where)
    shown = show(explore(train, lr=[1, 2]))
    shown.run()
    shown.knob("lr").value = 1
    shown.run()
    kept, gone = (say(trial.items_per_second) for trial in shown.panel.trials)
    train.works = False
    shown.run()
    said = shown.alert
    assert "ZeroDivisionError" in said and "train(lr=2)" in said
    assert where.split()[0] in said and "<b>no</b> & never" in said
    assert len(said.splitlines()) <= 6
    assert "lr=2:" not in shown.alt and gone not in shown.alt
    assert "lr=1" in shown.alt and kept in shown.alt
    assert "ZeroDivisionError" in shown.history[0][-1]
    # The next one works and takes the error away.
    train.works = True
    shown.run()
    assert "ZeroDivisionError" not in shown.status and "Ready" in shown.status
    assert "lr=2" in shown.alt and len(shown.history) == 4
    assert not shown.alert


@WHERE
def test_an_error_in_the_panel_shows_the_readers_own_line(show, where):
    train = failing(where)
    train.works = False
    shown = show(explore(train, lr=[1, 2]))
    shown.run()
    assert "in train" in shown.status and "raise ZeroDivisionError(" in shown.status
    assert "above" not in shown.alert, "it is below"


@WHERE
def test_a_failing_run_from_code_raises_with_its_cause(where):
    train = failing(where)
    panel = explore(train, lr=[1, 2])
    train.works = False
    with pytest.raises(ExperimentError, match="ZeroDivisionError") as caught:
        panel.run(lr=2)
    assert "train(lr=2)" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 6
    chain, error = [], caught.value
    while error is not None:
        chain.append(type(error))
        error = error.__cause__ or error.__context__
    assert ZeroDivisionError in chain, "the traceback shows the reader's own line"
    assert panel.trials == []
    train.works = True
    assert panel.run(lr=2).outcome in WHOLE


def test_run_all_with_a_failing_choice(show, smoke):
    def train(*, lr=1):
        if lr == 2:
            raise ZeroDivisionError("never")
        while True:
            time.sleep(0.001)
            yield 1

    shown = show(explore(train, lr=[1, 2]))
    shown.run()
    shown.press("run-all")
    wait_until(lambda: "ZeroDivisionError" in shown.status and shown.is_idle)
    assert "train(lr=2)" in shown.status
    assert "ZeroDivisionError" in shown.history[0][-1]
    with pytest.raises(ExperimentError, match="ZeroDivisionError"):
        shown.panel.run_all()
    assert shown.panel.run(lr=1).outcome in WHOLE


def test_an_error_gives_the_turn_back(show):
    train = failing("step")
    train.works = False
    shown = show(explore(train))
    shown.run()
    with pytest.raises(ExperimentError):
        shown.panel.run()
    trial = []
    thread = threading.Thread(
        target=lambda: trial.append(kit.measure(nap, seconds=0.05)), daemon=True
    )
    thread.start()
    thread.join(10)
    assert trial and trial[0].outcome in WHOLE


@pytest.mark.parametrize("end", [SystemExit, GeneratorExit, StopIteration])
def test_an_experiment_that_leaves_in_an_odd_way_does_not_block_the_panel(show, end):
    odd = [True]

    def train():
        if odd:
            raise end("odd")
        while True:
            time.sleep(0.001)
            yield 1

    shown = show(explore(train))
    shown.press("run")
    wait_until(lambda: "kit panel" not in [t.name for t in threading.enumerate()])
    wait_until(lambda: shown.is_idle)
    odd.clear()
    shown.press("run")
    wait_until(lambda: shown.is_idle and shown.panel.trials)
    assert shown.panel.trials[-1].outcome in WHOLE


def test_a_model_that_fails_is_an_error_before_anything_is_measured():
    def model(pause):
        return 1 / (pause - 2)

    words = "explore()", "model(", "pause=2", "ZeroDivisionError"
    refused(lambda: explore(pause=[1, 2, 4], model=model), *words)


def test_a_model_need_not_know_every_choice_but_one(show):
    known = {1: 1000.25}
    alt = show(explore(pause=[1, 2, 4], model=lambda pause: known[pause])).alt
    assert say(1000.25) in alt
    unknown = {}
    refused(
        lambda: explore(pause=[1, 2], model=lambda pause: unknown[pause]), "KeyError"
    )


# Blocking mode


def test_in_blocking_mode_the_handler_measures_and_shows_progress(show, monkeypatch):
    monkeypatch.setenv("KIT_BLOCKING", "1")
    shown = show(explore(look, seconds=0.3))
    seen = []
    shown.find("kit-status").observe(lambda change: seen.append(change.new), "value")
    before = reader_state()
    shown.press("run")
    assert len(shown.panel.trials) == 1, "the handler returned before the result"
    assert look.thread == threading.get_ident()
    assert sum("%" in text for text in seen) >= 3
    assert shown.is_idle and shown.alt and len(shown.history) == 1
    assert reader_state() == before


def test_in_blocking_mode_an_interrupt_is_a_stop(show, monkeypatch):
    monkeypatch.setenv("KIT_BLOCKING", "1")
    ended, interrupts = [], [True]

    def train():
        try:
            for step in range(10**9):
                time.sleep(0.001)
                if step > 20 and interrupts:
                    raise KeyboardInterrupt
                yield 1
        finally:
            ended.append(True)

    shown = show(explore(train, seconds=0.2))
    shown.press("run")
    assert ended and shown.is_idle and "Ready" in shown.status
    interrupts.clear()
    shown.press("run")
    assert shown.panel.trials[-1].outcome in WHOLE


def test_in_blocking_mode_errors_are_shown_too(show, monkeypatch):
    monkeypatch.setenv("KIT_BLOCKING", "1")
    train = failing("step")
    train.works = False
    shown = show(explore(train))
    shown.press("run")
    assert "ZeroDivisionError" in shown.status and shown.is_idle


# History


def test_the_history_is_newest_first_with_intervals_and_outcomes(show):
    panel = explore(pause=[1, 2, 4])
    shown = show(panel)
    trials = [panel.run(pause=pause) for pause in (4, 1, 2)]
    assert [row[0] for row in shown.history] == ["3", "2", "1"]
    assert [row[1] for row in shown.history] == ["2", "1", "4"]
    for trial, row in zip(reversed(trials), shown.history, strict=True):
        low, high = trial.interval
        assert row[2] == say(trial.items_per_second)
        # A single block, as on a busy machine, has no interval.
        known = low == low
        assert row[3] == (f"[{say(low)}, {say(high)}]" if known else "")
        assert row[4] in ("", "not settled"), "an ordinary run needs no remark"


def test_the_history_says_what_was_odd_about_a_run(show):
    shown = show(explore(pause=[1, 2], seconds=30))
    threading.Timer(0.3, shown.panel.stop).start()
    shown.panel.run()
    assert shown.history[0][-1] == "stopped"


# Pictures


def test_few_choices_are_bars_and_numbers_are_lines(show):
    for values, kind in [
        ([1, 2], "Bars"),
        ([1, 2, 4], "over pause"),
        ([4, 2, 1], "over pause"),
        ([1, 4, 2], "Bars"),
    ]:
        panel = explore(pause=values)
        trial = panel.run()
        alt = show(panel).alt
        assert kind in alt and ("over pause" in alt) is (kind == "over pause")
        assert say(trial.items_per_second) in alt


def test_lines_that_nobody_could_tell_apart_become_bars(show):
    def rest(*, pause=1, way="0"):
        """Sleep for a moment."""
        while True:
            time.sleep(0.001 * pause)
            yield 1

    ways = [str(number) for number in range(4)]
    panel = explore(rest, pause=[1, 2, 4], way=ways, model=lambda pause: 900 / pause)
    shown = show(panel)
    for way in ways[:3]:  # three lines, and the predictions of each
        panel.run(way=way)
    assert "over pause" in shown.alt
    panel.run(way=ways[3])
    assert "Bars" in shown.alt and "Predicted: " in shown.alt
    assert "over pause" not in shown.alt


def test_the_alt_text_holds_title_values_and_intervals(show):
    panel = explore(pause=[1, 8])
    shown = show(panel)
    trials = [run_with_interval(panel, pause=pause) for pause in (1, 8)]
    alt = shown.alt
    assert alt and "items per second" in alt
    for trial in trials:
        low, high = trial.interval
        assert say(trial.items_per_second) in alt
        assert say(low) in alt and say(high) in alt
    assert f"pause=8: {say(trials[1].items_per_second)} items per second" in alt


def test_the_picture_shows_the_newest_result_of_each_point(show):
    panel = explore(pause=[1, 8])
    shown = show(panel)
    old, new = panel.run(), panel.run()
    while say(old.items_per_second) == say(new.items_per_second):
        old, new = new, panel.run()
    assert say(new.items_per_second) in shown.alt
    rate = say(old.items_per_second)
    assert not re.search(rf"pause=1: {re.escape(rate)}\b", shown.alt)


def test_memory_is_told_in_megabytes(show):
    def fill(*, megabytes=4):
        kept = bytearray(megabytes * 2**20)
        while True:
            time.sleep(0.001)
            yield len(kept)

    panel = kit.explore(fill, of="peak_memory_bytes", seconds=0.05, megabytes=[4, 64])
    shown = show(panel)
    panel.run(megabytes=64)
    assert re.search(r"megabytes=64: \d+(\.\d+)? MB of peak memory", shown.alt)


def test_a_model_gets_the_choices_that_it_names(show):
    asked = []

    def model(pause):
        asked.append(pause)
        return 1000.0 / pause + 0.5

    panel = explore(nap_twice, pause=[1, 2, 4], times=[1, 2], model=model)
    alt = show(panel).alt
    assert alt, "a prediction is drawn before anything is measured"
    assert set(asked) == {1, 2, 4}
    assert "predicted" in alt.lower() and say(250.5) in alt
    trial = panel.run(pause=2)
    alt = show(panel).alt
    assert say(250.5) in alt and say(trial.items_per_second) in alt


def test_a_model_is_drawn_beside_bars_too(show):
    def model(kind, size):
        return {"a": 100.25, "b": 200.25}[kind] * size

    def train(*, kind="a", size=1, other=0):
        while True:
            time.sleep(0.001)
            yield 1

    panel = explore(train, kind=["a", "b"], size=[1, 3], other=[0, 1], model=model)
    alt = show(panel).alt
    assert "predicted" in alt.lower() and say(100.25) in alt and say(600.75) in alt


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: 77.25, 77.25),
        (functools.partial(lambda pause, *, rate: rate * pause, rate=100.25), 100.25),
    ],
    ids=["nothing", "partial"],
)
def test_models_of_other_shapes(show, model, expected):
    alt = show(explore(pause=[1, 2, 4], model=model)).alt
    assert "predicted" in alt.lower() and say(expected) in alt


# Faults that were found once


def test_runs_one_after_another_have_no_fastest(show):
    shown = show(explore(pause=[1, 8]))
    for pause in (8, 1):
        shown.panel.run(pause=pause)
    said = f"{shown.alt} {text_of(shown.html('words'))}".lower()
    assert "measured one after another" in said
    assert not re.search(r"\b(fastest|slowest|best|least|most)\b", said)


def test_choices_that_look_alike_keep_results_of_their_own(show):
    def train(*, way):
        while True:
            time.sleep(way())
            yield 1

    panel = explore(train, way=[lambda: 0.001, lambda: 0.004])
    shown = show(panel)
    shown.run()
    shown.knob("way").value = 1
    shown.run()
    for trial in panel.trials:
        assert say(trial.items_per_second) in shown.alt
    assert len({row[1] for row in shown.history}) == 2


def test_a_result_is_drawn_once_for_the_screen_and_for_the_copy(show, drawn):
    shown = show(explore(pause=[1, 2]))
    drawn.clear()
    shown.run()
    assert len(drawn) == 1 and alt_of(shown.stored) == shown.alt


def test_the_last_word_is_the_result_even_if_progress_is_slow(show, monkeypatch):
    shown, told = show(explore(pause=[1, 2])), View.show_progress

    def tell_slowly(view, text, fraction):
        time.sleep(0.4)
        told(view, text, fraction)

    monkeypatch.setattr(View, "show_progress", tell_slowly)
    shown.run()
    time.sleep(0.5)
    assert "Ready" in shown.status and shown.find("kit-progress").value == 0


def test_a_panel_that_does_not_run_watches_nothing(show, monkeypatch):
    def never(*_):
        raise AssertionError("nothing runs")

    shell = Shell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shown = show(explore(pause=[1, 2]))
    assert not shell.listeners
    shown.run()
    assert shell.seen == {"pre_run_cell"} and not shell.listeners
    monkeypatch.setattr("kit.state.capture", never)
    shown.panel.clear()


def test_a_cell_that_begins_before_the_thread_does_is_noticed(monkeypatch):
    shell = Shell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    begun = []
    place = computing_as_cells(begun.append)
    ((_, begin),) = shell.listeners
    begin("a cell")
    with place:
        assert begun == ["a cell"]
    assert not shell.listeners


class Shell:
    """The part of IPython's shell that tells when cells run."""

    def __init__(self):
        self.events, self.listeners, self.seen = self, [], set()

    def register(self, event, listener):
        self.listeners.append((event, listener))
        self.seen.add(event)

    def unregister(self, event, listener):
        self.listeners.remove((event, listener))


# Recorded elsewhere


@pytest.fixture
def recorded(tmp_path):
    """Record an experiment as another machine would have, for each of the knobs."""

    def record(experiment, *knobs, name="big-gpu", day="2025-03-04"):
        folder = tmp_path / "recordings"
        folder.mkdir(exist_ok=True)
        trials = []
        for chosen in knobs:
            trial = kit.measure(experiment, seconds=0.05, **chosen)
            fields = {k: getattr(trial, k) for k in Trial.__dataclass_fields__}
            fields |= {"machine": make_machine(name), "started": f"{day}T10:00:00"}
            trials.append(Trial(**fields))
        kit.save(trials, folder / f"04_loading__{name}__{day}.json")
        return trials

    return record


@pytest.mark.parametrize("values", [[1, 2], [1, 2, 4]], ids=["bars", "lines"])
def test_recorded_trials_are_drawn_hatched_with_machine_and_date(
    show, recorded, drawn, values
):
    (trial,) = recorded(nap, {"pause": 2})
    panel = explore(pause=values)
    shown = show(panel)
    assert "big-gpu" in shown.alt and "2025-03-04" in shown.alt
    assert say(trial.items_per_second) in shown.alt
    own = panel.run(pause=2)
    assert "big-gpu" in shown.alt and say(own.items_per_second) in shown.alt
    axes = drawn[-1].axes[0]
    if len(values) == 2:
        hatches = [bar.get_hatch() for bar in axes.patches]
        assert len(hatches) == 2 and not hatches[0] and hatches[1]
    else:
        markers = {line.get_label(): line for line in axes.lines}
        (name,) = [name for name in markers if "big-gpu" in str(name)]
        measured = next(n for n in markers if "measured" in str(n))
        faces = [markers[n].get_markerfacecolor() for n in (name, measured)]
        assert faces[0] != faces[1]
    assert panel.trials == [own], "what another machine measured is not among ours"


def test_what_was_recorded_of_other_choices_is_left_out(show, recorded):
    recorded(nap, {"pause": 2}, {"pause": 7})
    alt = show(explore(pause=[1, 2, 4])).alt
    assert "big-gpu" in alt and "7:" not in alt
    assert show(explore(pause=[1, 3])).alt is None


def test_what_was_recorded_with_another_knob_nobody_can_choose_is_left_out(
    show, recorded
):
    def read(*, pause=1, data=("here", 3)):
        """Read from somewhere."""
        while True:
            time.sleep(0.001 * pause)
            yield 1

    (here, _) = recorded(read, {"pause": 2}, {"pause": 1, "data": "far away"})
    alt = show(kit.explore(read, pause=[1, 2], seconds=0.05)).alt
    assert say(here.items_per_second) in alt and alt.count("big-gpu") == 1


def test_an_experiment_that_has_changed_has_no_recordings(show, recorded):
    recorded(nap, {"pause": 1})

    def nap_otherwise(*, pause=1):
        """Sleep for a while longer."""
        while True:
            time.sleep(0.002 * pause)
            yield 1

    nap_otherwise.__name__ = "nap"
    assert show(explore(nap_otherwise, pause=[1, 2])).alt is None
    assert show(explore(pause=[1, 2])).alt


def test_a_broken_recording_does_not_break_the_panel(show, recorded, tmp_path):
    recorded(nap, {"pause": 1})
    (tmp_path / "recordings" / "04_loading__other__2025-01-01.json").write_text("{")
    assert "big-gpu" in show(explore(pause=[1, 2])).alt


# Markup


def test_every_name_is_escaped(show, smoke):
    evil = "<script>alert('&')</script>"

    def train(*, mode=evil):
        while True:
            time.sleep(0.001)
            yield 1

    train.__doc__ = f"Train {evil}."
    panel = explore({evil: train, "b<i>": train}, mode=[evil, "<img src=x>"])
    shown = show(panel)
    panel.run()
    panel.run(experiment="b<i>", mode="<img src=x>")
    panel.run_all()
    train_fails = failing("step")
    train_fails.works = False
    failed = show(explore({evil: train_fails}))
    failed.run()
    for one in (shown, failed):
        texts = [w.value for w in one.widgets if isinstance(w, widgets.HTML)]
        texts.append(one.stored)
        for text in texts:
            assert "<script" not in text
            assert "<img src=x" not in text and "<i>" not in text
            assert "<b>no</b>" not in text
    title = text_of(shown.find("kit-panel").children[0].value)
    assert evil in title and evil in shown.alt


# Stored


def test_what_is_displayed_is_a_widget_and_a_hidden_static_copy(show):
    panel = explore(pause=[1, 8])
    shown = show(panel)
    (view,) = [data for data in shown.outputs if VIEW in data]
    assert view["text/plain"] == repr(panel)
    assert HTML not in view
    assert "<img" not in shown.stored
    trials = [panel.run(pause=pause) for pause in (1, 8)]
    assert alt_of(shown.stored) == shown.alt
    assert rows_of(shown.stored) == shown.history
    for trial in trials:
        assert say(trial.items_per_second) in shown.stored
    # Its class is hidden by a style that lives in the widget, so it comes back with
    # a stored notebook.
    name = re.search(r'class="([\w-]+)"', shown.stored)[1]
    styles = "".join(w.value for w in shown.widgets if isinstance(w, widgets.HTML))
    hides = rf"\.{name}\s*{{\s*display:\s*none"
    assert re.search(hides, styles) and not re.search(hides, shown.stored)


def test_a_panel_shown_twice_is_stored_twice(monkeypatch):
    panel = explore(pause=[1, 8])
    screens = [Shown(panel, monkeypatch) for _ in range(2)]
    panel.run()
    assert [alt_of(screen.stored) is not None for screen in screens] == [True, True]


def test_static_measures_all_choices_and_publishes_no_widget(monkeypatch):
    monkeypatch.setenv("KIT_STATIC", "1")
    panel = explore(pause=[1, 8], seconds=0.2)
    shown = Shown(panel, monkeypatch)
    (data,) = shown.outputs
    assert VIEW not in data
    assert data["text/plain"] == repr(panel)
    assert len(panel.trials) == 2
    alt, rows = alt_of(data[HTML]), rows_of(data[HTML])
    assert alt and [row[0] for row in rows] == ["pause=1", "pause=8"]
    sentence = text_of(re.sub("<img[^>]*>|<table.*?</table>", "", data[HTML]))
    assert "pause=8" in sentence and "×" in sentence
    assert all(say(t.items_per_second) in data[HTML] for t in panel.trials)
    again = Shown(panel, monkeypatch)
    assert again.outputs == shown.outputs, "it was measured before"


def test_static_raises_where_a_choice_fails(monkeypatch):
    """So that a notebook which runs as a test is red."""
    monkeypatch.setenv("KIT_STATIC", "1")

    def train(*, lr=1):
        if lr == 2:
            raise ZeroDivisionError("never")
        while True:
            time.sleep(0.001)
            yield 1

    with pytest.raises(ExperimentError) as caught:
        Shown(explore(train, lr=[1, 2], seconds=0.1), monkeypatch)
    assert "ZeroDivisionError" in str(caught.value)
    assert "train(lr=2)" in str(caught.value)


# Many points


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_many_points_stay_legible(show, smoke, drawn, kind):
    rows = list("abcdef") if kind == "bars" else [1, 2, 4, 8, 16, 32]

    def train(*, row=rows[0], column="u"):
        while True:
            time.sleep(0.0005)
            yield 1

    panel = explore(train, row=rows, column=list("uvwxyz"))
    for row in rows:
        for column in "uvwxyz":
            panel.run(row=row, column=column)
    shown = show(panel)
    assert len(panel.trials) == 36
    assert len(shown.history) <= 12 and shown.history[0][0] == "36"
    assert "36 in all" in text_of(shown.html("words"))
    figure = drawn[-1]
    assert figure.get_figheight() <= 8
    assert len(shown.alt) <= 3000
    assert len(shown.stored) < 200_000
    assert len(figure.axes[0].patches) <= 12
    names = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    sizes = [t.get_fontsize() for t in figure.axes[0].get_yticklabels() if names]
    assert min(sizes) >= 8


@pytest.mark.parametrize("pauses", [[1, 2, 4], [4, 2, 1], "abc"], ids=str)
def test_a_quick_run_of_all_shows_choices_that_were_not_paired(show, smoke, pauses):
    panel = explore(lambda *, pause: nap(), pause=list(pauses))
    made = panel.run_all()
    assert math.isnan(next(iter(made.ratios.values())).value)
    shown = show(panel)
    rows = {row[0]: row for row in shown.compared}
    first, inner, last = (rows[label] for label in made.labels)
    assert first[-1] == "baseline" and last[-1] != "–" and last[2] != "–"
    assert inner[-1] == "cannot tell" and float(inner[1].replace(",", "")) > 0
    assert str(pauses[1]) in shown.alt


def test_the_knob_that_is_drawn_along_is_said(show):
    panel = explore(nap_twice, pause=[1, 2, 4], times=[2, 3])
    for pause in (1, 2):
        for times in (2, 3):
            panel.run(pause=pause, times=times)
    alt = show(panel).alt
    assert "over pause" in alt and "times=2" in alt and "times=3" in alt


# The house


CLICK = """
import sys, threading, time
from pathlib import Path
import pytest
import kit
from panels import Shown

def nap(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        yield 1

def functions_called(do):
    home, seen = str(Path(kit.__file__).parent), set()
    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home):
            seen.add((code.co_filename, code.co_qualname))
    threading.setprofile(note)
    sys.setprofile(note)
    do()
    sys.setprofile(None)
    threading.setprofile(None)
    return {(file, name) for file, name in seen if not name.endswith(">")}

panel = kit.explore(nap, pause=[1, 2], seconds=0.05)
shown = Shown(panel, pytest.MonkeyPatch())
shown.run()  # what is loaded on demand
measuring = functions_called(lambda: repr(kit.measure(nap, seconds=0.05)))
print(*sorted(name for _, name in functions_called(shown.run) - measuring))
"""


def test_a_click_goes_through_few_functions():
    """They are those that somebody has to read who wants to know what it does."""
    folders = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    run = subprocess.run(
        [sys.executable, "-c", CLICK],
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        check=True,
        timeout=60,
        text=True,
    )
    beside = run.stdout.split()
    assert "Panel.begin" in beside and len(beside) <= 60, beside


def test_making_a_panel_needs_no_widgets():
    code = """
import sys, time, kit
def nap(*, pause=1):
    while True:
        time.sleep(0.001); yield 1
panel = kit.explore(nap, pause=[1, 2], seconds=0.05)
assert panel.run(pause=2).items_per_second > 0
assert "ipywidgets" not in sys.modules, "ipywidgets"
assert "matplotlib" not in sys.modules, "matplotlib"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
