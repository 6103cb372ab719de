"""`find_batch_size` beside exhaustive search and other finders: `make bench`.

Ten models, each with a budget of memory. The truth is measured knowing nothing of
the finder: the peak memory of a trial, each in a process of its own, searched for the
largest size that stays within the budget; and the throughput of sizes up to that one.

The others are Lightning's `BatchSizeFinder` in both of its modes and accelerate's
`find_executable_batch_size`, installed into a folder that is thrown away. They go by
errors of running out of memory, and know no budget: where the peak is above it after a
step, the error that a CPU would raise is raised for them. On CUDA the budget is the
card's memory, and errors are real ones.
"""

import concurrent.futures
import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from models import make_cases
from scipy.stats import binomtest

import kit
from kit import clock
from kit.costs import Line
from kit.figures import format_bytes, text_table
from kit.stats import SAME

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process's peak memory"
)

CUDA = torch.cuda.is_available()
#: The shares of the true maximum and of the best throughput that count as reached.
LEAST_SIZE, LEAST_RATE = 0.98 if CUDA else 0.90, 0.90
MOST_TRIALS = 5
#: How closely the true maximum is known, and with it what fits.
RESOLUTION = 0.02
#: Steps of a trial of memory.
STEPS = 3
#: A ladder of so many sizes is climbed once, each for so long and two steps. Its best,
#: and those found, are then timed by turns, in so many rounds or so many seconds, at
#: least two: the best of many that were timed once is one that was lucky.
LADDER, RUNGS, SECONDS = 1.5, 12, 0.2
CONTENDERS, ROUNDS, ROUND_SECONDS = 3, 5, 30.0
#: Seconds after which a child is taken to hang.
PATIENCE = 240

PEERS = {
    "Lightning, power": ("ask_lightning", {"mode": "power"}),
    "Lightning, binsearch": ("ask_lightning", {"mode": "binsearch"}),
    "accelerate": ("ask_accelerate", {}),
}
#: The peers and what they need besides what is here; PyTorch must not come again.
PACKAGES = ["pytorch_lightning", "lightning_utilities", "torchmetrics"]
PACKAGES += ["accelerate", "huggingface_hub", "safetensors"]
#: What both peers look for in an error.
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: the budget is spent"

HERE = Path(__file__).resolve()
CASES = {case.name: case for case in make_cases()}


@pytest.fixture(scope="module")
def table():
    """Find the truth of each model and ask everybody; print and return the rows."""
    print(f"\n{kit.this_machine()}\n")
    begun, rows = time.perf_counter(), []
    with contextlib.ExitStack() as stack:
        nursery = stack.enter_context(Nursery())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        missing = install_peers(folder)
        peers = None if missing else stack.enter_context(Nursery(folder))
        for case in CASES.values():
            truth, others = look_around(case, nursery, peers)
            rows.append(make_row(case, truth, nursery, others))
            describe(rows[-1])
    print("\n" + summarise(rows))
    print("\n" + (missing or compare_peers(rows)))
    print("\n" + judge(rows))
    print(f"\nall of it: {(time.perf_counter() - begun) / 60:.1f} min")
    return rows, missing


