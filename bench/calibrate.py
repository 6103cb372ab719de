"""Hold verdicts against ratios that are known beforehand.

    python bench/calibrate.py --minutes 30 --write kit/MEASURING.md

Loops of equal units are compared, whose ratio of speeds is the ratio of their units: by
the kit, by `torch.utils.benchmark` and by pyperf, with the same budgets, in processes
that were started anew, on a quiet machine and while another program keeps one core
busy. Nothing else may run meanwhile. It prints one table, and keeps every comparison in
`bench/results/`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyperf
import torch
from pyperf._compare import CompareData, CompareResult
from pyperf._utils import pooled_sample_variance, tdist95conf_level
from scipy.stats import binomtest
from torch.utils.benchmark import Timer

import kit

RESULTS = Path(__file__).parent / "results"
START = "<!-- calibration -->"
END = "<!-- end of calibration -->"
#: `torch.utils.benchmark.Compare` paints medians within 1 % of the best alike.
SAME_COLOR = 1.01
#: A round asks each of these once of every work, quiet and busy: tool, units of the
#: baseline, units of the other loop, budget in seconds.
CASES = [
    ("kit", 20, 20, 2.0),
    ("kit", 20, 20, 2.0),
    ("kit", 20, 21, 5.0),
    ("kit", 20, 24, 2.0),
    ("kit", 20, 40, 2.0),
    ("torch.utils.benchmark", 20, 20, 2.0),
    ("torch.utils.benchmark", 20, 21, 5.0),
    ("torch.utils.benchmark", 20, 24, 2.0),
    ("pyperf", 20, 20, 2.0),
    ("pyperf", 20, 21, 5.0),
    ("pyperf", 20, 24, 2.0),
]


# Work whose ratio is known: a unit takes about 0.1 ms on one core


def matmul(*, units):
    """Multiply matrices that stay in a core's own cache."""
    a, b, out = torch.rand(160, 160), torch.rand(160, 160), torch.empty(160, 160)
    while True:
        for _ in range(units):
            torch.mm(a, b, out=out)
        yield 1


def memory(*, units):
    """Add vectors that do not fit into a core's own cache."""
    a, b, out = torch.rand(1 << 19), torch.rand(1 << 19), torch.empty(1 << 19)
    while True:
        for _ in range(units):
            torch.add(a, b, out=out)
        yield 1


def python(*, units):
    """Add numbers in plain Python."""
    while True:
        for _ in range(units):
            total = 0
            for number in range(4000):
                total += number % 7
        yield 1


WORKS = {"matmul": matmul, "memory": memory, "python": python}


# The tools: each returns the ratio, its interval, and the tool's verdict


def ask_kit(work, units, seconds):
    ratio = kit.compare(work, units=list(units), seconds=seconds).ratio
    return ratio.value, ratio.low, ratio.high, ratio.verdict


def ask_torch(work, units, seconds):
    """Compare with `torch.utils.benchmark`, which has no test of its own.

    Two loops differ where their interquartile ranges are disjoint and their medians
    more than 1 % apart: either alone raises more false alarms. The interval is spanned
    by the two ranges.
    """
    measured = []
    for count in units:
        generator = work(units=count)
        next(generator)
        timer = Timer("next(generator)", globals={"generator": generator})
        half = seconds / 2
        measured.append(timer.adaptive_autorange(min_run_time=half, max_run_time=half))
    a, b = measured
    ratio = a.median / b.median
    low, high = a._p25 / b._p75, a._p75 / b._p25
    is_clear = (low > 1 or high < 1) and max(ratio, 1 / ratio) > SAME_COLOR
    return ratio, low, high, _name_verdict(ratio, is_clear)


def ask_pyperf(work, units, seconds):
    """Compare with pyperf: one worker's protocol, judged as `compare_to` does.

    By default it starts twenty workers for each loop; importing PyTorch in each would
    take many times these budgets, so there is one, with as many values as fit.
    """
    samples = [_time_with_pyperf(work(units=count), seconds / 2) for count in units]
    count = min(map(len, samples))  # its test needs equal numbers
    metadata = {"metadata": {"name": "step"}, "collect_metadata": False}
    runs = [pyperf.Run(sample[:count], **metadata) for sample in samples]
    a, b = (pyperf.Benchmark([run]) for run in runs)
    result = CompareResult(CompareData("baseline", a), CompareData("other", b))
    spread = pooled_sample_variance(a.get_values(), b.get_values())
    half = tdist95conf_level(2 * count - 2) * (2 * spread / count) ** 0.5
    low = (a.mean() - half) / b.mean()
    high = (a.mean() + half) / b.mean()
    ratio = 1 / result.norm_mean
    return ratio, low, high, _name_verdict(ratio, result.significant)


