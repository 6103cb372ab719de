"""A run ends what it started, spares your processes, and explains a dead worker."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types
from multiprocessing import forkserver, resource_tracker
from unittest.mock import Mock

import pytest
from helpers import ONE_WORKER, forked, refused, wait_until
from torch.utils.data import DataLoader

import kit
from kit import system
from kit.errors import ExperimentError
from kit.measuring import failures
from kit.measuring.failures import find_hint

pytestmark = pytest.mark.usefixtures("quick")


@contextlib.contextmanager
def child():
    """Keep a child process that sleeps for as long as the block lasts."""
    process = forked(time.sleep, 60)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def start(code):
    """Start Python on some code; return when it says that it has begun."""
    command = [sys.executable, "-c", f"print(flush=True)\n{code}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def idle():
    while True:
        time.sleep(0.001)
        yield 1


@pytest.fixture
def impatient(grace):
    """Give processes less time to end: two seconds each would be most of this file."""
    grace(0.2)


STUBBORN = "import signal, subprocess, time\nsignal.signal(15, signal.SIG_IGN)\n"
STUBBORN += "subprocess.Popen(['sleep', '60'])\ntime.sleep(60)"
ENDS = {"stop": "stopped", "no lists": "finished", "another cell": "disturbed"}


@pytest.mark.parametrize("where", ["set-up", "step", "close"])
@pytest.mark.parametrize("how", [ExperimentError, KeyboardInterrupt, *ENDS])
def test_however_it_ends_no_process_is_left_and_who_lingered_is_named(
    how, where, impatient, progresses, monkeypatch
):
    """Where another cell ran meanwhile, they may be its own: they are only named."""
    listdir, pids = os.listdir, set()

    def list_nothing(path):
        return listdir("/proc/none" if str(path).startswith("/proc/") else path)

    acts = {
        ExperimentError: lambda: int("broken"),
        KeyboardInterrupt: lambda: signal.raise_signal(signal.SIGINT),
        "stop": lambda: progresses[-1].stop(),
        "another cell": lambda: setattr(progresses[-1], "disturbed", True),
        # As on a Mac, which has no /proc.
        "no lists": lambda: monkeypatch.setattr(os, "listdir", list_nothing),
    }

    def linger():
        parent = start(STUBBORN)
        wait_until(lambda: system.find_descendants(parent.pid))
        pids.update({parent.pid}, system.find_descendants(parent.pid))
        _ = where == "set-up" and acts[how]()
        yield 1
        yield 1
        _ = where == "step" and acts[how]()
        try:
            yield from idle()
        finally:
            _ = where == "close" and acts[how]()

    try:
        with contextlib.nullcontext() if how in ENDS else pytest.raises(how):
            trial = kit.measure(linger)
            is_late = (how, where) == ("stop", "close")
            assert trial.outcome == ("finished" if is_late else ENDS[how])
            assert all(f"({pid})" in repr(trial) for pid in pids)
        theirs = pids if how == "another cell" else set()
        # Killed ones take a moment.
        wait_until(lambda: system.find_alive(pids) == theirs)
        assert len(pids) == 2
    finally:
        system.end(pids)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_process_that_saves_something_has_time_to_end(tmp_path, grace, interrupted):
    """It begins to save when its experiment is closed."""
    grace(20.0)
    file, closed = tmp_path / "saved", tmp_path / "closed"
    code = f"import os, time\nwhile not os.path.exists({str(closed)!r}):"
    code += f" time.sleep(0.01)\ntime.sleep(0.3); open({str(file)!r}, 'w')"

    def checkpoints():
        start(code)
        try:
            yield 1
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            yield from idle()
        finally:
            closed.touch()

    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        assert kit.measure(checkpoints).notes == []
    assert file.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose")
def test_the_readers_own_processes_go_on_and_the_experiments_own_end_unnamed():
    """Theirs are one from before, and one of another thread: a cell beside a panel."""
    begun, over, theirs, own = threading.Event(), threading.Event(), set(), []

    def cell():
        begun.wait(30)
        with child() as process:
            theirs.add(process.pid)
            over.wait(30)

    def experiment():
        with child() as process:
            own.append(process.pid)
            yield 1
            begun.set()
            wait_until(lambda: len(theirs) == 2)
            yield from idle()

    other = threading.Thread(target=cell)
    other.start()
    with child() as before:
        theirs.add(before.pid)
        notes = kit.measure(experiment).notes
        alive = system.find_alive([*theirs, *own])
    over.set()
    other.join()
    assert (notes, alive, len(own)) == ([], theirs, 1)


def hang(waits_for):
    """Return an experiment whose step waits for a loader's worker, which sleeps."""

    def fetch(samples):
        time.sleep(60 if 3 in samples else 0)
        return samples

    def hangs(*, n=1):
        loader = iter(DataLoader(range(4), collate_fn=fetch, **ONE_WORKER))
        for _ in loader:
            yield n
            waits_for[:] = [each.pid for each in loader._workers]

    return hangs


