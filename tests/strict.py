"""With KIT_STRICT=1, as in `.ci/run`, a skipped test is a failure that says why."""

import os

import pytest


def forbid_skip(report):
    """Make a skip a failure where nothing may be skipped; return the report."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("KIT_STRICT") == "1":
        report.outcome = "failed"
        reason = report.longrepr[2] if report.longrepr else "for no reason"
        report.longrepr = f"nothing may be skipped here (KIT_STRICT=1): {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return forbid_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return forbid_skip((yield))
