"""Faults that readers of the code have found: what each would cost its user."""

import copy
import functools
import gc
import importlib
import math
import random
import re
import sys
import time
import traceback
import weakref

import numpy
import pytest
import torch
from helpers import children, refused
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trials import make_run, make_trial, rate_trial

import kit
from kit import journal, recording
from kit.errors import ExperimentError
from kit.measuring import plan, run as driving
from kit.measuring.comparison import Comparison
from kit.measuring.failures import walk_causes
from kit.measuring.ratio import compare_trials
from kit.progress import Progress
from kit.records import Block

pytestmark = pytest.mark.usefixtures("quick")


def train(batch_size=8, lr=0.1):
    """Train a little: knobs need no star."""
    while True:
        yield batch_size, {"lr": lr}


def test_a_knob_may_be_called_model():
    def look(*, model="small"):
        while True:
            yield len(model)

    assert kit.compare(look, model=["small", "larger"]).labels[1] == "model='larger'"


def test_a_first_functions_ordinary_parameters_are_knobs():
    made = kit.compare(train, batch_size=[8, 16], lr=0.5)
    assert [trial.knobs["batch_size"] for trial in made.trials] == [8, 16]
    assert made.baseline.last_values("lr")[-1] == 0.5
    assert kit.measure(functools.partial(train, 32)).knobs["batch_size"] == 32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: kit.compare(train, lr=[1, 2], repeats=9),
            ["repeats=9", "seconds=4.0"],
        ),
        (lambda: kit.measure(train, repeats=2), ["repeats=2", "seconds=None"]),
        (lambda: kit.compare(train, lr=[1, 2], within=0.5), ["within=0.5", "metric"]),
        (
            lambda: kit.compare(train, lr=[1, 2], of="peak_memory_bytes", patient=True),
            ["patient=True"],
        ),
        (
            lambda: kit.compare(train, lr=numpy.arange(2)),
            ["A ndarray is one value", "lr=[…]"],
        ),
    ],
)
def test_an_argument_that_changes_nothing_is_refused(call, words):
    refused(call, *words)


def test_numpys_numbers_are_numbers():
    def run():
        yield 1
        yield 1

    assert kit.measure(train, seconds=numpy.float32(0.1)).items_per_second > 0
    assert len(kit.measure(run, seconds=None, repeats=numpy.int64(3)).runs) == 3


def test_a_saved_finding_keeps_its_finding(tmp_path):
    path, title = tmp_path / "a.json", "Two are faster."
    slow, fast = rate_trial(1.0), rate_trial(0.5)
    kit.save(Comparison([slow, fast], ["one", "two"], title=title), path)
    found = kit.load(path)
    assert found.headline() == title and found.ratio.value == pytest.approx(2)
    kit.save(slow, path)
    (single,) = kit.load(path)
    assert single.items_per_second == pytest.approx(10)


def test_only_what_the_kit_offers_is_offered_by_tab():
    assert set(dir(kit)) == set(kit.__all__)


@pytest.mark.parametrize("ends", ["}, {", ": [{", '"}, {"', "}]}"])
def test_no_text_of_the_readers_makes_a_recording_unreadable(tmp_path, ends):
    trial = make_trial(knobs={"text": ends}, title=ends, notes=[ends], source=ends)
    recording.save([trial], tmp_path / "a.json")
    assert kit.load(tmp_path / "a.json")[0].knobs == {"text": ends}


def test_a_metric_has_the_last_value_that_was_given(tmp_path):
    """Also where it was last given some steps ago, and where it is not a number."""
    given, diverged = [0.5, None, 0.3, None], [0.5, math.nan]
    for column, wanted in ((given, 0.3), (diverged, math.nan)):
        run = make_run(seconds=[1.0], metrics={"loss": column})
        recording.save([make_trial([run])], tmp_path / "a.json")
        (read,) = kit.load(tmp_path / "a.json")
        assert read.last_values("loss") == pytest.approx([wanted], nan_ok=True)
        assert re.search(rf"loss +{wanted:.4g} +last value", repr(read))

    def train(*, better=1):
        for step in range(7):
            yield (1, {"loss": 1 / better}) if step % 3 == 0 else 1

    made = kit.compare(train, of="loss", better=[1, 2], seconds=None, within=0.1)
    assert (made.ratio.value, made.ratio.verdict) == (-0.5, "less")


def test_an_error_that_is_its_own_cause_ends_like_any_other():
    def train():
        yield 1
        error = ValueError("no more")
        raise error from error

    with pytest.raises(ExperimentError, match="no more"):
        kit.measure(train)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_debugger_finds_what_a_step_had_and_no_worker(error, monkeypatch):
    """Its loader is told to end its workers, and they are not waited for."""
    for name in ("_GRACE_SECONDS", "_GRACE_AFTER_INTERRUPT"):
        monkeypatch.setattr(driving, name, 10.0)

    def compute(batch):
        half = batch / 2
        if batch.item() == 2:
            raise error
        return half

    def train(*, lr=0.1):
        how = {"num_workers": 1, "multiprocessing_context": "fork"}
        batches = iter(DataLoader(range(64), **how))
        for batch in batches:
            compute(batch)
            yield 1

    expected, begun = (
        ExperimentError if error is ValueError else error,
        time.monotonic(),
    )
    with pytest.raises(expected) as caught:
        kit.measure(train)
    assert not children() and time.monotonic() - begun < 5
    *_, cause = walk_causes(caught.value)
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    found = {frame.f_code.co_name: frame.f_locals for frame in frames}
    assert (found["train"]["lr"], found["train"]["batch"].item()) == (0.1, 2)
    assert found["compute"]["half"].item() == 1
    assert "batches" in found["train"]


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.eye(3).to_sparse())
        self.register_buffer("mean", torch.tensor([math.nan]))
        self.layer = nn.Linear(2, 1)


