"""A sample of the calibration, in less than five minutes: `make bench`.

Bars are judged by the same rule as the whole: they hold unless the 95 % interval of the
pooled cases excludes them. So few cases exclude gross faults only.
"""

import os

import pytest
from calibration import rendering, report, running
from calibration.schedule import KIT

import kit

MINUTES = 4.5


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    print(f"\n{kit.this_machine()}\n")
    print("load averages before:", *(f"{load:.2f}" for load in os.getloadavg()))
    out = tmp_path_factory.mktemp("calibration") / "sample.jsonl"
    running.run(out, MINUTES, keep=lambda job: job.method == KIT)
    found = report.summarise(running.read(out)[1])
    print(rendering.render_bars(found))
    return found


def test_no_comparison_fails(summary):
    assert summary["errors"] == 0


@pytest.mark.parametrize("bar", report.BARS, ids=lambda bar: bar.name)
def test_bar_holds(summary, bar):
    judged = next(entry for entry in summary["bars"] if entry["name"] == bar.name)
    if not judged["count"]:
        pytest.skip("no case of it in this sample")
    assert judged["holds"], {k: v for k, v in judged.items() if k != "cells"}
