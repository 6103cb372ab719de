"""The calibration's judge, on rows that are made up; `make bench` measures some."""

import json
import math
import random
import re
import sys
from pathlib import Path

import pytest
from liars import LIARS

from kit import budget, life, ratio, stats

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
from calibration import rendering, report, results, running, schedule

SESSION = {
    "machine": {
        "name": {"value": "made-up", "reason": ""},
        "operating_system": {"value": "Some System", "reason": ""},
        "python": {"value": "3.11", "reason": ""},
    },
    "commit": "0123456789abcdef",
    "changed": False,
    "kit": "feed",
    "harness": "beef",
    "packages": {"torch": "2.99", "pyperf": None},
    "at": 1.7e9,
    "share": 1.0,
}


def made_up(job, **found):
    """A row as a perfect tool would find it."""
    word = {True: "faster", False: "slower"}[job.truth > 1]
    verdict = "same" if job.truth == 1 else word
    return {
        "name": job.name,
        "kind": job.kind,
        "method": job.method,
        "condition": job.condition,
        "work": job.work,
        "threads": job.threads,
        "uses_delay": job.uses_delay,
        "units": job.units,
        "truth": job.truth,
        "seconds": job.seconds,
        "wall_seconds": 1.1 * job.seconds,
        "at": 1.7e9 + 60,
        "value": job.truth,
        "low": job.truth / 1.01,
        "high": job.truth * 1.01,
        "verdict": "cannot tell" if job.threads == 2 else verdict,
        **found,
        **({"ours": 100.0, "theirs": 101.0} if job.kind == "agreement" else {}),
    }


def perfect_rows():
    return [made_up(job) for job in schedule.all_jobs()]


def write_raw(path, rows, *sessions):
    entries = [*({"session": session} for session in sessions or [SESSION]), *rows]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def bar_of(summary, words):
    (found,) = [bar for bar in summary["bars"] if words in bar["name"]]
    return found


@pytest.mark.parametrize(("successes", "count"), [(0, 10), (5, 10), (9, 9), (186, 200)])
def test_wilson_interval(successes, count):
    from scipy.stats import binomtest

    known = binomtest(successes, count).proportion_ci(method="wilson")
    found = report.wilson_interval(successes, count)
    assert found == pytest.approx((known.low, known.high), abs=1e-9)


def test_the_interval_of_no_case_is_everything():
    assert report.wilson_interval(0, 0) == (0.0, 1.0)


def test_a_perfect_tool_keeps_every_promise():
    summary = report.summarise(perfect_rows())
    assert [bar["name"] for bar in summary["bars"] if not bar["holds"]] == []
    assert all(bar["count"] for bar in summary["bars"])
    assert bar_of(summary, "false alarms, A/A, 2 s")["count"] >= 200
    assert len(bar_of(summary, "false alarms, A/A, 2 s")["cells"]) == 12
    assert len(bar_of(summary, "holds the truth")["cells"]) == 12
    assert summary["errors"] == 0


@pytest.mark.parametrize(
    ("words", "kind", "change"),
    [
        ("false alarms, A/A, 2 s", "same", {"verdict": "slower"}),
        ("holds the truth", "truth", {"low": 3.0, "high": 4.0}),
        ("holds the truth", "truth", {"low": None, "high": None}),
        ("20 % is called, 2 s, quiet", "power", {"verdict": "cannot tell"}),
        ("throughput", "agreement", {"ours": 103.0, "theirs": 100.0}),
        ("peak memory", "allocation", {"value": 1.06}),
    ],
)
def test_a_bar_that_fails_is_said_to_fail(words, kind, change):
    rows = perfect_rows()
    for row in rows:
        if row["kind"] == kind and row["method"] == "kit":
            row.update(change)
    summary = report.summarise(rows)
    judged = bar_of(summary, words)
    assert not judged["holds"]
    line = next(x for x in rendering.render_bars(summary).splitlines() if words in x)
    assert line.endswith("| **no** |")


def test_the_rule_is_wilsons():
    # 5 % of 204 is 10.2: up to 16 alarms do not exclude it, 17 and more do.
    for alarms, holds in ((10, True), (16, True), (17, False)):
        rows = perfect_rows()
        same = [r for r in rows if r["kind"] == "same" and r["method"] == "kit"]
        usual = [r for r in same if r["threads"] == 1 and r["uses_delay"]]
        assert len(usual) == 204
        for row in random.Random(0).sample(usual, alarms):
            row["verdict"] = "faster"
        judged = bar_of(report.summarise(rows), "false alarms, A/A, 2 s")
        assert (judged["successes"], judged["holds"]) == (alarms, holds)