def look_around(case, nursery, peers):
    """Return the truth about a model's memory, and what each peer says of it.

    Memory is a process's own, so the peers are at work beside where a core is free.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        others = pool.submit(ask_all, peers, case.name)
        if CUDA or (kit.this_machine().cores or 1) < 2:
            others.result()
        return find_truth(nursery, case), others.result()


class Truth(NamedTuple):
    """The largest size that fits, and the peak memory of those that were tried."""

    maximum: int
    peaks: dict[int, float]


def find_truth(nursery, case):
    """Search sizes until one that fits and one that does not are 2 % apart."""

    def measure(size):
        peaks[size] = nursery.must("measure_peak", name=case.name, size=size)

    limit = nursery.must("find_free_bytes") if CUDA else case.budget
    peaks = {}
    measure(4)
    measure(16)
    while True:
        fits = [s for s, peak in peaks.items() if peak <= limit]
        low = max(fits, default=0)
        high = min((s for s in peaks if s > low), default=None)
        if high and high - low <= max(1, RESOLUTION * low):
            break
        measure(propose_size(peaks, limit, low, high))
    if not low:
        raise AssertionError(f"{case.name}: not one sample fits into the budget")
    if low // 2 not in peaks:
        measure(low // 2)  # to hold predictions against
    return Truth(low, peaks)


def propose_size(peaks, limit, low, high):
    """Return the size to try next: a little beyond where a line meets the limit."""
    middle = (low + (high or 4 * low)) // 2
    known = sorted(size for size in peaks if peaks[size] < math.inf)
    near = min(known[1:], key=lambda size: abs(peaks[size] - limit), default=None)
    if near is None or peaks[near] <= peaks[known[0]]:
        return middle
    # From the smallest on, so that small unevenness near the limit matters little.
    each = (peaks[near] - peaks[known[0]]) / (near - known[0])
    meets = near + (limit - peaks[near]) / each
    # Beyond it as seen from the nearer bound, so that both bounds close in.
    nearer_low = high is None or meets - low < high - meets
    beyond = RESOLUTION / 2 * (1 if nearer_low else -1)
    size = round(meets * (1 + beyond))
    if high is None:
        return max(low + 1, min(size, 32 * low))  # the first points are small
    return size if low < size < high else middle


def ask_all(nursery, name):
    if nursery is None:
        return {}
    budget = None if CUDA else CASES[name].budget
    return {
        peer: nursery.ask(task, name=name, budget=budget, **more)
        for peer, (task, more) in PEERS.items()
    }


def install_peers(folder):
    """Return why the peers are not there, or an empty string."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    command += ["--no-deps", "--disable-pip-version-check", "--target", folder]
    done = subprocess.run([*command, *PACKAGES], capture_output=True, text=True)
    if not done.returncode:
        return ""
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"Lightning and accelerate: not asked, pip could not install them ({said})"


def make_row(case, truth, nursery, others):
    """Ask the finder about one model, then time what it and its peers found."""
    budget = None if CUDA else case.budget
    found = nursery.ask("ask_finder", name=case.name, budget=budget)
    # Not of one sample: batch norm refuses it where an image has shrunk to a pixel.
    ladder = {max(2, round(truth.maximum / LADDER**n)) for n in range(RUNGS)}
    climbed = nursery.must("time_steps", name=case.name, sizes=sorted(ladder), rounds=1)
    given = [answer["size"] for answer in (found, *others.values()) if "size" in answer]
    contenders = {*find_fastest(climbed), *given}
    times = nursery.must(
        "time_steps", name=case.name, sizes=sorted(contenders), rounds=ROUNDS
    )
    row = {
        "case": case,
        "truth": truth,
        "found": found,
        "others": others,
        "ladder": {size: size / seconds for size, seconds in climbed},
        "rates": {size: size / seconds for size, seconds in times},
    }
    if "error" not in found:
        size = found["largest"]
        row["peak"] = nursery.must("measure_peak", name=case.name, size=size)
    return row


def find_fastest(times):
    """Return the sizes that were fastest, so many at most, of pairs with seconds."""
    by_rate = sorted(times, key=lambda pair: pair[1] / pair[0])
    return [size for size, _ in by_rate[:CONTENDERS]]


def best_size(row):
    within = [size for size in row["rates"] if size <= row["truth"].maximum]
    return max(within, key=row["rates"].__getitem__)


def share_of_size(row, told):
    return told.get("largest", told.get("size", 0)) / row["truth"].maximum


def share_of_rate(row, told):
    rates = row["rates"]
    return rates.get(told.get("size"), 0.0) / rates[best_size(row)]


def uses_too_much(row):
    """Whether the largest size that was found takes more than the budget."""
    if CUDA:
        return row["peak"] == math.inf
    return row["peak"] > (1 + RESOLUTION) * row["case"].budget


