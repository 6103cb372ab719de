"""Ranks from a reader's side: calls, measurements, and what follows a failure."""

import contextlib
import os
import signal
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from helpers import OLDER_CHILDREN, children, refused, wait_until
from jupyter_client.manager import start_new_kernel

import kit
from kit import ExperimentError, RankError

#: Ranks wait so many seconds for each other here, and a failure is reported so soon.
TIMEOUT = 3
LATEST_REPORT = 15


@pytest.fixture(scope="module")
def ranks():
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        OLDER_CHILDREN.update(children())
        yield started


# Calls


@pytest.mark.parametrize(
    ("request_", "word"),
    [({"n": 0}, "n=0"), ({"n": 10**6}, "n=1"), ({"timeout": "20"}, "timeout='20'")],
)
def test_what_cannot_be_started_is_refused(request_, word):
    refused(lambda: kit.start_ranks(**{"n": 1} | request_), word)


def test_what_cannot_be_sent_is_refused(ranks):
    refused(lambda: ranks.run(print, threading.Lock()), "print()", "open files")


def test_every_rank_gets_the_arguments_and_returns_in_order(ranks):
    outside = torch.ones(2, 3)

    def combine(a, *, times):
        numbers = times * outside
        dist.all_reduce(numbers)
        return a, numbers.sum().item(), dist.get_rank(), dist.get_world_size()

    expected = [("a", 36.0, rank, 2) for rank in (0, 1)]
    assert ranks.run(combine, "a", times=3) == expected


def test_what_ranks_print_appears_with_their_numbers(ranks, capsys):
    def count():
        for number in range(50):
            print("line", number)

    ranks.run(count)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}] line {number}" for number in range(50)]


# Measurements


def add_up(*, fewer=0):
    """Add up over all ranks; rank 1 takes longer, and may make fewer steps."""
    for _ in range(1000 - fewer * dist.get_rank()):
        total = torch.ones(1)
        dist.all_reduce(total)
        time.sleep(0.01 * (1 + dist.get_rank()))
        yield 8, {"total": total}


def test_one_rank_is_compared_with_two_by_all_items_and_the_slowest(ranks, quick):
    one, two = kit.compare(add_up, on=[ranks[:1], ranks]).trials
    for count, trial in [(1, one), (2, two)]:
        assert trial.knobs["ranks"] == count
        assert set(trial.metrics["total"]) == {count}
        assert trial.step_seconds >= 0.01 * count
        for run in trial.runs:
            assert run.items == 8 * count * run.steps


def test_a_timeline_shows_every_rank_and_what_they_exchange(ranks, quick):
    recorded = kit.timeline(add_up, on=ranks, steps=2)
    assert {"rank 0: exchange", "rank 1: exchange"} <= set(recorded.lanes)


def test_ranks_that_make_different_steps_are_named(ranks):
    with pytest.raises(RankError) as caught:
        kit.measure(add_up, on=ranks, seconds=0.1, fewer=998)
    assert "rank 1" in str(caught.value)


# Failures


def raises():
    raise ValueError("no such file")


def exits():
    os._exit(12)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    time.sleep(600)


def computes_for_ever():
    while True:
        pass


FAULTS = {
    raises: "ValueError: no such file",
    exits: "exit code 12",
    is_killed: "SIGKILL",
    hangs: "in hangs: time.sleep(600)",
    computes_for_ever: "in computes_for_ever",
}


def fail_on_rank_1(fault):
    if dist.get_rank() == 1:
        fault()
    dist.barrier()


def count_processes():
    return len(psutil.Process().children(recursive=True))


@pytest.mark.parametrize(("fault", "report"), FAULTS.items())
def test_a_failure_names_its_culprit_in_time_and_all_ranks_work_again(
    ranks, fault, report
):
    ranks.run(dist.get_rank)
    before = count_processes()
    begun = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(fail_on_rank_1, fault)
    assert time.monotonic() - begun < LATEST_REPORT
    lines = str(caught.value).splitlines()
    assert any("rank 1" in line and report in line for line in lines), lines
    if fault in (exits, is_killed):
        assert caught.value.ranks[0] == 1, "its absence makes the other one fail, too"
    assert ranks.run(dist.get_rank) == [0, 1]
    wait_until(lambda: count_processes() <= before)


def test_an_interrupt_says_where_ranks_were_and_leaves_them_usable(ranks, tmp_path):
    def meet():
        (tmp_path / str(dist.get_rank())).touch()
        while True:
            dist.barrier()

    def interrupt():
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match=r"in meet: dist.barrier\(\)"):
        ranks.run(meet)
    assert ranks.run(dist.get_rank) == [0, 1]


# Who can reach them, and when they end


def test_no_other_machine_can_reach_them(ranks):
    ranks.run(dist.get_rank)
    connections = []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            connections += process.net_connections("inet")
    listening = [each for each in connections if each.status == psutil.CONN_LISTEN]
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}


def test_a_second_start_closes_the_first_and_closing_leaves_no_process(ranks):
    processes = ranks.run(os.getpid)
    with kit.start_ranks(1) as others:
        processes += others.run(os.getpid)
        with pytest.raises(ExperimentError, match="called again"):
            ranks.run(os.getpid)
    with pytest.raises(ExperimentError, match=r"close\(\) was called"):
        others.run(os.getpid)
    wait_until(lambda: not any(map(psutil.pid_exists, processes)))


FAILING_CELL = """\
def work():
    if rank == 1: 1 / 0
    dist.barrier()

ranks.run(work)"""


@pytest.fixture
def run_cell():
    """Run a cell in a kernel; return what it prints, and its error."""
    manager, client = start_new_kernel()

    def run(code):
        outputs = []
        hook = {"output_hook": lambda message: outputs.append(message["content"])}
        client.execute_interactive(code, timeout=60, **hook)
        texts = [each.get("text") or each.get("evalue") or "" for each in outputs]
        return "".join(texts)

    run.client = client
    run.interrupt = manager.interrupt_kernel
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_ranks_know_a_notebooks_cells_and_end_with_its_killed_kernel(
    run_cell, tmp_path
):
    run_cell("import os, kit\nimport torch.distributed as dist")
    run_cell("ranks = kit.start_ranks(2)")
    run_cell("%%px\nmine = 10 * rank + world_size")
    assert run_cell("print(ranks.run(lambda: mine))") == "[2, 12]\n"
    failure = run_cell(FAILING_CELL)
    assert "failed on rank 1: ZeroDivisionError" in failure
    assert "Cell In[5], line 2, in work: if rank == 1: 1 / 0" in failure
    assert run_cell("print(ranks.run(dist.get_rank))") == "[0, 1]\n"
    run_cell.interrupt()  # what watches the kernel must survive that
    kernel = psutil.Process(int(run_cell("print(os.getpid())")))
    family = kernel.children(recursive=True)
    note = f"open(f'{tmp_path}/{{rank}}', 'w')"
    run_cell.client.execute(f"ranks.run(lambda: {note} and sum(range(10**12)))")
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    kernel.kill()
    _, left = psutil.wait_procs(family, timeout=20)
    assert not left