def test_models_of_all_kinds_can_be_closed_over_and_come_back():
    net, meta = Odd(), nn.Linear(2, 2, device="meta")
    net.layer(torch.ones(2)).backward()
    before = {name: value.clone() for name, value in net.state_dict().items()}

    def train(*, changes=False):
        meta.train()
        while True:
            if changes:
                net.layer.weight.data.add_(1.0)
                net.edges.mul_(2)
            yield 1

    made = kit.compare(train, changes=[0, 0])
    assert any(run.interleaved for run in made.baseline.runs)
    made = kit.compare(train, changes=[True, False])
    assert not any(run.interleaved for trial in made.trials for run in trial.runs)
    assert torch.equal(net.layer.weight, before["layer.weight"])
    assert torch.equal(net.edges.to_dense(), before["edges"].to_dense())
    assert "Shared and put back at each start: meta, net." in made.baseline.notes


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (torch.Generator, lambda g: torch.rand((), generator=g).item()),
        (numpy.random.default_rng, lambda g: float(g.random())),
        (random.Random, lambda g: g.random()),
    ],
)
def test_every_start_draws_the_same_from_the_readers_own_generator(make, draw):
    own, drawn = make(), []
    before = own.clone_state() if make is torch.Generator else copy.deepcopy(own)

    def train(*, n=1):
        drawn.append([draw(own)])
        while True:
            drawn[-1].append(draw(own))
            yield 1

    made = kit.compare(train, n=[1, 2])
    assert len({tuple(numbers[:2]) for numbers in drawn}) == 1 < len(drawn)
    assert len(set(drawn[0])) == len(drawn[0])
    assert draw(own) == draw(before), "the reader's goes on where it was"
    assert not any(run.interleaved for run in made.baseline.runs)
    assert "own" in made.baseline.notes[0]


class Stateful(DataLoader):
    """A loader that can be saved, as torchdata has one."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise AssertionError("it is no model")


def test_a_loaders_own_generator_is_seeded_with_each_start():
    data, order = TensorDataset(torch.arange(64.0)), []
    own = torch.Generator()
    loader = Stateful(data, shuffle=True, generator=own)

    def train(*, n=1):
        order.append([])
        own.initial_seed()  # which it reaches by two ways
        while True:
            for (number,) in loader:
                order[-1].append(number.item())
                yield 1

    made = kit.compare(train, n=[1, 2])
    assert len({tuple(numbers[:2]) for numbers in order}) == 1 < len(order)
    said = made.baseline.notes[0]
    assert said.count("own") + said.count("loader.generator") == 1, "one of its names"


def test_a_model_that_cannot_be_copied_is_named_with_advice():
    net = nn.LazyLinear(3)

    def train():
        yield net(torch.ones(1, 2)).numel()

    refused(lambda: kit.measure(train), "train()", "net", "Build net inside")


def test_a_model_among_the_knobs_is_let_go_with_the_trial(monkeypatch):
    monkeypatch.setattr(journal, "_JOURNALS", [])

    def look(*, net):
        while True:
            yield 1

    net = nn.Linear(2, 2)
    left = weakref.ref(net)
    kit.measure(look, net=net)
    del net
    gc.collect()
    assert left() is None


def test_the_commonest_mistake_is_named_soon():
    steps = []

    def train():
        while True:
            yield
            steps.append(1)

    with pytest.raises(ExperimentError, match="bare"):
        kit.measure(train)
    assert len(steps) < 50


def test_steps_of_a_complete_run_are_heard(monkeypatch):
    monkeypatch.delenv("KIT_QUICK")
    heard = []
    monkeypatch.setattr(Progress, "hear", lambda self: heard.append(1))

    def train():
        for _ in range(20):
            yield 1

    kit.measure(train, seconds=None)
    assert len(heard) >= 19


def test_what_runs_to_the_error_without_the_kit_is_told():
    def train(*, lr=0.1):
        yield 1
        yield 1
        raise ValueError("here")

    with pytest.raises(ExperimentError) as caught:
        kit.measure(train)
    assert "list(zip(range(3), train(lr=0.1)))" in str(caught.value)
    with pytest.raises(ExperimentError) as caught:
        kit.compare({"my plain loop": train, "other": train})
    assert (
        "train(lr=0.1)" in str(caught.value)
        and "my plain loop(" not in str(caught.value).split("Try it")[1]
    )


def test_a_file_that_was_mended_and_loaded_again_is_read_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "mended_loop.py"
    path.write_text("def train():\n    print(1)\n")
    module = importlib.import_module("mended_loop")
    with pytest.raises(ExperimentError, match="yield"):
        kit.measure(module.train)
    path.write_text("def train():\n    return loop()\ndef loop():\n    yield 1\n" * 1)
    path.write_text(path.read_text() + "    yield from iter(int, 1)\n")
    module = importlib.reload(module)
    with pytest.raises(ExperimentError, match="yielded 0"):
        kit.measure(module.train)
    monkeypatch.delitem(sys.modules, "mended_loop")


def test_ranks_may_have_blocks_without_items():
    some = [Block(1.0, 1.0, items, 1) for items in (4, 0, 4)]
    assert not plan.is_as_fast_as_before(some[:2])
    assert plan.is_as_fast_as_before(some)
    assert plan.is_as_fast_as_before([Block(1.0, 1.0, 0, 1)])
    idle = rate_trial(1.0, items=0)
    assert compare_trials(idle, rate_trial(1.0)).verdict == "cannot tell"
    assert "count" in repr(idle)
