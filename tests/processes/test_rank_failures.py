"""What a failed call on ranks says, and that the ranks can be used after it."""

import os
import signal
import threading

import psutil
import pytest
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
from kit.progress import Progress
from kit.ranks import RankError, team
from kit.ranks.failures import describe_death, explain_failure
from kit.ranks.outcomes import Outcome, Place

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
    """Run a failing cell; return its error, the ranks being usable again."""
    before = ranks.run(os.getpid)
    with pytest.raises(RankError) as caught:
        ranks.run(define(body))
    error = caught.value
    print(error)
    assert 3 <= len(str(error).splitlines()) <= 10
    assert "The ranks can be used again" in str(error)
    after = ranks.run(lambda: (dist.get_rank(), dist.get_world_size(), os.getpid()))
    assert [place[:2] for place in after] == [(0, 2), (1, 2)]
    new = [rank for rank, pid in enumerate(before) if after[rank][2] != pid]
    for rank in new:
        assert f"rank {rank} starts anew, empty" in str(error)
    assert new or "anew" not in str(error)
    return error, new


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "ValueError: no such file"),
        ("killed", "its process was ended by SIGKILL"),
        *(
            pytest.param(*more, marks=pytest.mark.nightly)
            for more in [
                ("sys.exit", "it called sys.exit('enough')"),
                ("os._exit", "its process ended itself, with exit code 12"),
                ("crashes", "its process was ended by SIGSEGV"),
            ]
        ),
    ],
)
def test_the_culprit_is_named_with_its_line_not_the_victim(
    ranks, no_traces, fault, said
):
    action, ended = CULPRITS[fault]
    error, new = fail(ranks, ONE.format(action))
    first, second, third, *_ = str(error).splitlines()
    assert first.startswith("work() failed on rank 1: ") and said in first
    assert second == f"  <ipython-input-3-cell>, line 4, in work: {action}"
    assert third.endswith("line 5, in work: dist.barrier()") and "rank 0:" in third
    assert (error.ranks, new) == ((1,), [1] * ended)


@pytest.mark.nightly
def test_a_rank_that_somebody_kills_is_named_with_the_line_where_it_was(
    ranks, no_traces
):
    pid = ranks.run(os.getpid)[1]
    timer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
    timer.start()
    error, new = fail(ranks, ONE.format("time.sleep(60)"))
    first, second, *_ = str(error).splitlines()
    assert first.startswith("work() failed on rank 1: ") and "SIGKILL" in first
    assert "line 4, in work: time.sleep(60)" in second
    assert new == [1]


def test_an_error_made_of_a_victims_error_is_a_victims():
    """That is, where one rank catches what another one's end brings."""
    lost = Outcome("raised", error="ValueError: lost", victim=True)
    died = Outcome("died", error="its process has ended")
    error = explain_failure("work()", {0: lost, 1: died}, 25, [1])
    assert error.ranks == (1,)
    assert "ValueError" not in str(error)


def test_what_fails_alike_on_all_ranks_is_told_once(ranks, no_traces):
    error, new = fail(ranks, "dist.barrier()\nraise KeyError('x')")
    assert str(error).startswith("work() failed on ranks 0, 1: KeyError: 'x'\n")
    assert "line 4, in work" in str(error) and (error.ranks, new) == ((0, 1), [])
    assert "Traceback (most recent call last)" in error.traceback


def test_culprits_are_named_in_order_whoever_was_heard_first():
    outcomes = {rank: Outcome("raised", error="KeyError: 'x'") for rank in (2, 0)}
    error = explain_failure("work()", outcomes, 25, [])
    assert str(error).startswith("work() failed on ranks 0, 2: KeyError: 'x'\n")
    assert error.ranks == (0, 2)


def test_a_rank_that_others_have_lost_is_the_culprit_even_if_its_end_is_not_seen():
    lost = Outcome("raised", error="RuntimeError: Connection reset", victim=True)
    silent = Outcome("stopped", error="it did not answer", intact=False)
    error = explain_failure("work()", {0: lost, 1: silent}, 25, [1])
    assert str(error).startswith("work() failed on rank 1: it did not answer\n")
    assert error.ranks == (1,)


def test_what_a_collective_refuses_is_no_waiting(ranks, no_traces):
    error, new = fail(ranks, "import torch\ndist.recv(torch.ones(1), dist.get_rank())")
    assert "failed on rank" in str(error) and "RuntimeError" in str(error)
    assert "waited" not in str(error) and error.ranks == (0, 1) and not new