def test_a_call_in_the_wrong_direction_is_no_power():
    rows = perfect_rows()
    for row in rows:
        if row["kind"] == "power":
            row["verdict"] = "slower" if row["truth"] > 1 else "faster"
    assert bar_of(report.summarise(rows), "5 % is called, 5 s, quiet")["successes"] == 0


def test_one_wrong_verdict_with_threads_is_too_much():
    rows = perfect_rows()
    row = next(r for r in rows if r["threads"] == 2 and r["kind"] == "truth")
    row["verdict"] = "same"
    assert not bar_of(report.summarise(rows), "wrong verdicts")["holds"]
    row["verdict"] = "faster" if row["truth"] > 1 else "slower"  # right, if by luck
    assert bar_of(report.summarise(rows), "wrong verdicts")["holds"]


def test_an_error_calls_nothing_and_is_counted():
    rows = perfect_rows()
    for row in rows:
        if row["kind"] == "power" and row["method"] == "kit":
            for key in ("value", "low", "high", "verdict"):
                del row[key]
            row["error"] = "RuntimeError: out of luck"
    summary = report.summarise(rows)
    assert summary["errors"] == 192
    assert not bar_of(summary, "5 % is called, 5 s, quiet")["holds"]


def test_peers_are_compared_on_equal_works_and_budgets():
    rows = perfect_rows()
    for row in rows:
        if row["method"] == "pyperf" and row["kind"] == "same":
            row.update(verdict="faster", low=1.001, high=1.01)
        if row["method"] == "pyperf" and row["kind"] == "power":
            row.update(verdict="cannot tell")
    tools = report.compare_tools(rows)
    whole = {entry["tool"]: entry for entry in tools if entry["condition"] == "all"}
    same, power = (
        sum(row["method"] == "pyperf" and row["kind"] == kind for row in rows)
        for kind in ("same", "power")
    )
    assert whole["kit"]["false alarms"] == {"count": 204, "successes": 0}
    assert whole["kit"]["power, 5 %"] == {"count": 90, "successes": 90}
    assert whole["pyperf"]["false alarms"] == {"count": same, "successes": same}
    assert whole["pyperf, beyond 2 %"]["false alarms"]["successes"] == 0
    assert whole["pyperf"]["coverage"] == {"count": same + power, "successes": power}
    assert whole["pyperf"]["power, 5 %"] == {"count": power, "successes": 0}
    assert report.find_columns_behind(tools)["adaptive_autorange"] == []
    for row in rows:
        if row["method"] == "kit" and row["kind"] == "power":
            row["verdict"] = "cannot tell"
    behind = report.find_columns_behind(report.compare_tools(rows))
    assert behind["adaptive_autorange"] == ["power, 5 %"]
    assert behind["pyperf"] == []


