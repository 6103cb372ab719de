"""Finders say what suits a machine; here it is simulated, and the truth is known."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import refused
from torch import nn
from torch.utils.data import DataLoader
from trials import make_run, make_trial, rate_trial

from kit.tuning import (
    BatchSizeTuning,
    LoaderTuning,
    find_batch_size,
    fit_line,
    tune_loader,
)

MB = 1_000_000


# How large a batch


@pytest.fixture
def search(clock, device, monkeypatch):
    """Return a search in a simulated memory; `search.tried` are the sizes, in order."""
    # How much this machine has free is no part of what is simulated.
    monkeypatch.setattr("kit.tuning.available_bytes", lambda: 64e9)

    def find(bytes_at, seconds_at=lambda size: 0.01, **asked):
        def train(*, batch_size=4):
            find.tried.append(batch_size)
            device.allocate(int(bytes_at(batch_size)))
            try:
                while True:
                    clock.work(seconds_at(batch_size))
                    yield batch_size
            finally:
                device.allocate(-int(bytes_at(batch_size)))

        find.tried = []
        return find_batch_size(train, **{"memory": 1000 * MB, "seconds": 20.0} | asked)

    return find


MEMORY = {
    "tiny samples": lambda size: 183 * MB + 0.03 * MB * size,
    "a barely fitting model": lambda size: 500 * MB + 300 * MB * size,
    "all pairs": lambda size: 6 * MB + 100 * size**2,
}


@pytest.mark.parametrize("bytes_at", MEMORY.values(), ids=MEMORY)
def test_the_largest_size_that_fits_is_nearly_found_and_never_exceeded(
    search, device, bytes_at
):
    found = search(bytes_at)
    true = next(size for size in range(60_000, 0, -1) if bytes_at(size) <= 1000 * MB)
    assert 0.7 * true <= found.largest <= true, search.tried
    for number, size in enumerate(search.tried[2:], 2):
        fitted = [each for each in search.tried[:number] if each in found.trials]
        assert size <= 2 * max(fitted, default=8)
    assert device.allocated == 0


def test_the_advised_size_is_as_fast_as_any_that_was_tried(search):
    found = search(MEMORY["tiny samples"], lambda size: 0.1 + 0.01 * size)
    speeds = {size: trial.items_per_second for size, trial in found.trials.items()}
    enough = [size for size in speeds if speeds[size] >= 0.95 * max(speeds.values())]
    assert found.batch_size == min(enough)
    assert f"batch_size={found.batch_size}" in repr(found)


def test_steps_that_take_long_end_the_search(search):
    found = search(MEMORY["tiny samples"], lambda size: 0.01 * size, seconds=2.0)
    assert found.largest == 128, "a step of 256 takes more than 2 s"


def test_running_out_of_memory_is_an_answer(search):
    def run_out(size):
        if size > 25:
            raise RuntimeError("[enforce fail] can't allocate memory")
        return 10 * MB * size

    assert 17 <= search(run_out).largest <= 25


def test_no_trial_takes_more_than_the_machine_has_free(search, monkeypatch):
    monkeypatch.setattr("kit.tuning.available_bytes", lambda: 90 * MB)
    bytes_at = MEMORY["all pairs"]
    found = search(bytes_at, memory=None)
    assert found.largest >= 600
    assert bytes_at(max(search.tried)) <= 90 * MB


@pytest.mark.parametrize("bytes_at", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("free", [190, 520, 1100])
def test_a_search_on_a_cpu_ends_and_never_takes_what_is_not_free(
    monkeypatch, bytes_at, free
):
    """There the system kills the process that takes too much."""
    monkeypatch.setattr("kit.tuning.available_bytes", lambda: free * MB)
    search = BatchSizeTuning("train", "batch_size", 1000 * MB, most=60_000)
    tried = []
    size = 1
    while size:
        run = make_run(seconds=[0.01] * 6, items=size, memory_bytes=bytes_at(size))
        search.add(size, make_trial([run]))
        tried.append(size)
        assert len(tried) < 40
        size = search.choose_next()
    assert all(bytes_at(size) <= max(free * MB, bytes_at(1)) for size in tried)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"memory": "2 GB"}, ["memory=", "2 GB"]),
        ({"most": 0}, ["most=0"]),
        ({"knob": "size"}, ["no knob for size="]),
        ({"memory": 100 * MB}, ["batch_size=1", "100 MB"]),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(search, asked, words):
    too_much = MEMORY["a barely fitting model"]
    refused(lambda: search(too_much, **asked), "find_batch_size()", *words)


# How many workers


@pytest.fixture
def tune(clock):
    """Return a tuning of a loader whose workers share all of its time, or slow it."""

    def load_here(seconds):
        while True:
            clock.work(seconds)
            yield torch.ones(1)

    def load_ahead(seconds):
        # As with real workers, nothing else runs beside them.
        with ThreadPoolExecutor(1) as worker:
            worker.submit(bool)
            ready = clock.now + seconds
            while True:
                clock.work(max(0.0, ready - clock.now))
                ready = max(ready, clock.now) + seconds
                yield torch.ones(1)

    def find(load, step, slower=1.0):
        def make_loader(*, num_workers):
            if num_workers:
                return load_ahead(slower * load / num_workers)
            return load_here(load)

        return tune_loader(
            make_loader,
            step=lambda batch: clock.work(step),
            num_workers=[1, 2, 3, 4, 8],
            seconds=2.0,
        )

    return find


@pytest.mark.parametrize(
    ("load", "step", "slower", "best"),
    [
        (0.040, 0.001, 1.0, 8),  # workers share all of it
        (0.040, 0.020, 1.0, 2),  # then the step is the slower one
        (0.030, 0.300, 1.0, 1),
        (0.001, 0.300, 1.0, 0),  # a long step needs none
        (0.040, 0.020, 20.0, 0),  # workers are slower than none
    ],
)
def test_the_fewest_workers_that_are_enough_are_advised(tune, load, step, slower, best):
    tuning = tune(load, step, slower)
    assert tuning.num_workers == best
    assert f"num_workers={best})" in repr(tuning)


def test_more_workers_are_advised_only_where_they_are_faster_for_sure():
    """Four seem 5 % faster than two: that may be chance where rounds scatter."""
    none = rate_trial(2.0, knobs={"num_workers": 0})
    four = rate_trial(1.04, knobs={"num_workers": 4})
    noisy = [1.0, 1.3, 0.9, 1.2, 1.05, 1.2, 0.95, 1.25, 1.0, 1.1]
    for seconds, best in ((lambda round, *_: noisy[round], 2), (1.2, 4)):
        two = rate_trial(seconds, knobs={"num_workers": 2})
        found = LoaderTuning([none, two, four], ["none", "two", "four"])
        assert found.num_workers == best


def test_a_real_loader_is_tuned_and_what_its_step_trains_is_put_back(quick):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def make_loader(*, num_workers):
        return DataLoader(torch.ones(10_000, 4), 8, num_workers=num_workers)

    def step(batch):
        model(batch).sum().backward()
        optimizer.step()

    weight = model.weight.detach().clone()
    tuning = tune_loader(make_loader, step=step, num_workers=1)
    assert tuning.labels == ["num_workers=0", "num_workers=1"]
    assert torch.equal(model.weight, weight)
    assert not optimizer.state


def test_what_cannot_be_tuned_is_refused_by_name(quick):
    refused(lambda: tune_loader(lambda **_: [], num_workers=-1), "num_workers=-1")
    with pytest.raises(ValueError, match="no batch"):
        tune_loader(lambda **_: [])


# What grows along a straight line


def test_a_fitted_line_goes_through_its_points_and_finds_sizes_again():
    line = fit_line([1, 4, 16], [0.75, 1.5, 4.5])
    assert line.predict(8) == pytest.approx(2.5)
    assert line.find_size(2.5) == pytest.approx(8)
    assert line.find_knee(0.8) == pytest.approx(8)
    with pytest.raises(ValueError, match="two or more different sizes"):
        fit_line([4, 4], [1, 2])
