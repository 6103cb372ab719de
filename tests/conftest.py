"""Fixtures that several test files share."""

import gc
import signal

import pytest
import torch
from helpers import (
    OLDER_CHILDREN,
    FakeClock,
    FakeDevice,
    children,
    find_resident_bytes,
    reset_state,
    wait_until,
)
from strict import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401

import kit.clock
from kit import measurement, system
from kit.progress import Progress

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so: interrupts could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def frozen():
    """Let the garbage collector not look through all that PyTorch has loaded."""
    yield
    gc.unfreeze()


@pytest.fixture
def tidy(monkeypatch, tmp_path, frozen):
    """A run of full length, and no child process left behind."""
    monkeypatch.delenv("KIT_SMOKE", raising=False)
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(system, "proportional_bytes", find_resident_bytes)
    threads = torch.get_num_threads()
    reset_state()
    OLDER_CHILDREN.update(children())
    yield
    reset_state()
    torch.set_num_threads(threads)
    gc.collect()
    gc.freeze()  # looking through it takes 0.2 s each time
    wait_until(lambda: not children(), 5)


@pytest.fixture
def smoke(tidy, monkeypatch):
    """The shortest run that touches everything."""
    monkeypatch.setenv("KIT_SMOKE", "1")


@pytest.fixture
def clock(tidy, monkeypatch):
    """Replace the one clock, and the time that budgets are counted in."""
    fake = FakeClock()
    monkeypatch.setattr(kit.clock, "CLOCK", fake)
    # How busy the machine is that runs the tests is no part of what is simulated.
    nothing = system.Load(*[0.0] * len(system.Load._fields))
    monkeypatch.setattr(system, "read_load", lambda *_: nothing)
    return fake


@pytest.fixture
def device(clock, monkeypatch):
    """An accelerator with a queue, which this process has initialised."""
    fake = FakeDevice(clock)
    monkeypatch.setattr(kit.clock, "DEVICES", [fake])
    return fake


@pytest.fixture
def progresses(monkeypatch):
    """Every Progress that `measure` and `compare` make."""
    made = []

    class Recorded(Progress):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(measurement, "Progress", Recorded)
    return made


@pytest.fixture
def pretend(tmp_path):
    """Write files below a root of their own and return it."""

    def write(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return write