def _time_with_pyperf(generator, seconds):
    """Return seconds per step: loops are doubled until a value lasts 0.1 s."""
    begun = time.perf_counter()

    def time_loops():
        before = time.perf_counter()
        for _ in range(loops):
            next(generator)
        return time.perf_counter() - before

    next(generator)
    loops = 1
    while time_loops() < 0.1:
        loops *= 2
    time_loops()  # the warm-up
    values = []
    while len(values) < 3 or time.perf_counter() - begun < seconds:
        values.append(time_loops() / loops)
    return values


def _name_verdict(ratio, is_clear):
    if not is_clear:
        return "cannot tell"
    return "faster" if ratio > 1 else "slower"


TOOLS = {"kit": ask_kit, "torch.utils.benchmark": ask_torch, "pyperf": ask_pyperf}


# Measuring


def measure_cases(work):
    """Ask all cases of one work in random order; print a JSON line for each."""
    torch.set_num_threads(1)
    for tool, a, b, seconds in random.sample(CASES, len(CASES)):
        units = random.sample([a, b], 2)
        begun = time.perf_counter()
        value, low, high, verdict = TOOLS[tool](WORKS[work], units, seconds)
        row = {
            "tool": tool,
            "work": work,
            "truth": units[0] / units[1],
            "seconds": seconds,
            "took": time.perf_counter() - begun,
            "value": value,
            "low": low,
            "high": high,
            "verdict": verdict,
        }
        print(json.dumps(row), flush=True)


@contextlib.contextmanager
def keep_one_core_busy():
    command = [sys.executable, "-S", "-c", "while True: sum(range(1000))"]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def measure(minutes):
    """Ask all cases in fresh processes, round after round; return their rows."""
    until = time.monotonic() + 60 * minutes
    rows = []
    while True:
        batches = [(work, load) for work in WORKS for load in ("quiet", "busy")]
        for work, load in random.sample(batches, len(batches)):
            command = [sys.executable, __file__, "--work", work]
            beside = (
                keep_one_core_busy() if load == "busy" else contextlib.nullcontext()
            )
            with beside:
                lines = subprocess.check_output(command, text=True).splitlines()
            rows += [{"load": load, **json.loads(line)} for line in lines]
            left = until - time.monotonic()
            print(f"{left / 60:5.1f} min left, {len(rows)} rows", file=sys.stderr)
            if left <= 0:
                return rows


# The table


def tabulate(rows):
    """Return one table in Markdown: for each tool how often it was right."""
    columns = {
        "equal: a difference is seen, quiet": (is_alarm, "quiet", (1.0,)),
        "equal: a difference is seen, busy": (is_alarm, "busy", (1.0,)),
        "5 % is called in 5 s": (is_called, "", (20 / 21, 21 / 20)),
        "20 % is called in 2 s": (is_called, "", (20 / 24, 24 / 20)),
        "a factor of 2 is called in 2 s": (is_called, "", (0.5, 2.0)),
        "the interval holds the truth": (is_covered, "", ()),
    }
    lines = [["tool", *columns, "time ÷ budget"]]
    for tool in TOOLS:
        own = [row for row in rows if row["tool"] == tool]
        cells = [tool]
        for happens, load, truths in columns.values():
            chosen = [
                happens(row)
                for row in own
                if load in ("", row["load"]) and (not truths or row["truth"] in truths)
            ]
            cells.append(write_share(chosen))
        over = statistics.median(row["took"] / row["seconds"] for row in own)
        lines.append([*cells, f"{over:.2f}"])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def is_alarm(row):
    return row["verdict"] in ("faster", "slower")


def is_called(row):
    return row["verdict"] == ("faster" if row["truth"] > 1 else "slower")


def is_covered(row):
    return row["low"] <= row["truth"] <= row["high"]


def write_share(found):
    """Write a share with its 95 % interval (Wilson 1927)."""
    if not found:
        return "–"
    share = binomtest(sum(found), len(found)).proportion_ci(method="wilson")
    ends = f"[{100 * share.low:.0f}, {100 * share.high:.0f}] %"
    return f"{sum(found)} of {len(found)} {ends}"


def write_page(page, text):
    before, _, rest = page.read_text("utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", "utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--work", choices=WORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        measure_cases(options.work)
        return
    rows = measure(options.minutes)
    machine = kit.this_machine()
    today = datetime.date.today().isoformat()
    text = (
        f"Measured on {today} on {machine.name} (Python {machine.python}, torch "
        f"{machine.torch}): {len(rows)} comparisons in {options.minutes:g} minutes.\n\n"
        f"{tabulate(rows)}"
    )
    print(text)
    RESULTS.mkdir(exist_ok=True)
    lines = ",\n".join(map(json.dumps, rows))
    target = RESULTS / f"calibration__{machine.name}__{today}.json"
    target.write_text(f"[\n{lines}\n]\n", "utf-8")
    if options.write:
        write_page(options.write, text)


if __name__ == "__main__":
    main()
