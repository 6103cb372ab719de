"""A sample of the calibration, in less than five minutes; and its judge.

Bars are judged by the same rule as the whole: they hold unless the 95 % interval of the
pooled cases excludes them. So few cases exclude gross faults only.
"""

import pytest
from calibration import report, results, running, schedule

import kit

MINUTES = 4.5


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    print(f"\n{kit.this_machine()}\n")
    out = tmp_path_factory.mktemp("calibration") / "sample.jsonl"
    running.run(out, MINUTES, keep=lambda job: job.method == schedule.KIT)
    found = report.summarise(running.read(out)[1])
    print(results.render_bars(found))
    return found


@pytest.mark.parametrize("bar", report.BARS, ids=lambda bar: bar.name)
def test_bar_holds(summary, bar):
    assert summary["errors"] == 0
    judged = next(entry for entry in summary["bars"] if entry["name"] == bar.name)
    if not judged["count"]:
        pytest.skip("no case of it in this sample")
    assert judged["holds"], {k: v for k, v in judged.items() if k != "cells"}


# The judge, on rows as a perfect tool would find them


def perfect_rows():
    for job in schedule.all_jobs():
        word = "faster" if job.truth > 1 else "slower"
        word = "same" if job.truth == 1 else word
        yield job.to_row() | {
            "wall_seconds": 1.1 * job.seconds,
            "value": job.truth,
            "low": job.truth / 1.01,
            "high": job.truth * 1.01,
            "verdict": word,
            **({"ours": 100.0, "theirs": 101.0} if job.kind == "agreement" else {}),
        }


def judge(kind=None, most=1000, **change):
    """Change the kit's first rows of a kind; return the bars that do not hold."""
    rows = list(perfect_rows())
    for row in [r for r in rows if (r["kind"], r["method"]) == (kind, "kit")][:most]:
        row.update(change)
    return {b["name"] for b in report.summarise(rows)["bars"] if not b["holds"]}


def test_a_perfect_tool_keeps_every_promise():
    assert judge() == set()
    assert all(bar["count"] for bar in report.summarise(perfect_rows())["bars"])


@pytest.mark.parametrize(
    ("words", "kind", "change"),
    [
        ("false alarms, A/A, 2 s", "same", {"verdict": "slower"}),
        ("holds the truth", "truth", {"low": 3.0, "high": 4.0}),
        ("holds the truth", "truth", {"low": None, "high": None}),
        ("20 % is called, 2 s", "power", {"verdict": "cannot tell"}),
        ("5 % is called, 5 s", "power", {"verdict": "same"}),
        ("throughput", "agreement", {"ours": 103.0, "theirs": 100.0}),
    ],
)
def test_a_bar_that_fails_is_said_to_fail(words, kind, change):
    assert any(words in name for name in judge(kind, **change))


def test_the_rule_is_wilsons():
    """2 % of 189 is 3.8: up to 7 alarms do not exclude it, 8 and more do."""
    bar = report.BARS[0]
    assert bar.count([True] * 7 + [False] * 182)["mark"] == "not refuted"
    assert bar.count([True] * 8 + [False] * 181)["mark"] == "refuted"
    assert bar.count([False] * 189)["mark"] == "shown"


def test_a_pass_that_stops_after_a_quarter_has_every_comparison():
    def cells(jobs):
        return {(job.kind, job.method, job.condition, job.work) for job in jobs}

    jobs = schedule.all_jobs()
    assert len({job.name for job in jobs}) == len(jobs)
    quarter = [
        job for n in range(schedule.ROUNDS // 4) for job in schedule.list_jobs(n)
    ]
    agreed = {cell for cell in cells(jobs) if cell[0] == "agreement"}
    assert cells(jobs) - agreed <= cells(quarter)
