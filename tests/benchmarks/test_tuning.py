"""`tune_loader` beside the full grid and three rules of thumb.

Each of twelve pipelines, sized for two cores, is measured with every number of workers;
then the tuner says its own, knowing nothing of that. Regret is how much faster the best
of the grid is than the one that was chosen.

"Lightning's rule" is what Lightning proposes where it finds few workers: the number of
cores, less one for the main process, at least one
(`suggested_max_num_workers`, https://github.com/Lightning-AI/pytorch-lightning,
src/lightning/fabric/utilities/data.py).
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from helpers import children
from torch.utils.data import DataLoader, Dataset, RandomSampler
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
            trial = kit.measure(feed, seconds=SECONDS, **knobs)
            items[workers] += math.fsum(trial.block_items)
            seconds[workers] += math.fsum(b.wall_seconds for b in trial.blocks)
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
    """Print and return the regrets of each pipeline, by who chose."""
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


def test_no_rule_of_thumb_is_as_good(table):
    names = next(iter(table.values()))
    worst = {who: max(regrets[who] for regrets in table.values()) for who in names}
    assert min(worst, key=worst.get) == "tune_loader"


def test_no_worker_is_left(table):
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


class Samples(Dataset):
    """Samples that a function makes of their index; so many of them."""

    def __init__(self, make, *given, length=4096):
        self.make, self.given, self.length = make, given, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index, *self.given)


def copy_numbers(index, values):
    """Copy numbers out of one tensor in memory."""
    return values[index % len(values)]


def compute(index, additions, spread):
    """Compute in plain Python: so many additions on average.

    Of `spread` samples one takes nearly all of the time, the others none.
    """
    total = 0
    if index % spread == 0:
        for number in range(additions * spread):
            total += number % 7
    return torch.full((16,), float(total))


def make_record(index):
    """Make a dict of many small tensors."""
    return {f"column {i}": torch.full((4,), float(index)) for i in range(24)}


def make_sentence(index):
    """Make a list of numbers, each of another length."""
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


def make_loader(
    make_dataset,
    batch_size,
    *,
    num_workers,
    prefetch_factor=None,
    persistent_workers=False,
    epochs=False,
    collate_fn=None,
):
    """Make a loader over random samples, for ever unless it has `epochs`."""
    dataset = make_dataset()
    many = None if epochs else _FOR_EVER
    return DataLoader(
        dataset,
        batch_size,
        sampler=RandomSampler(dataset, replacement=not epochs, num_samples=many),
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        collate_fn=collate_fn,
    )


def multiply(units):
    """Make a step that multiplies matrices on one core, `units` times."""
    a, b, out = torch.rand(160, 160), torch.rand(160, 160), torch.empty(160, 160)

    def step(batch):
        for _ in range(units):
            torch.mm(a, b, out=out)

    return step


def train(channels):
    """Make a step that trains a small network on as many threads as there are."""
    layers = [torch.nn.Conv2d(3, channels, 3, stride=2), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(channels, channels, 3, stride=2)]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(channels, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def wait(seconds):
    """Make a step that waits, as a process does for its GPU."""
    return lambda batch: time.sleep(seconds)


def distant(make_dataset, seconds):
    """Return what makes a data set that is so far away."""
    return lambda: Distant(make_dataset(), seconds)


def make_pipelines():
    """Make all twelve; each of their data sets is made anew for each loader."""
    small, images = (
        partial(Samples, copy_numbers, torch.rand(64, *shape))
        for shape in ((16,), (3, 160, 160))
    )
    records, sentences = partial(Samples, make_record), partial(Samples, make_sentence)
    photos_64, photos_96 = partial(decode, 64), partial(decode, 96)
    uneven = partial(Samples, compute, 10_000, 40)
    few = partial(Samples, compute, 10_000, 1, length=256)
    make, far = partial(partial, make_loader), distant
    rows = [
        ("photos alone", "decode", make(photos_64, 16), None),
        ("photos, trained on", "decode", make(photos_96, 16), train(8)),
        ("far away", "latency", make(far(small, 1e-3), 16), None),
        ("far away, a GPU", "latency", make(far(small, 2e-3), 8), wait(5e-3)),
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
