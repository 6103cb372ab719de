"""`tune_loader` predicts, compares, tells what to write; no worker is left."""

import functools
import inspect
import math
import os
import signal
import sys
import threading
import time
import types

import pytest
import torch
from helpers import children, reader_state, refused, wait_until
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import kit
from kit.comparison import Comparison
from kit.data import Distant
from kit.tuning import tune_loader

pytestmark = [
    pytest.mark.usefixtures("tidy"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Numbers(Dataset):
    """Samples of which one may do something bad, everywhere or in a worker only."""

    def __init__(self, length=64, act=None, index=37, only_in_worker=True):
        self.length, self.act, self.index = length, act, index
        self.only_in_worker = only_in_worker

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        here = get_worker_info() is not None or not self.only_in_worker
        if index == self.index and self.act is not None and here:
            self.act()
        return torch.full((4,), float(index))


def maker(dataset, **options):
    """Return a maker of loaders over a data set, eight samples to a batch."""
    options = {"batch_size": 8} | options
    context = options.pop("context", None)

    def make_loader(*, num_workers, prefetch_factor=None, persistent_workers=False):
        return DataLoader(
            dataset,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers and num_workers > 0,
            multiprocessing_context=context if num_workers else None,
            **options,
        )

    return make_loader


def test_signature_is_the_agreed_one():
    parameters = inspect.signature(tune_loader).parameters
    assert {name: p.default for name, p in list(parameters.items())[1:]} == {
        "step": None,
        "num_workers": None,
        "seconds": 20.0,
    }
    assert kit.tuning.tune_loader is tune_loader


def test_waiting_is_shared_by_workers():
    make_loader = maker(Distant(Numbers(100_000), 0.005))
    tuning = tune_loader(make_loader, num_workers=[1, 4], seconds=5.0)
    assert tuning.num_workers == 4
    assert list(tuning.predicted) == [0, 1, 4]
    assert tuning.predicted[4] == pytest.approx(4 * tuning.predicted[1], rel=0.1)
    assert tuning.ratios["num_workers=4"].value > 2
    assert isinstance(tuning, Comparison)
    text, html = repr(tuning), tuning._repr_html_()
    for part in (tuning.sentence().split(":")[0], "num_workers=4).", "Predicted", "4:"):
        assert part in text and part in html
    assert "num_workers=[8]" in text


def test_a_long_step_needs_no_workers():
    def step(batch):
        time.sleep(0.03)

    ask = {"step": step, "num_workers": [1, 2], "seconds": 4.0}
    tuning = tune_loader(maker(Numbers(100_000)), **ask)
    assert tuning.predicted[2] == pytest.approx(tuning.predicted[0], rel=0.2)
    assert tuning.num_workers == 0


@pytest.mark.parametrize(
    ("seconds", "compared"),
    [
        ([4, 2, 2, 2, 2, 2], [0, 1, 5]),  # one worker should be enough
        ([4, 3, 2, 1, 0.99, 0.99], [0, 2, 3, 5]),
        ([6, 5, 4, 3, 2, 1], [0, 4, 5]),
        ([1, 9, 9, 9, 9, 9], [0, 1, 5]),
    ],
)
def test_enough_by_prediction_and_either_side_of_it_are_compared(
    smoke, monkeypatch, seconds, compared
):
    monkeypatch.setattr("kit.tuning.predict_loader", lambda n, **_: seconds[n])
    tuning = tune_loader(maker(Numbers(4000)), num_workers=range(1, 6))
    assert list(tuning.predicted) == [0, 1, 2, 3, 4, 5]
    assert tuning.labels == [f"num_workers={n}" for n in compared]


def test_state_and_what_the_step_trains_are_put_back(smoke):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight = model.weight.detach().clone()

    def step(batch):
        torch.set_num_threads(2)
        torch.rand(3)
        model(batch).sum().backward()
        optimizer.step()

    before, journal = reader_state(), len(kit.trial.JOURNAL)
    tune_loader(maker(Numbers(10_000), shuffle=True), step=step, num_workers=1)
    assert reader_state() == before
    assert torch.equal(model.weight, weight)
    assert model.weight.grad is None
    assert not optimizer.state
    assert not children()
    assert len(kit.trial.JOURNAL) == journal  # no chapter records it


class Stream(IterableDataset):
    """A stream of samples, without an index."""

    def __iter__(self):
        for index in range(4000):
            yield torch.full((4,), float(index))


def sized(batch_size, *, num_workers):
    return DataLoader(Numbers(), batch_size, num_workers=num_workers)


@pytest.mark.parametrize(
    "make_loader",
    [
        functools.partial(sized, 8),
        functools.partial(maker(Numbers()), persistent_workers=True),
        maker(Stream()),
        maker(Numbers(4000), batch_size=None),
    ],
    ids=["partial", "workers persist", "stream", "whole batches"],
)
def test_any_loader_can_be_tuned(smoke, make_loader):
    assert tune_loader(make_loader, num_workers=[1]).num_workers in (0, 1)
    assert not children()


class Copies(TorchDispatchMode):
    """Note what was copied."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor) and args[0].shape == (64, 8):
            self.seen.add(str(function))
        return function(*args, **(kwargs or {}))


def transposed(samples):
    return torch.zeros(8, 64).t()


def test_taking_a_batch_over_copies_nothing(smoke):
    """One that is not contiguous would be copied whole by a `reshape`."""
    with Copies() as copies:
        make_loader = maker(Numbers(4000), collate_fn=transposed)
        tune_loader(make_loader, step=lambda batch: None, num_workers=1)
    assert not {name for name in copies.seen if "clone" in name or "copy" in name}


# Bad input


@pytest.mark.parametrize("workers", [-1, [0, 1.5], True, "2", [], [0]])
def test_absurd_workers(workers):
    call = functools.partial(tune_loader, maker(Numbers()), num_workers=workers)
    refused(call, "tune_loader()", f"num_workers={workers!r}")


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "2", None, True])
def test_absurd_seconds(seconds):
    refused(lambda: tune_loader(maker(Numbers()), seconds=seconds), "seconds=")


def no_workers(batch_size=8):
    raise AssertionError("it was called")


def broken(*, num_workers):
    raise KeyError("folder")


@pytest.mark.parametrize(
    ("make_loader", "words"),
    [
        (no_workers, ["no_workers", "'num_workers'", "TypeError"]),
        (broken, ["broken(num_workers=0)", "KeyError", "folder"]),
        (maker([]), ["no batch", "empty"]),
        (maker(Numbers(5), drop_last=True), ["no batch", "drop_last"]),
    ],
    ids=["no num_workers", "raises", "empty", "no batch"],
)
def test_what_makes_no_batches(make_loader, words):
    refused(lambda: tune_loader(make_loader), "tune_loader()", *words)


def fail():
    raise ValueError("not a photo")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (fail, ["ValueError", "not a photo", "worker process 0"]),
        (kill, ["memory"]),
        (leave, ["num_workers=0 shows it here"]),
    ],
)
def test_an_error_of_a_worker_comes_with_its_advice(smoke, act, words):
    make_loader = maker(Numbers(act=act, index=0))
    told = ["make_loader(num_workers=", "next(iter(make_loader"]
    refused(lambda: tune_loader(make_loader, num_workers=1), *words, *told)
    wait_until(lambda: not children(), 5)


def test_step_that_raises(smoke):
    def step(batch):
        raise RuntimeError("shapes do not fit")

    refused(lambda: tune_loader(maker(Numbers()), step=step), "shapes do not fit")


def test_data_set_of_a_cell_under_spawn(smoke, monkeypatch):
    main = types.ModuleType("__main__")
    cell = type("Photos", (Numbers,), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    make_loader = maker(cell(), context="spawn")
    call = functools.partial(tune_loader, make_loader, num_workers=1)
    refused(call, "%%writefile", "import")


@pytest.mark.parametrize("after", [0.3, 2.0])
def test_interrupt_ends_it_within_two_seconds(after):
    before = reader_state()
    timer = threading.Timer(after, signal.raise_signal, [signal.SIGINT])
    begun = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tune_loader(maker(Distant(Numbers(100_000), 0.01)), seconds=20.0)
    assert time.monotonic() - begun < after + 2
    assert reader_state() == before
    wait_until(lambda: not children(), 2)
