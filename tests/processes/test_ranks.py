"""Ranks from a reader's side: calls, measurements, failures. One pair for all tests."""

import contextlib
import functools
import json
import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import IPython
import psutil
import pytest
import rank_faults as faults
import torch
import torch.distributed as dist
from front_end import Kernel
from helpers import OLDER_CHILDREN, children, refused, wait_until
from torch import nn

import kit
from kit.errors import ExperimentError
from kit.measuring.experiment import resolve
from kit.ranks import RankError

TIMEOUT, LATE = 3, 0.6


@pytest.fixture(scope="module")
def ranks():
    """Two ranks that do not wait long for each other."""
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        OLDER_CHILDREN.update(children())
        yield started


@pytest.fixture(autouse=True)
def known():
    """Ranks that have started anew are no test's own processes."""
    yield
    for child in children():
        with contextlib.suppress(psutil.Error):
            if "kit-ranks-" in child.environ().get("IPP_PROFILE_DIR", ""):
                OLDER_CHILDREN.add(child)


@pytest.fixture
def no_traces(ranks):
    """After a failure nothing is left over, and the ranks can be used."""
    ranks.run(dist.get_rank)
    before = faults.footprint()
    yield
    assert ranks.run(whereabouts) == [(0, 2), (1, 2)]
    faults.wait_for_no_more_than(before)


def whereabouts():
    return dist.get_rank(), dist.get_world_size()


def add_up(tensor):
    dist.all_reduce(tensor)
    return tensor.tolist()


def test_arguments_arrive_and_every_rank_returns_in_order(ranks):
    outside = torch.ones(2, 3)

    def combine(a, *more, times=1):
        return a, more, times, outside.sum().item(), dist.get_rank()

    told = ranks.run(functools.partial(combine, "a", times=3), 1, 2)
    assert told == [("a", (1, 2), 3, 6.0, rank) for rank in range(2)]
    assert ranks.run(add_up, torch.arange(3.0)) == [[0, 2, 4]] * 2
    share = max(1, (kit.this_machine().cores or 1) // 2)
    assert ranks.run(torch.get_num_threads) == [share, share]
    assert repr(ranks).startswith(f"<ranks 0, 1 on cpu, {share} thread")


CELL = """
import math
scale = 10

class Pair:
    value = scale

def work(x):
    with torch.backends.cudnn.flags(enabled=True):
        return Pair(), math.floor(x), rank, world_size, device.type, mine
"""


def test_a_cells_function_brings_what_it_uses_and_finds_what_the_rank_has(ranks):
    names = {"__name__": "__main__", "torch": torch}
    exec(compile(CELL, "<ipython-input-3-cell>", "exec"), names)
    ranks.run(lambda: IPython.get_ipython().user_ns.update(mine=7))
    for rank, (pair, *told) in enumerate(ranks.run(names["work"], 2.5)):
        assert pair.value == 10 and isinstance(pair, names["Pair"])
        assert told == [2, rank, 2, "cpu", 7]


def test_what_cannot_be_sent_is_refused_by_name(ranks):
    lock = threading.Lock()
    refused(lambda: ranks.run(print, lock), "print()", "'_thread.lock'", "open files")
    with pytest.raises(RankError, match="failed on ranks 0, 1"):
        ranks.run(threading.Lock)  # cannot be sent back


def test_lines_come_while_it_runs_in_order_and_with_their_rank(ranks, capsys, tmp_path):
    def work(go):
        for number in range(50):
            print("line", number)
        while not go.exists():
            time.sleep(0.01)
        print("not ended", end="")

    go, early = tmp_path / "go", ""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ranks.run, work, go)
        while early.count("line 49") < 2 and not running.done():
            time.sleep(0.01)
            early += capsys.readouterr().out
        go.touch()
        running.result()
    for rank in range(2):
        lines = [line for line in early.splitlines() if line.startswith(f"[{rank}]")]
        assert lines == [f"[{rank}] line {number}" for number in range(50)]
    last = capsys.readouterr().out.splitlines()
    assert sorted(last) == ["[0] not ended", "[1] not ended"]


WORLDS = [(slice(1), [(0, 1)]), (-2, [(0, 1)]), (slice(2), [(0, 2), (1, 2)])]


@pytest.mark.parametrize(("which", "worlds"), WORLDS)
def test_a_view_is_the_whole_world_of_what_runs_on_it(ranks, which, worlds):
    with ranks[which] as view:
        assert view.run(whereabouts) == worlds
        assert view.run(add_up, torch.ones(1)) == [[len(worlds)]] * len(worlds)
    assert ranks.run(whereabouts) == [(0, 2), (1, 2)], "closing a view ends nothing"
    refused(lambda: ranks[2:], "ranks[2:None] is empty: there are 2", "ranks[:1]")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        *(({"n": n}, [f"n={n!r}", "ranks(2)"]) for n in (0, 2.0, True, "2", 10**6)),
        *(({"timeout": t}, ["timeout=", "seconds"]) for t in (0, "20", math.nan, None)),
    ],
)
def test_what_cannot_be_started_is_refused(asked, words):
    refused(lambda: kit.start_ranks(**{"n": 1} | asked), *words)


