"""`start_ranks`: processes that are called as one, seen from a reader's side."""

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import ipyparallel
import IPython
import psutil
import pytest
import torch
import torch.distributed as dist
from helpers import OLDER_CHILDREN, children, refused, wait_until

import kit
from kit.ranks import ranks as rooms


@pytest.fixture(scope="module")
def ranks():
    """Two ranks for all tests of this file."""
    with kit.start_ranks(2) as started:
        OLDER_CHILDREN.update(children())
        yield started


def define(source, **names):
    """Run a cell, as a notebook does; return what it defines."""
    names |= {"__name__": "__main__"}
    exec(compile(source, "<ipython-input-3-cell>", "exec"), names)
    return names


def tree():
    """This process and all that belong to it."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def whereabouts():
    return dist.get_rank(), dist.get_world_size()


def add_up(tensor):
    dist.all_reduce(tensor)
    return tensor


# What runs, and what comes back


def test_every_rank_returns_in_order(ranks):
    assert ranks.run(whereabouts) == [(0, 2), (1, 2)]
    assert len(ranks) == 2


def test_ranks_reduce_tensors(ranks):
    first, second = ranks.run(add_up, torch.arange(3.0))
    assert first.tolist() == second.tolist() == [0, 2, 4]


def test_arguments_of_all_kinds_arrive(ranks):
    def combine(a, *more, times=1):
        return [a, more, times, outside.sum().item()]

    outside = torch.ones(2, 3)
    run = functools.partial(combine, "a", times=3)
    assert ranks.run(run, 1, 2) == [["a", (1, 2), 3, 6.0]] * 2
    assert ranks.run(combine, b"x" * 5_000_000)[1][0] == b"x" * 5_000_000


def test_a_cells_function_brings_what_it_uses(ranks):
    cell = define("""
import math
scale = 10

def halve(x):
    return x / 2

class Pair:
    def __init__(self, value):
        self.value = halve(value * scale)

def work(x):
    return Pair(x), math.floor(halve(x))
""")
    for pair, half in ranks.run(cell["work"], 3):
        assert (pair.value, half) == (15.0, 1)
        assert isinstance(pair, cell["Pair"])


def test_names_that_a_cell_lacks_are_those_of_the_rank(ranks):
    cell = define("""
def where():
    return rank, world_size, dist.get_rank(), torch.ones(1, device=device).item()

def remember():
    return mine
