"""`tune_loader` predicts, verifies, explains; a bad loader is named, none is left."""

import dataclasses
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
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import kit
from kit.data import Distant
from kit.experiment import ExperimentError
from kit.stats import Estimate
from kit.tuning import LoaderTuning, checks, faults, prediction, search, tune_loader
from kit.tuning.loop import count_bytes, count_items, touch
from kit.tuning.probes import Probes
from kit.tuning.reasons import find_bound

pytestmark = pytest.mark.usefixtures("tidy")


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
            persistent_workers=persistent_workers,
            multiprocessing_context=context if num_workers else None,
            **options,
        )

    return make_loader


def probed(**found):
    """Return probes of a loader that one worker makes a batch of in 80 ms."""
    usual = {"batch_size": 10, "batch_bytes": 1000, "cores": 4, "load_seconds": 0.08}
    return Probes(**usual | {"alone_seconds": 0.08} | found)


# What it finds


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
    tuning = tune_loader(make_loader, num_workers=[0, 1, 4], seconds=5.0)
    assert tuning.settings["num_workers"] == 4
    assert list(tuning.predicted) == [0, 1, 4]
    assert set(tuning.measured) == {0, 1, 4}
    assert tuning.predicted[4] > 1.5 * tuning.predicted[1]
    assert "latency-bound" in tuning.reason
    assert tuning.probes.waiting_seconds > 0.5 * tuning.probes.load_seconds
    assert tuning.probes.sample_seconds >= 0.005
    loader = make_loader(**tuning.settings)
    assert (loader.num_workers, loader.prefetch_factor) == (4, 2)


def test_workers_do_not_pay_for_tiny_samples():
    tuning = tune_loader(maker(Numbers(100_000)), num_workers=[0, 1], seconds=4.0)
    assert tuning.settings == {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
    }
    assert "Workers do not pay" in tuning.reason


def test_a_long_step_needs_no_workers():
    def step(batch):
        time.sleep(0.03)

    tuning = tune_loader(
        maker(Numbers(100_000)), step=step, num_workers=[0, 1, 2], seconds=4.0
    )
    assert tuning.num_workers == 0
    assert "The step sets the pace" in tuning.reason
    assert tuning.probes.step_seconds >= 0.03
    assert tuning.probes.step_cores < 0.5


def test_it_takes_three_starts_and_its_time_at_most():
    begun = time.monotonic()
    tuning = tune_loader(maker(Distant(Numbers(100_000), 0.001)), seconds=4.0)
    assert tuning.starts <= 3
    assert tuning.seconds < 15
    assert time.monotonic() - begun < 20
    assert not children()


@pytest.mark.usefixtures("smoke")
def test_smoke_is_short():
    begun = time.monotonic()
    tune_loader(maker(Numbers(10_000)), step=lambda batch: None)
    assert time.monotonic() - begun < 30


@pytest.mark.usefixtures("smoke")
def test_slow_batches_are_not_waited_for_again_and_again():
    tuning = tune_loader(maker(Distant(Numbers(800), 0.05)), num_workers=[0, 1, 2])
    assert tuning.seconds < 15
    assert tuning.num_workers in (1, 2)


@pytest.mark.usefixtures("smoke")
def test_state_and_what_the_step_trains_are_put_back():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight = model.weight.detach().clone()

    def step(batch):
        torch.set_num_threads(2)
        torch.rand(3)
        model(batch).sum().backward()
        optimizer.step()

    before = reader_state()
    tune_loader(maker(Numbers(10_000), shuffle=True), step=step, num_workers=[0, 1])
    assert reader_state() == before
    assert torch.equal(model.weight, weight)
    assert model.weight.grad is None
    assert not optimizer.state
    assert not children()


