"""What a set-up prints is read once; nobody else is silenced for it."""

import itertools
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import kit
from kit.experiment import ExperimentError
from kit.silence import silencing

pytestmark = pytest.mark.usefixtures("smoke")


def train(*, size=1):
    """Print where set-ups and steps do."""
    print(f"set-up of {size}")
    sys.stdout.writelines([f"more of {size}\n"])
    while True:
        time.sleep(0.001)
        print("a step")
        yield 1


def epoch(*, size=1):
    """The same with an end."""
    yield from itertools.islice(train(size=size), 5)


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_set_up_prints_at_the_first_start_alone(capsys):
    found = kit.measure(epoch, seconds=None, repeats=3)
    said = lines(capsys)
    assert len(found.setup_seconds) == 3
    assert said.count("set-up of 1") == said.count("more of 1") == 1
    assert said.count("a step") > 1, "steps print as they like"
    kit.measure(train)
    assert lines(capsys).count("set-up of 1") == 1, "the next call shows it again"


def test_each_variant_prints_its_own_set_up(capsys):
    kit.compare(train, size=[1, 2])
    said = lines(capsys)
    assert said.count("set-up of 1") == said.count("set-up of 2") == 1


def test_a_generator_that_is_started_again_is_silent(capsys):
    def few():
        print("set-up")
        for _ in range(3):
            yield 1

    kit.measure(few, seconds=None, repeats=3)
    assert lines(capsys).count("set-up") == 1


def test_a_diagnosis_prints_one_set_up(capsys):
    torch.set_num_threads(kit.this_machine().cores + 1)  # which is tried without
    found = kit.diagnose(train, size=3)
    said = lines(capsys)
    assert "threads" in found.savings
    assert said.count("set-up of 3") == 1
    assert said.index("set-up of 3") == 0


def test_other_threads_go_on_to_print(capsys):
    inside, go_on, starts = threading.Event(), threading.Event(), []

    def waits():
        starts.append(True)
        print("set-up")
        if len(starts) == 2:
            inside.set()
            assert go_on.wait(20)
            print("set-up")
        yield from [1, 1, 1]

    with ThreadPoolExecutor(1) as pool:
        measured = pool.submit(kit.measure, waits, seconds=None, repeats=2)
        assert inside.wait(20) or measured.result()
        print("the reader's own")
        go_on.set()
        measured.result()
    assert lines(capsys) == ["set-up", "the reader's own"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_everything_is_heard(capsys, error):
    starts, before = [], dict(vars(sys.stdout))

    def fails():
        starts.append(True)
        print("set-up")
        if len(starts) == 2:
            raise error
        yield from [1, 1, 1]

    with pytest.raises((ExperimentError, KeyboardInterrupt)):
        kit.measure(fails, seconds=None, repeats=3)
    print("the reader's own")
    assert lines(capsys) == ["set-up", "the reader's own"]
    assert vars(sys.stdout) == before


class Says(Dataset):
    """A data set that tells who reads it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        print(f"read by {os.getpid()}", flush=True)
        return index


def test_workers_of_a_silent_set_up_print(capfd):
    def loads():
        batches = iter(DataLoader(Says(), batch_size=2, num_workers=1))
        for batch in batches:
            yield len(batch)

    with silencing():
        generator = loads()
        next(generator)
    assert list(generator) == [2, 2, 2]
    del generator
    said = [line for line in lines(capfd) if line.startswith("read by")]
    assert len(said) == 8 and str(os.getpid()) not in said[0]


def test_what_wraps_the_output_in_a_set_up_goes_on(capsys):
    kept = sys.stdout
    heard = []
    with silencing():
        write = sys.stdout.write
        vars(kept)["write"] = lambda text: heard.append(text) or write(text)
        print("silent", end="")
    try:
        print("loud", end="")
        assert "".join(heard) == "silentloud"
        assert capsys.readouterr().out == "loud"
    finally:
        del vars(kept)["write"]


def test_where_there_is_no_output_nothing_is_silenced(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with silencing():
        print("nowhere")
