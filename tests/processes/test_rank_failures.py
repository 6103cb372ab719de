"""What a failed call on ranks says, and that the ranks can be used after it."""

import os
import signal
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from front_end import FrontEnd
from helpers import OLDER_CHILDREN, children, wait_until
from rank_faults import (
    CULPRITS,
    DISAGREEMENTS,
    ONE,
    define,
    footprint,
    wait_for_no_more_than,
)

import kit
from kit.ranks import RankError

TIMEOUT = 3


@pytest.fixture(scope="module")
def ranks():
    """Two ranks that do not wait long for each other."""
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        OLDER_CHILDREN.update(children())
        yield started


@pytest.fixture
def no_traces(ranks):
    """Nothing is left over after a failure."""
    before = footprint()
    yield
    wait_for_no_more_than(before)


def fail(ranks, body):
    """Run a failing cell; return its error, and whether all ranks started anew."""
    before = ranks.run(os.getpid)
    with pytest.raises(RankError) as caught:
        ranks.run(define(body))
    error = caught.value
    print(error)
    assert 3 <= len(str(error).splitlines()) <= 6
    assert "The ranks can be used again" in str(error)
    after = ranks.run(lambda: (dist.get_rank(), dist.get_world_size(), os.getpid()))
    assert [place[:2] for place in after] == [(0, 2), (1, 2)]
    anew = {place[2] for place in after}.isdisjoint(before)
    assert anew or [place[2] for place in after] == before
    assert anew == ("all start anew, empty" in str(error))
    return error, anew


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "ValueError: no such file"),
        ("killed", "its process was ended by SIGKILL"),
        *(
            pytest.param(*more, marks=pytest.mark.nightly)
            for more in [
                ("sys.exit", "SystemExit: enough"),
                ("os._exit", "its process ended itself, with exit code 12"),
                ("crashes", "its process was ended by SIGSEGV"),
            ]
        ),
    ],
)
def test_the_culprit_is_named_with_its_line_not_the_victim(
    ranks, no_traces, fault, said
):
    action, restarts, is_known = CULPRITS[fault]
    error, anew = fail(ranks, ONE.format(action))
    first, *lines = str(error).splitlines()
    assert first.startswith("work() failed on rank 1: ") and said in first
    if is_known:
        where = f"  <ipython-input-3-cell>, line 4, in work: {action}"
        assert lines.pop(0) == where
    assert lines[0].endswith("line 5, in work: dist.barrier()")
    assert lines[0].startswith("  rank 0: ")
    assert (error.ranks, anew) == ((1,), restarts)


def test_an_error_made_of_a_victims_error_is_a_victims(ranks, no_traces):
    """That is, where one rank catches what another one's end brings."""
    body = "try:\n    {}\nexcept RuntimeError:\n    raise ValueError('lost')"
    action = ONE.format("raise KeyError('x')").replace("\n", "\n    ")
    error, _ = fail(ranks, body.format(action))
    assert error.ranks == (1,) and "ValueError: lost" not in str(error)


def test_what_fails_alike_on_all_ranks_is_told_once(ranks, no_traces):
    error, anew = fail(ranks, "dist.barrier()\nraise KeyError('x')")
    assert str(error).startswith("work() failed on ranks 0, 1: KeyError: 'x'\n")
    assert "line 4, in work" in str(error) and (error.ranks, anew) == ((0, 1), False)
    assert "Traceback (most recent call last)" in error.traceback


def test_what_a_collective_refuses_is_no_waiting(ranks, no_traces):
    error, anew = fail(ranks, "import torch\ndist.recv(torch.ones(1), dist.get_rank())")
    assert "failed on rank" in str(error) and "RuntimeError" in str(error)
    assert "waited" not in str(error) and error.ranks == (0, 1) and not anew


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.nightly] * (fault != "hangs"))
        for fault in DISAGREEMENTS
    ],
)
def test_ranks_that_do_not_agree_are_told_where_each_waits(ranks, no_traces, fault):
    body, lines = DISAGREEMENTS[fault]
    error, anew = fail(ranks, body)
    first, *said = str(error).splitlines()
    assert first.startswith("work(): the ranks do not agree; ")
    if fault == "other shapes":  # gloo ends the process that is sent too much
        assert "a collective ended rank" in first and "shapes" in first
    else:
        assert f"they waited {TIMEOUT} s for each other" in first
    assert anew == (fault in ("other shapes", "cannot be stopped"))
    places = {}
    for line in said:
        who, _, where = line.strip().partition(": ")
        places |= dict.fromkeys(who.removeprefix("rank").strip("s ").split(", "), where)
    for rank, line in enumerate(lines):
        where = f"line {line}, in work" if line else "had returned"
        assert where in places[str(rank)], error
    assert error.ranks == ()
    assert "the same collective calls" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        "while True: dist.barrier()",
        pytest.param("time.sleep(60)", marks=pytest.mark.nightly),
    ],
)
def test_an_interrupt_tells_where_each_rank_was_and_leaves_them_usable(
    ranks, no_traces, body
):
    pids = ranks.run(os.getpid)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        ranks.run(define(body))
    first, second, third = str(caught.value).splitlines()
    assert first == "work() was interrupted."
    assert second.startswith("  ranks 0, 1: ") and f"in work: {body}" in second
    assert third == "The ranks can be used again."
    assert ranks.run(os.getpid) == pids