@pytest.mark.usefixtures("smoke")
def test_a_maker_gets_what_it_takes():
    def only_workers(num_workers):
        return DataLoader(Numbers(), batch_size=8, num_workers=num_workers)

    def anything(**settings):
        return DataLoader(Numbers(), batch_size=8, **settings)

    def sized(batch_size, *, num_workers):
        return DataLoader(Numbers(), batch_size, num_workers=num_workers)

    assert list(tune_loader(only_workers, num_workers=[0, 1]).settings) == [
        "num_workers"
    ]
    assert list(tune_loader(anything, num_workers=1).settings) == list(checks.SETTINGS)
    partial = functools.partial(sized, 8)
    assert tune_loader(partial, num_workers=0).settings == {"num_workers": 0}


class Stream(IterableDataset):
    """A stream of samples, without an index."""

    def __iter__(self):
        for index in range(4000):
            yield torch.full((4,), float(index))


@pytest.mark.usefixtures("smoke")
def test_a_stream_is_probed_by_batches():
    tuning = tune_loader(maker(Stream()), num_workers=[0, 1])
    assert set(tuning.measured) == {0, 1}
    assert math.isnan(tuning.probes.sample_seconds)
    assert tuning.probes.batch_size == 8


@pytest.mark.usefixtures("smoke")
def test_batches_that_a_data_set_makes_itself():
    tuning = tune_loader(maker(Numbers(4000), batch_size=None), num_workers=[0, 1])
    assert tuning.probes.batch_size == 1


@pytest.mark.usefixtures("smoke")
def test_busy_neighbours_are_told(monkeypatch):
    busy = {"others_cores": 1.4}
    monkeypatch.setattr(search.system, "describe_load", lambda before, after: busy)
    tuning = tune_loader(maker(Numbers(4000)), num_workers=0)
    assert "Other programs kept 1.4 cores busy" in tuning.reason


@pytest.mark.usefixtures("smoke")
def test_workers_that_persist_are_gone_afterwards():
    def make_loader(*, num_workers):
        return DataLoader(
            Numbers(),
            batch_size=8,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )

    tune_loader(make_loader, num_workers=[1, 2])
    assert not children()


# What it shows


@pytest.fixture(scope="module")
def tuning():
    rates = {0: (100.0, 95.0, 105.0), 2: (190.0, 180.0, 200.0)}
    return LoaderTuning(
        settings={"num_workers": 2, "prefetch_factor": 2},
        predicted={0: 101.0, 1: 110.0, 2: 195.0, 3: 196.0},
        measured={n: Estimate(*rate) for n, rate in rates.items()},
        regret=0.031,
        probes=probed(),
        reason="The loader is <decode>-bound.",
        seconds=12.0,
        starts=2,
    )


def test_report_says_what_was_found(tuning):
    text = repr(tuning)
    assert text.startswith("num_workers=2 is 1.90 × as fast as none [1.77, 2.04]")
    for part in ("prefetch_factor=2", "<decode>-bound", "3.1%", "2 ←", "[180, 200]"):
        assert part in text
    assert all(len(line) <= 88 for line in text.splitlines())


UNKNOWN = (math.nan, math.nan)


@pytest.mark.parametrize(
    "rates, chosen, said",
    [
        ({0: (100, 99, 101), 2: (100, 99, 101)}, 2, "=2 is as fast as none: 1.00 ×"),
        ({0: (100, 90, 110), 2: (105, 95, 115)}, 2, "Cannot tell how num_workers=2"),
        ({0: (100, *UNKNOWN), 2: (190, *UNKNOWN)}, 2, "interval is unknown"),
        ({0: (100, 99, 101), 2: (90, 89, 91)}, 0, "that was tried is faster"),
        ({0: (100, 90, 110), 2: (101, 91, 111)}, 0, "that was tried is clearly faster"),
        ({2: (100, 90, 110), 4: (101, 91, 111)}, 2, "that was tried is clearly faster"),
        ({0: (100, 99, 101)}, 4, "it was not measured"),
    ],
)
def test_the_finding_says_no_more_than_the_intervals(tuning, rates, chosen, said):
    found = dataclasses.replace(
        tuning,
        settings={"num_workers": chosen},
        measured={n: Estimate(*rate) for n, rate in rates.items()},
    )
    assert said in found.finding()
    assert "best" not in found.finding()


