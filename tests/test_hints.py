"""Known failures of workers come with one line that says what to do."""

import dataclasses
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import pytest
import torch
from helpers import refused
from torch.utils.data import DataLoader

import kit
from kit import hints
from kit.experiment import ExperimentError
from kit.hints import find_hint, split_error
from kit.machine import this_machine


class Numbers(torch.utils.data.Dataset):
    """Samples of which one does something bad in a worker."""

    def __init__(self, act=None, index=12):
        self.act, self.index = act, index

    def __len__(self):
        return 64

    def __getitem__(self, index):
        in_worker = torch.utils.data.get_worker_info() is not None
        if index == self.index and self.act is not None and in_worker:
            self.act()
        return torch.zeros(4)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def fail():
    raise ValueError("not a number:\nNaN")


def load(*, act=kill):
    """Load with one worker."""
    while True:
        for batch in DataLoader(Numbers(act), batch_size=8, num_workers=1):
            yield len(batch)


@pytest.mark.usefixtures("smoke")
def test_killed_worker_is_named_with_the_likely_cause():
    message = refused(lambda: kit.measure(load, act=kill), "pid", "memory")
    assert "Try it without the kit" in message


@pytest.mark.usefixtures("smoke")
def test_worker_that_leaves():
    refused(lambda: kit.measure(load, act=leave), "pid", "num_workers=0")


@pytest.mark.usefixtures("smoke")
def test_a_worker_is_named_where_its_broken_connection_is_seen_first():
    """As PyTorch does, a handler says a moment later which process died."""

    def say(*_):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    def load():
        yield 1
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        raise ConnectionResetError(104, "Connection reset by peer")

    before = signal.signal(signal.SIGALRM, say)
    try:
        refused(lambda: kit.measure(load), "pid 7", "memory")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("smoke")
def test_error_of_a_worker_is_said_and_not_its_traceback():
    message = refused(lambda: kit.measure(load, act=fail), "not a number: NaN")
    assert "Traceback (" not in message
    assert "DataLoader worker process 0" in message


def test_small_shared_memory_says_how_large_it_is(monkeypatch):
    machine = dataclasses.replace(this_machine(), shared_memory_bytes=64_000_000)
    monkeypatch.setattr(hints, "this_machine", lambda: machine)
    for text in [
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        "unable to write to file </torch_7_12>: No space left on device (28)",
        "unable to allocate shared memory(shm) for file </torch_7_12>: Success (0)",
    ]:
        hint = find_hint(RuntimeError(text))
        assert "64 MB" in hint
        assert "--shm-size" in hint


def test_full_disk_is_not_taken_for_shared_memory():
    assert find_hint(OSError(28, "No space left on device", "model.pt")) is None


def test_killed_for_memory_says_how_much_there_is(monkeypatch):
    machine = dataclasses.replace(this_machine(), memory_bytes=2_000_000_000)
    monkeypatch.setattr(hints, "this_machine", lambda: machine)
    for text in [
        "DataLoader worker (pid 7) is killed by signal: Killed. ",
        "DataLoader worker (pid(s) 7) exited unexpectedly",
    ]:
        assert "2 GB" in find_hint(RuntimeError(text))


CELL = """
import torch
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return index
if __name__ == "__main__":
    list(DataLoader(Data(), num_workers=1, multiprocessing_context="spawn"))
"""


@pytest.mark.timeout(100)
def test_what_python_says_of_a_cells_data_set_is_known():
    done = subprocess.run([sys.executable, "-c", CELL], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if "Can't get attribute" in line]
    said = lines[0].partition(": ")[2]
    assert "%%writefile" in find_hint(AttributeError(said))


def test_exit_without_fork_may_be_a_cells_data_set(monkeypatch):
    machine = dataclasses.replace(this_machine(), start_method="spawn")
    monkeypatch.setattr(hints, "this_machine", lambda: machine)
    error = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    assert "%%writefile" in find_hint(error)


def test_what_cannot_be_pickled_goes_into_a_file():
    with pytest.raises(Exception, match="lambda") as caught:
        pickle.dumps(lambda: None)
    assert "file" in find_hint(caught.value)

    class Local:
        pass

    with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
        pickle.dumps(Local())
    assert "file" in find_hint(caught.value)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (RuntimeError("DataLoader timed out after 5 seconds"), "num_workers=0"),
        (RuntimeError("received 0 items of ancdata"), "ulimit"),
        (OSError(24, "Too many open files"), "file_system"),
        (
            RuntimeError("Cannot re-initialize CUDA in forked subprocess."),
            "CPU tensors",
        ),
        (
            RuntimeError("DataLoader worker (pid 9) is killed by signal: Aborted. "),
            "Native code",
        ),
    ],
)
def test_others(error, word):
    assert word in find_hint(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bus error"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        TypeError("'int' object is not iterable"),
        KeyError("shm"),
    ],
)
def test_other_errors_have_no_hint(error):
    assert find_hint(error) is None


def test_hints_are_one_line():
    texts = [
        "DataLoader worker (pid 7) is killed by signal: Killed. ",
        "DataLoader worker (pid 7) is killed by signal: Bus error. ",
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "DataLoader timed out after 5 seconds",
    ]
    for text in texts:
        assert "\n" not in find_hint(RuntimeError(text))


def test_words_of_an_error_caught_in_a_worker():
    loader = DataLoader(Numbers(fail), batch_size=8, num_workers=1)
    with pytest.raises(ValueError) as caught:
        list(loader)
    told = "ValueError", "in DataLoader worker process 0", "not a number: NaN"
    assert split_error(caught.value) == told
    assert split_error(KeyError()) == ("KeyError", "", "")
    del caught, loader


class Odd(Exception):
    """An error of a reader's own."""


def test_words_of_a_workers_traceback_give_no_hint():
    """Only its end is the error: paths and code in it may be any."""
    said = (
        "Caught Odd in DataLoader worker process 0.\nOriginal Traceback (most recent "
        'call last):\n  File "/torch_1/shm.py", line 7, in __getitem__\n'
        "    raise Odd  # Too many open files\nread.<locals>.Odd: no photo\n"
    )
    assert split_error(Odd(said)) == (
        "Odd",
        "in DataLoader worker process 0",
        "no photo",
    )
    assert find_hint(Odd(said)) is None


def test_no_start_method_is_settled_by_looking():
    code = (
        "import multiprocessing; from kit.hints import find_hint;"
        "find_hint(RuntimeError('DataLoader worker (pid 1) exited unexpectedly'));"
        "print(multiprocessing.get_start_method(allow_none=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "None", done.stderr
    assert multiprocessing.get_all_start_methods()
    assert issubclass(ExperimentError, Exception)