""")
    assert ranks.run(cell["where"]) == [(0, 2, 0, 1.0), (1, 2, 1, 1.0)]
    ranks.run(lambda: IPython.get_ipython().user_ns.update(mine=7))
    assert ranks.run(cell["remember"]) == [7, 7]
    cell["mine"] = 8
    assert ranks.run(cell["remember"]) == [8, 8]


def test_what_cannot_be_sent_is_refused_by_name(ranks):
    lock = threading.Lock()
    refused(lambda: ranks.run(print, lock), "print()", "'_thread.lock'", "open files")
    with pytest.raises(kit.ranks.RankError, match="failed on ranks 0, 1"):
        ranks.run(multiprocessing.Lock)
    assert ranks.run(whereabouts) == [(0, 2), (1, 2)]


def test_each_has_its_share_of_the_cores(ranks):
    share = max(1, (kit.this_machine().cores or 1) // 2)
    assert ranks.run(torch.get_num_threads) == [share, share]
    seen = define("import os\ndef look():\n    return os.environ['OMP_NUM_THREADS']")
    assert ranks.run(seen["look"]) == [str(share)] * 2


# What is printed


def test_lines_come_with_the_ranks_number_in_order(ranks, capsys):
    def count(upto):
        for number in range(upto):
            print("line", number)
        print("to stderr", file=sys.stderr)
        print("not ended", end="")

    ranks.run(count, 50)
    said = capsys.readouterr()
    for rank in range(2):
        lines = [line for line in said.out.splitlines() if line.startswith(f"[{rank}]")]
        expected = [f"[{rank}] line {number}" for number in range(50)]
        assert lines == [*expected, f"[{rank}] not ended"]
    assert sorted(said.err.splitlines()) == ["[0] to stderr", "[1] to stderr"]


def test_lines_come_while_it_runs(ranks, capsys, tmp_path):
    def work(go):
        print("begun")
        while not go.exists():
            time.sleep(0.01)
        print("ended")

    go, early = tmp_path / "go", ""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ranks.run, work, go)
        while early.count("begun") < 2 and not running.done():
            time.sleep(0.01)
            early += capsys.readouterr().out
        go.touch()
        running.result()
    assert sorted(early.splitlines()) == ["[0] begun", "[1] begun"]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] ended", "[1] ended"]


def test_modules_that_are_objects_of_their_own_can_be_used(ranks):
    def work():
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return torch.backends.cudnn.allow_tf32

    assert ranks.run(define_here(work)) == [False, False]


def define_here(function):
    """Make a function one of a cell, which is sent with what it uses."""
    function.__module__ = "__main__"
    return function


# Views


@pytest.mark.parametrize(
    ("which", "worlds"),
    [
        (slice(None, 1), [(0, 1)]),
        (slice(1, None), [(0, 1)]),
        (1, [(0, 1)]),
        (-2, [(0, 1)]),
        (slice(None), [(0, 2), (1, 2)]),
        (slice(None, None, -1), [(0, 2), (1, 2)]),
    ],
)
def test_a_view_is_the_whole_world_of_what_runs_on_it(ranks, which, worlds):
    view = ranks[which]
    assert len(view) == len(worlds)
    assert view.run(whereabouts) == worlds
    reduced = view.run(add_up, torch.ones(1))
    assert [tensor.item() for tensor in reduced] == [float(len(view))] * len(view)


def test_a_view_of_a_view_and_what_is_no_view(ranks):
    assert ranks[1:][0].run(os.getpid) == ranks.run(os.getpid)[1:]
    with pytest.raises(IndexError):
        ranks[2]
    refused(lambda: ranks[2:], "ranks[2:None] is empty: there are 2", "ranks[:1]")


def test_closing_a_view_ends_nothing(ranks):
    with ranks[:1] as view:
        assert view.run(whereabouts) == [(0, 1)]
    assert ranks.run(whereabouts) == [(0, 2), (1, 2)]


def test_groups_that_code_has_destroyed_are_made_anew(ranks):
    ranks.run(dist.destroy_process_group)
    with pytest.raises(kit.ranks.RankError, match="has not been initialized"):
        ranks.run(whereabouts)
    assert ranks.run(whereabouts) == [(0, 2), (1, 2)]


# How they look


def test_a_table_says_what_they_are(ranks):
    pids = ranks.run(os.getpid)
    share = max(1, (kit.this_machine().cores or 1) // 2)
    threads = f"{share} thread" + "s" * (share > 1)
    device = "cuda:0, cuda:1" if torch.cuda.device_count() > 1 else "cpu"
    assert repr(ranks) == f"<ranks 0, 1 on {device}, {threads} each>"
    assert repr(ranks[1]).startswith("<rank 1 on c")
    html = ranks._repr_html_()
    assert all(f">{text}</td>" in html for text in ("0", "1", share, *pids))
    assert ">2 ranks</div>" in html and ">1 rank</div>" in ranks[0]._repr_html_()
    assert str(pids[0]) not in ranks[1]._repr_html_()


# What is refused


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "2", None])
def test_what_is_no_number_of_ranks_is_refused(n):
    refused(lambda: kit.start_ranks(n), f"n={n!r}", "start_ranks(2)")


@pytest.mark.parametrize("timeout", [0, -1, "20", float("nan"), float("inf"), None])
def test_what_is_no_time_to_wait_is_refused(timeout):
    refused(lambda: kit.start_ranks(1, timeout=timeout), "timeout=", "seconds")


def test_too_many_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(rooms, "find_cores", lambda root: (2, "said so"))
    refused(lambda: kit.start_ranks(64), "n=64", "2 cores", "1 to 8")


def test_those_that_share_cores_are_warned_of(monkeypatch):
    class StartedError(Exception):
        pass

    def start(*arguments):
        raise StartedError

    monkeypatch.setattr(rooms, "find_cores", lambda root: (2, "said so"))
    monkeypatch.setattr(rooms, "Engines", start)
    monkeypatch.setattr(rooms, "_engines", None)
    with (
        pytest.warns(UserWarning, match="4 ranks share 2 cores") as caught,
        pytest.raises(StartedError),
    ):
        kit.start_ranks(4)
    assert caught[0].filename == __file__
    elsewhere = types.SimpleNamespace(controller="runs")
    for n, cluster in ((2, None), (16, elsewhere)):
        with warnings.catch_warnings(), pytest.raises(StartedError):
            warnings.simplefilter("error")
            kit.start_ranks(n, cluster=cluster)


@pytest.mark.parametrize("cluster", ["slurm", ipyparallel.Cluster(n=1)])
def test_what_is_no_cluster_that_runs_is_refused(cluster):
    words = "no ipyparallel Cluster that runs", "start_cluster_sync"
    refused(lambda: kit.start_ranks(1, cluster=cluster), "cluster=", *words)


# What a call takes


COUNT = """
import os, sys
import kit, kit.ranks