def test_html_report_escapes_and_holds_the_table(tuning):
    html = tuning._repr_html_()
    assert "&lt;decode&gt;-bound" in html
    assert html.count("<table") == 2


def test_plot_has_the_predicted_line_and_measured_points(tuning):
    axes = tuning.plot()
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["predicted"].get_xdata()) == [0, 1, 2, 3]
    heights = list(lines["measured"].get_ydata())
    assert (heights[0], heights[2]) == (100.0, 190.0)
    assert math.isnan(heights[1])
    assert math.isnan(heights[3])
    assert axes.get_figure().get_suptitle().replace("\n", " ") == tuning.finding()


def test_a_tuning_is_frozen(tuning):
    with pytest.raises(dataclasses.FrozenInstanceError):
        tuning.regret = 0.0


# Prediction


def test_prediction_counts_the_ends_of_epochs():
    probes = probed(start_seconds=0.2, fork_seconds=0.05, batches_per_epoch=8)
    assert prediction.predict_rate(probes, 2, persistent=True) == pytest.approx(
        10 / 0.04
    )
    seconds = (4 * 0.08 + 0.2 + 0.05) / 8
    assert prediction.predict_rate(probes, 2) == pytest.approx(10 / seconds)
    # Three workers need as many turns as four for seven batches: 3, 3, 1.
    seven = probed(batches_per_epoch=7)
    assert prediction.predict_rate(seven, 3) == pytest.approx(10 * 7 / 0.24)


def test_first_batch_of_an_epoch_is_waited_for():
    probes = probed(step_seconds=0.1, cores=8, batches_per_epoch=4)
    seconds = (0.08 + 4 * 0.1) / 4
    assert prediction.predict_rate(probes, 4, persistent=True) == pytest.approx(
        10 / seconds
    )


def test_candidates_end_where_workers_no_longer_set_the_pace():
    assert prediction.list_candidates(probed(cores=2), None) == [0, 1, 2, 3]
    far = probed(cores=2, waiting_seconds=0.079, step_seconds=0.01)
    assert prediction.list_candidates(far, None) == [*range(9)]
    asleep = probed(cores=2, waiting_seconds=0.08)
    assert max(prediction.list_candidates(asleep, None)) == 16


def test_candidates_fit_into_shared_memory():
    large = probed(batch_bytes=10_000_000, waiting_seconds=0.08)
    assert prediction.list_candidates(large, 64_000_000) == [0, 1, 2]
    assert prediction.choose_prefetch(large, 2, 64_000_000) == 1
    assert prediction.choose_prefetch(large, 2, None) == 2


@pytest.mark.parametrize(("unevenness", "prefetch"), [(1.2, 2), (2.6, 4), (50, 8)])
def test_uneven_batches_need_more_prefetch(unevenness, prefetch):
    probes = probed(unevenness=unevenness)
    assert prediction.choose_prefetch(probes, 2, None) == prefetch


def test_workers_persist_where_starting_them_costs_much_of_an_epoch():
    short = probed(start_seconds=0.1, batches_per_epoch=20)
    assert prediction.choose_persistence(short, 2)
    assert not prediction.choose_persistence(short, 0)
    long = probed(start_seconds=0.1, batches_per_epoch=20_000)
    assert not prediction.choose_persistence(long, 2)
    assert not prediction.choose_persistence(probed(start_seconds=9.0), 2)


def rates(**values):
    """Return rates by number of workers, with an interval of ±1 %."""
    return {
        int(name[1:]): Estimate(value, 0.99 * value, 1.01 * value)
        for name, value in values.items()
    }


def test_a_tie_goes_to_fewer_workers():
    predicted = dict.fromkeys((0, 2, 4), 100.0)
    assert prediction.choose(predicted, rates(n0=50, n2=99, n4=100)) == 2
    assert prediction.choose(predicted, rates(n0=50, n2=97, n4=100)) == 4