def test_on_windows_they_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr("kit.ranks.ranks.sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr("kit.ranks.ranks.Engines", None)
    refused(lambda: kit.start_ranks(2), "Linux or macOS", "WSL")


def reduce(*, size=1000):
    """Add up over all ranks."""
    numbers = torch.ones(size)
    while True:
        dist.all_reduce(numbers)
        numbers /= dist.get_world_size()
        yield 8, {"sum": numbers.sum(), "rank": dist.get_rank()}


def test_items_are_summed_and_metrics_are_those_of_the_first(ranks):
    trial = kit.measure(reduce, on=ranks, seconds=0.3)
    assert trial.knobs == {"ranks": 2, "size": 1000}
    stretches = [stretch for run in trial.runs for stretch in run.stretches]
    assert all(each.items == 16 * each.steps for each in stretches)
    assert all(each.seconds >= 0.1 for each in stretches)
    assert (set(trial.metrics["sum"]), set(trial.metrics["rank"])) == ({1000.0}, {0.0})
    assert any("On ranks 0, 1: cpu" in note for note in trial.notes)


def test_a_stretch_lasts_as_long_as_its_slowest_rank_and_begins_on_all_at_once(ranks):
    def train():
        time.sleep(LATE * (dist.get_rank() == 0))
        while True:
            dist.barrier()
            time.sleep(0.01 * (1 + dist.get_rank()))
            yield 1

    with ranks.prepare(resolve(train), {}).drive(0) as driver:
        driver.open()
        driver.time(1)
        # Nothing keeps one rank busy between two stretches.
        busy = ranks._engines.send(1, lambda rank: time.sleep(LATE))
        stretch = driver.time(5)
        busy.get(timeout=5)
    assert stretch.steps == 5 and 0.1 <= stretch.seconds < LATE
    assert driver.run.setup_seconds >= LATE


def test_whole_runs_have_equal_seeds_and_leave_what_the_reader_had(ranks):
    model = nn.Linear(1, 1)

    def train():
        for _ in range(3):
            with torch.no_grad():
                model.weight += 1
            yield 1, {"weight": model.weight.detach(), "number": torch.rand(())}

    before, start = ranks.run(torch.get_rng_state), model.weight.item()
    trial = kit.measure(train, on=ranks, seconds=None, repeats=2)
    alone = kit.measure(train, on=ranks[1:], seconds=None, repeats=2)
    assert [run.steps for run in trial.runs] == [3, 3]
    weights = [start + 1, start + 2, start + 3]
    assert trial.metrics["weight"] == pytest.approx(weights * 2)
    assert trial.metrics["number"] == alone.metrics["number"]
    assert len({*trial.metrics["number"]}) == 6, "each run draws numbers of its own"
    after = ranks.run(torch.get_rng_state)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# Failures


def train(*, silent=None, fewer=0, waits=False, items=1):
    """Train for nine steps, on rank 1 for fewer."""
    if dist.get_rank() == silent:
        return
    for _ in range(9 - fewer * dist.get_rank()):
        if waits:
            dist.barrier()
        yield items


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"silent": 0}, ["rank 0 ended before", "`yield`", "let it yield 0"]),
        ({"fewer": 4}, ["different steps: rank 0 9, rank 1 5", "equal steps"]),
        (
            {"fewer": 4, "waits": True},
            ["failed on rank 0", "barrier()", "rank 1: had returned", "start anew"],
        ),
        ({"items": 0}, ["handled no items on any rank"]),
    ],
)
def test_ranks_that_do_not_make_equal_steps_are_named(ranks, no_traces, knobs, words):
    with pytest.raises(ExperimentError) as caught:
        kit.measure(train, on=ranks, seconds=None, **knobs)
    assert not [word for word in words if word not in str(caught.value)], caught.value


def some(names, *always):
    """Return faults, of which only some are always tried; the others at night."""
    nightly = pytest.mark.nightly
    return [pytest.param(f, marks=[nightly] * (f not in always)) for f in names]


@pytest.mark.parametrize("fault", some(faults.CULPRITS, "raises", "killed"))
def test_the_culprit_is_named_with_its_line_and_not_the_victim(ranks, no_traces, fault):
    action, is_known = faults.CULPRITS[fault]
    before = ranks.run(os.getpid)
    with pytest.raises(RankError) as caught:
        ranks.run(faults.define(faults.ONE.format(action)))
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("work() failed on rank 1: ") and caught.value.ranks == (1,)
    if is_known:
        assert lines.pop(0) == f"  <ipython-input-3-cell>, line 4, in work: {action}"
    other, anew = lines
    assert other.startswith("  rank 0: ") and other.endswith("in work: dist.barrier()")
    assert "start anew" in anew
    assert not {*ranks.run(os.getpid)} & {*before}


