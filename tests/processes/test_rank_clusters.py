"""Ranks on a reader's own cluster: what it lacks is told, and nothing is ended."""

import os
import time

import psutil
import pytest
import rank_faults as faults
import torch
import torch.distributed as dist
from helpers import OLDER_CHILDREN, children, refused
from ipyparallel import Cluster

import kit
from kit.ranks import RankError, engines, rank

#: Ranks take the first two of three engines; what others do on the third goes on.
ENGINES, TIMEOUT = 3, 2
#: Engines are there after some heartbeats.
SOON = ["--HeartMonitor.period=500"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster that a reader has started."""
    profile = tmp_path_factory.mktemp("profile")
    made = Cluster(n=ENGINES, profile_dir=str(profile), controller_args=SOON)
    made.start_cluster_sync()
    wait_for_engines(made)
    OLDER_CHILDREN.update(children())
    yield made
    made.stop_cluster_sync()


def wait_for_engines(cluster):
    with cluster.connect_client_sync() as client:
        client.wait_for_engines(ENGINES, timeout=60, interactive=False)


@pytest.fixture
def client(cluster):
    with cluster.connect_client_sync() as connected:
        yield connected


@pytest.fixture
def hasty(monkeypatch):
    """Wait for what does not come for a second only."""
    for name in ("CONNECT", "COME", "ANSWER"):
        monkeypatch.setattr(engines, f"_SECONDS_TO_{name}", 1.0)


@pytest.fixture(params=["kit", pytest.param("torch", marks=pytest.mark.nightly)])
def missing(request, client):
    """A module that engine 1 lacks; these tests come first, before it is loaded."""
    loaded = "" if request.param == "kit" else "import kit.ranks.rank"
    client[1].execute(loaded, block=True)
    client[1].execute(f"import sys; sys.modules[{request.param!r}] = None", block=True)
    yield request.param
    client[1].execute(f"del sys.modules[{request.param!r}]", block=True)


def test_an_engine_without_the_kit_or_pytorch_is_named(cluster, missing):
    words = "engine 1 cannot take part", "ModuleNotFoundError", missing, "They need"
    refused(lambda: kit.start_ranks(2, cluster=cluster), *words)


def test_ranks_of_a_cluster_fail_and_go_on_and_close_leaves_it_as_it_was(
    cluster, client
):
    pids = client[:].apply_sync(os.getpid)
    with kit.start_ranks(2, cluster=cluster, timeout=TIMEOUT) as ranks:
        assert ranks.run(os.getpid) == pids[:2]
        for fault in ("raise ValueError('no such file')", "time.sleep(600)"):
            with pytest.raises(RankError, match="can be used again"):
                ranks.run(faults.define(faults.ONE.format(fault)))
        assert ranks.run(dist.get_rank) == [0, 1]
        assert kit.measure(train, on=ranks, seconds=0.2).items_per_second > 0
    refused(lambda: ranks.run(dist.get_rank), "close() was called")
    assert client[:].apply_sync(os.getpid) == pids
    assert client[:2].apply_sync(dist.is_initialized) == [False, False]
    with kit.start_ranks(1, cluster=cluster) as one:
        assert one.run(torch.get_num_threads) == [kit.this_machine().cores]


def train():
    """Meet in each step."""
    while True:
        dist.barrier()
        yield 1


def test_too_few_engines_are_told_at_once(cluster):
    words = "4 wanted", "has 3", "start_engines_sync(1)", "start_ranks(3, cluster"
    refused(lambda: kit.start_ranks(4, cluster=cluster), *words)


@pytest.mark.parametrize("name", ["Python", "PyTorch", "the kit's code"])
def test_an_engine_with_other_versions_is_named(cluster, monkeypatch, name):
    here = {**rank.read_versions(), name: "9.9"}
    monkeypatch.setattr(rank, "read_versions", lambda: here)
    words = f"{name} is", "on engines 0, 1, and 9.9 here", "Install"
    refused(lambda: kit.start_ranks(2, cluster=cluster), *words)


def test_an_engine_that_does_other_work_is_named_and_goes_on_with_it(
    cluster, client, monkeypatch, tmp_path
):
    monkeypatch.setattr(engines, "_SECONDS_TO_ANSWER", 1.0)
    over = tmp_path / "over"
    wait = f"while not os.path.exists({str(over)!r}): time.sleep(0.01)"
    work = client[1].execute(f"import os, time\n{wait}")
    words = "engine 1 did not answer within 1 s", "other work", "restart"
    try:
        refused(lambda: kit.start_ranks(2, cluster=cluster), *words)
        assert not work.ready()
    finally:
        over.touch()
    work.get(timeout=20)


def test_a_cluster_without_engines_or_controller_is_told_soon(tmp_path, hasty):
    empty = Cluster(profile_dir=str(tmp_path), log_level=50)
    empty.start_controller_sync()
    empty.connect_client_sync().close()
    OLDER_CHILDREN.update(children())
    words = (
        "1 wanted",
        "has 0",
        "start_engines_sync(1)",
        "wait_for_engines",
    )
    refused(lambda: kit.start_ranks(1, cluster=empty), *words)
    empty.controller.process.kill()
    words = "cannot be reached", "TimeoutError", "controller_ip"
    refused(lambda: kit.start_ranks(1, cluster=empty), *words)
    empty.stop_cluster_sync()


def lose_an_engine(cluster, client, fault):
    """Let a call end or hang on an engine, while somebody works on another one."""
    first, lost, third = client.ids
    pid = client[first].apply_sync(os.getpid)
    work = client[third].apply_async(time.sleep, 5)
    ranks = kit.start_ranks(2, cluster=cluster, timeout=TIMEOUT)
    with pytest.raises(RankError) as caught:
        ranks.run(faults.define(faults.ONE.format(fault)))
    assert len(str(caught.value).splitlines()) <= 6
    assert f"engine {lost} of your cluster ended, or did not stop" in str(caught.value)
    assert "cluster.restart_engines_sync()" in str(caught.value)
    refused(lambda: ranks.run(os.getpid), f"engine {lost} of your", "restart_engines")
    assert work.get(timeout=20) is None
    assert client[first].apply_sync(os.getpid) == pid


@pytest.mark.nightly
def test_an_engine_that_died_is_the_readers_to_restart(cluster, client, hasty):
    lose_an_engine(cluster, client, "os.kill(os.getpid(), signal.SIGKILL)")
    words = f"{ENGINES} wanted", f"has {ENGINES - 1}"
    refused(lambda: kit.start_ranks(ENGINES, cluster=cluster), *words)
    cluster.restart_engines_sync()
    wait_for_engines(cluster)
    OLDER_CHILDREN.update(children())
    with kit.start_ranks(2, cluster=cluster) as ranks:
        assert ranks.run(dist.get_rank) == [0, 1]


def test_an_engine_that_hangs_is_the_readers_to_restart(cluster, client, hasty):
    """This comes last: nobody but the reader ends the engine."""
    pids = client[:].apply_sync(os.getpid)
    lose_an_engine(cluster, client, "sum(range(10**12))")
    refused(lambda: kit.start_ranks(2, cluster=cluster), "did not answer", "restart")
    assert all(map(psutil.pid_exists, pids))