def test_what_was_not_measured_is_chosen_only_if_it_must_be_better():
    predicted = {0: 50.0, 1: 50.0, 2: 100.0, 4: 200.0}
    assert prediction.choose(predicted, rates(n0=50, n1=50)) == 4
    assert prediction.choose(predicted, rates(n0=50, n1=50, n2=95)) == 4
    assert prediction.choose(predicted, {}) == 4
    # As far short of its prediction as the other, it would be no better.
    close = {0: 50.0, 2: 100.0, 4: 105.0}
    assert prediction.choose(close, rates(n0=50, n2=51)) == 0
    assert prediction.choose(close, rates(n0=50, n2=54)) == 2


def test_next_is_the_fewest_that_may_be_best():
    predicted = {0: 50.0, 1: 60.0, 2: 100.0, 3: 101.0, 4: 101.0}
    assert prediction.choose_next(predicted, rates(n0=50)) == 2
    assert prediction.choose_next(predicted, rates(n0=50, n2=90)) == 3
    assert prediction.choose_next(predicted, rates(n0=50, n2=90, n3=90, n4=90)) is None
    assert prediction.choose_next({0: 50.0}, {}) == 0


def test_next_is_the_most_where_the_fewest_falls_far_short():
    predicted = {0: 50.0, 1: 60.0, 2: 100.0, 3: 101.0, 8: 101.0}
    assert prediction.choose_next(predicted, rates(n0=50, n2=70)) == 8
    assert prediction.choose_next(predicted, rates(n0=50, n2=70, n8=70)) == 3
    # One that kept to its prediction shows that the model knows this loader.
    assert prediction.choose_next(predicted, rates(n2=70, n3=95)) == 8
    assert prediction.choose_next(predicted | {4: 101.0}, rates(n2=70, n3=95)) == 4


def test_next_is_one_more_where_the_best_beats_its_prediction():
    predicted = {0: 90.0, 1: 80.0, 2: 80.0, 3: 80.0}
    assert prediction.choose_next(predicted, rates(n0=90, n1=110)) == 2
    assert prediction.choose_next(predicted, rates(n0=90, n1=110, n2=125)) == 3
    assert prediction.choose_next(predicted, rates(n0=90, n1=110, n2=105)) is None
    assert prediction.choose_next(predicted, rates(n0=90, n1=80)) is None


def test_regret_is_bounded_by_measurement_or_prediction():
    predicted = {0: 50.0, 1: 60.0, 2: 100.0, 3: 100.0}
    measured = rates(n0=50, n2=100, n3=100)
    assert prediction.bound_regret(2, predicted, measured) == pytest.approx(
        101 / 99 - 1
    )
    # An unmeasured one is no faster than predicted, if the others kept to it.
    del measured[3]
    assert prediction.bound_regret(2, predicted, measured) == pytest.approx(
        100 / 99 - 1
    )
    # Where one was faster than predicted by a tenth, others might be, too.
    faster = rates(n0=50, n2=110)
    assert prediction.bound_regret(2, predicted, faster) == pytest.approx(
        110 / (0.99 * 110) - 1
    )
    assert prediction.bound_regret(2, {2: 100.0}, rates(n2=100)) == 0.0


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        ({}, "decode"),
        ({"waiting_seconds": 0.06}, "latency"),
        ({"alone_seconds": 0.01}, "transport"),
        ({"collate_seconds": 0.05}, "collate"),
    ],
)
def test_what_takes_most_of_a_batch_names_the_loader(found, bound):
    assert find_bound(probed(**found)) == bound


def test_batches_of_any_make_are_counted():
    images, labels = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    point = types.SimpleNamespace
    assert count_items((images, labels), 8) == 8
    assert count_items({"x": images[:5]}, 8) == 5
    assert count_items(images[0], None) == 1
    assert count_items([1, 2, 3], 3) == 3
    assert count_bytes([images, {"y": labels}, "text"]) == 8 * 3 * 4 + 8 * 8
    assert count_bytes(point(x=images)) == 0
    touch([images, labels, torch.zeros(0), labels.numpy()])


