"""What chapters 11 and 12 say of several ranks, on this machine: `make bench`.

The code is that of the chapters' own cells.
"""

import itertools
import statistics
from pathlib import Path

import nbformat
import pytest

import kit
from kit.costs import predict_data_parallel
from kit.figures import format_bytes, format_seconds, text_table

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
SCRATCH, DDP = TUTORIALS / "11_data_parallel.ipynb", TUTORIALS / "12_ddp.ipynb"
SCRATCH_CELLS = (
    "imports",
    "data",
    "params",
    "lenet",
    "alias",
    "get-params",
    "train-batch",
    "train",
)
DDP_CELLS = "imports", "lenet", "train"
#: What is promised: how close, how much faster, how far off.
CLOSE, LEAST_GAIN, MOST_ERROR = 1.05, 1.8, 0.10
#: The model is fitted on the first point and the last one of FITTED, a batch size.
WIDTHS, FITTED, OTHER = (128, 512, 1024, 2048, 4096), 64, 128
ROUNDS = 3


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")
    if (kit.this_machine().cores or 2) < 2:
        pytest.skip("two ranks need two cores")


def run_cells(path, wanted):
    """Return the names that a chapter's cells define, as if they were a notebook's."""
    names = {"__name__": "__main__", "short": False, "usual": 256, "display": print}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.id in wanted:
            exec(compile(cell.source, cell.id, "exec"), names)
    return names


@pytest.fixture(scope="module")
def chapter():
    """What chapter 12 defines."""
    return run_cells(DDP, DDP_CELLS)


#: Chapter 11's training with DDP in place of what is written out there.
WITH_DDP = """
def train_with_ddp(*, batch_size=256, lr=0.2):
    layers = [nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    layers += [nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr)
    data, n, me = load_data().to(device), dist.get_world_size(), dist.get_rank()
    while True:
        for batch in torch.randperm(n_images).split(batch_size):
            mine = batch.tensor_split(n)[me]
            images, labels = data[mine]
            loss = F.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield len(mine), {"loss": loss}
"""


@pytest.fixture(scope="module")
def ranks():
    with kit.start_ranks(2) as started:
        yield started


def test_from_scratch_is_within_5_percent_of_the_library(ranks):
    names = run_cells(SCRATCH, SCRATCH_CELLS)
    exec(compile(WITH_DDP, "with DDP", "exec"), names)
    both = {"DDP": names["train_with_ddp"], "from scratch": names["train"]}
    found = kit.compare(both, on=ranks, seconds=60)
    print(found)
    assert 1 / CLOSE <= found.ratio.value <= CLOSE


def test_two_ranks_are_18_tenths_as_fast_as_one_where_computing_counts(chapter, ranks):
    places = [ranks[:1], ranks]
    found = kit.compare(chapter["train"], on=places, threads=[1, 2], seconds=90)
    print(found)
    assert found.ratios["ranks=2, threads=1"].value >= LEAST_GAIN


def test_the_model_is_at_most_10_percent_off_on_points_not_fitted(chapter, ranks):
    points = list(itertools.product((FITTED, OTHER), WIDTHS))
    one, two = ({point: [] for point in points} for _ in range(2))
    for _, (batch, width) in itertools.product(range(ROUNDS), points):
        for times, place in ((one, ranks[:1]), (two, ranks)):
            knobs = {"hidden": width, "batch_size": batch}
            trial = kit.measure(chapter["train"], on=place, seconds=1.5, **knobs)
            times[batch, width].append(trial.step_seconds)
    t1, t2 = ({p: statistics.median(x) for p, x in t.items()} for t in (one, two))
    size = {w: sum(p.nbytes for p in chapter["lenet"](w).parameters()) for w in WIDTHS}
    low, high = WIDTHS[0], WIDTHS[-1]
    rest = {w: t2[FITTED, w] - t1[FITTED, w] / 2 for w in (low, high)}
    per_byte = (rest[high] - rest[low]) / (size[high] - size[low])
    alpha = rest[low] - per_byte * size[low]
    print(f"α = {format_seconds(alpha)}, β = {format_bytes(1 / per_byte)}/s")
    rows, errors = [], []
    for batch, width in points:
        predicted = predict_data_parallel(
            2,
            compute_seconds=t1[batch, width],
            latency_seconds=alpha,
            gradient_bytes=size[width],
            bytes_per_second=1 / per_byte,
        )
        error = predicted / t2[batch, width] - 1
        fitted = batch == FITTED and width in (low, high)
        if not fitted:
            errors.append(abs(error))
        times = (t1[batch, width], t2[batch, width], predicted)
        note = "fitted" if fitted else f"{error:+.1%}"
        rows.append((batch, width, *map(format_seconds, times), note))
    print(text_table(["batch", "hidden", "1 rank", "2 ranks", "predicted", ""], rows))
    print(f"median error on {len(errors)} points: {statistics.median(errors):.1%}")
    assert statistics.median(errors) <= MOST_ERROR
