"""`tune_loader` beside the full grid and three rules of thumb: `make bench`.

Each of twelve pipelines is measured with every number of workers; then the tuner says
its own, knowing nothing of that. Regret is how much faster the best of the grid is than
the one that was chosen.

"Lightning's rule" is what Lightning proposes where it finds few workers: the number of
cores, less one for the main process, at least one
(`suggested_max_num_workers`, https://github.com/Lightning-AI/pytorch-lightning,
src/lightning/fabric/utilities/data.py).
"""

import math
import statistics
import time

import pipelines
import pytest
import torch
from helpers import children

import kit
from kit import figures
from kit.tuning import tune_loader

pytestmark = pytest.mark.usefixtures("tidy")

WORKERS = [0, 1, 2, 3, 4, 8]
#: Each number of workers is measured so often, in turn, for so long.
ROUNDS, SECONDS = 3, 1.8
MOST_REGRET = 0.05


def train(*, pipeline, num_workers):
    """Train with a pipeline, for ever."""
    loader = pipeline.make_loader(num_workers=num_workers)
    while True:
        for batch in loader:
            if pipeline.step is not None:
                pipeline.step(batch)
            yield loader.batch_size


def measure_grid(pipeline):
    """Return items per second by number of workers, over rounds in either direction."""
    items, seconds = dict.fromkeys(WORKERS, 0.0), dict.fromkeys(WORKERS, 0.0)
    for number in range(ROUNDS):
        for workers in WORKERS[:: -1 if number % 2 else 1]:
            knobs = {"pipeline": pipeline, "num_workers": workers}
            trial = kit.measure(train, seconds=SECONDS, **knobs)
            items[workers] += math.fsum(trial.block_items)
            seconds[workers] += math.fsum(b.wall_seconds for b in trial.blocks)
    return {workers: items[workers] / seconds[workers] for workers in WORKERS}


def rules(cores):
    return {
        "always 2": 2,
        "always cores": cores,
        "Lightning's rule": max(1, cores - 1),
    }


def nearest(workers):
    """Return the number in the grid that is nearest to one that may not be in it."""
    return min(WORKERS, key=lambda n: abs(n - workers))


def regret(grid, workers):
    return max(grid.values()) / grid[nearest(workers)] - 1


@pytest.fixture(scope="module")
def table(request):
    """Tune each pipeline, measure its grid; print and return a row for each."""
    machine = kit.this_machine()
    print(f"\n{machine}\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other beside workers
    rows = []
    for pipeline in pipelines.make_pipelines():
        begun = time.perf_counter()
        tuning = tune_loader(
            pipeline.make_loader, step=pipeline.step, num_workers=WORKERS
        )
        took = time.perf_counter() - begun
        grid = measure_grid(pipeline)
        row = {
            "pipeline": pipeline,
            "tuning": tuning,
            "seconds": took,
            "grid": grid,
            "errors": [tuning.predicted[n] / grid[n] - 1 for n in WORKERS],
            "regrets": {"tune_loader": regret(grid, tuning.num_workers)}
            | {
                name: regret(grid, workers)
                for name, workers in rules(machine.cores or 1).items()
            },
        }
        rows.append(row)
        describe(row)
    torch.set_num_threads(threads)
    print("\n" + summarise(rows))
    return rows


def describe(row):
    """Print what was measured and predicted of one pipeline."""
    tuning, grid = row["tuning"], row["grid"]
    print(f"\n{row['pipeline'].name} ({row['pipeline'].bound}): {tuning}")
    lines = [
        (n, *map(figures.format_number, (tuning.predicted[n], grid[n])), f"{e:+.0%}")
        for n, e in zip(WORKERS, row["errors"], strict=True)
    ]
    print(figures.text_table(["workers", "predicted", "measured", "error"], lines))


def summarise(rows):
    """Return the table of regrets, and the median error of predictions."""
    names = list(rows[0]["regrets"])
    lines = []
    for row in rows:
        best = max(row["grid"], key=row["grid"].__getitem__)
        lines.append(
            (
                row["pipeline"].name,
                row["pipeline"].bound,
                str(best),
                str(row["tuning"].num_workers),
                f"{row['seconds']:.0f} s",
                f"{median_error([row]):.0%}",
                *(f"{row['regrets'][name]:.1%}" for name in names),
            )
        )
    worst = [f"{max(r['regrets'][n] for r in rows):.1%}" for n in names]
    every = f"{median_error(rows):.0%}"
    lines.append(("all", "", "", "", "", every, *worst))
    headers = ["pipeline", "bound", "best", "chosen", "took", "median error", *names]
    return figures.text_table(headers, lines)


def median_error(rows):
    return statistics.median(abs(error) for row in rows for error in row["errors"])


def test_regret_is_at_most_5_percent(table):
    worst = {row["pipeline"].name: row["regrets"]["tune_loader"] for row in table}
    assert not {name: r for name, r in worst.items() if r > MOST_REGRET}


def test_no_rule_of_thumb_is_as_good(table):
    names = list(table[0]["regrets"])
    worst = {name: max(row["regrets"][name] for row in table) for name in names}
    assert min(worst, key=worst.__getitem__) == "tune_loader"


def test_no_worker_is_left(table):
    assert not children()