# Bad input


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (-1, ["num_workers=-1", "below 0"]),
        ([0, 10**6], ["num_workers=1000000", "for each core"]),
        ([0, 1.5], ["num_workers=1.5", "whole number"]),
        (True, ["num_workers=True", "whole number"]),
        ("2", ["num_workers='2'", "whole number"]),
        ([], ["num_workers=[]", "no choice"]),
    ],
)
def test_absurd_workers(workers, words):
    refused(
        lambda: tune_loader(maker(Numbers()), num_workers=workers),
        "tune_loader()",
        *words,
    )


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "2", None, True])
def test_absurd_seconds(seconds):
    refused(lambda: tune_loader(maker(Numbers()), seconds=seconds), "seconds=")


def test_step_that_is_none():
    refused(lambda: tune_loader(maker(Numbers()), step=3), "step=3")


def no_workers(batch_size=8):
    raise AssertionError("it was called")


def needs_more(*, num_workers, folder):
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    ("make_loader", "words"),
    [
        (None, ["make_loader=None", "def make_loader"]),
        (no_workers, ["no_workers", "takes no num_workers"]),
        (needs_more, ["needs_more", "'folder'", "functools.partial"]),
        (DataLoader, ["DataLoader", "'dataset'"]),
    ],
    ids=["none", "no num_workers", "needs more", "class"],
)
def test_what_makes_no_loader(make_loader, words):
    refused(lambda: tune_loader(make_loader), "tune_loader()", *words)


def test_maker_that_returns_something_else():
    refused(lambda: tune_loader(lambda *, num_workers: [1, 2]), "[1, 2]", "DataLoader")


def test_maker_that_does_not_hand_num_workers_on():
    def stubborn(*, num_workers):
        return DataLoader(Numbers(), num_workers=1)

    refused(lambda: tune_loader(stubborn), "stubborn(num_workers=0)", "num_workers=1")


def test_maker_that_raises():
    def broken(*, num_workers):
        raise KeyError("folder")

    message = refused(lambda: tune_loader(broken), "broken(num_workers=0)", "KeyError")
    assert "folder" in message


def test_empty_data_set():
    refused(lambda: tune_loader(maker([])), "make_loader", "empty")


def test_loader_without_a_batch():
    make_loader = maker(Numbers(5), drop_last=True)
    refused(lambda: tune_loader(make_loader), "batch_size=8", "5 samples", "drop_last")


def fail():
    raise ValueError("not a photo")


def tune(dataset, **options):
    return tune_loader(maker(dataset, **options), num_workers=[0, 1, 2], seconds=2.0)


def test_sample_that_raises_in_a_worker_is_named():
    dataset = Numbers(act=fail, only_in_worker=False)
    message = refused(lambda: tune(dataset), "sample 37", "ValueError: not a photo")
    assert "dataset[37]" in message


def test_sample_that_raises_far_down_a_shuffled_data_set_is_named():
    class Slow(Numbers):
        def __getitem__(self, index):
            time.sleep(0.002)
            return super().__getitem__(index)

    torch.manual_seed(3)
    dataset = Slow(4000, fail, index=3937, only_in_worker=False)
    order = torch.randperm(4000).tolist()
    sampler = [3937 if i == 0 else i for i in order if i != 3937]
    place = sampler.index(3937)
    sampler[place], sampler[100] = sampler[100], 3937
    refused(lambda: tune(dataset, sampler=sampler), "sample 3937")


def test_original_error_is_the_cause_and_its_file_is_named():
    dataset = Numbers(act=fail, only_in_worker=False)
    dataset.samples = [(f"photos/{i}.jpg", 0) for i in range(64)]
    with pytest.raises(ExperimentError, match=r"photos/37\.jpg") as caught:
        tune(torch.utils.data.Subset(Distant(dataset, 0.0), range(64)))
    cause = caught.value.__cause__
    assert str(cause) == "not a photo"
    frames = []
    link = cause.__traceback__
    while link is not None:
        frames.append(link.tb_frame.f_code.co_name)
        link = link.tb_next
    assert frames[-1] == "fail"