def errors_of(row):
    """Return the relative errors of predicted memory at sizes that were not tried."""
    found, (maximum, peaks) = row["found"], row["truth"]
    sizes = {4, 16, maximum // 2, maximum} - {*found["fitted"]}
    sizes = sorted(size for size in sizes if size <= maximum)
    if found["memory"] is None:  # it predicts nothing
        return [math.inf] * len(sizes)
    line = Line(*found["memory"])
    return [line.predict(size) / peaks[size] - 1 for size in sizes]


def describe(row):
    """Print what was found out about one model, as soon as it is."""
    (maximum, peaks), found = row["truth"], row["found"]
    name, best = row["case"].name, best_size(row)
    rate = f"{row['rates'][best]:.4g} samples/s"
    print(f"{name}: {maximum} at most; at best {rate}, with {best}")
    print("  peaks:", ", ".join(f"{s}: {told(peaks[s])}" for s in sorted(peaks)))
    for how in ("ladder", "rates"):
        print(f"  {how}:", ", ".join(f"{s}: {r:.4g}" for s, r in row[how].items()))
    for who, answer in {"find_batch_size": found, **row["others"]}.items():
        print(f"  {who}: {answer}")
    sys.stdout.flush()


def told(peak):
    return "none" if peak == math.inf else format_bytes(peak)


def summarise(rows):
    """Return a line for each model: the truth, what was found, and how near it is."""
    headers = ["model", "budget", "true max", "found", "peak", "of max", "best at"]
    headers += ["chosen", "of best", "trials", "starts", "took", "memory errors"]
    return text_table(headers, [line_of(row) for row in rows])


def line_of(row):
    case, found, maximum = row["case"], row["found"], row["truth"].maximum
    budget = "the card" if CUDA else format_bytes(case.budget)
    if "error" in found:
        return (case.name, budget, str(maximum), "raised", *[""] * 9)
    return (
        case.name,
        budget,
        str(maximum),
        str(found["largest"]),
        told(row["peak"]),
        f"{share_of_size(row, found):.0%}",
        str(best_size(row)),
        str(found["size"]),
        f"{share_of_rate(row, found):.0%}",
        str(found["trials"]),
        str(len(found["tried"])),
        f"{found['seconds']:.0f} s",
        " ".join(map(error_text, errors_of(row))),
    )


def error_text(error):
    return "none" if math.isinf(error) else f"{error:+.0%}"


def compare_peers(rows):
    """Return what each found for each model: its share of the maximum, and its cost."""
    headers = ["model", "find_batch_size", *PEERS]
    lines = []
    for row in rows:
        answers = [row["found"], *(row["others"][peer] for peer in PEERS)]
        lines.append((row["case"].name, *(cell_of(row, answer) for answer in answers)))
    totals = []
    for who in ("find_batch_size", *PEERS):
        answers = answers_of(rows, who)
        trials = sum(count_trials(answer) for _, answer in answers)
        seconds = sum(answer.get("seconds", 0) for _, answer in answers)
        large, fast = count_hits(answers)
        totals.append(f"{large} · {fast} · {trials} trials · {seconds:.0f} s")
    lines.append((f"large · fast, of {len(rows)}", *totals))
    return (
        "size · of the maximum · of the best throughput · trials · seconds\n"
        + text_table(headers, lines)
    )


def cell_of(row, answer):
    if "error" in answer:
        return "raised: " + answer["error"][:40]
    size, rate = share_of_size(row, answer), share_of_rate(row, answer)
    trials, seconds = count_trials(answer), answer["seconds"]
    largest = answer.get("largest", answer["size"])
    return f"{largest} · {size:.0%} · {rate:.0%} · {trials} · {seconds:.0f} s"


def answers_of(rows, who):
    """Return each row with what one finder said of it."""
    ours = who == "find_batch_size"
    return [(row, row["found"] if ours else row["others"][who]) for row in rows]


def count_trials(answer):
    return answer.get("trials", len(answer.get("tried", [])))


def count_hits(answers):
    """Return for how many models a size is large enough, and one fast enough."""
    large = sum(share_of_size(row, told) >= LEAST_SIZE for row, told in answers)
    fast = sum(share_of_rate(row, told) >= LEAST_RATE for row, told in answers)
    return large, fast


def judge(rows):
    """Return how many models reach each of the bars."""
    large, fast = count_hits(answers_of(rows, "find_batch_size"))
    done = [row for row in rows if "error" not in row["found"]]
    small = sum(not uses_too_much(row) for row in done)
    few = sum(row["found"]["trials"] <= MOST_TRIALS for row in done)
    lines = [
        (f"at least {LEAST_SIZE:.0%} of the true maximum", *share_text(large, rows)),
        (f"at most {1 + RESOLUTION:.0%} of the budget", *share_text(small, rows)),
        (f"at least {LEAST_RATE:.0%} of the throughput", *share_text(fast, rows)),
        (f"at most {MOST_TRIALS} trials", *share_text(few, rows)),
        ("no error", *share_text(len(done), rows)),
    ]
    if done:
        found = f"{median_error(done):.1%}"
        lines.append(("median error of predicted memory", found, ""))
    return text_table(["bar", "models", "95 % interval"], lines)


def share_text(hits, rows):
    interval = wilson(hits, len(rows))
    return f"{hits} of {len(rows)}", f"[{interval.low:.0%}, {interval.high:.0%}]"


def wilson(hits, cases):
    return binomtest(hits, cases).proportion_ci(method="wilson")


def median_error(rows):
    return statistics.median(abs(e) for row in rows for e in errors_of(row))


def test_nothing_is_raised(table):
    rows, _ = table
    errors = {row["case"].name: row["found"].get("error") for row in rows}
    assert not {name: error for name, error in errors.items() if error}


def test_the_largest_size_fits(table):
    rows, _ = table
    assert not [r["case"].name for r in rows if "peak" in r and uses_too_much(r)]


def test_the_size_is_not_slower_than_the_best_that_was_tried(table):
    rows, _ = table
    for row in rows:
        intervals = row["found"]["intervals"]
        _, high = intervals[str(row["found"]["size"])]
        best = max(low for low, _ in intervals.values())
        assert high * SAME >= best, row["case"].name


def test_the_size_reaches_90_percent_of_the_best_throughput(table):
    rows, _ = table
    shares = {row["case"].name: share_of_rate(row, row["found"]) for row in rows}
    assert not {name: share for name, share in shares.items() if share < LEAST_RATE}


def test_it_takes_five_trials_at_most(table):
    rows, _ = table
    trials = {row["case"].name: count_trials(row["found"]) for row in rows}
    assert not {name: count for name, count in trials.items() if count > MOST_TRIALS}


def test_no_peer_finds_as_much_in_as_few_trials(table):
    rows, missing = table
    if missing:
        pytest.skip(missing)
    counts = {}
    for who in ("find_batch_size", *PEERS):
        answers = answers_of(rows, who)
        trials = sum(count_trials(answer) for _, answer in answers)
        counts[who] = (*count_hits(answers), -trials)
    ours = counts.pop("find_batch_size")
    better = [
        who
        for who, theirs in counts.items()
        if all(a >= b for a, b in zip(theirs, ours, strict=True))
    ]
    assert not better, f"{ours}, and {counts}"


# What happens in processes of their own.


class Nursery:
    """A process that has imported all, and forks itself for each question.

    So a child starts at once, with the memory of one that has just imported PyTorch.
    """

    def __init__(self, peers=None):
        folders = [HERE.parent, HERE.parents[2], *([peers] if peers else [])]
        more = ["pytorch_lightning", "accelerate.utils"] if peers else []
        code = "import sys, test_batch_finder; test_batch_finder.serve(sys.argv[1:])"
        environment = {k: v for k, v in os.environ.items() if k != "KIT_SMOKE"}
        # Else a look for a GPU would use CUDA, and forks of this could not.
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def ask(self, task, **arguments):
        """Return what a task returns in a fresh process, or `{"error": …}`."""
        print(json.dumps([task, arguments]), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        return answer.get("value", answer)

    def must(self, task, **arguments):
        """Return what a task returns; raise AssertionError where it raises."""
        answer = self.ask(task, **arguments)
        assert not (isinstance(answer, dict) and "error" in answer), (arguments, answer)
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def serve(modules):
    """Answer each line of standard input with one line, by a child."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no answer
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        ours, its = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(PATIENCE)
            with os.fdopen(its, "w") as pipe:
                json.dump(answer(*json.loads(line)), pipe)
            os._exit(0)
        os.close(its)
        with os.fdopen(ours) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        died = json.dumps({"error": f"the process died with status {status}"})
        print(said or died, file=answers, flush=True)


def answer(task, arguments):
    torch.set_num_threads(1)  # two would wait for each other beside another process
    try:
        return {"value": globals()[task](**arguments)}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}


class Peak:
    """The peak memory of this process, or of the card, above where it is now."""

    def __init__(self):
        self.reset()
        self.start = self.read()

    def reset(self):
        """Give back what is free, and forget the peak until now."""
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")

    def read(self):
        if CUDA:
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    def rise(self):
        return self.read() - self.start

    def check(self, budget):
        """Raise what a CPU raises that has no memory, where the budget is spent."""
        if budget is not None and self.rise() > budget:
            raise RuntimeError(NO_MEMORY)


def find_free_bytes():
    return torch.cuda.mem_get_info()[0]


def run_steps(start, size, after_step=lambda: None):
    steps = start(batch_size=size)
    try:
        for _ in itertools.islice(steps, STEPS):
            after_step()
    finally:
        steps.close()


def measure_peak(name, size):
    """Return the peak memory of a trial; infinite where the card has too little."""
    start = CASES[name].make_experiment()
    run_steps(start, 2)  # what a process loads once is not the trial's
    peak = Peak()
    try:
        run_steps(start, size)
    except torch.OutOfMemoryError:
        return math.inf
    return peak.rise()


def time_steps(name, sizes, rounds):
    """Return pairs of a size and its seconds per step: upwards, then down, by turns."""
    times, begun = {size: [] for size in sizes}, time.perf_counter()
    for number in range(rounds):
        if number > 1 and time.perf_counter() - begun > ROUND_SECONDS:
            break
        for size in sizes[:: -1 if number % 2 else 1]:
            some = time_some(CASES[name].make_experiment(), size)
            times[size].append(statistics.median(some))
    return [(size, statistics.median(some)) for size, some in times.items()]


def time_some(start, size):
    """Return the seconds of each step, without what others took of the core."""
    steps = start(batch_size=size)
    next(steps), next(steps)
    found = []
    while len(found) < 2 or sum(found) < SECONDS:
        begun = clock.CLOCK.begin()
        next(steps)
        if CUDA:
            torch.cuda.synchronize()
        found.append(clock.run_seconds(begun, clock.CLOCK.end()))
    steps.close()
    return found


def ask_finder(name, budget):
    """Ask `find_batch_size`, in a process as warm as those that tell the truth."""
    from kit.tuning import find_batch_size

    train, tried = CASES[name].make_experiment(), []

    def counted(*, batch_size=8):
        """Train, and note with which size."""
        tried.append(batch_size)
        yield from train(batch_size=batch_size)

    run_steps(train, 2)
    begun = time.perf_counter()
    tuning = find_batch_size(counted, memory=budget)
    return {
        "size": tuning.batch_size,
        "largest": tuning.largest,
        "trials": len(tuning.trials) + len(tuning.too_large),
        "tried": tried,
        "seconds": time.perf_counter() - begun,
        "fitted": [*tuning.trials],
        "intervals": {n: trial.interval for n, trial in tuning.trials.items()},
        "memory": tuning.memory,
    }


def ask_accelerate(name, budget):
    """Ask `find_executable_batch_size`, from its own first size on."""
    from accelerate.utils import find_executable_batch_size

    start, tried = CASES[name].make_experiment(), []
    run_steps(start, 2)

    def train(batch_size):
        tried.append(batch_size)
        peak = Peak()  # what earlier trials left in pieces is not charged to this one
        run_steps(start, batch_size, lambda: peak.check(budget))
        return batch_size

    begun = time.perf_counter()
    size = find_executable_batch_size(train)()
    seconds = time.perf_counter() - begun
    return {"size": size, "tried": tried, "seconds": seconds}


def ask_lightning(name, budget, mode):
    """Ask `BatchSizeFinder` through its Tuner, with the defaults of each mode."""
    import pytorch_lightning as lightning
    from pytorch_lightning.tuner import Tuner

    case, tried = CASES[name], []
    run_steps(case.make_experiment(), 2)
    peak = Peak()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.batch_size, self.model = 2, case.make_model()

        def train_dataloader(self):
            batch = case.make_batch(self.batch_size)
            return torch.utils.data.DataLoader(Endless(batch), batch_size=None)

        def configure_optimizers(self):
            return case.optimize(self.parameters())

        def on_train_start(self):
            tried.append(self.batch_size)
            peak.reset()

        def training_step(self, batch):
            inputs, targets = batch
            return case.find_loss(self.model(inputs), targets)

        def on_train_batch_end(self, *_):
            peak.check(budget)

    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1,
            default_root_dir=folder,
            accelerator="auto",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        size = Tuner(trainer).scale_batch_size(Module(), mode=mode)
    seconds = time.perf_counter() - begun
    return {"size": size, "tried": tried, "seconds": seconds}


class Endless(torch.utils.data.IterableDataset):
    """One batch, again and again."""

    def __init__(self, batch):
        self.batch = batch

    def __iter__(self):
        return itertools.repeat(self.batch)
