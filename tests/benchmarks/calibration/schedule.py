"""Which comparisons are made, how many of each, and in which order.

The table below is one round, and a full pass has `ROUNDS` of them. Drift hits all cells
alike so, and a run that stops early is balanced.
"""

import itertools
import random
from dataclasses import asdict, dataclass

from .works import WORKS

KIT = "kit"
#: The kit as it compares what cannot take turns.
ALONE = "kit, one after the other"
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
ROUNDS = 16
#: At most so many comparisons share a process, and with it the luck of its addresses.
MOST_JOBS = 9
#: About how many seconds a process takes before it measures, and how many times its
#: budget a comparison takes.
_SECONDS_PER_PROCESS = 4.0
_OVER = {KIT: 1.6, ALONE: 2.5, **dict.fromkeys(PEERS, 1.1)}
_OVER_AGREEMENT = 4.0


@dataclass(frozen=True)
class Row:
    """So many comparisons in each cell (condition × work), in every nth round."""

    kind: str
    pair: str
    seconds: float
    count: int = 1
    every: int = 1
    conditions: tuple[str, ...] = CONDITIONS
    methods: tuple[str, ...] = (KIT,)


SCHEDULE = (
    Row("same", "1", 2.0, count=4),
    Row("power", "10/12", 2.0),
    Row("power", "20/21", 5.0),
    Row("truth", "10/13", 2.0, every=2),
    Row("truth", "1/2", 2.0, every=2),
    Row("same", "1", 2.0, every=2, methods=(ALONE,)),
    Row("power", "20/21", 5.0, every=4, methods=(ALONE,)),
    Row("same", "1", 2.0, every=4, methods=PEERS[:1]),
    Row("same", "1", 2.0, every=4, methods=PEERS[1:]),
    Row("power", "20/21", 5.0, every=4, methods=PEERS),
    Row("agreement", "1", 2.0, every=8, conditions=("quiet",)),
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
        is_agreement = self.kind == "agreement"
        return self.seconds * (_OVER_AGREEMENT if is_agreement else _OVER[self.method])

    def to_row(self):
        return asdict(self) | {"truth": self.truth}


def list_jobs(number):
    """Return the comparisons of a round; rows that skip rounds skip different ones."""
    order = random.Random(number)
    jobs = []
    for place, row in enumerate(SCHEDULE):
        if (number + place) % row.every == 0:
            for cell in itertools.product(row.conditions, WORKS, row.methods):
                jobs += _list_jobs(row, number, *cell, order)
    return jobs


def _list_jobs(row, number, condition, work, method, order):
    label = f"{row.kind}-{row.pair}-{row.seconds:g}s"
    for count in range(row.count):
        name = f"{number}/{condition}/{work}/{method}/{label}/{count}"
        units = tuple(order.sample(PAIRS[row.pair], 2))
        yield Job(name, row.kind, method, condition, work, units, row.seconds)


def list_batches(number):
    """Return the comparisons of a round by process: a few of one cell for each.

    Both are in an order that is drawn: of the processes, which are quiet and busy by
    turns, and of what each does.
    """
    cells = {}
    for job in list_jobs(number):
        cells.setdefault((job.condition, job.work), []).append(job)
    order = random.Random(number)
    batches = {condition: [] for condition in CONDITIONS}
    for (condition, _), jobs in cells.items():
        order.shuffle(jobs)
        count = -(-len(jobs) // MOST_JOBS)
        batches[condition] += [jobs[start::count] for start in range(count)]
    for some in batches.values():
        order.shuffle(some)
    by_turns = itertools.zip_longest(*batches.values())
    return [batch for some in by_turns for batch in some if batch]


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