@pytest.mark.parametrize("fault", some(faults.DISAGREEMENTS, "hangs"))
def test_ranks_that_do_not_agree_are_told_where_each_waits(ranks, no_traces, fault):
    body, places = faults.DISAGREEMENTS[fault]
    with pytest.raises(RankError) as caught:
        ranks.run(faults.define(body))
    said = str(caught.value).splitlines()
    for rank, line in enumerate(places):
        where = f"line {line}, in work" if line else "had returned"
        assert any(where in told for told in said), f"rank {rank}: {caught.value}"
    assert "the same collective calls" in str(caught.value) or fault == "other shapes"


def test_an_interrupt_says_where_ranks_were_and_leaves_them_usable(
    ranks, no_traces, tmp_path
):
    def interrupt():
        wait_until(lambda: len([*tmp_path.iterdir()]) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    note = f"open(f'{tmp_path}/{{dist.get_rank()}}', 'w').close()"
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        ranks.run(faults.define(f"while True: dist.barrier(), {note}"))
    first, second, third = str(caught.value).splitlines()
    assert "work() was interrupted" in first and "start anew" in third
    assert second.startswith("  ranks 0, 1: ") and "in work: while True" in second


# Recorded, after the failures: a rank that was recorded and then waited in vain keeps a
# port, once.


def test_a_timeline_shows_every_rank_and_what_they_exchange(ranks, quick, tmp_path):
    recorded = kit.timeline(faults.train_in_parallel, on=ranks, steps=2)
    lanes = {
        f"rank {n}: {lane}" for n in (0, 1) for lane in ("main thread", "exchange")
    }
    assert lanes <= {*recorded.lanes}
    events = json.loads(recorded.save(tmp_path / "trace.json").read_bytes())
    exchanged = [e for e in events["traceEvents"] if e.get("name") == "gloo:all_reduce"]
    assert {event["pid"] for event in exchanged} == {*ranks.run(os.getpid)}


def test_a_loop_that_ends_while_it_is_recorded_is_told_so(ranks, quick):
    def train():
        for _ in range(4):
            yield 1

    with pytest.raises(RankError, match="ended after 4 steps, while it was recorded"):
        kit.timeline(train, on=ranks)


# Who can reach them, and when they end


def test_only_this_machine_can_reach_them(ranks):
    ranks.run(whereabouts)
    listening = faults.list_listening()
    assert len(listening) > 10 and {*listening} == {"127.0.0.1"}


FAILING = """\
def work():
    if dist.get_rank() == 1: 1 / 0
    dist.barrier()

ranks.run(work)"""


def test_a_notebooks_cells_are_named_and_ranks_end_with_a_killed_kernel(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.run("import os, time, kit\nimport torch.distributed as dist")
    kernel.run("ranks = kit.start_ranks(2)")
    kernel.run("%%px\nmine = 10 * rank + world_size")  # the third cell
    assert kernel.run("print(ranks.run(lambda: mine))") == "[2, 12]\n"
    said = kernel.run(FAILING)
    assert "failed on rank 1: ZeroDivisionError" in said
    assert "Cell In[5], line 2, in work: if dist.get_rank" in said
    assert "rank 0: Cell In[5], line 3, in work: dist.barrier()" in said
    said = kernel.run("ranks.run(lambda: dist.get_rank() and os._exit(1))")
    assert "with exit code 1" in said and "start anew" in said
    assert kernel.run("print(ranks.run(dist.get_rank))").endswith("[0, 1]\n")
    process = psutil.Process(int(kernel.run("print(os.getpid())")))
    family = process.children(recursive=True)
    (stuck := tmp_path / "stuck").mkdir()
    note = f"open(f'{stuck}/{{dist.get_rank()}}', 'w')"
    kernel.client.execute(f"ranks.run(lambda: {note} and sum(range(10**12)))")
    wait_until(lambda: len([*stuck.iterdir()]) == 2)
    process.kill()
    _, left = psutil.wait_procs(family, timeout=20)
    assert not left
    kernel.client.stop_channels()


def test_a_second_start_closes_the_first_and_close_leaves_nothing(ranks):
    ours = ranks.run(os.getpid)
    with kit.start_ranks(1) as others:
        ours += others.run(os.getpid)
        assert others.run(torch.get_num_threads) == [kit.this_machine().cores]
        OLDER_CHILDREN.update(children())
        refused(lambda: ranks.run(whereabouts), "called again", "kit.start_ranks")
    refused(lambda: others.run(whereabouts), "close() was called")
    wait_until(lambda: not any(map(psutil.pid_exists, ours)))
