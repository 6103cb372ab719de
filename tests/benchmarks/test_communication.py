"""What chapter 13 says of messages between ranks, on this machine: `make bench`."""

import functools
import itertools
import statistics
import time
from pathlib import Path

import nbformat
import pytest
import torch

import kit
from kit.costs import LINKS, fit_line
from kit.figures import format_bytes, format_seconds, text_table

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
CELLS = [
    "imports",
    "letters",
    "batches",
    "plain",
    "message",
    "root",
    "tree",
    "ring",
    "all-reduce",
]
CELLS += ["exchange", "crossover", "smaller", "top-k", "stale", "apart"]
#: The ring sends two million messages there.
RANKS = 1024
#: How far off the formula may be; how long a core may be busy with a simulation.
FACTOR, MOST_SECONDS = 2, 15
#: How much slower than gloo the chapter's ring may be; the errors of predictions.
MOST_SLOWER, MEDIAN_ERROR, LARGE_ERROR = 1.5, 0.10, 0.20
#: In kilobytes: the sizes that a link is fitted on, and the others.
FITTED, OTHERS = (1, 16, 256, 4096, 65_536), (4, 64, 1024, 16_384)
ROUNDS = 7
#: How much higher the loss may be, after so many steps, over so many seeds.
TOLERANCE, STEPS, SEEDS = 0.05, 300, 3


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells define, up to where they measure."""
    names = {"__name__": "__main__", "short": False, "usual": 128, "display": print}
    names["methods"] = {}
    for cell in nbformat.read(TUTORIALS / "13_communication.ipynb", 4).cells:
        if cell.id in CELLS:
            source = cell.source.split("\n\n\nfor some, plan in")[0]
            source = source.split("\n\n\nlink, rows = ")[0]
            exec(compile(source, cell.id, "exec"), names)
    return names


@pytest.fixture(scope="module")
def ranks():
    if (kit.this_machine().cores or 2) < 2:
        pytest.skip("two ranks need two cores")
    with kit.start_ranks(2) as started:
        yield started


def test_our_ring_is_nearly_as_fast_as_gloo(chapter, ranks):
    plans = [chapter["ring"], None]
    found = kit.compare(
        chapter["exchange"], plan=plans, kilobytes=16 * 1024, on=ranks, seconds=60
    )
    print(f"16 MB on two ranks, gloo beside the chapter's ring: {found}")
    assert found.ratio.low <= MOST_SLOWER


def test_two_numbers_predict_sizes_that_were_not_fitted(chapter, ranks):
    errors, rows = [], []
    for name, parts in {"tree": 1, "ring": 2}.items():  # both have two steps
        exchange = functools.partial(chapter["exchange"], plan=chapter[name])
        took = {size: [] for size in (*FITTED, *OTHERS)}
        for _, size in itertools.product(range(ROUNDS), took):  # by turns
            trial = kit.measure(exchange, kilobytes=size, on=ranks, seconds=0.7)
            took[size].append(trial.step_seconds)
        seconds = {size: statistics.median(times) for size, times in took.items()}
        message = fit_line(
            [1024 * size / parts for size in FITTED],
            [seconds[size] / 2 for size in FITTED],
        )
        print(f"{name}: {message}")
        for size in OTHERS:
            predicted = 2 * message.predict(1024 * size / parts)
            errors.append(abs(predicted / seconds[size] - 1))
            told = format_seconds(seconds[size]), format_seconds(predicted)
            rows.append((name, format_bytes(1024 * size), *told, f"{errors[-1]:.0%}"))
    print(text_table(["plan", "size", "measured", "predicted", "error"], rows))
    assert statistics.median(errors) <= MEDIAN_ERROR
    assert statistics.quantiles(errors, n=10)[-1] <= LARGE_ERROR


def test_no_sync_changes_nothing_but_the_time(chapter, ranks):
    def learn(train, hasty):
        torch.manual_seed(0)
        steps = train(every=4, hasty=hasty, steps=12)
        return [(float(told["loss"]), told["sent"]) for _, told in steps]

    found = [ranks.run(learn, chapter["train"], hasty) for hasty in (0, 1)]
    for once, hasty in zip(*found, strict=True):  # on each rank
        assert [loss for loss, _ in once] == pytest.approx([x for x, _ in hasty])
        assert once[-1][1] < 0.5 * hasty[-1][1]


@pytest.mark.parametrize("name", ["bf16", "power_sgd", "top 1 %"])
def test_compressed_gradients_keep_the_loss(chapter, ranks, name):
    losses = {}
    for method in ("every step", name):
        trial = kit.measure(
            chapter["methods"][method],
            seconds=None,
            repeats=SEEDS,
            on=ranks,
            steps=STEPS,
        )
        told = trial.metrics["loss"]
        runs = len(told) // SEEDS
        losses[method] = told[runs - 1 :: runs]
    print(f"loss after {STEPS} steps, seeds 0 to {SEEDS - 1}: {losses}")
    worse = [a - b for a, b in zip(losses[name], losses["every step"], strict=True)]
    assert statistics.mean(worse) <= TOLERANCE


@pytest.mark.timeout(600)
@pytest.mark.parametrize("factor", [1 / FACTOR, FACTOR])
def test_the_ring_wins_from_the_predicted_size_on_among_1024_ranks(chapter, factor):
    link, levels = LINKS["InfiniBand NDR"], 10
    size = factor * link.latency_seconds * link.bytes_per_second
    size *= (RANKS - 1 - levels) / (levels - (RANKS - 1) / RANKS)
    times, start = {}, time.process_time()
    for name in ("tree", "ring"):
        steps = chapter[name](RANKS)
        times[name] = chapter["simulate"](steps, size, chapter["own_way"])
    spent = time.process_time() - start
    print(f"{size / 1e6:.1f} MB: {times}, simulated in {spent:.1f} s")
    assert min(times, key=times.get) == ("ring" if factor > 1 else "tree")
    assert spent < MOST_SECONDS