seen = set()

def look(frame, event, argument):
    code = frame.f_code
    if event == "call" and os.path.dirname(kit.__file__) in code.co_filename:
        seen.add((code.co_filename, code.co_qualname))

with kit.start_ranks(1) as ranks:
    ranks.run(os.getpid)
    sys.setprofile(look)
    ranks.run(os.getpid)
    sys.setprofile(None)
print(*seen, sep="\\n")
"""


def test_a_call_goes_through_few_functions_of_the_kit():
    said = subprocess.check_output([sys.executable, "-c", COUNT], text=True)
    calls = [line for line in said.splitlines() if line.startswith("(")]
    functions = [line for line in calls if "comp>" not in line and "expr>" not in line]
    print(said)
    assert 5 < len(functions) <= MOST_FUNCTIONS


MOST_FUNCTIONS = 15


# Who can reach them, and when they end


def test_only_this_machine_can_reach_them(ranks):
    listening = [
        (connection.laddr.ip, process.cmdline())
        for process in tree()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [place for place in listening if place[0] != "127.0.0.1"] == []
    assert len(listening) > 10


SCRIPT = """
import os, sys
import kit

ranks = kit.start_ranks(1)
print(ranks.run(os.getpid)[0], ranks._engines._folder, flush=True)
sys.stdin.read()
"""


def test_they_end_with_a_script_that_does_not_close_them(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "script.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as script:
        pid, folder = script.stdout.readline().split()
        family = psutil.Process(script.pid).children(recursive=True)
        assert int(pid) in [member.pid for member in family] and os.path.isdir(folder)
        script.stdin.close()
        assert script.wait(20) == 0
    _, left = psutil.wait_procs(family, timeout=10)
    assert not left
    wait_until(lambda: not os.path.exists(folder))


def test_on_a_readers_cluster_they_leave_the_engines_alone(tmp_path):
    cluster = ipyparallel.Cluster(n=1, profile_dir=str(tmp_path), log_level=50)
    client = cluster.start_and_connect_sync()
    OLDER_CHILDREN.update(children())
    try:
        with kit.start_ranks(1, cluster=cluster) as ranks:
            (pid,) = ranks.run(os.getpid)
            assert ranks.run(whereabouts) == [(0, 1)]
        refused(lambda: ranks.run(whereabouts), "closed")
        assert client[0].apply_sync(os.getpid) == pid
        assert not client[0].apply_sync(dist.is_initialized)
    finally:
        client.close()
        cluster.stop_cluster_sync()


def test_a_second_start_closes_the_first_in_smoke_too(ranks, monkeypatch):
    monkeypatch.setenv("KIT_SMOKE", "1")
    folder = ranks._engines._folder
    ours = {fact["process"] for fact in ranks._engines.facts.values()}
    with kit.start_ranks(1) as others:
        OLDER_CHILDREN.update(children())
        assert others.run(whereabouts) == [(0, 1)]
        ours |= {*others.run(os.getpid)}
        message = refused(lambda: ranks.run(whereabouts), "closed", "kit.start_ranks")
        assert "start_ranks() was called again" in message
    assert not os.path.exists(folder)
    wait_until(lambda: not any(map(psutil.pid_exists, ours)))
    ranks.close()  # once more does no harm
