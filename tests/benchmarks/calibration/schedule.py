"""Which comparisons are made, how many of each, and in which order.

The table below is one round, and a full pass has `ROUNDS` of them. Drift hits all cells
alike so, and a run that stops early is balanced.
"""

import random
from dataclasses import asdict, dataclass

from .works import ALLOCATIONS, ONE_THREAD

KIT = "kit"
#: The kit where no two variants take turns: what that buys is seen beside it.
ALONE = "kit, no turns"
PEERS = ("adaptive_autorange", "pyperf")
CONDITIONS = ("quiet", "busy")
#: Units of work (baseline, variant); which comes first is drawn anew each time.
PAIRS = {
    "1": (20, 20),
    "20/21": (20, 21),
    "10/12": (20, 24),
    "10/13": (20, 26),
    "1/2": (20, 40),
}
ROUNDS = 8
#: At most so many comparisons share a process, and with it the luck of its addresses.
MOST_JOBS = 9
#: About how many seconds a process takes before it measures, and how many times its
#: budget a comparison takes.
_SECONDS_PER_PROCESS = 4.0
_OVER = {KIT: 1.6, ALONE: 2.5, **dict.fromkeys(PEERS, 1.1)}
_OVER_OF_OTHERS = 6.0


@dataclass(frozen=True)
class Row:
    """So many comparisons in each cell (condition × work), in every nth round."""

    kind: str
    pair: str
    seconds: float
    count: int = 1
    every: int = 1
    works: tuple[str, ...] = tuple(ONE_THREAD)
    conditions: tuple[str, ...] = CONDITIONS
    methods: tuple[str, ...] = (KIT,)


SCHEDULE = (
    Row("same", "1", 2.0, count=8),
    Row("truth", "10/13", 2.0),
    Row("truth", "1/2", 2.0),
    Row("power", "10/12", 2.0, count=2),
    Row("power", "20/21", 5.0, count=2),
    # Nobody takes turns with a loader's workers.
    Row("same", "1", 2.0, every=2, works=("loader",)),
    Row("same", "1", 2.0, methods=(ALONE,)),
    Row("power", "20/21", 5.0, every=2, methods=(ALONE,)),
    Row("same", "1", 2.0, every=2, methods=PEERS),
    Row("power", "20/21", 5.0, every=2, methods=PEERS),
    Row("agreement", "1", 2.0, every=4, conditions=("quiet",)),
    Row(
        "allocation", "1", 0.3, every=4, works=tuple(ALLOCATIONS), conditions=("quiet",)
    ),
)


@dataclass(frozen=True)
class Job:
    """One comparison. `units` are (baseline, variant); `name` is unique."""

    name: str
    kind: str
    method: str
    condition: str
    work: str
    units: tuple[int, int]
    seconds: float

    @property
    def truth(self):
        return self.units[0] / self.units[1]

    @property
    def expected_seconds(self):
        """About how long it takes."""
        is_common = self.work in ONE_THREAD and self.kind != "agreement"
        return self.seconds * (_OVER[self.method] if is_common else _OVER_OF_OTHERS)

    def to_row(self):
        return asdict(self) | {"truth": self.truth}


def list_jobs(number):
    """Return the comparisons of a round."""
    order = random.Random(number)
    jobs = []
    for row in SCHEDULE:
        for condition in row.conditions:
            for work in row.works:
                for method in row.methods:
                    if number % row.every == 0:
                        jobs += _list_jobs(row, number, condition, work, method, order)
    return jobs


def _list_jobs(row, number, condition, work, method, order):
    label = f"{row.kind}-{row.pair}-{row.seconds:g}s"
    for count in range(row.count):
        name = f"{number}/{condition}/{work}/{method}/{label}/{count}"
        units = tuple(order.sample(PAIRS[row.pair], 2))
        yield Job(name, row.kind, method, condition, work, units, row.seconds)


def list_batches(number):
    """Return the comparisons of a round by process: a few of one cell for each.

    Both are in an order that is drawn: of the processes, and of what each does.
    """
    cells = {}
    for job in list_jobs(number):
        cells.setdefault((job.condition, job.work), []).append(job)
    order = random.Random(number)
    batches = []
    for jobs in cells.values():
        order.shuffle(jobs)
        count = -(-len(jobs) // MOST_JOBS)
        batches += [jobs[start::count] for start in range(count)]
    order.shuffle(batches)
    return batches


def all_batches():
    """Return the comparisons of a full pass by process."""
    return [batch for number in range(ROUNDS) for batch in list_batches(number)]


def all_jobs():
    """Return the comparisons of a full pass."""
    return [job for batch in all_batches() for job in batch]


def expected_minutes():
    """Return about how long a full pass takes."""
    seconds = sum(job.expected_seconds for job in all_jobs())
    return (seconds + _SECONDS_PER_PROCESS * len(all_batches())) / 60