def test_a_second_stop_ends_what_a_step_waits_for_and_the_first_does_not():
    [*DataLoader([1], num_workers=1)]  # now PyTorch raises here what befalls workers
    panel = kit.explore(hang(waits_for := []), n=[1, 2])
    running = threading.Thread(target=panel.run)
    running.start()
    wait_until(lambda: waits_for)
    panel.stop()
    panel.stop()
    time.sleep(0.5)
    assert system.find_alive(waits_for), "one Stop, or two at once, only ask"
    wait_until(lambda: panel.stop() or not system.find_alive(waits_for), 20)
    running.join(20)
    assert [trial.outcome for trial in panel.trials] == ["stopped"]


def test_an_interrupt_of_a_hanging_step_ends_it_and_its_workers_at_once():
    def interrupt():
        wait_until(lambda: waits_for)
        begun.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    waits_for, begun = [], []
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        kit.measure(hang(waits_for))
    assert time.monotonic() - begun[0] < 2 and not system.find_alive(waits_for)


def test_helpers_that_all_share_survive_and_a_fork_servers_workers_do_not(impatient):
    tracker, pids = resource_tracker._resource_tracker, []
    tracker._stop()  # else another test may have started it before

    def starts_them(*, variant=1):
        resource_tracker.ensure_running()
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=time.sleep, args=[60], daemon=True)
        process.start()
        pids.append(process.pid)
        yield from idle()

    comparison = kit.compare(starts_them, variant=[1, 2])
    assert len(pids) > 2 and not system.find_alive(pids)
    shared = {tracker._pid, forkserver._forkserver._forkserver_pid}
    assert system.find_alive(shared) == shared
    assert not any(f"({pid})" in repr(comparison.trials) for pid in shared)


def test_a_loader_of_the_readers_can_be_used_again():
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    for _ in range(2):
        kit.measure(lambda: (1 for _ in itertools.count() for _ in loader))
    assert [*map(int, loader)] == [0, 1, 2, 3]
    loader._iterator = None  # it ends its workers


DEATHS = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), ["pid", "memory"]),
    "leaves": (lambda: os._exit(3), ["pid", "num_workers=0"]),
    "raises": (lambda: int("a\nb"), ["ValueError", "worker process 0", "with base 10"]),
}


@pytest.mark.parametrize(("act", "words"), DEATHS.values(), ids=DEATHS)
def test_a_worker_that_dies_or_raises_says_what_to_do(act, words):
    def collate(samples):
        if 12 in samples:
            act()
        return samples

    def load():
        how = {"batch_size": 8, "collate_fn": collate, **ONE_WORKER}
        for batch in DataLoader(range(64), **how):
            yield len(batch)

    assert "Traceback (" not in refused(lambda: kit.measure(load), *words)


WORKER = "DataLoader worker (pid 7) is killed by signal: "
GONE = "DataLoader worker (pid 7) exited unexpectedly"
REMEDIES = [
    (f"{WORKER}Killed. ", "memory is full (8 GB"),
    (GONE, "memory was full"),
    (f"{WORKER}Bus error. ", "/dev/shm (64 MB"),
    ("unable to write to file </torch_7_12>: No space left on device", "--shm-size"),
    (f"{WORKER}Aborted. ", "Native code"),
    ("DataLoader timed out after 5 seconds", "num_workers=0"),
    ("[Errno 24] Too many open files", "file_system"),
    ("Cannot re-initialize CUDA in forked subprocess.", "CPU tensors"),
    ("[Errno 28] No space left on device: 'model.pt'", None),
    ("bus error", None),
]
# Paths and code in a worker's traceback may be any: only its end is the error.
TRACEBACK = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback:\n"
TRACEBACK += '  File "/torch_1/shm.py", line 7\n    raise Odd  # Too many open files'
REMEDIES += [(f"{TRACEBACK}\nRuntimeError: no photo\n", None)]


@pytest.mark.parametrize(("said", "word"), REMEDIES)
def test_a_known_failure_has_its_remedy_and_no_other_has(monkeypatch, said, word):
    facts = {"memory_bytes": 8e9, "shared_memory_bytes": 64e6, "start_method": "fork"}
    machine = dataclasses.replace(kit.this_machine(), **facts)
    monkeypatch.setattr(failures, "this_machine", lambda: machine)
    hint = find_hint(RuntimeError(said))
    assert (hint is None) == (word is None)
    assert hint is None or (word in hint and not re.search(r"[{\n]", hint))


def test_what_other_processes_cannot_see_goes_into_a_file(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda **_: "spawn")
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert "%%writefile" in find_hint(RuntimeError(GONE))
    of_a_cell = b"\x80\x04\x8c\x08__main__\x8c\x04Data\x93."  # what a worker is sent
    with pytest.raises(AttributeError) as caught:
        pickle.loads(of_a_cell)
    assert "%%writefile" in find_hint(caught.value)
    with pytest.raises(TypeError) as caught:
        pickle.dumps(idle())
    assert "a file's top level" in find_hint(caught.value)


def test_a_connection_that_broke_names_the_worker_that_died(monkeypatch):
    death = RuntimeError(f"{WORKER}Killed. ")  # of PyTorch's signal handler
    monkeypatch.setattr(failures.time, "sleep", Mock(side_effect=death))
    assert failures.name_dead_worker(EOFError()) is death