@pytest.mark.nightly
def test_a_rank_that_a_px_cell_keeps_busy_can_be_interrupted(ranks, no_traces):
    ranks.run(os.getpid)
    ranks._engines.send(1, keep_busy)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ranks.run(define("pass"))
    assert ranks.run(dist.get_rank) == [0, 1]


def keep_busy(rank):
    time.sleep(600)


def test_a_step_of_a_measurement_that_never_ends_is_ended(ranks, no_traces):
    """It is stuck where no interrupt comes: in a collective that others do not join."""

    def train():
        yield 1
        if dist.get_rank() == 0:
            dist.recv(torch.ones(1), 1)
        time.sleep(600)

    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        kit.measure(train, on=ranks, seconds=1.0)
    assert ranks.run(dist.get_rank) == [0, 1]


def test_all_start_anew_where_one_ends_between_calls_and_it_is_said(
    ranks, no_traces, capsys
):
    pids = ranks.run(os.getpid)
    psutil.Process(pids[1]).kill()
    wait_until(lambda: ranks._engines.find_dead() == [1])
    assert {*ranks.run(os.getpid)}.isdisjoint(pids)
    said = capsys.readouterr().err
    assert "rank 1 ended. The ranks can be used again; all start anew" in said


def test_a_failure_on_a_view_names_its_ranks_and_spares_the_others(ranks, no_traces):
    with pytest.raises(RankError, match="failed on rank 1: ValueError") as caught:
        ranks[1].run(define("raise ValueError"))
    assert "rank 0" not in str(caught.value)
    assert ranks.run(dist.get_rank) == [0, 1]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A kernel in which ranks were started."""
    front_end = FrontEnd(tmp_path_factory.mktemp("kernel"))
    front_end.run("import os, time, kit\nimport torch.distributed as dist")
    front_end.run("ranks = kit.start_ranks(2)")
    yield front_end
    front_end.close()


def test_in_a_notebook_px_cells_run_on_the_same_ranks(notebook):
    assert notebook.run("%%px\nmine = 10 * rank + world_size") == ""
    assert notebook.run("print(ranks.run(lambda: mine))") == "[2, 12]\n"
    request = notebook.start("%%px\nprint(dist.get_rank(), mine, device)")
    wait_until(lambda: notebook.has_ended(request), 30)
    shown = [output["data"]["text/plain"] for output in notebook.outputs[request]]
    assert sorted(shown) == ["[stdout:0] 0 2 cpu\n", "[stdout:1] 1 12 cpu\n"]


@pytest.mark.nightly
def test_in_a_notebook_an_error_says_which_px_cells_to_run_again(notebook):
    made = notebook.start("%%px\nmine = 5")
    wait_until(lambda: notebook.has_ended(made), 30)
    request = notebook.start("ranks.run(lambda: dist.get_rank() and os._exit(1))")
    wait_until(lambda: notebook.has_ended(request), 30)
    said = notebook.outputs[request][-1]["evalue"]
    assert "all start anew, empty" in said and f"In[{notebook.numbers[made]}]" in said
    request = notebook.start("%%px\nprint(dist.get_rank(), 'mine' in globals())")
    wait_until(lambda: notebook.has_ended(request), 60)
    shown = [o["data"]["text/plain"] for o in notebook.outputs[request] if "data" in o]
    lines = [line for text in shown for line in text.splitlines() if "stdout" in line]
    assert sorted(lines) == ["[stdout:0] 0 False", "[stdout:1] 1 False"]


FAILING = """\
def work(seconds=0):
    time.sleep(seconds)
    if dist.get_rank() == 1: 1 / 0
    dist.barrier()

"""


def error_of(notebook, code, seconds=0.0):
    """Run a cell, interrupt it after some seconds; return its number and its error."""
    request = notebook.start(code)
    if seconds:
        assert not notebook.has_ended(request)
        threading.Event().wait(seconds)
        notebook.manager.interrupt_kernel()
    wait_until(lambda: notebook.has_ended(request), 30)
    (error,) = [o for o in notebook.outputs[request] if "ename" in o]
    return notebook.numbers[request], error


def test_in_a_notebook_errors_name_the_cell(notebook):
    number, error = error_of(notebook, f"{FAILING}ranks.run(work)")
    assert error["ename"] == "RankError"
    first, second, third, _ = error["evalue"].splitlines()
    assert first == "work() failed on rank 1: ZeroDivisionError: division by zero"
    assert second.startswith(f"  Cell In[{number}], line 3, in work: if dist.get_rank")
    assert third == f"  rank 0: Cell In[{number}], line 4, in work: dist.barrier()"
    assert notebook.run("print(ranks.run(dist.get_rank))") == "[0, 1]\n"


def test_in_a_notebook_an_interrupt_ends_the_run(notebook):
    number, error = error_of(notebook, f"{FAILING}ranks.run(work, 60)", seconds=1.5)
    assert error["ename"] == "KeyboardInterrupt"
    assert f"  ranks 0, 1: Cell In[{number}], line 2, in work:" in error["evalue"]
    assert notebook.run("print(ranks.run(dist.get_rank))") == "[0, 1]\n"


def test_when_a_kernel_is_killed_its_ranks_end_even_one_that_is_stuck(notebook):
    kernel = psutil.Process(int(notebook.run("import os; print(os.getpid())")))
    family = kernel.children(recursive=True)
    notebook.start("ranks.run(lambda: sum(range(10**12)))")
    threading.Event().wait(1.0)
    kernel.kill()
    _, left = psutil.wait_procs(family, timeout=20)
    assert not left