def test_error_that_only_workers_have():
    message = refused(lambda: tune(Numbers(act=fail)), "ValueError", "not a photo")
    assert "make_loader(num_workers=1)" in message


def test_first_sample_that_raises_is_named_at_once():
    dataset = Numbers(act=fail, index=0, only_in_worker=False)
    refused(lambda: tune(dataset), "sample 0", "not a photo")


def test_step_that_raises_is_not_taken_for_the_loader():
    def step(batch):
        raise RuntimeError("shapes do not fit")

    refused(
        lambda: tune_loader(maker(Numbers()), step=step, seconds=2.0),
        "step(batch)",
        "shapes do not fit",
    )


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


@pytest.mark.parametrize("act", [kill, leave])
def test_worker_that_dies_is_named(act):
    message = refused(lambda: tune(Numbers(act=act)), "worker process", "num_workers=1")
    assert any(word.strip(" ,").isdecimal() for word in message.split())


def hang():
    time.sleep(1000)


def test_worker_that_hangs_is_named_within_ten_seconds():
    begun = time.monotonic()
    with pytest.raises(ExperimentError) as caught:
        tune(Numbers(act=hang))
    assert time.monotonic() - begun < 30
    message = str(caught.value)
    for word in ("hangs", "(sleeping)", "make_loader(num_workers=1)", "Batch 4"):
        assert word in message
    assert "[32, 33," in message
    assert len(message.splitlines()) <= 6
    wait_until(lambda: not children(), 5)


def test_loaders_own_time_limit_is_kept_if_it_is_shorter():
    begun = time.monotonic()
    with pytest.raises(ExperimentError, match="hangs"):
        tune_loader(
            lambda *, num_workers: DataLoader(
                Numbers(act=hang),
                batch_size=8,
                num_workers=num_workers,
                timeout=1 if num_workers else 0,
            )
        )
    assert time.monotonic() - begun < 5


def test_shared_memory_too_small_for_any_worker(monkeypatch):
    monkeypatch.setattr(search.machine, "find_shared_memory", lambda root: (100, ""))
    refused(
        lambda: tune_loader(maker(Numbers()), num_workers=[1, 2]),
        "num_workers=[1, 2]",
        "/dev/shm",
        "--shm-size",
    )


@pytest.mark.usefixtures("smoke")
def test_shared_memory_too_small_leaves_none(monkeypatch):
    monkeypatch.setattr(search.machine, "find_shared_memory", lambda root: (100, ""))
    tuning = tune_loader(maker(Numbers()))
    assert tuning.num_workers == 0
    assert tuning.starts == 0
    assert "/dev/shm" in tuning.reason


def test_data_set_of_a_cell_under_spawn(monkeypatch):
    main = types.ModuleType("__main__")
    cell = type("Photos", (Numbers,), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    begun = time.monotonic()
    refused(
        lambda: tune_loader(maker(cell(), context="spawn")),
        "Photos",
        "'spawn'",
        "%%writefile",
        "import Photos",
    )
    assert time.monotonic() - begun < 3


@pytest.mark.usefixtures("smoke")
def test_data_set_of_a_cell_is_fine_under_fork(monkeypatch):
    main = types.ModuleType("__main__")
    cell = type("Photos", (Numbers,), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    make_loader = maker(cell(4000), context="fork")
    assert tune_loader(make_loader, num_workers=[0, 1]).num_workers in (0, 1)


@pytest.mark.parametrize("after", [0.3, 1.0, 2.0])
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


def test_paths_of_samples_are_found_where_data_sets_keep_them():
    dataset = types.SimpleNamespace(samples=[("a.jpg", 0), ("b.jpg", 1)])
    assert faults.find_path(dataset, 1) == "b.jpg"
    assert faults.find_path(types.SimpleNamespace(files=["a", "b"]), 0) == "a"
    subset = types.SimpleNamespace(indices=[1, 0], dataset=dataset)
    assert faults.find_path(subset, 0) == "b.jpg"
    assert faults.find_path(types.SimpleNamespace(samples=[3, 4]), 0) is None
    assert faults.find_path([1, 2], 0) is None
