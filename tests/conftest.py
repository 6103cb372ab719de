"""Fixtures that several test files share, and how properties are tried."""

import gc
import os
import signal

import helpers
import pytest
import torch
from hypothesis import HealthCheck, settings

import kit.clock

settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=30,
    database=None,
    deadline=None,  # how long it takes depends on what else the machine does
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
settings.register_profile(
    "nightly", derandomize=False, max_examples=1000, print_blob=True
)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so: interrupts could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute on one thread: several wait for each other where others compute, too."""
    torch.set_num_threads(1)


def pytest_sessionfinish():
    gc.unfreeze()  # else what is frozen counts as leaked at the end


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """A folder and a cache of its own, and runs of full length."""
    monkeypatch.chdir(tmp_path)  # a panel would read the recordings that lie here
    monkeypatch.delenv("KIT_QUICK", raising=False)
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own_journal():
    """An empty journal; what was in it comes back."""
    before = helpers.JOURNAL[:]
    helpers.JOURNAL.clear()
    yield
    helpers.JOURNAL[:] = before


@pytest.fixture
def tidy(own_folder):
    """A run of full length in a folder of its own, and no child left behind."""
    threads = torch.get_num_threads()
    helpers.reset_state()
    helpers.OLDER_CHILDREN.update(helpers.children())
    yield
    helpers.reset_state()
    torch.set_num_threads(threads)
    gc.collect()
    gc.freeze()  # looking through it takes 0.2 s each time
    helpers.wait_until(lambda: not helpers.children(), 5)


@pytest.fixture
def quick(tidy, monkeypatch):
    """The shortest run that touches everything."""
    monkeypatch.setenv("KIT_QUICK", "1")


@pytest.fixture
def clock(tidy):
    """Replace the one clock, and the time that budgets are counted in."""
    with helpers.FakeClock() as fake:
        yield fake


@pytest.fixture
def device(clock, monkeypatch):
    """An accelerator with a queue, which this process has initialised."""
    fake = helpers.FakeDevice(clock)
    monkeypatch.setattr(kit.clock, "DEVICES", [fake])
    return fake


def forbid_skip(report):
    """Make a skip a failure where nothing may be skipped, as in `.ci/run`."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("KIT_STRICT") == "1":
        reason = report.longrepr[2] if report.longrepr else "for no reason"
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped here (KIT_STRICT=1): {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return forbid_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return forbid_skip((yield))