def test_a_death_is_told_by_its_signal_or_is_the_end_of_a_wait():
    log = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"
    waited = {rank: describe_death(-6, log, 0, None) for rank in range(2)}
    assert "they waited 25 s" in str(explain_failure("work()", waited, 25, [0, 1]))
    assert describe_death(-6, "", 0, None).error.endswith("by SIGABRT")
    assert describe_death(-40, "", 0, None).error.endswith("by signal 40")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.nightly] * (fault != "hangs"))
        for fault in DISAGREEMENTS
    ],
)
def test_ranks_that_do_not_agree_are_told_where_each_waits(ranks, no_traces, fault):
    body, lines = DISAGREEMENTS[fault]
    error, new = fail(ranks, body)
    first, *said = str(error).splitlines()
    assert first.startswith("work(): the ranks do not agree; ")
    if fault == "other shapes":  # gloo ends the process that is sent too much
        assert "bytes came where" in first and len(new) == 1
    else:
        assert f"they waited {TIMEOUT} s for each other" in first
        assert new == [1] * (fault == "cannot be stopped")
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
def test_a_rank_that_a_px_cell_keeps_busy_is_found_there(ranks, no_traces):
    ranks.run(os.getpid)
    ranks._team.engines.view(1).execute("import time\ntime.sleep(600)", block=False)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        ranks.run(define("pass"))
    said = str(caught.value)
    assert "  rank 0: had returned\n  rank 1: a %%px cell, line 2, in <mod" in said
    assert "rank 1 starts anew, empty" in said
    assert ranks.run(dist.get_rank) == [0, 1]


def test_an_error_of_whoever_follows_a_call_ends_it(ranks, no_traces):
    with (
        pytest.raises(ZeroDivisionError),
        ranks._team.start(
            Progress("working"), (0, 1), define("while True: dist.barrier()"), (), {}
        ) as call,
    ):
        for _ in call:
            1 / 0  # noqa: B018
    assert ranks.run(dist.get_rank) == [0, 1]


def test_a_rank_that_ends_between_calls_is_replaced(ranks, no_traces):
    first, second = ranks.run(os.getpid)
    psutil.Process(second).kill()
    wait_until(lambda: ranks._team.engines.have_ended() == [1])
    now = ranks.run(os.getpid)
    assert now[0] == first and now[1] != second


@pytest.mark.nightly
def test_one_that_does_not_answer_between_calls_is_replaced(
    ranks, no_traces, monkeypatch
):
    pids = ranks.run(os.getpid)
    with pytest.raises(RankError):
        ranks.run(define("raise ValueError"))
    psutil.Process(pids[1]).suspend()
    monkeypatch.setattr(team, "_SECONDS_TO_ANSWER", 5)
    now = ranks.run(os.getpid)
    assert now[0] == pids[0] and now[1] != pids[1]


def introduce_badly(paths, neighbours):
    raise ImportError("no kit here")


def test_engines_that_cannot_be_ranks_are_told_apart(ranks, monkeypatch):
    monkeypatch.setattr(team, "introduce", introduce_badly)
    ranks._team.release(whole=False)
    with pytest.raises(
        kit.experiment.ExperimentError, match="cannot be ranks: ImportError"
    ):
        ranks.run(os.getpid)
    monkeypatch.undo()
    assert ranks.run(dist.get_rank) == [0, 1]


def test_a_failure_on_a_view_names_its_ranks_and_spares_the_others(ranks, no_traces):
    with pytest.raises(RankError, match="failed on rank 1: ValueError") as caught:
        ranks[1].run(define("raise ValueError"))
    assert "rank 0" not in str(caught.value)
    assert ranks.run(dist.get_rank) == [0, 1]


def test_many_ranks_are_told_in_ten_lines():
    places = {
        rank: Outcome("stopped", place=Place("train.py", rank % 7, "train", "wait()"))
        for rank in range(16)
    }
    said = str(explain_failure("train()", places, 25, range(16)))
    assert len(said.splitlines()) == 8
    assert "  ranks 0, 7, 14: train.py, line 0, in train: wait()" in said
    assert "  and 6 others elsewhere" in said
    assert "ranks 0–15 start anew" in said


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
def test_in_a_notebook_px_cells_find_the_ranks_ready_after_a_failure(notebook):
    request = notebook.start("ranks.run(lambda: dist.get_rank() and os._exit(1))")
    wait_until(lambda: notebook.has_ended(request), 30)
    assert "starts anew" in notebook.outputs[request][-1]["evalue"]
    request = notebook.start("%%px\nprint(dist.get_rank(), 'mine' in globals())")
    wait_until(lambda: notebook.has_ended(request), 60)
    shown = [o["data"]["text/plain"] for o in notebook.outputs[request] if "data" in o]
    lines = [line for text in shown for line in text.splitlines() if "stdout" in line]
    assert sorted(lines) == ["[stdout:0] 0 True", "[stdout:1] 1 False"]


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
