"""What several test files share: a clock and a device of their own, looks around."""

import contextlib
import functools
import gc
import multiprocessing
import operator
import random
import time

import numpy
import psutil
import pytest
import torch

import kit.clock
from kit import system
from kit.clock import Ticks
from kit.errors import ExperimentError
from kit.journal import keep_journal

#: All that is measured and claimed in this test session.
JOURNAL = keep_journal()
# Tests run on one thread: several wait for each other where the machine is busy.
COUNTS = _, OTHER_THREADS = 1, 2
#: A loader's worker that may be given any function.
ONE_WORKER = {"num_workers": 1, "multiprocessing_context": "fork"}
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class FakeClock:
    """Time passes only where an experiment says `clock.work(seconds)`.

    As a context, it is the kit's clock, on a machine that does nothing else.
    """

    def __init__(self):
        self.now, self.delay, self.own = 100.0, 0.0, 0.0
        self.events = []

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(kit.clock, "CLOCK", self)
        # How busy the machine is that runs the tests is no part of what is simulated.
        nothing = system.Load(*[0.0] * len(system.Load._fields))
        self.patch.setattr(system, "read_load", lambda *_: nothing)
        return self

    def __exit__(self, *_):
        self.patch.undo()

    def work(self, seconds, *, delay=0.0, own=0.0):
        self.now += seconds
        self.delay += delay
        self.own += own

    def wall(self):
        return self.now

    def begin(self):
        self.events.append("begin")
        return Ticks(self.now, self.delay, self.own)

    def end(self):
        self.events.append("end")
        return Ticks(self.now, self.delay, self.own)


class FakeDevice:
    """An accelerator with a queue: work costs time only when it is waited for."""

    def __init__(self, clock):
        self.clock, self.free_at = clock, 0.0
        self.allocated = self.highest = 0

    def enqueue(self, seconds):
        self.free_at = max(self.free_at, self.clock.now) + seconds

    def allocate(self, amount):
        self.allocated += amount
        self.highest = max(self.highest, self.allocated)

    def synchronize(self):
        self.clock.events.append("synchronize")
        self.clock.now = max(self.clock.now, self.free_at)

    def reset_peak(self):
        self.highest = self.allocated
        return self.allocated

    def peak(self):
        return self.highest


class LazyTensor:
    """A loss on the fake device: reading it waits for the queue."""

    def __init__(self, device, value):
        self.device, self.value = device, value

    def numel(self):
        return 1

    def detach(self):
        return self

    def clone(self):
        return type(self)(self.device, self.value)

    def __float__(self):
        self.device.synchronize()
        self.device.clock.events[-1] = "read"
        return self.value


#: Children that were there before a test, a server of the test session, say.
OLDER_CHILDREN = set()


def children():
    """Living child processes of this test, without the helpers that Python shares."""
    found = []
    for child in set(psutil.Process().children(recursive=True)) - OLDER_CHILDREN:
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())  # one that has ended is gone to psutil
            if not any(name in command for name in _HELPERS):
                found.append(child)
    return found


def find_resident_bytes():  # with its share of each page it takes 30 ms
    return psutil.Process().memory_info().rss


def is_interleaved(made):
    """Return whether variants took turns within a round."""
    return any(run.interleaved for trial in made.trials for run in trial.runs)


def wait_until(condition, seconds=10.0):
    """Wait for a condition; the limit is for a machine that is much too busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def find(path, *first):
    """Return a function of torch by its name, with its first arguments."""
    return functools.partial(operator.attrgetter(path)(torch), *first)


def flag(path, usual=False, other=True):
    room, _, name = f"backends.{path}".rpartition(".")
    owner = operator.attrgetter(room)(torch)
    functions = (functools.partial(f, owner, name) for f in (setattr, getattr))
    return *functions, usual, other


def read_depth():
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def set_device(kind):
    torch.set_default_device(None if kind == "cpu" else kind)


# How each is set and read, its usual value and another one.
BOTH, HALVES = (torch.float32, torch.float64), (torch.bfloat16, torch.float16)
CAST = find("set_autocast_enabled", "cpu"), find("is_autocast_enabled", "cpu")
CAST_TO = find("set_autocast_dtype", "cpu"), find("get_autocast_dtype", "cpu")
CACHE = find("set_autocast_cache_enabled"), find("is_autocast_cache_enabled")
DEBUG = find("set_deterministic_debug_mode"), find("get_deterministic_debug_mode")
SDP = torch.backends.cuda
FLAGS = ["cudnn.benchmark", "cudnn.deterministic", "mkldnn.deterministic"]
ROOMS = ["", "mkldnn.matmul.", "mkldnn.conv.", "cuda.matmul."]
SETTINGS = {
    "grad": (find("set_grad_enabled"), find("is_grad_enabled"), True, False),
    "threads": (find("set_num_threads"), find("get_num_threads"), *COUNTS),
    "dtype": (find("set_default_dtype"), find("get_default_dtype"), *BOTH),
    "device": (set_device, lambda: torch.ones(1).device.type, "cpu", "meta"),
    "autocast": (*CAST, False, True),
    "autocast to": (*CAST_TO, *HALVES),
    "autocast cache": (*CACHE, True, False),
    "deterministic": (*DEBUG, 0, 1),
    "flash": (SDP.enable_flash_sdp, SDP.flash_sdp_enabled, True, False),
    "collection": (lambda x: [gc.disable, gc.enable][x](), gc.isenabled, True, False),
    **{path: flag(path) for path in FLAGS},
    **{f"{x}precision": flag(f"{x}fp32_precision", "none", "tf32") for x in ROOMS},
}


def reader_state():
    """All that an experiment may change and the reader must find again."""
    return {
        **{name: read() for name, (_, read, *_) in SETTINGS.items()},
        "inference": torch.is_inference_mode_enabled(),
        "autocast depth": read_depth(),
        "python": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "torch": bytes(torch.get_rng_state().tolist()),
    }


def change_everything():
    """Change all that `reader_state` looks at."""
    for put, *_, other in SETTINGS.values():
        put(other)
    torch.autocast("cpu").__enter__()
    random.random(), numpy.random.rand(), torch.rand(1, device="cpu")


def reset_state():
    """Set what `reader_state` looks at, so that no test depends on another."""
    for put, read, usual, _ in SETTINGS.values():
        if read() != usual:
            put(usual)
    while read_depth() > 0:
        torch.autocast_decrement_nesting()


def refused(call, *words):
    """Assert that a call is refused as bad input must be; return the message."""
    before, journal = reader_state(), len(JOURNAL)
    begun = time.monotonic()
    with pytest.raises(ExperimentError) as caught:
        call()
    assert time.monotonic() - begun < 5
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    lines = message.splitlines()
    assert 2 <= len(lines) <= 6, "what is wrong, and what to do next:\n" + message
    assert reader_state() == before
    assert len(JOURNAL) == journal
    wait_until(lambda: not children())
    return message


def forked(target, *arguments):
    """Start a child process by fork, so that any function will do."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
