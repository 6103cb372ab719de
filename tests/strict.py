"""Two more ways to be red: a skip where nothing may be skipped, and too much work."""

import contextlib
import os
import sys
import time

import psutil
import pytest

#: Seconds of processor time, that of children too, which a test may take, and a
#: property with as many examples as in `make test`.
LIMITS = {"a test": 1.0, "a property": 3.0}
#: A machine that others use makes the same work longer, by half at times: a test
#: that is just within its limit in `make test-all` must not be red by chance.
SPARE = 3.0
EXAMPLES = 30
#: Seconds that `find_slowness` works where nothing else runs.
USUAL = 0.009
#: What is real takes its time.
REAL = ("tests/processes/", "tests/browser/", "tests/benchmarks/")
REAL += ("tests/test_planted_loops.py", "tests/test_chapters.py")
_SPENT = pytest.StashKey[float]()


def forbid_skip(report):
    """Make a skip a failure where nothing may be skipped; return the report."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("KIT_STRICT") == "1":
        report.outcome = "failed"
        reason = report.longrepr[2] if report.longrepr else "for no reason"
        report.longrepr = f"nothing may be skipped here (KIT_STRICT=1): {reason}"
    return report


def find_limit(item):
    """Return what a test is, and how many seconds of processor time it may take."""
    examples = sys.modules["hypothesis"].settings.default.max_examples
    is_nightly = examples > EXAMPLES
    spare = 1.0 if is_nightly else SPARE
    if not getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return "a test", LIMITS["a test"] * spare
    return "a property", LIMITS["a property"] * spare * examples / EXAMPLES


def find_slowness():
    """Return how many times as long as usual a core works for the same now.

    Where other processes share it and its memory, processor time is longer, too.
    """
    begun = time.process_time()
    sum(number % 7 for number in range(200_000))
    return max(1.0, (time.process_time() - begun) / USUAL)


def forbid_slowness(item, report):
    """Make too much work a failure; return the report."""
    is_free = item.nodeid.startswith(REAL) or item.get_closest_marker("nightly")
    spent, (kind, limit) = item.stash.get(_SPENT, 0.0), find_limit(item)
    if report.when != "call" or not report.passed or is_free or spent <= limit:
        return report
    spent /= find_slowness()
    if spent > limit:
        report.outcome = "failed"
        report.longrepr = (
            f"{kind} may take {limit:g} s of processor time; this took {spent:.2f}: "
            "make it smaller, or put what must be real where it may take longer"
        )
    return report


def measure_work():
    """Return the seconds of processor time of this process and its ended children.

    Also where nobody has read yet how they ended: else it counts in a later test.
    """
    seconds = sum(os.times()[:4])
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            is_unread = child.status() == psutil.STATUS_ZOMBIE
            seconds += is_unread and sum(child.cpu_times()[:4])
    return seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    begun = measure_work()
    try:
        return (yield)
    finally:
        item.stash[_SPENT] = measure_work() - begun


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return forbid_slowness(item, forbid_skip((yield)))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return forbid_skip((yield))
