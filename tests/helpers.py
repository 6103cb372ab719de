"""What several test files share: a clock and a device of their own, looks around."""

import contextlib
import multiprocessing
import random
import time

import numpy
import psutil
import pytest
import torch

import kit.clock
from kit.errors import ExperimentError
from kit.measuring.records import listeners
from kit.measuring.settings import list_settings, read_settings, restore_settings

#: All that is measured and claimed in this test session.
JOURNAL = []
listeners.append(JOURNAL)
#: A loader's worker that may be given any function.
ONE_WORKER = {"num_workers": 1, "multiprocessing_context": "fork"}
#: Children that were there before a test, a server of the test session, say.
OLDER_CHILDREN = set()
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class FakeClock:
    """Time passes only where an experiment says `clock.work(seconds)`.

    As a context, it is the kit's clock.
    """

    def __init__(self):
        self.now = 100.0
        self.events = []

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(kit.clock, "CLOCK", self)
        return self

    def __exit__(self, *_):
        self.patch.undo()

    def work(self, seconds):
        self.now += seconds

    def wall(self):
        return self.now


class FakeDevice:
    """An accelerator with a queue: work costs time only when it is waited for."""

    def __init__(self, clock):
        self.clock = clock
        self.free_at = 0.0
        self.allocated = 0
        self.highest = 0

    def enqueue(self, seconds):
        self.free_at = max(self.free_at, self.clock.now) + seconds

    def allocate(self, amount):
        self.allocated += amount
        self.highest = max(self.highest, self.allocated)

    def synchronize(self):
        self.clock.events.append("wait")
        self.clock.now = max(self.clock.now, self.free_at)

    def reset_peak(self):
        self.highest = self.allocated
        return self.allocated

    def peak(self):
        return self.highest


def children():
    """Living child processes of this test, without the helpers that Python shares."""
    found = []
    for child in set(psutil.Process().children(recursive=True)) - OLDER_CHILDREN:
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())  # one that has ended is gone to psutil
            if not any(name in command for name in _HELPERS):
                found.append(child)
    return found


def forked(target, *arguments):
    """Start a child process by fork, so that any function will do."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def wait_until(condition, seconds=10.0):
    """Wait for a condition; the limit is for a machine that is much too busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def take_turns(made):
    """Return whether variants took turns, in each run that was not a cold start."""
    found = {run.took_turns for t in made.trials for run in t.runs if run.round >= 0}
    assert len(found) == 1, "some did, and others did not"
    return found.pop()


# Settings and random states

_USUAL = read_settings() | {"threads": 1}  # tests run on one
#: Other values of settings that are more than a switch; all of them must be there.
OTHERS = {
    "threads": 2,
    "deterministic": 1,
    "float32 precision": "high",
    "default dtype": torch.float64,
    "default device": torch.device("meta"),
    "anomaly mode": (True, False),
}


def change_everything():
    """Change all that `reader_state` looks at."""
    changed = [(setting, _find_other(setting)) for setting in list_settings()]
    for setting, value in changed:
        setting.set(value)
    random.random()
    numpy.random.rand()
    torch.rand(1, device="cpu")


def _find_other(setting):
    """Return a value that a setting does not have now."""
    value = setting.read()
    if setting.name in OTHERS:
        return OTHERS[setting.name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, torch.dtype):
        return torch.float16 if value == torch.bfloat16 else torch.bfloat16
    return "ieee" if value == "tf32" else "tf32"


def reader_state():
    """All that an experiment may change and the reader must find again."""
    return {
        **read_settings(),
        "inference": torch.is_inference_mode_enabled(),
        "python": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "torch": bytes(torch.get_rng_state().tolist()),
    }


def reset_state():
    """Set what `reader_state` looks at, so that no test depends on another."""
    restore_settings(_USUAL)


def refused(call, *words):
    """Assert that a call is refused as bad input must be, in these words."""
    before = reader_state()
    journal = len(JOURNAL)
    with pytest.raises(ExperimentError) as caught:
        call()
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    assert reader_state() == before
    assert len(JOURNAL) == journal
    wait_until(lambda: not children())
