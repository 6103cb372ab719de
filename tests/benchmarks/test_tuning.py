"""`tune_loader` beside the full grid and three rules of thumb.

Each of twelve pipelines, sized for two cores, is measured with every number of workers;
then the tuner says its own. Regret is how much faster the best of the grid is than the
one that was chosen. "Lightning's rule" is its `suggested_max_num_workers`: the number
of cores, less one for the main process, at least one.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from helpers import children
from planted.input import Samples
from planted.parts import cnn
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

import kit
from kit.data import Distant, PhotoDataset, photos
from kit.figures import text_table
from kit.tuning import tune_loader

pytestmark = pytest.mark.usefixtures("tidy")

WORKERS = [0, 1, 2, 3, 4, 8]
#: Each number of workers is measured so often, in turn, for so long.
ROUNDS, SECONDS = 3, 1.8
MOST_REGRET = 0.05


def feed(*, pipeline, num_workers):
    loader = pipeline.make_loader(num_workers=num_workers)
    while True:
        for batch in loader:
            if pipeline.step is not None:
                pipeline.step(batch)
            yield 1


def measure_grid(pipeline):
    """Return batches per second by number of workers, in rounds of either direction."""
    items, seconds = dict.fromkeys(WORKERS, 0.0), dict.fromkeys(WORKERS, 0.0)
    for number in range(ROUNDS):
        for workers in WORKERS[:: -1 if number % 2 else 1]:
            knobs = {"pipeline": pipeline, "num_workers": workers}
            trial = kit.measure(feed, seconds=SECONDS, **knobs)
            items[workers] += math.fsum(run.items for run in trial.runs)
            seconds[workers] += math.fsum(run.seconds for run in trial.runs)
    return {workers: items[workers] / seconds[workers] for workers in WORKERS}


def find_regret(grid, workers):
    """Return what was missed by a number of workers, or the nearest in the grid."""
    nearest = min(WORKERS, key=lambda n: abs(n - workers))
    return max(grid.values()) / grid[nearest] - 1


def examine(pipeline):
    """Tune a pipeline and measure its grid; return the regrets, by who chose."""
    cores = kit.this_machine().cores or 1
    tuning = tune_loader(pipeline.make_loader, step=pipeline.step, num_workers=WORKERS)
    grid = measure_grid(pipeline)
    off = [tuning.predicted[n] / grid[n] - 1 for n in WORKERS]
    print(f"\n{pipeline.name} ({pipeline.bound}): {tuning}\nmeasured: {grid}")
    print("predictions are off by", *(f"{error:+.0%}" for error in off), flush=True)
    chosen = {"tune_loader": tuning.num_workers, "always 2": 2, "always cores": cores}
    chosen["Lightning's rule"] = max(1, cores - 1)
    return {name: find_regret(grid, n) for name, n in chosen.items()}


@pytest.fixture(scope="module")
def table():
    print(f"\n{kit.this_machine()}\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other beside workers
    rows = {each.name: examine(each) for each in make_pipelines()}
    torch.set_num_threads(threads)
    names = list(next(iter(rows.values())))
    lines = [(name, *(f"{r[who]:.1%}" for who in names)) for name, r in rows.items()]
    print("\n" + text_table(["pipeline", *names], lines))
    return rows


def test_regret_is_at_most_5_percent(table):
    found = {name: regrets["tune_loader"] for name, regrets in table.items()}
    assert not {name: regret for name, regret in found.items() if regret > MOST_REGRET}


def test_no_rule_of_thumb_is_as_good_and_no_worker_is_left(table):
    names = next(iter(table.values()))
    worst = {who: max(regrets[who] for regrets in table.values()) for who in names}
    assert min(worst, key=worst.get) == "tune_loader"
    assert not children()


# The pipelines: what limits each is known, how fast is not

#: An epoch that no measurement comes to the end of.
_FOR_EVER = 1_000_000


class Pipeline(NamedTuple):
    """A loader to tune: by what it is bound, how it is made, what a step does."""

    name: str
    bound: str
    make_loader: Callable[..., DataLoader]
    step: Callable[[Any], None] | None


def compute(additions, spread, index):
    """Compute in plain Python: so many additions on average.

    Of `spread` samples one takes nearly all of the time, the others none.
    """
    total = 0
    if index % spread == 0:
        for number in range(additions * spread):
            total += number % 7
    return torch.full((16,), float(total))


def read_numbers(values):
    """Samples that are copied out of one tensor in memory."""
    return Samples(4096, lambda index: values[index % len(values)])


def make_record(index):
    return {f"column {i}": torch.full((4,), float(index)) for i in range(24)}


def make_sentence(index):
    return list(range(200 + index % 100))


def pad(sentences):
    """Make one tensor of lists of unequal lengths, number by number."""
    longest = max(map(len, sentences))
    padded = [
        [word % 997 for word in words] + [0] * (longest - len(words))
        for words in sentences
    ]
    return torch.tensor(padded)


def decode(side):
    """Read photos, cut and scaled at random to `side` × `side` pixels."""
    steps = [v2.RandomResizedCrop(side), v2.PILToTensor()]
    scale = v2.ToDtype(torch.float32, scale=True)
    return PhotoDataset(photos(1024), v2.Compose([*steps, scale]))


def make_loader(make_dataset, batch_size, *, num_workers, epochs=False, **options):
    """Make a loader over random samples, for ever unless it has `epochs`."""
    dataset, many = make_dataset(), None if epochs else _FOR_EVER
    sampler = RandomSampler(dataset, replacement=not epochs, num_samples=many)
    options |= {"num_workers": num_workers}
    return DataLoader(dataset, batch_size, sampler=sampler, **options)


def multiply(units):
    """Make a step that multiplies matrices on one core, `units` times."""
    a, b, out = torch.rand(160, 160), torch.rand(160, 160), torch.empty(160, 160)

    def step(batch):
        for _ in range(units):
            torch.mm(a, b, out=out)

    return step


def train(channels):
    """Make a step that trains a small network on as many threads as there are."""
    model = cnn(channels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def make_pipelines():
    """Make all twelve; each of their data sets is made anew for each loader."""

    def far(make_dataset, seconds):
        return lambda: Distant(make_dataset(), seconds)

    def wait(batch):  # as a process does for its GPU
        time.sleep(5e-3)

    shapes = (16,), (3, 160, 160)
    small, images = (partial(read_numbers, torch.rand(64, *s)) for s in shapes)
    records, sentences = (
        partial(Samples, 4096, make) for make in (make_record, make_sentence)
    )
    photos_64, photos_96 = partial(decode, 64), partial(decode, 96)
    uneven = partial(Samples, 4096, partial(compute, 10_000, 40))
    few = partial(Samples, 256, partial(compute, 10_000, 1))
    make = partial(partial, make_loader)
    rows = [
        ("photos alone", "decode", make(photos_64, 16), None),
        ("photos, trained on", "decode", make(photos_96, 16), train(8)),
        ("far away", "latency", make(far(small, 1e-3), 16), None),
        ("far away, a GPU", "latency", make(far(small, 2e-3), 8), wait),
        ("large images", "transport", make(images, 32), None),
        ("many small tensors", "transport", make(records, 16), multiply(5)),
        ("padding", "collate", make(sentences, 64, collate_fn=pad), multiply(20)),
        ("tiny samples", "step", make(small, 16), multiply(10)),
        ("a long step", "step", make(photos_64, 4), multiply(60)),
        ("far photos", "mixed", make(far(photos_64, 2e-3), 16), None),
        ("uneven samples", "mixed", make(uneven, 16), multiply(30)),
        ("short epochs", "mixed", make(few, 8, epochs=True), multiply(20)),
    ]
    return [Pipeline(*row) for row in rows]
