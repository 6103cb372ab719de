"""Which comparisons are made, how many of each, and in which order.

The table below is the whole calibration. It is done in rounds, each with its share of
every row: drift hits all cells alike, and a stop half-way leaves none of them empty.
"""

import random
from dataclasses import asdict, dataclass

KIT = "kit"
#: The kit where nothing is interleaved: what that buys is seen beside it.
SEQUENTIAL = "kit, sequential"
PEERS = ("adaptive_autorange", "pyperf")
CONDITIONS = ("quiet", "busy", "bursty")
ONE_THREAD = ("matmul", "memory", "python")
WORKS = (*ONE_THREAD, "loader")
ALLOCATIONS = ("tensor", "workers", "shared_pages")
#: Units of work (baseline, variant); which comes first is drawn anew each time.
PAIRS = {"1": (20, 20), "20/21": (20, 21), "10/13": (20, 26)}
PAIRS |= {"1/2": (20, 40), "10/12": (20, 24)}
ROUNDS = 4
#: So many comparisons share a process, and with it the luck of its addresses.
MOST_JOBS = 6
#: What a process costs before it measures, and how far over the budget a comparison
#: may go on average; only used to fit a schedule into the time that there is.
_SECONDS_PER_PROCESS = 5.0
_OVER = {KIT: 1.3, SEQUENTIAL: 1.3, **dict.fromkeys(PEERS, 1.15)}
_OVER_WITH_WORKERS = 4.0


@dataclass(frozen=True)
class Row:
    """One row of the table: `count` comparisons in each cell (condition × work)."""

    kind: str
    pair: str
    seconds: float
    count: int
    works: tuple[str, ...] = WORKS
    conditions: tuple[str, ...] = CONDITIONS
    methods: tuple[str, ...] = (KIT,)
    threads: int = 1
    uses_delay: bool = True


QUIET_AND_BUSY = CONDITIONS[:2]
SCHEDULE = (
    Row("same", "1", 2.0, 63, ONE_THREAD, QUIET_AND_BUSY),
    Row("same", "1", 2.0, 16, ONE_THREAD, CONDITIONS[2:]),
    Row("same", "1", 2.0, 3, ("loader",)),  # it costs four times its budget
    *(Row("truth", pair, 2.0, 4, ONE_THREAD) for pair in ("20/21", "10/13", "1/2")),
    Row("power", "20/21", 5.0, 12, ONE_THREAD, QUIET_AND_BUSY),
    Row("power", "20/21", 5.0, 5, ONE_THREAD, CONDITIONS[2:]),
    Row("power", "10/12", 2.0, 5, ONE_THREAD),
    # What interleaving buys.
    Row("same", "1", 2.0, 14, ONE_THREAD, QUIET_AND_BUSY, (SEQUENTIAL,)),
    Row("power", "20/21", 5.0, 6, ONE_THREAD, QUIET_AND_BUSY, (SEQUENTIAL,)),
    # Without run-queue delays, as on macOS and Windows: wall time.
    Row("power", "20/21", 30.0, 1, ONE_THREAD, CONDITIONS[1:2], uses_delay=False),
    Row("same", "1", 5.0, 2, ONE_THREAD, QUIET_AND_BUSY, uses_delay=False),
    *(
        Row(kind, pair, 4.0, 3, ("matmul_threads",), CONDITIONS[1:], threads=2)
        for kind, pair in (("same", "1"), ("truth", "10/13"))
    ),
    Row("same", "1", 2.0, 3, ONE_THREAD, methods=PEERS),
    Row("power", "20/21", 5.0, 3, ONE_THREAD, methods=PEERS),
    Row("agreement", "1", 2.0, 2, ONE_THREAD, CONDITIONS[:1]),
    Row("allocation", "1", 0.3, 2, ALLOCATIONS, CONDITIONS[:1]),
)


@dataclass(frozen=True)
class Job:
    """One comparison. `units` are (baseline, variant); `name` is unique."""

    name: str
    kind: str
    method: str
    condition: str
    work: str
    threads: int
    uses_delay: bool
    units: tuple[int, int]
    seconds: float
    rank: float

    @property
    def truth(self):
        return self.units[0] / self.units[1]

    @property
    def expected_seconds(self):
        """About how long it takes; both tools of an agreement warm up, too."""
        if self.kind == "agreement":
            return 2.5 * self.seconds
        if self.work in ("loader", *ALLOCATIONS):
            return _OVER_WITH_WORKERS * self.seconds
        return _OVER[self.method] * self.seconds

    def to_row(self):
        row = asdict(self) | {"truth": self.truth}
        return {name: value for name, value in row.items() if name != "rank"}


def all_jobs():
    """Return every comparison of the table.

    `rank`, from 0 to 1, spreads the jobs of a row evenly: those below a share of 1 are
    that share of the row, whichever cells they fall in.
    """
    return [job for row in SCHEDULE for job in _jobs(row)]


def _jobs(row):
    label = f"{row.kind}-{row.pair}-{row.seconds:g}s" + "-wall" * (not row.uses_delay)
    cells = [(c, w, m) for m in row.methods for w in row.works for c in row.conditions]
    order = random.Random(label)
    order.shuffle(cells)
    for number in range(row.count):
        for place, (condition, work, method) in enumerate(cells):
            a, b = PAIRS[row.pair]
            units = (a, b) if order.random() < 0.5 else (b, a)
            rank = (number + (place + 0.5) / len(cells)) / row.count
            name = f"{condition}/{work}/{method}/{label}/{number}"
            how = row.threads, row.uses_delay, units, row.seconds, rank
            yield Job(name, row.kind, method, condition, work, *how)


def fit(jobs, minutes):
    """Return those jobs that take about so many minutes, and their share of all."""
    share = min(1.0, minutes / max(expected_minutes(jobs), 1e-9))
    while share > 0.001:
        chosen = [job for job in jobs if job.rank < share]
        if expected_minutes(chosen, share) <= minutes:
            return chosen, share
        share *= 0.95
    return [], 0.0


def expected_minutes(jobs, share=1.0):
    processes = sum(1 for _ in batches(jobs, share))
    seconds = sum(job.expected_seconds for job in jobs)
    return (seconds + _SECONDS_PER_PROCESS * processes) / 60


def batches(jobs, share):
    """Yield the jobs of one process after the other: a few of one cell, in one round.

    Cells come in a new random order in each round, and so do the jobs of a cell.
    """
    count = max(1, round(ROUNDS * share))
    for number in range(count):
        cells = {}
        for job in jobs:
            if min(int(job.rank / share * count), count - 1) == number:
                cells.setdefault((job.condition, job.work, job.threads), []).append(job)
        order = random.Random(number)
        made = []
        for key in sorted(cells):
            mixed = order.sample(cells[key], len(cells[key]))
            starts = range(0, len(mixed), MOST_JOBS)
            made += [mixed[start : start + MOST_JOBS] for start in starts]
        yield from order.sample(made, len(made))