def test_the_schedule_can_be_cut_short_and_loses_no_job():
    jobs = schedule.all_jobs()
    assert len({job.name for job in jobs}) == len(jobs)
    assert jobs == schedule.all_jobs(), "a resumed run must find the same jobs"
    for minutes in (10, 30, 1000):
        chosen, share = schedule.fit(jobs, minutes)
        assert schedule.expected_minutes(chosen, share) <= minutes
        done = [job for batch in schedule.batches(chosen, share) for job in batch]
        assert sorted(j.name for j in done) == sorted(j.name for j in chosen)
    assert len(chosen) == len(jobs)
    made = list(schedule.batches(jobs, 1.0))
    assert max(map(len, made)) <= 4, "a process has its own luck with addresses"
    early = made[: len(made) // 2]  # two of four rounds
    cells = {(job.condition, job.work) for batch in early for job in batch}
    assert {(c, w) for c in schedule.CONDITIONS for w in schedule.WORKS} <= cells


def test_raw_lines_can_be_resumed(tmp_path):
    job, other = schedule.all_jobs()[:2]
    failed = {**made_up(job), "error": "OSError: no"}
    raw = write_raw(tmp_path / "raw.jsonl", [failed, made_up(other), made_up(job)])
    with raw.open("a") as file:
        file.write('{"name": "cut o')
    sessions, rows = running.read(raw)
    assert len(sessions) == 1
    assert [row["name"] for row in rows] == [job.name, other.name]
    assert "error" not in rows[0], "the later line of a name counts"
    with pytest.raises(FileExistsError, match="--resume"):
        running.run(raw, 1.0)


def test_resuming_does_only_what_is_missing(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(running, "_measure", lambda batch, *_: asked.extend(batch))
    monkeypatch.setattr(running, "CONDITIONS", dict.fromkeys(schedule.CONDITIONS, open))
    monkeypatch.setattr(running.provenance, "find", lambda: SESSION)
    monkeypatch.setitem(running.CONDITIONS, "quiet", running.contextlib.nullcontext)
    jobs = [job for job in schedule.all_jobs() if job.condition == "quiet"]
    missing = jobs[5]
    rows = [made_up(job) for job in jobs if job is not missing]
    raw = write_raw(tmp_path / "raw.jsonl", rows)
    running.run(
        raw,
        1.0,
        resume=True,
        keep=lambda job: job.condition == "quiet",
        say=lambda text: None,
    )
    assert [job.name for job in asked] == [missing.name]


def test_a_page_shows_the_newest_result(tmp_path):
    raw = write_raw(tmp_path / "raw.jsonl", perfect_rows())
    folder, page = tmp_path / "results", tmp_path / "PAGE.md"
    page.write_text(f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    assert rendering.check_page(page, folder) == ["no result is stored in results/"]
    result = results.gather(raw)
    path = results.store(result, folder)
    assert path.name == f"made-up__{result['date']}.json"
    assert results.gather(path) == json.loads(json.dumps(result))
    assert "write it again" in rendering.check_page(page, folder)[0]
    results.write_page(page, rendering.render(result))
    assert rendering.check_page(page, folder) == []
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "| kit | 0 of 204 (0 %) | 294 of 294 (100 %) | 90 of 90 (100 %) |" in text
    assert "- At least level with pyperf in every column." in text
    assert "Commit 0123456789, sources of the kit feed." in text
    count = len(schedule.all_jobs())
    assert f"{count} of the {count} comparisons of the schedule in 1 minutes" in text
    changed = json.loads(path.read_text())
    column = changed["columns"].index("verdict")
    for row in changed["rows"]:
        row[column] = "faster"
    path.write_text(json.dumps(changed))
    assert "does not follow from its rows" in rendering.check_page(page, folder)[0]


def test_a_page_without_markers_is_refused(tmp_path):
    page = tmp_path / "PAGE.md"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="needs the lines"):
        results.write_page(page, "text")
    assert page.read_text() == "no markers"


def test_a_change_of_the_kit_on_the_way_is_told(tmp_path):
    later = {**SESSION, "kit": "beef", "at": 1.7e9 + 3600}
    rows = perfect_rows()
    rows[0]["at"] = 1.7e9 + 3720
    raw = write_raw(tmp_path / "raw.jsonl", rows, SESSION, later)
    result = results.gather(raw)
    assert result["minutes"] == 3.0
    assert "which changed on the way" in rendering.render(result)


def test_sources_have_a_digest(tmp_path):
    (tmp_path / "a.py").write_text("1")
    first = running.provenance.hash_sources(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert running.provenance.hash_sources(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert running.provenance.hash_sources(tmp_path) != first


# The page


PAGE = Path(__file__).parents[1] / "kit" / "MEASURING.md"


def test_the_page_shows_the_newest_calibration():
    assert rendering.check_page(PAGE) == []


def test_the_page_has_the_liars_side_by_side():
    _, _, rest = PAGE.read_text().partition("<!-- liars -->")
    table, _, _ = rest.partition("<!-- end of liars -->")
    names = {liar.name for liar in LIARS if liar.real}
    shown = {line.split("|")[1].strip() for line in table.splitlines() if "|" in line}
    assert names <= shown


def test_the_page_has_the_limits_of_the_code():
    page = PAGE.read_text()
    for said in (
        f"[1/{stats.SAME:g}, {stats.SAME:g}]",
        f"differ by over {stats.SAME - 1:.0%}",
        f"take over {ratio._BUSY:g} core",
        f"wait over {ratio._WAITING:.0%} of the time",
        f"stopped the process over {ratio._THROTTLED:.0%} of the time",
        f"{1000 * budget._BLOCK_SECONDS_UNDER_QUOTA:.0f} ms under a quota",
        f"at least {1000 * life.BLOCK_SECONDS:.0f} ms",
        f"cold and alone: {budget._FIRST_SHARE:.0%} of the budget",
        f"{budget._OVER_STRETCH:g} times the way to a slow block",
    ):
        assert re.sub(r"(\d)%", r"\1 %", said) in page, said
    assert budget._LEAST_PAIRS == 5 and "five, which may take three times" in page
    assert budget._MOST_OVER == 3 and math.exp(budget._NARROW) == pytest.approx(1.005)
    assert budget._SHARE_OF_START == 0.25 and "a quarter of what its start" in page
    assert ratio._CHANGED == 1.2 and "off by over a fifth" in page
